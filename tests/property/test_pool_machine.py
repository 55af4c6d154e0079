"""Random lives of a tier against a plain model: dictionaries and lists, no cleverness."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from octavo.errors import OutOfBlocks
from octavo.memory.policies.lru import Lru
from octavo.memory.tier import Text, Tier

WEIGHTS = (1, 3)


class PoolMachine(RuleBasedStateMachine):
    """Blocks are taken, shared, dropped, filled, published, withdrawn and evicted."""

    @initialize(size=st.integers(0, 12))
    def build(self, size: int) -> None:
        self.tier = Tier("device", size, Lru(), WEIGHTS)
        self.pool = self.tier.pool
        self.refs: dict[int, int] = {}
        self.group: dict[int, int] = {}
        self.filled: dict[int, int] = {}
        self.text: dict[int, Text] = {}
        self.cached: list[int] = []  # oldest first
        self.free = set(range(size))
        self.evictions = 0

    def some_held(self, data: st.DataObject) -> list[int]:
        return data.draw(st.lists(st.sampled_from(sorted(self.refs)), min_size=1, max_size=4))

    @rule(count=st.integers(0, 6), group=st.integers(0, 1))
    def take(self, count: int, group: int) -> None:
        if count > len(self.free) + len(self.cached):
            with pytest.raises(OutOfBlocks):
                self.pool.take(count, group)
            return
        taken = self.pool.take(count, group)
        assert len(set(taken)) == count
        from_free = taken[: min(count, len(self.free))]
        assert set(from_free) <= self.free, "a cached block was evicted before a free one"
        evicted = taken[len(from_free) :]
        assert evicted == self.cached[: len(evicted)], "not the oldest were evicted"
        self.free -= set(from_free)
        del self.cached[: len(evicted)]
        self.evictions += len(evicted)
        for block in taken:
            self.text.pop(block, None)
            self.refs[block], self.group[block], self.filled[block] = 1, group, 0

    @precondition(lambda self: self.refs or self.cached)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        known = sorted([*self.refs, *self.cached])
        ids = data.draw(st.lists(st.sampled_from(known), min_size=1, max_size=4))
        self.pool.share(ids)
        for block in ids:
            if block in self.cached:
                self.cached.remove(block)
            self.refs[block] = self.refs.get(block, 0) + 1

    @precondition(lambda self: self.refs)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        ids = [
            block
            for block in dict.fromkeys(self.some_held(data))
            for _ in range(data.draw(st.integers(1, self.refs[block])))
        ]
        self.pool.drop(ids)
        for block in ids:
            self.refs[block] -= 1
            if self.refs[block] == 0:
                del self.refs[block]
                if block in self.text:
                    self.cached.append(block)
                else:
                    self.free.add(block)

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), upto=st.integers(0, 5))
    def fill(self, data: st.DataObject, upto: int) -> None:
        (block, *_) = self.some_held(data)
        self.pool.fill(block, upto)
        self.filled[block] = max(self.filled[block], upto)

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), group=st.integers(0, 1))
    def fill_whole(self, data: st.DataObject, group: int) -> None:
        ids = [i for i in dict.fromkeys(self.some_held(data)) if self.group[i] == group]
        self.pool.fill_whole(ids, 5)
        self.filled |= dict.fromkeys(ids, 5)

    @precondition(lambda self: self.refs)
    @rule(data=st.data(), name=st.integers(0, 9), step=st.integers(0, 2))
    def publish(self, data: st.DataObject, name: int, step: int) -> None:
        private = [block for block in self.refs if block not in self.text]
        if not private:
            return
        block = data.draw(st.sampled_from(sorted(private)))
        text = Text(bytes([name]), b"parent", bytes([name]) * 4, name)
        known = any(
            other == text and self.group[at] == self.group[block] for at, other in self.text.items()
        )
        assert self.tier.publish(self.pool.blocks[block], text, step=step) is not known
        if not known:
            self.text[block] = text

    @precondition(lambda self: self.text)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.text)))
        self.tier.withdraw(self.pool.blocks[block])
        del self.text[block]
        if block in self.cached:
            self.cached.remove(block)
            self.free.add(block)

    @rule()
    def clear(self) -> None:
        assert self.tier.clear() == len(self.cached)
        for block in self.cached:
            del self.text[block]
        self.free |= set(self.cached)
        self.cached.clear()

    @invariant()
    def counts_are_the_models(self) -> None:
        pool, refs = self.pool, self.refs
        self.tier.check(refs)
        assert pool.available == len(self.free) + len(self.cached)
        assert pool.cached == len(self.cached)
        assert (pool.held, pool.logical) == (len(refs), sum(refs.values()))
        assert pool.shared == sum(count > 1 for count in refs.values())
        assert pool.filled == sum(self.filled[b] * WEIGHTS[self.group[b]] for b in refs)
        assert pool.evictions == self.evictions

    @invariant()
    def texts_are_the_models(self) -> None:
        assert sorted(block.id for block in self.tier.keyed()) == sorted(self.text)
        for block, text in self.text.items():
            found = self.tier.find(self.group[block], text)
            assert found is not None
            assert found.id == block


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
