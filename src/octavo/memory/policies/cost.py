"""Cost-aware eviction: what would take longest to compute again stays longer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.errors import ConfigError
from octavo.memory.block import Block
from octavo.memory.eviction import InBulk, NoticesHits, hears_hints
from octavo.memory.policies.bonus import Bonus
from octavo.memory.policies.checks import above_zero
from octavo.memory.policies.gittins import Gittins


class Weighable(NoticesHits, InBulk, Protocol):
    """A policy whose ranking can be multiplied by what a block is worth."""

    def weigh(self, worth: Callable[[int], float]) -> None:
        """Take in the worth of a block in a text of so many tokens."""
        ...


WEIGHABLE: dict[str, Callable[[], Weighable]] = {"bonus": Bonus, "gittins": Gittins}


class Cost:
    """Another policy's ranking times the compute that a block saves for its bytes. O as of that.

    A token of KV costs the same work in every layer but for attention, which grows with the
    tokens before it; all blocks have equal bytes. So a block in a text of n tokens is worth
    1 + n / (2 equal_tokens) on average over the text; the whole text counts alike, for a suffix
    must not outlive its prefix.

    policy: bonus or gittins, with its own defaults. equal_tokens: depth at which attention costs
    as much as all the rest of a token; 30,000 for Llama 3.1 8B.
    """

    def __init__(self, *, policy: str = "bonus", equal_tokens: float = 30_000.0) -> None:
        above_zero(equal_tokens=equal_tokens)
        if policy not in WEIGHABLE:
            raise ConfigError(f"policy {policy!r} is not one of {', '.join(WEIGHABLE)}")
        self._inner = WEIGHABLE[policy]()
        self._inner.weigh(lambda tokens: 1 + tokens / (2 * equal_tokens))

    @property
    def hears_hints(self) -> bool:
        """As the policy that it is built on."""
        return hears_hints(self._inner)

    def add(self, block: Block) -> None:
        """Take in a block."""
        self._inner.add(block)

    def add_all(self, blocks: list[Block]) -> None:
        """Take in blocks."""
        self._inner.add_all(blocks)

    def hit(self, block: Block) -> None:
        """Note one more use of a held block."""
        self._inner.hit(block)

    def remove(self, block: Block) -> None:
        """Take the block out."""
        self._inner.remove(block)

    def remove_all(self, blocks: list[Block]) -> None:
        """Take blocks out."""
        self._inner.remove_all(blocks)

    def pop(self) -> Block:
        """Take the block that is worth least; `IndexError` if there is none."""
        return self._inner.pop()

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks, those that are worth least."""
        return self._inner.pop_all(count)

    def __len__(self) -> int:
        return len(self._inner)
