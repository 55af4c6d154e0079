"""Everything at once: all APIs, forms, tools, pins, clients that leave, limits, a dead engine."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from chaos_callers import TEMPLATE, Caller
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
ANSWERED = {"whole", "streamed", "a message", "a response", "managed", "left"}
REFUSED = {"400", "401", "429", "503"}
ENGINE = FakeCore(
    num_blocks=60,  # a tenth of what the callers would fill
    max_num_seqs=24,
    max_num_batched_tokens=48,
    vocab_size=VOCABULARY,
    by_priority=True,
    tenants=tuple(TENANTS),
    pin_limit=0.2,
    step_s=0.001,
)


async def cause_chaos(tokenizer, gguf: Path, requests: int) -> Counter[str]:
    """Send so many requests, kill the engine half-way, and see that nothing is left behind."""
    tokenizer = tokenizer.with_template(TEMPLATE)
    engine = msgspec.structs.replace(ENGINE, gguf=str(gguf))
    core = ProcessCore(engine.spec(), report=lambda text: None, backoff=Backoff(first_s=0.05))
    await core.start()
    gate = TenantGate(60)  # answers: some callers are turned away
    parts = Parts(
        core=core,
        model=ServedModel(
            names=("tiny",), root="tiny", tokenizer=tokenizer.with_template(TEMPLATE), created_s=1
        ),
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
            callers += [Caller(port, seed, tuple(TENANTS)) for seed in range(CALLERS)]
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
def test_every_request_is_answered_or_refused_and_every_block_comes_back(
    tiny_tokenizer, tiny_gguf, requests
):
    seen = asyncio.run(cause_chaos(tiny_tokenizer, tiny_gguf, requests))

    assert seen.total() == requests, f"{seen}"
    assert {"whole", "streamed", "a message", "a response", "managed", "left", *REFUSED} <= set(
        seen
    ), f"{seen}"
    assert seen["whole"] + seen["streamed"] > requests / 8, f"{seen}"
