"""Everything at once: clients that leave, limits, a tiny pool, a dead engine; all are answered."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from random import Random

import pytest
from sockets import listening
from tiny_served import VOCABULARY

from octavo.server.app import build_app
from octavo.server.core import CoreState
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.limits import TenantGate
from octavo.server.parts import Parts, ServedModel
from octavo.server.remote.backoff import Backoff
from octavo.server.remote.client import ProcessCore
from octavo.server.tenants import Tenant, TenantLimits
from octavo.testing.served import FakeCore

TENANTS = {
    "alice": Tenant(name="alice"),
    "bob": Tenant(name="bob", limits=TenantLimits(max_running=4, max_queued=6)),
    "carol": Tenant(name="carol", limits=TenantLimits(tokens_per_minute=20_000)),
}
CALLERS = 40
WORDS = ("hello", " the", " an", "ing", "re", " a", "ll")
ENGINE = FakeCore(
    num_blocks=60,  # a tenth of what the callers would fill
    max_num_seqs=24,
    max_num_batched_tokens=48,
    vocab_size=VOCABULARY,
    by_priority=True,
    tenants=tuple(TENANTS),
    step_s=0.001,
)


class Caller:
    """Sends requests over sockets and notes what comes of them."""

    def __init__(self, port: int, seed: int) -> None:
        self.port = port
        self.random = Random(seed)
        self.seen: Counter[str] = Counter()

    async def call(self) -> None:
        """Send one request, and see it answered, refused with a reason, or left."""
        draw = self.random
        path, body = self._body()
        key = draw.choice((*TENANTS, *TENANTS, *TENANTS, *TENANTS, "nobody"))
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            data = json.dumps(body).encode()
            writer.write(
                f"POST {path} HTTP/1.1\r\nHost: chaos\r\nAuthorization: Bearer {key}-key\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
                "Connection: close\r\n\r\n".encode()
                + data
            )
            if draw.random() < 0.2:
                await self._leave(reader, chunks=draw.choice((0, 0, 1, 3)))
                self.seen["left"] += 1
                return
            answer = await reader.read()
        finally:
            writer.transport.abort()
        head, _, rest = answer.partition(b"\r\n\r\n")
        status = int(head.split()[1])
        if b"chunked" in head.lower():
            rest = _unchunked(rest)
        self.seen[self._judge(status, rest.decode(), body)] += 1

    async def _leave(self, reader: asyncio.StreamReader, *, chunks: int) -> None:
        for _ in range(chunks):
            await reader.read(256)
        await asyncio.sleep(self.random.random() * 0.02)

    def _body(self) -> tuple[str, dict[str, object]]:
        draw = self.random
        text = "".join(draw.choice(WORDS) for _ in range(draw.choice((1, 5, 20, 60))))
        body: dict[str, object] = {
            "max_tokens": draw.choice((1, 5, 20, 40)),
            "n": draw.choice((1, 1, 1, 2, 3)),
            "stream": draw.random() < 0.6,
            "priority": draw.randint(-2, 2),
            "seed": draw.randint(0, 9),
            "ignore_eos": draw.random() < 0.5,
        }
        if draw.random() < 0.4:
            body["stop"] = draw.sample((*"aeiou", "he", "zz"), 2)
        if draw.random() < 0.05:
            body["max_tokens"] = draw.choice((-1, "many", 2**70))
        if draw.random() < 0.05:
            text *= 100
        if draw.random() < 0.3:
            return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": text}]}
        return "/v1/completions", body | {"prompt": text}

    def _judge(self, status: int, text: str, body: dict[str, object]) -> str:
        """Assert that an answer is whole, or says why it is not; returns what it is."""
        if status != 200:
            assert status in (400, 401, 429, 503), f"{status}: {text}"
            assert json.loads(text)["error"]["message"], text
            return str(status)
        if not body["stream"]:
            _assert_ended(json.loads(text)["choices"], body)
            return "whole"
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]", text[-200:]
        pieces = [json.loads(event) for event in events]
        errors = [piece["error"] for piece in pieces if "error" in piece]
        if errors:
            assert [error["code"] for error in errors] == ["engine_gone"], errors
            return "cut off"
        _assert_ended([one for piece in pieces for one in piece["choices"]], body)
        return "streamed"


def _assert_ended(choices: list[dict], body: dict[str, object]) -> None:
    """Assert that each choice has ended once."""
    ends = Counter(one["index"] for one in choices if one["finish_reason"] is not None)
    assert ends == Counter(range(body["n"])), f"{ends} of {body}"


def _unchunked(data: bytes) -> bytes:
    parts = []
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        parts.append(data[:length])
        data = data[length + 2 :]
        if not length:
            return b"".join(parts)
    raise AssertionError("the last chunk is missing")


async def cause_chaos(tokenizer, requests: int) -> Counter[str]:
    """Send so many requests, kill the engine half-way, and see that nothing is left behind."""
    core = ProcessCore(ENGINE.spec(), report=lambda text: None, backoff=Backoff(first_s=0.05))
    await core.start()
    gate = TenantGate(60)  # answers: some callers are turned away
    parts = Parts(
        core=core,
        model=ServedModel(names=("tiny",), root="tiny", tokenizer=tokenizer, created_s=1),
        keys=KeyTable(KeyHolder(one, (f"{name}-key",)) for name, one in TENANTS.items()),
        gate=gate,
    )
    left = iter(range(requests))
    callers: list[Caller] = []

    async def keep_calling(caller: Caller) -> None:
        for number in left:
            if number == requests // 2:
                os.kill(core.pid, signal.SIGKILL)
            await asyncio.wait_for(caller.call(), 60)
            while core.state is not CoreState.READY:  # one that knows it is no use trying
                await asyncio.sleep(0.02)

    try:
        async with listening(build_app(parts)) as port:
            callers += [Caller(port, seed) for seed in range(CALLERS)]
            await asyncio.gather(*map(keep_calling, callers))
            async with asyncio.timeout(20):
                while core.state is not CoreState.READY or parts.doors.inside:
                    await asyncio.sleep(0.01)
                snapshot = await core.snapshot()
                while snapshot.running or snapshot.waiting:
                    snapshot = await core.snapshot()
            usage = snapshot.usage
            assert usage.blocks_used == usage.tokens == 0
            assert usage.blocks_free + usage.blocks_cached == snapshot.num_blocks
            assert (await core.check()).error == ""
            assert core.restarts == 1
            assert gate.waiting == 0
            assert all(counts == (0, 0) for counts in gate.counts().values())
            assert snapshot.stats.preemptions > 0, f"the pool was never too small: {snapshot}"
    finally:
        await core.stop()
    return sum((caller.seen for caller in callers), Counter())


@pytest.mark.parametrize("requests", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_request_is_answered_or_refused_and_every_block_comes_back(tiny_tokenizer, requests):
    seen = asyncio.run(cause_chaos(tiny_tokenizer, requests))

    assert seen.total() == requests, f"{seen}"
    assert {"whole", "streamed", "left", "400", "401", "429", "503"} <= set(seen), f"{seen}"
    assert seen["whole"] + seen["streamed"] > requests / 8, f"{seen}"
