"""Tenants run, wait and are refused by their own limits; the server has one of its own."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_served import worded

from octavo.contract.retention import TenantShare
from octavo.errors import OverLimit
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.limits import TenantGate
from octavo.server.tenants import Tenant, TenantLimits
from octavo.testing.near_core import fake_loop
from octavo.testing.near_server import served


def tenant(name="a", **limits):
    return Tenant(name=name, limits=TenantLimits(**limits))


class Clock:
    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def turn_has_come(place):
    """Say whether `turn` would return at once."""
    return place.on


def test_a_tenant_without_limits_runs_whatever_it_sends():
    gate = TenantGate(1000)
    places = [gate.enter(tenant(), 10**9) for _ in range(100)]

    assert all(turn_has_come(place) for place in places)
    assert gate.waiting == 0


def test_more_than_may_run_wait_until_one_has_left():
    async def run():
        gate = TenantGate(10)
        one = gate.enter(tenant(max_running=1), 1)
        two = gate.enter(tenant(max_running=1), 1)
        waiting = asyncio.create_task(two.turn())
        await one.turn()
        await asyncio.sleep(0)
        assert not waiting.done()
        assert gate.counts() == {"a": (1, 1)}
        one.leave()
        await asyncio.wait_for(waiting, 1)
        two.leave()
        assert gate.counts() == {"a": (0, 0)}

    asyncio.run(run())


def test_those_that_wait_go_on_by_priority_and_then_by_arrival():
    gate = TenantGate(10)
    first = gate.enter(tenant(max_running=1), 1)
    places = {
        name: gate.enter(tenant(max_running=1), 1, priority)
        for name, priority in [("late", 5), ("early", -1), ("mid", 0), ("mid too", 0)]
    }
    order = []
    leaver = first
    while places:
        leaver.leave()
        (name,) = [name for name, place in places.items() if turn_has_come(place)]
        order.append(name)
        leaver = places.pop(name)

    assert order == ["early", "mid", "mid too", "late"]


def test_more_than_may_wait_are_refused():
    gate = TenantGate(10, retry_after_s=3)
    for _ in range(3):
        gate.enter(tenant(max_running=1, max_queued=2), 1)

    with pytest.raises(OverLimit, match=r"1 answers running of 1 .* 2 waiting of 2") as refused:
        gate.enter(tenant(max_running=1, max_queued=2), 1)

    assert not refused.value.of_server
    assert refused.value.retry_after_s == 3
    gate.enter(tenant("other"), 1)


def test_a_full_server_refuses_everybody():
    gate = TenantGate(2)
    place = gate.enter(tenant("a"), 1)
    gate.enter(tenant("b"), 1)

    with pytest.raises(OverLimit, match="the server has 2 answers") as refused:
        gate.enter(tenant("c"), 1)

    assert refused.value.of_server
    place.leave()
    gate.enter(tenant("c"), 1)


def test_tokens_a_minute_are_those_of_prompts_and_answers():
    clock = Clock()
    gate = TenantGate(10, clock=clock)
    limited = tenant(tokens_per_minute=60)
    place = gate.enter(limited, 50)
    place.spend(30)  # an answer goes on, though it makes a debt

    with pytest.raises(OverLimit, match="60 tokens a minute") as refused:
        gate.enter(limited, 1)

    assert refused.value.retry_after_s == pytest.approx(21)
    clock.now_s += 21
    gate.enter(limited, 1)
    clock.now_s += 600
    gate.enter(limited, 60)
    with pytest.raises(OverLimit):
        gate.enter(limited, 1)


@pytest.mark.parametrize("of_server", [True, False], ids=["full server", "debt"])
def test_a_request_that_cannot_pass_is_refused_before_its_body_is_read(of_server):
    gate = TenantGate(1 if of_server else 10, retry_after_s=3)
    limited = tenant(tokens_per_minute=10)
    gate.enter(limited, 100)
    read = 0

    async def body():
        nonlocal read
        for _ in range(10):
            read += 1
            yield b" "

    async def test(server):
        for path in ("/v1/completions", "/v1/chat/completions"):
            headers = {"x-api-key": "a", "content-type": "application/json"}
            reply = await server.client.post(path, content=body(), headers=headers)
            assert reply.status_code == (503 if of_server else 429)
            assert "retry-after" in reply.headers
        assert read == 0

    served(test, keys=KeyTable([KeyHolder(limited, ("a",))]), gate=gate)


def test_a_full_queue_is_seen_before_a_body_is_read_and_again_before_its_texts_are(
    tiny_tokenizer, monkeypatch
):
    gate = TenantGate(10)
    limited = tenant(max_running=2, max_queued=0)
    read = 0

    async def body():
        nonlocal read
        read += 1
        yield b'{"prompt": "hello", "n": 2, "max_tokens": 1}'

    def encode(*args, **options):
        raise AssertionError("it was tokenized for nothing")

    async def test(server):
        async def send():
            headers = {"x-api-key": "a", "content-type": "application/json"}
            reply = await server.client.post("/v1/completions", content=body(), headers=headers)
            assert reply.status_code == 429
            assert "max_queued" in reply.json()["error"]["message"]

        gate.enter(limited, 1)
        second = gate.enter(limited, 1)
        await send()
        assert read == 0
        second.leave()
        await send()  # one answer would run at once: that it asks for two stands in its body
        assert read == 1

    monkeypatch.setattr(tiny_tokenizer, "encode", encode)
    monkeypatch.setattr(tiny_tokenizer, "encode_beside", encode)
    served(test, keys=KeyTable([KeyHolder(limited, ("a",))]), gate=gate, **worded(tiny_tokenizer))


def test_a_tenant_s_debt_does_not_keep_others_out():
    gate = TenantGate(10, clock=Clock())
    gate.look(tenant(tokens_per_minute=10))
    gate.enter(tenant(tokens_per_minute=10), 100)

    gate.look(tenant("b", tokens_per_minute=10))
    with pytest.raises(OverLimit, match="10 tokens a minute"):
        gate.look(tenant(tokens_per_minute=10))


def test_a_refused_request_counts_for_nothing():
    gate = TenantGate(10, clock=Clock())
    limited = tenant(max_running=1, max_queued=0, tokens_per_minute=100)
    place = gate.enter(limited, 1)
    for _ in range(5):
        with pytest.raises(OverLimit):
            gate.enter(limited, 1000)
    place.leave()

    assert turn_has_come(gate.enter(limited, 1))


def test_who_leaves_twice_or_while_waiting_gives_back_once():
    gate = TenantGate(10)
    one = gate.enter(tenant(max_running=1), 1)
    two = gate.enter(tenant(max_running=1), 1)
    three = gate.enter(tenant(max_running=1), 1)
    two.leave()
    two.leave()
    assert gate.counts() == {"a": (1, 1)}
    one.leave()
    one.leave()

    assert turn_has_come(three)
    assert gate.counts() == {"a": (1, 0)}


def test_a_request_counts_as_often_as_it_asks_for_answers():
    gate = TenantGate(100)
    limited = tenant(max_running=4, max_queued=3)
    three = gate.enter(limited, 1, answers=3)
    two = gate.enter(limited, 1, answers=2)
    one = gate.enter(limited, 1)

    assert [place.on for place in (three, two, one)] == [True, False, False]
    assert gate.counts() == {"a": (3, 3)}
    with pytest.raises(OverLimit, match="3 waiting of 3"):
        gate.enter(limited, 1)
    two.leave()
    assert one.on, "what stood before it has left"


def test_a_request_for_more_than_may_run_runs_alone():
    gate = TenantGate(10)
    limited = tenant(max_running=2)
    small = gate.enter(limited, 1)
    large = gate.enter(limited, 1, answers=5)
    late = gate.enter(limited, 1)

    assert not late.on, "nobody goes past it"
    small.leave()
    assert large.on
    assert not late.on
    large.leave()
    assert late.on


def test_a_request_for_more_than_the_server_takes_is_taken_alone():
    gate = TenantGate(4)
    place = gate.enter(tenant(), 1, answers=9)

    with pytest.raises(OverLimit) as refused:
        gate.enter(tenant("b"), 1)
    assert refused.value.of_server
    place.leave()
    gate.enter(tenant("b"), 1)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 2), st.integers(-2, 2), st.integers(1, 3)),
        max_size=200,
    ),
    st.integers(1, 3),
    st.integers(0, 4),
)
def test_whatever_comes_and_goes_the_counts_are_those_of_the_places(moves, most, queued):
    gate = TenantGate(12)
    tenants = [tenant(name, max_running=most, max_queued=queued) for name in "abc"]
    places = []
    for what, whose, priority, answers in moves:
        if what < 6:
            try:
                place = gate.enter(tenants[whose], 1, priority, answers=answers)
            except OverLimit:
                inside = sum(place.answers for place, _ in places)
                mine = sum(place.answers for place, t in places if t == whose)
                refused = mine + answers > queued or inside + answers > 12
                assert refused, "there was room"
            else:
                places.append((place, whose))
        elif places:
            places.pop((what * 7 + whose) % len(places))[0].leave()
        for index, one in enumerate(tenants):
            mine = [place for place, t in places if t == index]
            on = [place for place in mine if place.on]
            waiting = sorted(place.order for place in mine if not place.on)
            running = sum(place.answers for place in on)
            assert running <= most or len(on) == 1
            assert on or not waiting, "nobody runs, and somebody waits"
            if waiting:
                first = next(place for place in mine if place.order == waiting[0])
                assert running + first.answers > most, "there was room for the first"
            counts = gate.counts().get(one.name, (0, 0))
            assert counts == (running, sum(place.answers for place in mine) - running)
        assert gate.waiting == sum(waiting for _, waiting in gate.counts().values())


def test_a_queue_that_is_left_again_and_again_does_not_grow():
    gate = TenantGate(10)
    limited = tenant(max_running=1)
    gate.enter(limited, 1)
    for _ in range(10_000):
        gate.enter(limited, 1).leave()

    line = next(iter(gate._lines.values()))
    assert len(list(itertools.islice(line.queue, 1000))) < 100


def test_over_a_limit_is_429_and_a_full_server_503_each_with_a_time_to_come_back():
    keys = KeyTable(
        [
            KeyHolder(tenant("a", max_running=1, max_queued=1), ("a",)),
            KeyHolder(tenant("b", tokens_per_minute=10), ("b",)),
            KeyHolder(tenant("c"), ("c",)),
        ]
    )

    async def test(server):
        def ask(key, tokens=5, most=4):
            return server.client.post(
                "/v1/completions",
                json={"prompt": [1] * tokens, "max_tokens": most, "ignore_eos": True},
                headers={"X-Api-Key": key},
            )

        running = [asyncio.create_task(ask("a", most=300)) for _ in range(2)]
        while server.parts.gate.counts().get("a") != (1, 1):
            await asyncio.sleep(0.001)
        refused = await ask("a")
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert refused.headers["retry-after"] == "1"

        assert (await ask("b", tokens=12)).status_code == 200
        refused = await ask("b")
        assert refused.status_code == 429
        # 12 + 4 of 10 tokens: 7 are missing, and come within 42 seconds.
        assert 35 <= int(refused.headers["retry-after"]) <= 42

        waiting = asyncio.create_task(ask("c", most=300))
        while "c" not in server.parts.gate.counts():
            await asyncio.sleep(0.001)
        refused = await ask("c")
        assert refused.status_code == 503
        assert refused.json()["error"]["type"] == "overloaded_error"
        assert "retry-after" in refused.headers
        for task in (*running, waiting):
            task.cancel()
        await asyncio.gather(*running, waiting, return_exceptions=True)

    served(
        test,
        build=lambda: fake_loop(tenants=[TenantShare(name) for name in "abc"]),
        step_s=0.01,
        keys=keys,
        gate=TenantGate(3),
    )
