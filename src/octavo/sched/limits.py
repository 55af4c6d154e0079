"""Numbers that bound the scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import RequestError


@dataclass(frozen=True, slots=True)
class Limits:
    """Fixed when the engine is built."""

    max_num_seqs: int
    """Sequences that run at once."""
    max_num_batched_tokens: int
    """Tokens given to one step, all sequences together."""
    max_model_len: int
    """Longest text, in tokens."""
    pool_tokens: int
    """Longest text whose KV the memory holds."""
    storm_guard_tokens: int = 16
    """A preempted sequence, admitted again, is no victim until its text has grown by this."""
    long_prefill_tokens: int = 0
    """A text with more tokens to compute than this is given so many a step; 0: no text is long."""
    max_long_prefills: int = 1
    """Long texts that are given tokens in one step; the others wait, and let shorter ones pass."""
    load_timeout_s: float = 5.0
    """A sequence waits no longer than this for its prefix to arrive from a slower tier."""

    def longest_text(self, prompt: int, max_tokens: int | None) -> int:
        """Longest text, prompt included, of a request whose prompt has `prompt` tokens.

        Output beyond context or memory is cut, not refused. Raises RequestError if not even
        one token can ever follow the prompt.
        """
        if prompt == 0:
            raise RequestError("the prompt is empty: it must have at least one token")
        if prompt + 1 > self.max_model_len:
            raise RequestError(
                f"the prompt has {prompt} tokens and the context {self.max_model_len}: there is "
                "no room for an answer; shorten the prompt or raise max_model_len"
            )
        if prompt + 1 > self.pool_tokens:
            raise RequestError(
                f"the prompt has {prompt} tokens and the KV memory holds {self.pool_tokens}: "
                "it can never fit; shorten the prompt or raise kv_cache_memory_bytes"
            )
        longest = min(self.max_model_len, self.pool_tokens)
        return longest if max_tokens is None else min(longest, prompt + max_tokens)

    def check_beams(self, width: int, *, shares: bool) -> None:
        """Raise RequestError for a search of so many beams that can never run.

        shares: the memory has blocks that texts can share.
        """
        for name, most in (
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
        ):
            if width > most:
                raise RequestError(
                    f"beam_width is {width}, but {name} is {most}, and all beams are computed in "
                    f"one step: lower beam_width or raise {name}"
                )
        if not shares:
            raise RequestError(
                "beam search needs blocks that texts can share: use reservation on_demand"
            )
