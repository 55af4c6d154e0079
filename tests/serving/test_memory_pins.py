"""Pins as administrators see and end them: the page's tree does it by these routes."""

from __future__ import annotations

from octavo.contract.retention import TenantShare
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.tenants import Tenant
from octavo.testing.near_core import fake_loop
from octavo.testing.near_server import served

PATH = "/v1/cache/pins"
KEYS = KeyTable(
    [KeyHolder(Tenant(name=name), (f"{name}-key",)) for name in ("alice", "bob")], ["admin-key"]
)
ADMIN = {"Authorization": "Bearer admin-key"}


def several():
    return fake_loop(tenants=[TenantShare("alice"), TenantShare("bob")], pin_limit=0.5)


def test_an_administrator_tells_of_all_pins_and_ends_any():
    async def test(server):
        client = server.client
        for name in ("alice", "bob"):
            made = await client.post(
                PATH,
                json={"name": "rules", "prompt": list(range(1, 20))},
                headers={"Authorization": f"Bearer {name}-key"},
            )
            assert made.status_code == 200, made.text
            assert "tenant" not in made.json()
        listed = (await client.get(PATH, headers=ADMIN)).json()["data"]
        assert {one["tenant"] for one in listed} == {"alice", "bob"}

        ended = await client.delete(f"{PATH}/rules?tenant=bob", headers=ADMIN)

        assert ended.json()["deleted"]
        listed = (await client.get(PATH, headers=ADMIN)).json()["data"]
        assert [one["tenant"] for one in listed] == ["alice"]

    served(test, build=several, keys=KEYS)


def test_a_tenant_ends_no_pin_of_another_and_an_administrator_makes_none():
    async def test(server):
        client, bob = server.client, {"Authorization": "Bearer bob-key"}
        refused = [
            await client.delete(f"{PATH}/rules?tenant=alice", headers=bob),
            await client.delete(f"{PATH}/rules", headers=ADMIN),
            await client.delete(f"{PATH}/rules?tenant=bob", headers=ADMIN),
            await client.post(PATH, json={"name": "x", "prompt": [1] * 9}, headers=ADMIN),
        ]
        assert [reply.status_code for reply in refused] == [400, 400, 404, 403]

    served(test, build=several, keys=KEYS)


def test_a_text_is_pinned_by_the_tokens_that_its_last_block_tells():
    async def test(server):
        client, bob = server.client, {"Authorization": "Bearer bob-key"}
        prompt = list(range(1, 18))
        await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 1}, headers=bob)
        told = (await client.get("/v1/debug/memory/blocks/3?prefix=true", headers=bob)).json()
        assert told["prefix_tokens"] == prompt[:16]

        made = await client.post(
            PATH, json={"name": "seen", "prompt": told["prefix_tokens"]}, headers=bob
        )

        assert made.json()["blocks"] == 4
        after = (await client.get("/v1/debug/memory/blocks/3", headers=bob)).json()
        assert after["state"] == "pinned"

    served(test, build=several, keys=KEYS)
