"""Hints that know the future of a trace, and are wrong as often as they are told to be."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, TypeAlias, get_args

from octavo.contract.hint import CacheHint
from octavo.contract.ids import BlockKey
from octavo.errors import ConfigError
from octavo.replay.trace import RecordedRequest, Trace

About: TypeAlias = Literal["request", "prefix", "block"]


@dataclass(frozen=True, slots=True)
class Oracle:
    """Says of each request of a trace whether its blocks will be used again: one bit.

    about: request, one bit for the whole prompt: at least half of its blocks will; prefix, how
    much of it will, from its beginning; block, one bit for each block. A wrong bit says the
    opposite; a wrong prefix, everything but a partial last block instead of less than half, the
    first block alone instead of more. Errors are drawn for each request, or for each block.
    """

    error: float
    about: About = "request"
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.error <= 1:
            raise ConfigError(f"a hint is wrong with a probability from 0 to 1, got {self.error}")
        if self.about not in get_args(About):
            raise ConfigError(f"{self.about!r} is not one of {', '.join(get_args(About))}")

    def hints(self, trace: Trace) -> list[list[CacheHint]]:
        """Return, for each request, what is said of each of its blocks."""
        draw = Random(self.seed)
        used_again = _used_again(trace)
        return [
            self._of(request, count, draw, trace.block_size)
            for request, count in zip(trace.requests, used_again, strict=True)
        ]

    def _of(
        self, request: RecordedRequest, used_again: int, draw: Random, block_size: int
    ) -> list[CacheHint]:
        blocks = len(request.keys)
        if self.about == "block":
            # Each block is a statement of its own, which is right or wrong by itself.
            return [
                _say((number < used_again) != (draw.random() < self.error))
                for number in range(blocks)
            ]
        most = 2 * used_again >= blocks
        wrong = draw.random() < self.error
        if self.about == "request":
            return [_say(most != wrong)] * blocks
        if wrong:
            used_again = min(1, blocks) if most else request.prompt_tokens // block_size
        return [_say(True)] * used_again + [_say(False)] * (blocks - used_again)


def _say(used_again: bool) -> CacheHint:
    return CacheHint("continues" if used_again else "closed")


def _used_again(trace: Trace) -> list[int]:
    """Return, for each request, how many leading blocks are part of a later one."""
    coming: set[BlockKey] = set()
    counts: list[int] = []
    for request in reversed(trace.requests):
        keys = request.keys
        counts.append(next((n for n, key in enumerate(keys) if key not in coming), len(keys)))
        coming.update(keys)
    counts.reverse()
    return counts
