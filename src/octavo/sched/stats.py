"""What the scheduler has done so far, as plain counters."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from octavo.contract.misses import Miss
from octavo.contract.usage import Usage


@dataclass(slots=True)
class Stats:
    """Counters since the engine started; written by the scheduler alone."""

    steps: int = 0
    failed_steps: int = 0
    preemptions: int = 0
    preemptions_by_reason: dict[str, int] = field(default_factory=dict[str, int])
    """no_room: others needed its blocks to go on; displaced: a more urgent one took its place;
    beams: a search that stood still began again; quarantine: all did."""
    copies: int = 0
    prefix_queries: int = 0
    """Sequences whose prompt was looked up: admitted for the first time, and no forks."""
    prefix_query_tokens: int = 0
    """Prompt tokens of theirs."""
    prefix_hit_tokens: int = 0
    """Those of them that were in memory, or being written, already. Of the rest, all are missed
    but the last one of each prompt, and what is to be scored: these are computed in any case."""
    misses: dict[str, int] = field(default_factory=dict[str, int])
    """Sequences of which not all was found at their first admission, by `Miss.label`."""
    missed_tokens: dict[str, int] = field(default_factory=dict[str, int])
    """Tokens of theirs that were not found."""
    computed_prompt_tokens: int = 0
    """Prompt tokens given to a step."""
    recomputed_tokens: int = 0
    """Tokens whose KV was given up by a preemption and not found again."""
    blocks_used_peak: int = 0
    blocks_logical_peak: int = 0
    blocks_shared_peak: int = 0
    group_blocks_peak: tuple[int, ...] = ()
    """`blocks_used_peak` of each KV group by itself; empty for contiguous regions."""
    running_peak: int = 0
    running_sum: int = 0
    """Sum over steps; divided by `steps` the mean batch."""
    allocated_sum: int = 0
    tokens_sum: int = 0
    """Sums over steps of `Usage.allocated` and `Usage.tokens`."""

    def note(self, usage: Usage, running: int) -> None:
        """Take in the state of memory after a step was planned."""
        self.steps += 1
        self.blocks_used_peak = max(self.blocks_used_peak, usage.blocks_used)
        self.blocks_logical_peak = max(self.blocks_logical_peak, usage.blocks_logical)
        self.blocks_shared_peak = max(self.blocks_shared_peak, usage.blocks_shared)
        if usage.group_blocks != self.group_blocks_peak:
            before = self.group_blocks_peak or usage.group_blocks
            self.group_blocks_peak = tuple(map(max, before, usage.group_blocks))
        self.running_peak = max(self.running_peak, running)
        self.running_sum += running
        self.allocated_sum += usage.allocated
        self.tokens_sum += usage.tokens

    def preempt(self, reason: str, count: int = 1) -> None:
        """Take in that a sequence, or a search, was preempted."""
        self.preemptions += count
        self.preemptions_by_reason[reason] = self.preemptions_by_reason.get(reason, 0) + count

    def miss(self, miss: Miss) -> None:
        """Take in why a sequence was not found further."""
        label = miss.label
        self.misses[label] = self.misses.get(label, 0) + 1
        self.missed_tokens[label] = self.missed_tokens.get(label, 0) + miss.tokens

    def shorten(self, miss: Miss, gained: int) -> Miss | None:
        """Take in that some of what is missing was found later; returns what is left of it."""
        left = max(0, miss.tokens - gained)
        self.missed_tokens[miss.label] -= miss.tokens - left
        return msgspec.structs.replace(miss, tokens=left) if left else None

    @property
    def token_share_of_allocated(self) -> float | None:
        """Share of allocated slots that hold a token, averaged over steps; None before any."""
        return self.tokens_sum / self.allocated_sum if self.allocated_sum else None
