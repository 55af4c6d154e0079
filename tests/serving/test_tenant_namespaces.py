"""Tenants find their own texts in memory, and those of others only where all agreed to share."""

from __future__ import annotations

import pytest

from octavo.contract.retention import TenantShare
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.settings import ServerSettings
from octavo.server.tenants import SHARED, Tenant
from octavo.testing.near_core import fake_loop
from octavo.testing.near_server import served

PROMPT = list(range(1, 41))


def with_tenants(test, *, settings=None, **namespaces):
    """Serve tenants in these namespaces; the key of each is its name."""
    keys = KeyTable(
        [
            KeyHolder(Tenant(name=name, namespace=namespace), (name,))
            for name, namespace in namespaces.items()
        ]
    )
    shares = [TenantShare(name) for name in namespaces]
    served(
        test,
        build=lambda: fake_loop(tenants=shares),
        keys=keys,
        settings=settings or ServerSettings(),
    )


async def cached(server, key, **body):
    """Return how many tokens of the prompt a tenant is told were in memory."""
    reply = await server.client.post(
        "/v1/completions",
        json={"prompt": PROMPT, "max_tokens": 2, **body},
        headers={"Authorization": f"Bearer {key}"},
    )
    assert reply.status_code == 200, reply.text
    return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_a_tenant_finds_its_own_texts_and_nobody_else_s():
    async def test(server):
        assert await cached(server, "alice") == 0
        assert await cached(server, "alice") > 30
        assert await cached(server, "bob") == 0
        assert await cached(server, "bob") > 30

    with_tenants(test, alice=None, bob=None)


@pytest.mark.parametrize("namespace", [SHARED, "team"])
def test_tenants_of_one_namespace_find_each_other_s_texts(namespace):
    async def test(server):
        assert await cached(server, "alice") == 0
        assert await cached(server, "bob") > 30

    with_tenants(test, alice=namespace, bob=namespace)


def test_a_namespace_is_closed_to_all_that_are_not_in_it():
    async def test(server):
        assert await cached(server, "alice") == 0
        assert await cached(server, "carol") == 0
        assert await cached(server, "dave") == 0
        assert await cached(server, "bob") > 30

    with_tenants(test, alice="team", bob="team", carol=None, dave=SHARED)


def test_a_name_like_a_namespace_opens_nothing():
    async def test(server):
        assert await cached(server, "alice") == 0
        assert await cached(server, "team") == 0

    with_tenants(test, alice="team", team=None)


def test_a_salt_keeps_requests_apart_in_any_namespace():
    async def test(server):
        for key in ("alice", "bob"):
            await cached(server, key, cache_salt="s")
            assert await cached(server, key, cache_salt="s") > 30
            assert await cached(server, key, cache_salt="other") == 0
            assert await cached(server, key) == 0

    with_tenants(test, alice=None, bob=SHARED)


def test_a_salt_is_not_another_tenant_s_salt():
    async def test(server):
        await cached(server, "alice", cache_salt="s")
        assert await cached(server, "bob", cache_salt="s") == 0
        spelled = Tenant(name="alice").salt("s")
        assert await cached(server, "carol", cache_salt=spelled) == 0

    with_tenants(test, alice=None, bob=None, carol=SHARED)


def test_without_prefix_caching_nothing_is_found_at_all():
    async def test(server):
        assert await cached(server, "alice") == 0
        assert await cached(server, "alice") == 0

    with_tenants(test, settings=ServerSettings(prefix_caching=False), alice=None)


def test_what_an_answer_tells_of_its_time_has_nothing_of_others_in_it():
    """The steps of a prompt are counted: a hit computes fewer, and only one's own is a hit."""

    async def test(server):
        steps = []
        for key in ("alice", "bob", "bob"):
            before = (await server.core.snapshot()).stats.computed_prompt_tokens
            await cached(server, key)
            steps.append((await server.core.snapshot()).stats.computed_prompt_tokens - before)
        first, stranger, own = steps
        assert stranger == first
        assert own < first

    with_tenants(test, alice=None, bob=None)
