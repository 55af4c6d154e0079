"""What the scheduler has done so far, as plain counters."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.contract.usage import Usage


@dataclass(slots=True)
class Stats:
    """Counters since the engine started; written by the scheduler alone."""

    steps: int = 0
    failed_steps: int = 0
    preemptions: int = 0
    copies: int = 0
    prefix_query_tokens: int = 0
    """Prompt tokens of admitted sequences, each counted at its first admission."""
    prefix_hit_tokens: int = 0
    """Those of them that were in memory, or being written, already."""
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

    @property
    def token_share_of_allocated(self) -> float | None:
        """Share of allocated slots that hold a token, averaged over steps; None before any."""
        return self.tokens_sum / self.allocated_sum if self.allocated_sum else None
