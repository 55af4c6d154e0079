"""Pins over HTTP: a text stays in memory, within its tenant's limit, until it is let go."""

from __future__ import annotations

import pytest
from tiny_served import HELLO, VOCABULARY

from octavo.contract.retention import TenantShare
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.tenants import Tenant
from octavo.testing.near_core import fake_loop
from octavo.testing.near_server import served

PATH = "/v1/cache/pins"
TEXT = "hello the " * 8


@pytest.fixture
def options(tiny_tokenizer):
    """A server of twenty blocks, half of which may be pinned."""
    return {"build": lambda: _loop(20, pin_limit=0.5), "tokenizer": tiny_tokenizer}


def test_a_pinned_prompt_is_found_whatever_comes_in_between(options):
    async def test(server):
        pin = await server.post(PATH, name="rules", prompt=TEXT, ttl_s=600)
        assert pin.status_code == 200, pin.text
        made = pin.json()
        assert made["blocks"] == made["tokens"] // 4 > 2
        assert 590 < made["expires_in_s"] <= 600
        for number in range(8):  # more than there is room for
            await server.post("/v1/completions", prompt=f"{number}in an" * 6, max_tokens=1)
        reply = await server.post("/v1/completions", prompt=TEXT + "hello", max_tokens=1)
        cached = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached == made["blocks"] * 4

    served(test, **options)


def test_pins_are_listed_and_let_go(options):
    async def test(server):
        made = (await server.post(PATH, name="a/b", prompt=TEXT)).json()
        assert [one["name"] for one in (await server.get(PATH)).json()["data"]] == ["a/b"]
        ended = await server.client.delete(f"{PATH}/a/b")
        assert ended.json() == {
            "object": "cache.pin",
            "name": "a/b",
            "deleted": True,
            "blocks": made["blocks"],
        }
        assert (await server.get(PATH)).json()["data"] == []
        again = await server.client.delete(f"{PATH}/a/b")
        assert again.status_code == 404

    served(test, **options)


def test_a_conversation_is_pinned_up_to_where_an_answer_would_begin(options):
    async def test(server):
        system = [{"role": "system", "content": "hello the the"}]
        made = (await server.post(PATH, name="system", messages=system)).json()
        reply = await server.post(
            "/v1/chat/completions", messages=[*system, *HELLO], max_tokens=1, include_cache=True
        )
        cache = reply.json()["usage"]["cache"]
        assert cache["matched"] >= made["blocks"] * 4 > 0

    served(test, **options)


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        ({"name": "a"}, 400, "either prompt or messages"),
        ({"name": "", "prompt": TEXT}, 400, "name"),
        ({"name": "a", "prompt": TEXT, "ttl_s": 0}, 400, "ttl_s"),
        ({"name": "a", "prompt": TEXT, "priority": 101}, 400, "priority"),
        ({"name": "a", "prompt": [VOCABULARY]}, 400, "vocabulary"),
    ],
)
def test_what_cannot_be_pinned_says_why(options, body, status, told):
    async def test(server):
        reply = await server.post(PATH, **body)
        assert reply.status_code == status, reply.text
        assert told in reply.json()["error"]["message"]
        assert (await server.get(PATH)).json()["data"] == []

    served(test, **options)


def test_a_text_that_fills_no_block_is_refused_and_one_that_fills_one_is_pinned(options):
    async def test(server):
        size = 4
        for tokens in (1, size - 1):
            reply = await server.post(PATH, name="a", prompt=[5] * tokens)
            assert reply.status_code == 400, reply.text
            assert f"a pin holds whole blocks of {size}" in reply.json()["error"]["message"]
        assert (await server.post(PATH, name="a", prompt=[5] * size)).json()["blocks"] == 1

    served(test, **options)


