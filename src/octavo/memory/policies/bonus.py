"""Last access plus a bonus: what was used more, or late in a conversation, counts as younger."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, log2

from octavo.memory.block import Block
from octavo.memory.policies.checks import above_zero, at_least
from octavo.memory.policies.ranked import RankedBag
from octavo.memory.policies.releases import Release, Releases
from octavo.memory.policies.trust import Trust

_MOST_TURNS = 4
_LONG_ONCE_TOKENS = 8_192
_LONG_AGAIN_TOKENS = 60_000
"""Length from which on attention adds more than a half to the work for a token."""
_PARTIAL = 3.0
_LOGS = [0.0] + [log2(n) for n in range(1, 1025)]


class Bonus:
    """Evict by the time of the last use, moved by what tells how soon a text returns. O(log n).

    A block counts as used later by so many cache-fulls:
        uses x log2(its uses) + turn x log2(1 + its turn, at most 4)
        - once x log2(1 + tokens of its text / 8,192), if it was used once
        + again x log2(1 + tokens of its text / 60,000), if it was used more often
        - 3, if it is not full: nothing can follow it
        + hints x log2 of how much likelier its use is for what callers said of it, as far as they
        are believed (`Trust`).
    A cache-full is as many accesses to blocks as blocks were ever cached at once, but for the first
    four weights at most `horizon_tokens`: where more is kept, what comes later returns hardly more.
    remember: texts whose uses are kept, for each cached block; eviction does not end them. The
    defaults are one set for two Mooncake traces, chosen by their first halves alone
    (`benchmarks/fit_eviction.py`). Ties: tail first.
    """

    def __init__(
        self,
        *,
        uses: float = 1.2,
        turn: float = 1.2,
        once: float = 0.63,
        again: float = 1.6,
        hints: float = 4.0,
        horizon_tokens: float = 2.6e6,
        remember: float = 8.0,
    ) -> None:
        above_zero(horizon_tokens=horizon_tokens)
        at_least(0, hints=hints)
        self._weights = (uses, turn, once, again)
        self._horizon_tokens = horizon_tokens
        self._worth: Callable[[int], float] | None = None
        self._hints = hints
        self._trust = Trust(remember)
        self._releases = Releases(remember, self._rank)
        self._bag = RankedBag()
        self._now = 0.0
        """In cache-fulls."""
        self._accesses = 0
        self._capacity = 1
        """Most blocks ever cached."""

    @property
    def hears_hints(self) -> bool:
        """Not if they weigh nothing."""
        return self._hints > 0

    def weigh(self, worth: Callable[[int], float]) -> None:
        """Count blocks as used later by log2 of what one is worth in a text of so many tokens."""
        self._worth = worth

    def add(self, block: Block) -> None:
        """Take in a block; its place is found when its whole release is known."""
        self._releases.add_all([block])

    def add_all(self, blocks: list[Block]) -> None:
        """Take in blocks."""
        self._releases.add_all(blocks)

    def hit(self, block: Block) -> None:
        """Note one more use of a held block."""
        self._releases.hit(block)

    def remove(self, block: Block) -> None:
        """Take the block out; its text's uses are remembered."""
        self.remove_all([block])

    def remove_all(self, blocks: list[Block]) -> None:
        """Take blocks out; their texts' uses are remembered."""
        self._releases.close()
        self._bag.remove_all(blocks)

    def pop(self) -> Block:
        """Take the block that counts as used longest ago; `IndexError` if there is none."""
        self._releases.close()
        return self._bag.pop()

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks, those that count as used longest ago."""
        self._releases.close()
        return self._bag.pop_all(count)

    def __len__(self) -> int:
        return len(self._bag) + len(self._releases.waiting)

    def _rank(self, release: Release) -> None:
        bag, blocks = self._bag, release.blocks
        cached = len(bag) + len(blocks)
        if cached > self._capacity:
            self._capacity = cached
            self._releases.fit(cached)
        said = self._trust.weigh(release, self._accesses, self._capacity) if self._hints else None
        self._accesses += len(blocks)
        self._now += len(blocks) / self._capacity
        by_uses, by_turn, once, again = self._weights
        uses, length = release.uses, release.length_tokens
        cached_tokens = self._capacity * length / (blocks[0].depth + 1)
        scale = min(1.0, self._horizon_tokens / cached_tokens)
        rank = self._now + scale * by_turn * _LOGS[1 + min(release.turn, _MOST_TURNS)]
        if self._worth is not None:
            rank += log2(self._worth(length))
        least = -inf
        if release.partial:
            least = rank - _PARTIAL + (self._hints * said[0] if said else 0.0)
            bag.add(blocks[0], least)
        for start, end in release.stretches(said):
            if uses[start] == 1:
                bonus = -once * log2(1 + length / _LONG_ONCE_TOKENS)
            else:
                bonus = by_uses * _log2(uses[start])
                bonus += again * log2(1 + length / _LONG_AGAIN_TOKENS)
            bonus *= scale
            if said:
                bonus += self._hints * said[start]
            # Whatever was said, a suffix is useless without its prefix.
            least = max(least, rank + bonus)
            bag.add_all(blocks[start:end], least)


def _log2(count: int) -> float:
    return _LOGS[count] if count < len(_LOGS) else log2(count)
