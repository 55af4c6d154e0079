"""What a replay reports for one policy at one capacity."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypedDict

import msgspec

from octavo.replay.engine import EngineTally
from octavo.replay.tally import Tally

OPTIMUM = "optimum"
ENDLESS = "endless"


class HitRow(msgspec.Struct, frozen=True, kw_only=True):
    """What was found; rates are shares of 1."""

    policy: str
    """Of the bounds: optimum, endless."""
    capacity_share: float
    """Of the working set."""
    capacity_blocks: int
    requests: int
    references: int
    hits: int
    hit_rate: float
    full_references: int
    full_hits: int
    full_hit_rate: float
    prompt_tokens: int
    hit_tokens: int
    token_hit_rate: float
    evictions: int | None
    """None: a bound."""


class ReplayRow(HitRow, frozen=True, kw_only=True):
    """Index mode."""

    gap_closed: float | None = None
    """(this - LRU) / (optimum - LRU), in block references; None where there is no gap."""
    gain_interval: tuple[float, float] | None = None
    """Limits of this - LRU, in hit rate, for 95 % of the draws of a bootstrap."""
    gap_closed_interval: tuple[float, float] | None = None


class Spread(msgspec.Struct, frozen=True):
    """Percentiles: of so many hundredths, none is larger."""

    p50: float
    p90: float
    p99: float


class EngineRow(HitRow, frozen=True, kw_only=True):
    """Engine mode. Times are the cost model's; None where no request counts."""

    refused: int
    """Requests longer than the memory, or without a prompt, which are in no other figure."""
    first_token_s: Spread | None
    """From arrival."""
    queueing_s: Spread | None
    """From arrival to the first step."""
    answer_s: Spread | None
    """From arrival to the last token."""
    preemptions: int
    preemptions_each: Spread | None
    """Of a request."""
    reused_bytes: int | None
    """KV of the tokens that hit; None: the cost does not know the bytes of a token."""
    output_tokens: int
    seconds: float
    """From the first arrival to the last token, of all requests."""
    steps: int


class _Counts(TypedDict):
    requests: int
    references: int
    hits: int
    hit_rate: float
    full_references: int
    full_hits: int
    full_hit_rate: float
    prompt_tokens: int
    hit_tokens: int
    token_hit_rate: float


def replay_row(policy: str, share: float, blocks: int, tally: Tally) -> ReplayRow:
    """Report a replay in index mode, or a bound, which evicts nothing."""
    return ReplayRow(
        policy=policy,
        capacity_share=share,
        capacity_blocks=blocks,
        evictions=None if policy in (OPTIMUM, ENDLESS) else tally.evictions,
        **_counts(tally),
    )


def engine_row(
    policy: str, share: float, blocks: int, tally: EngineTally, kv_token_bytes: int | None
) -> EngineRow:
    """Report a replay in engine mode."""
    hit_bytes = None if kv_token_bytes is None else tally.cache.hit_tokens * kv_token_bytes
    return EngineRow(
        policy=policy,
        capacity_share=share,
        capacity_blocks=blocks,
        evictions=tally.cache.evictions,
        **_counts(tally.cache),
        refused=tally.refused,
        first_token_s=spread(tally.first_token_s),
        queueing_s=spread(tally.queueing_s),
        answer_s=spread(tally.answer_s),
        preemptions=sum(tally.preempted),
        preemptions_each=spread(tally.preempted),
        reused_bytes=hit_bytes,
        output_tokens=tally.output_tokens,
        seconds=tally.seconds,
        steps=tally.steps,
    )


def spread(values: Iterable[float]) -> Spread | None:
    """Return percentiles by nearest rank; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Spread(*(ordered[math.ceil(share * len(ordered)) - 1] for share in (0.5, 0.9, 0.99)))


def _counts(tally: Tally) -> _Counts:
    return _Counts(
        requests=tally.requests,
        references=tally.references,
        hits=tally.hits,
        hit_rate=tally.hit_rate,
        full_references=tally.full_references,
        full_hits=tally.full_hits,
        full_hit_rate=tally.full_hit_rate,
        prompt_tokens=tally.prompt_tokens,
        hit_tokens=tally.hit_tokens,
        token_hit_rate=tally.token_hit_rate,
    )
