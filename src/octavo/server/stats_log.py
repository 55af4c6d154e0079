"""A line in the log every now and then, while there is work: what an operator looks at first."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import msgspec

from octavo.engine.messages import Snapshot
from octavo.errors import EngineGone
from octavo.server.parts import Parts

LOG = logging.getLogger("octavo.stats")


async def log_stats(parts: Parts, every_s: float) -> None:
    """Write a line of what the engine has done since the last one, until cancelled."""
    before = await _counts(parts, every_s)
    while True:
        await asyncio.sleep(every_s)
        now = await _counts(parts, every_s)
        if now is not None and before is not None and now.stats.steps > before.stats.steps:
            LOG.info(_line(parts, before, now))
        before = now


async def _counts(parts: Parts, patience_s: float) -> Snapshot | None:
    """Return what the engine has counted; None: it does not say, and others tell of that."""
    if not parts.core.state.takes_requests:
        return None
    try:
        now = await asyncio.wait_for(parts.core.snapshot(), patience_s)
    except (EngineGone, TimeoutError):
        return None
    # A copy: an engine in this process goes on counting in its own.
    return msgspec.structs.replace(now, stats=replace(now.stats))


def _line(parts: Parts, before: Snapshot, now: Snapshot) -> str:
    seconds = max(now.at_s - before.at_s, 1e-9)
    asked = now.stats.prefix_query_tokens - before.stats.prefix_query_tokens
    hit = now.stats.prefix_hit_tokens - before.stats.prefix_hit_tokens
    computed = now.stats.computed_prompt_tokens - before.stats.computed_prompt_tokens
    steps = now.stats.steps - before.stats.steps
    preempted = now.stats.preemptions - before.stats.preemptions
    in_use = now.usage.blocks_used / now.num_blocks
    words = [
        f"{now.running} running, {now.waiting + parts.gate.waiting} waiting",
        f"{in_use:.0%} of the KV blocks in use",
        f"{computed / seconds:.0f} prompt tokens/s computed",
        f"{steps / seconds:.1f} steps/s",
    ]
    if asked:
        words.append(f"{hit / asked:.0%} of new prompts in memory")
    if preempted:
        words.append(f"{preempted} preempted")
    return ", ".join(words)
