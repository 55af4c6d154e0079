"""What a caller is told of memory: what of its prompts was there, and why the rest was not."""

from __future__ import annotations

import msgspec

from octavo.contract.misses import Miss, MissReason
from octavo.server.ask import Ask


class MissTold(msgspec.Struct, frozen=True):
    """Why one prompt was computed from one of its tokens on; nothing of other namespaces."""

    prompt: int
    """Which of the request's."""
    reason: MissReason
    position: int
    """The first token that was not found."""
    tokens: int
    """That could have been found, and were computed."""
    policy: str | None
    age_s: float | None
    evicted_since: int | None
    changed: str | None
    """Diverged: which message of a conversation is not as it stands in memory."""

    @classmethod
    def of(cls, prompt: int, miss: Miss, changed: str | None) -> MissTold:
        """Tell of a miss what its caller may know."""
        return cls(
            prompt,
            miss.reason,
            miss.position,
            miss.tokens,
            miss.policy,
            None if miss.age_s is None else round(miss.age_s, 3),
            miss.evicted_since,
            changed,
        )


class CacheUsage(msgspec.Struct, frozen=True):
    """Tokens of all prompts of a request, by where their KV came from."""

    matched: int
    """In the engine's memory."""
    loaded: int
    """Brought from a slower place; there is none yet."""
    computed: int
    misses: tuple[MissTold, ...]
    """Of prompts of which something could have been there, and was not."""

    @classmethod
    def of(cls, asks: list[Ask]) -> CacheUsage:
        """Count what is known so far."""
        matched = sum(ask.cached_tokens for ask in asks)
        misses = tuple(
            MissTold.of(number, ask.miss, ask.changed)
            for number, ask in enumerate(asks)
            if ask.miss is not None
        )
        prompts = sum(len(ask.prompt.ids) for ask in asks)
        return cls(matched, 0, prompts - matched, misses)
