"""What is remembered of texts after their blocks are gone: hashes only, and not too many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

from octavo.contract.ids import BlockKey
from octavo.memory.policies.checks import at_least

_V = TypeVar("_V")
_LEAST = 1024


class Recent(Generic[_V]):
    """A value for each of the texts noted last; all calls O(1) amortised.

    Two generations: a text is remembered until at least bound / 2 others have been noted since,
    and never more than `bound` texts are.
    """

    def __init__(self, bound: int) -> None:
        at_least(2, bound=bound)
        self.bound = bound
        """Texts remembered at most; may be raised at any time."""
        self._young: dict[BlockKey, _V] = {}
        self._old: dict[BlockKey, _V] = {}

    def get(self, text: BlockKey) -> _V | None:
        """Return what was noted last, if it is remembered. Changes nothing."""
        found = self._young.get(text)
        return self._old.get(text) if found is None else found

    def put(self, text: BlockKey, value: _V) -> None:
        """Note the value of a text, which becomes the youngest."""
        if text not in self._young and len(self._young) >= self.bound // 2:
            self._old, self._young = self._young, {}
        self._young[text] = value

    def __len__(self) -> int:
        return len(self._young) + sum(text not in self._young for text in self._old)


class UseCounts:
    """How often each text has been used, cached or not; O(1) amortised.

    At most `bound` texts, as in `Recent`. Measured on traces, counts that end with eviction are
    worth next to nothing.
    """

    def __init__(self, per_block: float = 8.0, *, bound: int = _LEAST) -> None:
        """per_block: texts to remember for each block of the largest cache seen by `fit`."""
        at_least(0, remember=per_block)
        at_least(2, bound=bound)
        self.bound = bound
        """Texts remembered at most."""
        self._per_block = per_block
        self._young: dict[BlockKey, int] = {}
        self._old: dict[BlockKey, int] = {}

    def fit(self, blocks: int) -> None:
        """Remember enough for a cache of so many blocks; never less than before."""
        self.bound = max(self.bound, int(self._per_block * blocks))

    def of(self, text: BlockKey) -> int:
        """Return the uses noted; 0 if none is remembered. Changes nothing."""
        return self._young.get(text) or self._old.get(text, 0)

    def use(self, text: BlockKey) -> int:
        """Note one more use; returns their number."""
        young = self._young
        count = young.get(text)
        if count is None:
            count = self._old.get(text, 0)
            if len(young) >= self.bound // 2:
                self._old = young
                self._young = young = {}
        young[text] = count + 1
        return count + 1

    def use_all(self, texts: Iterable[BlockKey]) -> list[int]:
        """Note one more use of each text; returns their numbers."""
        young, old, most = self._young, self._old, self.bound // 2
        room, noted = most - len(young), list[int]()
        for text in texts:
            count = young.get(text)
            if count is None:
                count = old.get(text, 0)
                if room <= 0:
                    self._old = old = young
                    self._young = young = {}
                    room = most
                room -= 1
            young[text] = count + 1
            noted.append(count + 1)
        return noted

    def __len__(self) -> int:
        return len(self._young) + sum(text not in self._young for text in self._old)
