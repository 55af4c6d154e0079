"""Settings of a server, its tenants, its doors: what is refused, what is kept apart."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from octavo.errors import ConfigError
from octavo.server.doors import Doors
from octavo.server.settings import RequestBounds, ServerSettings
from octavo.server.tenants import ANYBODY, SHARED, OpenKeyring, Tenant, TenantLimits


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_queued_requests", -1),
        ("stream_interval", 0),
        ("keep_alive_s", 0),
        ("keep_alive_s", float("nan")),
        ("drain_timeout_s", float("inf")),
        ("core_timeout_s", True),
        ("log_chars", -1),
    ],
)
def test_a_setting_that_no_server_could_use_is_refused_by_its_name(name, value):
    with pytest.raises(ConfigError, match=name):
        ServerSettings(**{name: value})


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "3"])
def test_a_bound_is_a_whole_number_that_lets_something_through(value):
    with pytest.raises(ConfigError, match="max_n must be"):
        RequestBounds(max_n=value)


@pytest.mark.parametrize(
    ("name", "value"), [("max_running", 0), ("max_queued", -1), ("tokens_per_minute", 0.5)]
)
def test_a_limit_of_a_tenant_lets_something_through(name, value):
    with pytest.raises(ConfigError, match=name):
        TenantLimits(**{name: value})


def test_no_two_tenants_and_salts_spell_the_same_namespace():
    names = ["a", "b", '","', "tenant", "namespace", "null"]
    tenants = [Tenant(name=name) for name in names]
    tenants += [Tenant(name="x", namespace=name) for name in [*names, SHARED]]
    salts = [
        tenant.salt(salt) for tenant, salt in itertools.product(tenants, [None, "null", '","', "a"])
    ]

    assert len(set(salts)) == len(salts)


def test_tenants_share_by_an_equal_namespace_alone():
    alone, other = Tenant(name="a"), Tenant(name="b")
    team = [Tenant(name=name, namespace="team") for name in "ab"]
    shared = [Tenant(name=name, namespace=SHARED) for name in "ab"]

    assert alone.salt() != other.salt()
    assert team[0].salt() == team[1].salt() != alone.salt()
    assert shared[0].salt() == shared[1].salt() == ""


def test_without_keys_everybody_is_one_tenant_and_nobody_an_administrator():
    keys = OpenKeyring()

    assert keys.tenant(None) is keys.tenant("anything") is ANYBODY
    assert keys.admin("anything") is None


def test_doors_that_close_wait_for_those_inside():
    async def run():
        doors = Doors()
        doors.come_in()
        doors.come_in()
        waiting = asyncio.create_task(doors.drain(5))
        await asyncio.sleep(0)
        assert doors.draining
        doors.go_out()
        doors.go_out()
        assert await waiting == 0

    asyncio.run(run())


def test_doors_wait_no_longer_than_they_were_told():
    async def run():
        doors = Doors()
        doors.come_in()
        assert await doors.drain(0.01) == 1
        doors.open()
        assert not doors.draining

    asyncio.run(run())


def test_doors_that_are_closed_for_good_stay_closed():
    async def run():
        doors = Doors()
        await doors.drain(0, for_good=True)
        doors.open()
        assert doors.draining
        await doors.drain(0)
        doors.open()
        assert doors.draining

    asyncio.run(run())
