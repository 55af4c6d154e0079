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
    before: Snapshot | None = None
    while True:
        await asyncio.sleep(every_s)
        if not parts.core.state.takes_requests:
            before = None
            continue
        try:
            now = await asyncio.wait_for(parts.core.snapshot(), every_s)
        except (EngineGone, TimeoutError):
            continue  # others tell of it
        if before is not None and now.stats.steps > before.stats.steps:
            LOG.info(_line(parts, before, now))
        # A copy: an engine in this process goes on counting in its own.
        before = msgspec.structs.replace(now, stats=replace(now.stats))


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
