"""Recorded requests as block keys: whose prompt begins like whose. Never their text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Annotated, TypeAlias

import msgspec

from octavo.contract.ids import BlockKey
from octavo.errors import ConfigError

MOST_TOKENS = 10**8
"""Of one prompt or answer: no engine takes longer ones, and each block of one takes memory here."""
MOST_SECONDS = 1e12
"""Of a time: beyond it the time of one step would be lost in rounding."""

Tokens: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
"""A length in a file."""


@dataclass(frozen=True, slots=True)
class RecordedChoice:
    """One more answer to a prompt."""

    output_tokens: int
    keys: tuple[BlockKey, ...]
    """As `RecordedRequest.answer_keys`."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a trace."""

    time_s: float
    """Since the trace's own beginning."""
    prompt_tokens: int
    output_tokens: int
    keys: tuple[BlockKey, ...]
    """Of the prompt's blocks; the last one may be partial (`Trace.partial`)."""
    answer_keys: tuple[BlockKey, ...] = ()
    """Of the full blocks that the answer ends or fills, where they are known; they follow the
    prompt's full ones, and the first may begin with the prompt's rest."""
    more: tuple[RecordedChoice, ...] = ()
    """Answers beside that, where they are known."""

    def blocks(self) -> list[tuple[int, BlockKey]]:
        """Return all blocks with their places in their text, answer by answer."""
        found = list(enumerate(self.keys + self.answer_keys))
        for choice in self.more:
            found += enumerate(choice.keys, start=len(self.keys))
        return found

    def choices(self) -> list[RecordedRequest]:
        """Return a request for each answer: all have the same prompt."""
        others = [
            replace(self, output_tokens=one.output_tokens, answer_keys=one.keys, more=())
            for one in self.more
        ]
        return [replace(self, more=()), *others] if others else [self]


@dataclass(frozen=True)
class Trace:
    """Recorded requests in the order of their arrival."""

    name: str
    block_size: int
    """Tokens of a full block."""
    requests: tuple[RecordedRequest, ...]
    partial: bool = True
    """The prompts' last blocks have keys even if they are not full. Then no answer has any."""

    @cached_property
    def working_set(self) -> int:
        """Distinct blocks, those of known answers included."""
        every = chain.from_iterable(one.blocks() for one in self.requests)
        return len({key for _, key in every})

    @property
    def references(self) -> int:
        """Blocks of all prompts, each as often as it occurs."""
        return sum(len(one.keys) for one in self.requests)

    def at_rate(self, factor: float) -> Trace:
        """Return the same requests, coming `factor` times as fast."""
        if factor == 1:
            return self
        requests = tuple(replace(one, time_s=one.time_s / factor) for one in self.requests)
        return replace(self, requests=requests)

    @property
    def middle_s(self) -> float:
        """Half of the time between the first request and the last."""
        return (self.requests[0].time_s + self.requests[-1].time_s) / 2


def in_blocks(trace: Trace, block_size: int) -> Trace:
    """Return the same requests in larger blocks, each known by the last of those it is made of.

    Raises ConfigError unless `block_size` is a multiple of the trace's.
    """
    factor, rest = divmod(block_size, trace.block_size)
    if rest or factor < 1:
        raise ConfigError(
            f"block size {block_size} is no multiple of {trace.block_size}, the tokens of a block "
            f"of {trace.name}: give one, for nothing finer is known of its prompts"
        )
    requests = [_larger(one, factor, block_size, partial=trace.partial) for one in trace.requests]
    return replace(trace, block_size=block_size, requests=tuple(requests))


def _larger(
    one: RecordedRequest, factor: int, block_size: int, *, partial: bool
) -> RecordedRequest:
    if partial:
        rest = one.keys[-1:] if len(one.keys) % factor else ()
        return replace(one, keys=one.keys[factor - 1 :: factor] + rest)
    full = one.prompt_tokens // block_size

    def own(answer_keys: tuple[BlockKey, ...]) -> tuple[BlockKey, ...]:
        return (one.keys + answer_keys)[factor - 1 :: factor][full:]

    more = tuple(replace(choice, keys=own(choice.keys)) for choice in one.more)
    keys = one.keys[factor - 1 :: factor]
    return replace(one, keys=keys, answer_keys=own(one.answer_keys), more=more)
