"""Replies of `/v1/debug/memory`, for the document."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from octavo.server.schemas.replies import Reply

Number = float | None


class BlockReply(Reply):
    """One block; of others' blocks the first three fields alone."""

    block: int
    state: Literal["free", "cached", "in_use", "shared", "tentative", "pinned", "quarantined"]
    mine: bool = Field(description="Whether its contents are told")
    group: int | None = None
    refs: int = Field(0, description="Sequences and moves that hold it")
    hits: int = Field(0, description="How often its text was found")
    used_s: float = Field(0.0, description="Its last use, on the engine's clock")
    age_s: float = 0.0
    tokens_held: int = 0
    key: str | None = None
    parent: str | None = Field(None, description="Key of what comes before; null: it begins a text")
    depth: int = Field(0, description="Index in its chain")
    sequences: list[int] = Field(default_factory=list[int])
    tokens: list[int] | None = None
    text: str | None = None
    prefix_tokens: list[int] | None = Field(
        None, description="From the beginning of the text, if that is in memory and was asked for"
    )


class HistoryReply(Reply):
    """Columns of equal length: a value for each point, null where it is not known."""

    step: int
    points: int
    wall_s: list[float] = Field(description="Seconds since 1970, at the end of each interval")
    output_tokens_per_s: list[Number]
    requests_ended: list[Number]
    ttft_p50_s: list[Number]
    ttft_p95_s: list[Number]
    itl_p50_s: list[Number]
    itl_p95_s: list[Number]
    free: list[Number]
    cached: list[Number]
    in_use: list[Number]
    shared: list[Number]
    pinned: list[Number]
    quarantined: list[Number]
    waste_share: list[Number]
    tokens_share: list[Number]
    computed_prompt_tokens_per_s: list[Number]
    cached_prompt_tokens_per_s: list[Number]
    hit_rate: list[Number]
    preemptions: list[Number]
    evictions: list[Number]
    running: list[Number]
    waiting: list[Number]
