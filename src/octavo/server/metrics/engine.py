"""What the engine counts, as a scrape finds it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol, runtime_checkable

from octavo.engine.messages import BlockTimes, CoreFacts, Snapshot
from octavo.errors import EngineGone
from octavo.server.core import CoreClient
from octavo.server.metrics.exposition import Page
from octavo.server.metrics.values import TenantLabels

WINDOW_S = 60.0
"""Rates are over so long, or since the scrape before."""
_NO_PREEMPTIONS = dict.fromkeys(("no_room", "displaced", "beams", "quarantine"), 0)
_PATIENCE_S = 1.0
"""An engine that is in a longer step is not waited for."""


@runtime_checkable
class CountsTenants(Protocol):
    """A gate that knows how many requests of each tenant are in."""

    def counts(self) -> Mapping[str, tuple[int, int]]:
        """Return by tenant how many are on, and how many wait."""
        ...


class EngineView:
    """The engine's last snapshot, and what follows from those before it."""

    def __init__(self, core: CoreClient, *, patience_s: float = _PATIENCE_S) -> None:
        self._core = core
        self._patience_s = patience_s
        self._tenants = TenantLabels()
        self._last: Snapshot | None = None
        self._hits: deque[tuple[float, int]] = deque()
        """(when, prompt tokens found in memory by then), a window of them and one before."""

    async def look(self) -> None:
        """Take a snapshot; where none comes in time the last one stands."""
        with suppress(EngineGone, TimeoutError):
            self._take(await asyncio.wait_for(self._core.snapshot(), self._patience_s))

    def _take(self, snapshot: Snapshot) -> None:
        self._last = snapshot
        hits = self._hits
        if hits and hits[-1][1] > snapshot.stats.prefix_hit_tokens:
            hits.clear()  # another engine, which counts from 0
        hits.append((snapshot.at_s, snapshot.stats.prefix_hit_tokens))
        while len(hits) > 2 and hits[1][0] <= snapshot.at_s - WINDOW_S:
            hits.popleft()

    @property
    def hits_per_s(self) -> float:
        """Prompt tokens a second that were found in memory, over the window."""
        (first_s, first), (last_s, last) = self._hits[0], self._hits[-1]
        return (last - first) / (last_s - first_s) if last_s > first_s else 0.0

    def write(self, page: Page, *, waiting: int, vllm_names: bool) -> None:
        """Tell all of it. waiting: requests that have not reached the engine."""
        page.gauge(
            "octavo_core_up", "1: the engine takes requests.", self._core.state.takes_requests
        )
        page.counter(
            "octavo_core_restarts", "Engines that have ended and were followed by another.",
            self._core.restarts,
        )  # fmt: skip
        if self._last is None:
            return
        snapshot, facts = self._last, self._core.facts
        page.gauge(
            "octavo_snapshot_age_seconds",
            "How old the engine's counts are.",
            max(0.0, time.monotonic() - snapshot.at_s),
        )
        _write_blocks(page, snapshot, facts)
        _write_cache(page, snapshot)
        page.gauge(
            "octavo_cached_prompt_tokens_per_second",
            "Prompt tokens a second that were in memory and need not be computed, over a minute.",
            self.hits_per_s,
        )
        _write_steps(page, snapshot)
        page.gauges(
            "octavo_tenant_blocks",
            "Blocks on a tenant's account, in use and cached.",
            ("tenant",),
            self._tenants.sums(snapshot.usage.tenant_blocks),
        )
        if vllm_names:
            _write_vllm(page, snapshot, facts, waiting)


def _write_blocks(page: Page, snapshot: Snapshot, facts: CoreFacts) -> None:
    usage, lost = snapshot.usage, snapshot.checks.quarantined
    # Regions are taken from one end of memory to the other: nobody keeps a list of free blocks.
    rest = snapshot.num_blocks - usage.blocks_used - usage.blocks_cached - lost
    free = usage.blocks_free if usage.group_blocks else rest
    page.gauges(
        "octavo_blocks",
        "Blocks of KV memory: free, cached, in_use and quarantined make up all of them; shared "
        "ones are in use, pinned ones are cached.",
        ("state",),
        [
            (("free",), free),
            (("cached",), usage.blocks_cached),
            (("in_use",), usage.blocks_used),
            (("quarantined",), lost),
            (("shared",), usage.blocks_shared),
            (("pinned",), usage.blocks_pinned),
        ],
    )
    page.gauge("octavo_blocks_total", "Blocks of KV memory.", snapshot.num_blocks)
    page.gauges(
        "octavo_block_size_tokens",
        "Tokens of a block: no beginning that is shorter is found as a whole block.",
        ("group",),
        [((str(group),), size) for group, size in enumerate(facts.block_sizes)],
    )
    page.gauge(
        "octavo_tokens_share",
        "Share of KV memory that holds a token in use.",
        usage.tokens / usage.slots if usage.slots else 0.0,
    )
    page.gauge(
        "octavo_waste_share",
        "Share of the memory in use that holds no token.",
        1 - usage.tokens / usage.allocated if usage.allocated else 0.0,
    )