def test_beyond_its_limit_a_tenant_is_told_to_let_go_of_another(options):
    async def test(server):
        assert (await server.post(PATH, name="a", prompt=TEXT)).status_code == 200
        reply = await server.post(PATH, name="b", prompt="in an " + TEXT)
        assert reply.status_code == 400
        assert "DELETE /v1/cache/pins/NAME" in reply.json()["error"]["message"]
        assert [one["name"] for one in (await server.get(PATH)).json()["data"]] == ["a"]

    served(test, **options)


def test_without_a_limit_nothing_is_pinned_and_the_way_out_is_a_flag(tiny_tokenizer):
    async def test(server):
        for path, body in (
            (PATH, {"name": "a", "prompt": TEXT}),
            ("/v1/completions", {"prompt": TEXT, "cache_hint": {"pin": "a"}}),
        ):
            reply = await server.post(path, **body)
            assert reply.status_code == 400
            assert "--pin-limit" in reply.json()["error"]["message"]

    served(test, build=lambda: _loop(20), tokenizer=tiny_tokenizer)


def test_pins_of_others_are_neither_seen_nor_let_go(tiny_tokenizer):
    async def test(server):
        def of(name):
            return {"Authorization": f"Bearer {name}-key"}

        ask = server.client.request
        body = {"name": "a", "prompt": TEXT}
        assert (await ask("POST", PATH, json=body, headers=of("ann"))).status_code == 200
        assert (await ask("GET", PATH, headers=of("bob"))).json()["data"] == []
        assert (await ask("DELETE", f"{PATH}/a", headers=of("bob"))).status_code == 404
        assert len((await ask("GET", PATH, headers=of("ann"))).json()["data"]) == 1
        assert (await ask("GET", PATH)).status_code == 401

    names = ("ann", "bob")
    shares = [TenantShare(name=name) for name in names]
    served(
        test,
        build=lambda: _loop(60, pin_limit=0.5, tenants=shares),
        tokenizer=tiny_tokenizer,
        keys=KeyTable(KeyHolder(Tenant(name=name), (f"{name}-key",)) for name in names),
    )


def test_a_hint_pins_the_prompt_of_its_request(options):
    async def test(server):
        hint = {"pin": "mine", "priority": 80, "continues": True}
        reply = await server.post("/v1/completions", prompt=TEXT, max_tokens=1, cache_hint=hint)
        assert reply.status_code == 200, reply.text
        (pin,) = (await server.get(PATH)).json()["data"]
        assert pin["name"] == "mine"
        both = {"continues": True, "closed": True}
        for path, body in (
            ("/v1/completions", {"prompt": TEXT}),
            ("/v1/chat/completions", {"messages": HELLO}),
            ("/v1/responses", {"input": TEXT}),
            ("/v1/messages", {"messages": HELLO, "max_tokens": 1}),
        ):
            reply = await server.post(path, **body, cache_hint=both)
            assert reply.status_code == 400
            assert "say one of them" in reply.json()["error"]["message"]

    served(test, **options)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/messages"])
def test_usage_tells_what_was_in_memory_and_why_the_rest_was_not(tiny_tokenizer, path):
    bodies = {
        "/v1/completions": {"prompt": TEXT, "max_tokens": 1},
        "/v1/responses": {"input": TEXT, "max_output_tokens": 1},
        "/v1/messages": {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 1},
    }

    async def test(server):
        first, second = [
            (await server.post(path, **bodies[path], include_cache=True)).json()["usage"]["cache"]
            for _ in range(2)
        ]
        (miss,) = first["misses"]
        assert miss["reason"] == "first_seen"
        assert (miss["prompt"], miss["position"]) == (0, first["matched"])
        assert second["matched"] + second["computed"] == first["matched"] + first["computed"]
        assert second["matched"] > first["matched"]
        plain = (await server.post(path, **bodies[path])).json()
        assert "cache" not in plain["usage"]

    served(test, build=lambda: _loop(200), tokenizer=tiny_tokenizer)


def _loop(num_blocks, **options):
    return fake_loop(num_blocks, vocab_size=VOCABULARY, **options)
