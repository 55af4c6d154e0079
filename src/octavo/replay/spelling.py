"""Blocks as tokens: what lets the real manager and scheduler replay a trace block by block."""

from __future__ import annotations

from itertools import count

from octavo.contract.ids import BlockKey
from octavo.memory.block import Block
from octavo.memory.eviction import EvictionPolicy, in_bulk
from octavo.replay.trace import RecordedRequest, Trace

_BEGUN = 0
"""The first of the two tokens of a block."""


class Spelling:
    """Spells a trace's prompts for an engine in whose texts two tokens stand for a block.

    The first token says that the block is begun; the second, which is written when it is full,
    names it, and with it all that precedes it, as the trace's keys do. So a partial last block is
    one token in a block of two: it has room and is not published, as in any engine, and answers to
    one prompt may go on differently from inside of it. Blocks of one token are spelled by one.
    """

    def __init__(self, trace: Trace) -> None:
        self._size = trace.block_size
        self.width = min(2, trace.block_size)
        """Tokens of the engine that a full block has."""
        self._names: dict[BlockKey, int] = {}
        self._unused = count(1)

    def prompt(self, request: RecordedRequest) -> tuple[int, ...]:
        """Spell a prompt of at least one token."""
        full, rest = divmod(request.prompt_tokens, self._size)
        names, unused = self._names, self._unused
        tokens: list[int] = []
        for key in request.keys[:full]:
            name = names.get(key)
            if name is None:
                name = names[key] = next(unused)
            if self.width > 1:
                tokens.append(_BEGUN)
            tokens.append(name)
        if rest:
            tokens.append(_BEGUN)
        return tuple(tokens)

    def answer(self, request: RecordedRequest, place: int) -> int:
        """Spell one token behind a prompt's full blocks; what nothing is known of, is unique."""
        block, half = divmod(place, self.width)
        if half + 1 < self.width:
            return _BEGUN
        index = block - request.prompt_tokens // self._size
        if index >= len(request.answer_keys):
            return next(self._unused)
        key = request.answer_keys[index]
        if key not in self._names:
            self._names[key] = next(self._unused)
        return self._names[key]

    def tokens_before(self, place: int) -> int:
        """Return how many true tokens a text has before a token of the engine.

        Of a full block's two tokens each stands for a half.
        """
        block, half = divmod(place, self.width)
        return block * self._size + half * (self._size // self.width)

    def due(self, place: int) -> int:
        """Return the position of the true token with which a token of the engine is written.

        The first token of a block is written with its first slot, the second with its last.
        """
        block, half = divmod(place, self.width)
        return block * self._size + half * (self._size - 1)

    def unscaled(self, policy: EvictionPolicy) -> EvictionPolicy:
        """Return a policy that sees how many true tokens a block holds: some go by it."""
        return _Unscaled(policy, self._size // self.width)


class _Unscaled:
    """Lets cached blocks say true tokens as long as they are in a policy's bag.

    Only whoever holds blocks reads how full they are; in the bag nobody does but the policy.
    """

    def __init__(self, policy: EvictionPolicy, slot_tokens: int) -> None:
        self._policy = policy
        self._slot_tokens = slot_tokens
        self._add_all, self._remove_all, self._pop_all = in_bulk(policy)

    def add(self, block: Block) -> None:
        self.add_all([block])

    def add_all(self, blocks: list[Block]) -> None:
        for block in blocks:
            block.filled *= self._slot_tokens
        self._add_all(blocks)

    def remove(self, block: Block) -> None:
        self.remove_all([block])

    def remove_all(self, blocks: list[Block]) -> None:
        self._remove_all(blocks)
        for block in blocks:
            block.filled //= self._slot_tokens

    def pop(self) -> Block:
        block = self._policy.pop()
        block.filled //= self._slot_tokens
        return block

    def pop_all(self, count: int) -> list[Block]:
        victims = self._pop_all(count)
        for block in victims:
            block.filled //= self._slot_tokens
        return victims

    def __len__(self) -> int:
        return len(self._policy)

    def __getattr__(self, name: str) -> object:
        """Answer as the policy does, whatever else is asked of one."""
        return getattr(self._policy, name)