def _write_cache(page: Page, snapshot: Snapshot) -> None:
    stats = snapshot.stats
    for name, help, value in (
        (
            "prefix_query_tokens",
            "Prompt tokens that were looked for in memory.",
            stats.prefix_query_tokens,
        ),
        ("prefix_hit_tokens", "Those of them that were found.", stats.prefix_hit_tokens),
        (
            "computed_prompt_tokens",
            "Prompt tokens that were computed.",
            stats.computed_prompt_tokens,
        ),
        (
            "recomputed_tokens",
            "Tokens computed again after a preemption.",
            stats.recomputed_tokens,
        ),
        ("copies", "Blocks copied because a text went on differently.", stats.copies),
        ("evictions", "Texts of blocks given up to make room.", snapshot.usage.evictions),
    ):
        page.counter(f"octavo_{name}", help, value)
    page.counters(
        "octavo_preemptions",
        "Preemptions: others needed the blocks, a more urgent request took the place, a search of "
        "beams stood still, counts were set right.",
        ("reason",),
        _labels(_NO_PREEMPTIONS | stats.preemptions_by_reason).items(),
    )
    for name, help, values in (
        ("misses", "Sequences of which not all was in memory, by reason.", stats.misses),
        ("missed_tokens", "Their tokens that were not.", stats.missed_tokens),
    ):
        page.counters(f"octavo_{name}", help, ("reason",), _labels(values).items())


def _labels(values: Mapping[str, int]) -> dict[tuple[str, ...], float]:
    return {(reason,): count for reason, count in values.items()}


def _write_steps(page: Page, snapshot: Snapshot) -> None:
    times, checks = snapshot.times, snapshot.checks
    page.histograms(
        "octavo_step_seconds",
        "Seconds of a step: planned, run, applied.",
        ("part",),
        [(("plan",), times.plan), (("run",), times.run), (("apply",), times.apply)],
    )
    page.histogram("octavo_step_tokens", "Tokens that a step computes.", times.tokens)
    page.counter("octavo_steps", "Steps.", snapshot.stats.steps)
    page.counter("octavo_failed_steps", "Steps that failed.", snapshot.stats.failed_steps)
    page.counter("octavo_checks", "Times that every count was recomputed.", checks.runs)
    page.counter(
        "octavo_corrupted_checks", "Times that one of them was found wrong.", checks.failures
    )


def _write_vllm(page: Page, snapshot: Snapshot, facts: CoreFacts, waiting: int) -> None:
    usage, stats = snapshot.usage, snapshot.stats
    share = usage.allocated / usage.slots if usage.slots else 0.0
    for name, help, value in (
        ("num_requests_running", "Sequences that run.", snapshot.running),
        ("num_requests_waiting", "Sequences and requests that wait.", snapshot.waiting + waiting),
        ("kv_cache_usage_perc", "Share of KV memory in use, from 0 to 1.", share),
        ("gpu_cache_usage_perc", "The old name of kv_cache_usage_perc.", share),
        ("engine_sleep_state", "1: paused.", snapshot.paused),
    ):
        page.gauge(f"vllm:{name}", help, value)
    page.gauges(
        "vllm:lora_requests_info",
        "Adapters: there are none.",
        ("max_lora", "waiting_lora_adapters", "running_lora_adapters"),
        [(("0", "", ""), 0.0)],
    )
    settings = {
        "block_size": facts.block_sizes[0],
        "num_gpu_blocks": facts.num_blocks,
        "cache_dtype": facts.kv_dtype,
        "enable_prefix_caching": True,
    }
    page.gauges(
        "vllm:cache_config_info",
        "Settings of the KV memory, as labels.",
        tuple(settings),
        [(tuple(map(str, settings.values())), 1.0)],
    )
    queries, hits = stats.prefix_query_tokens, stats.prefix_hit_tokens
    for name, help, value in (
        ("prefix_cache_queries", "Prompt tokens looked for in memory.", queries),
        ("prefix_cache_hits", "Those of them that were found.", hits),
        ("gpu_prefix_cache_queries", "The old name of prefix_cache_queries.", queries),
        ("gpu_prefix_cache_hits", "The old name of prefix_cache_hits.", hits),
        ("external_prefix_cache_queries", "Of slower tiers: there are none.", 0),
        ("external_prefix_cache_hits", "Of slower tiers: there are none.", 0),
        ("mm_cache_queries", "Of images and sounds: there are none.", 0),
        ("mm_cache_hits", "Of images and sounds: there are none.", 0),
        ("num_preemptions", "Preemptions.", stats.preemptions),
    ):
        page.counter(f"vllm:{name}", help, value)
    page.histogram("vllm:iteration_tokens_total", "Tokens of a step.", snapshot.times.tokens)
    if snapshot.blocks is not None:
        _write_residency(page, snapshot.blocks)


def _write_residency(page: Page, blocks: BlockTimes) -> None:
    for name, help, times in (
        (
            "lifetime",
            "From when a block was given out to its eviction.",
            blocks.lifetime,
        ),
        ("idle_before_evict", "From the last use of a block until then.", blocks.idle),
        ("reuse_gap", "From the end of a block's use to the next.", blocks.gap),
    ):
        page.histogram(f"vllm:kv_block_{name}_seconds", help, times)


class TenantQueues:
    """Requests by tenant, as the gate counts them."""

    def __init__(self, gate: CountsTenants) -> None:
        self._gate = gate
        self._tenants = TenantLabels()

    def write(self, page: Page) -> None:
        """Tell all of it."""
        counts = self._gate.counts().items()
        for name, help, place in (
            ("running", "Requests of a tenant that are at the engine.", 0),
            ("queued", "Requests of a tenant that wait for its limit.", 1),
        ):
            sums = self._tenants.sums((tenant, both[place]) for tenant, both in counts)
            page.gauges(f"octavo_tenant_{name}", help, ("tenant",), sums)
