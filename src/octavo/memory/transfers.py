"""Open moves: each holds a reference on both of its ends until its outcome is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from octavo.contract.batch import Move, Place
from octavo.contract.ids import BlockId, BlockKey, MoveId, SeqId
from octavo.memory.block import Block
from octavo.memory.tier import Text, Tier


class Load:
    """What a sequence in phase LOADING still waits for."""

    __slots__ = ("good", "outstanding")

    def __init__(self, tokens: int) -> None:
        self.outstanding: dict[MoveId, int] = {}
        """Move to the position where its block begins."""
        self.good = tokens
        """Leading tokens that will be in memory, as far as is known."""


@dataclass(slots=True)
class _Transfer:
    move: Move
    text: Text
    source: tuple[int, Block]
    """Tier and block."""
    target: tuple[int, Block]
    seq: SeqId | None
    """Who waits for it; None: a copy to a slower tier."""
    late: bool = False
    """Nobody waits for it any more, since it took too long."""

    @property
    def label(self) -> tuple[int, BlockKey]:
        """Group and key of its text."""
        return self.source[1].group, self.text.key


class Transfers:
    """Moves between tiers: started here, settled when the runner reports them.

    tiers[0] is the device. A failed or late move is normal: the prefix is shorter then.
    """

    def __init__(self, tiers: tuple[Tier, ...]) -> None:
        self._tiers = tiers
        self._open: dict[MoveId, _Transfer] = {}
        self._fresh: list[Move] = []
        self._last_id: MoveId = 0
        self._loads: dict[SeqId, Load] = {}
        self._awaited: Counter[tuple[int, BlockKey]] = Counter()
        """Loads in flight, by group and text, that a sequence waits for."""
        self._late: Counter[tuple[int, BlockKey]] = Counter()
        """Those that a sequence has given up waiting for."""

    def store(self, block: Block, tier: int) -> None:
        """Start copying a committed device block to a tier that has room and lacks its text."""
        target_tier = self._tiers[tier]
        assert block.key is not None, f"{block} holds no text to store"
        text = Text(block.key, block.parent, block.tokens, block.depth)
        known = target_tier.find(block.group, text)
        if known is not None or not target_tier.pool.available:
            return
        self._tiers[0].pool.share([block.id])
        (target_id,) = target_tier.pool.take(1, block.group)
        target = target_tier.pool.blocks[target_id]
        target_tier.pool.fill(target_id, block.filled)
        self._start(text, (0, block), (tier, target), None)

    def load(self, seq: SeqId, source: Block, tier: int, target_id: BlockId, position: int) -> None:
        """Start filling a device block, already in the sequence's table, from a slower tier."""
        assert source.key is not None, f"{source} holds no text to load"
        device = self._tiers[0].pool
        target = device.blocks[target_id]
        self._tiers[tier].pool.share([source.id])
        device.share([target_id])
        text = Text(source.key, source.parent, source.tokens, source.depth)
        move = self._start(text, (tier, source), (0, target), seq)
        self._awaited[source.group, source.key] += 1
        self._loads[seq].outstanding[move.id] = position

    def expect(self, seq: SeqId, tokens: int) -> None:
        """Open the account of a sequence whose first `tokens` tokens will be in memory."""
        self._loads[seq] = Load(tokens)

    def loading(self, seq: SeqId) -> bool:
        """True if the sequence waits for loads."""
        return seq in self._loads

    def awaited(self, group: int, key: BlockKey) -> bool:
        """True if a sequence waits for a load in flight that brings this text to the device."""
        return self._awaited[group, key] > 0

    def late(self, group: int, key: BlockKey) -> bool:
        """True if a load in flight of this text has been given up: another would be no faster."""
        return self._late[group, key] > 0

    def settle(self, moved: Iterable[MoveId], failed: Iterable[MoveId]) -> dict[SeqId, int]:
        """Close moves; return the sequences that wait no longer, with their tokens in memory."""
        ready: dict[SeqId, int] = {}
        for ids, done in ((moved, True), (failed, False)):
            for move_id in ids:
                transfer = self._open.pop(move_id)
                self._close(transfer, done=done)
                self._account(transfer, done=done, ready=ready)
        return ready

    def give_up(self, seq: SeqId) -> int:
        """Wait no longer; return the leading tokens that are in memory.

        The moves go on and keep their references until they are reported.
        """
        load = self._loads.pop(seq)
        for move_id in load.outstanding:
            self._awaited[self._open[move_id].label] -= 1
            self._open[move_id].late = True
            self._late[self._open[move_id].label] += 1
        return min([load.good, *load.outstanding.values()])

    def forget(self, seq: SeqId) -> None:
        """The sequence is released: nobody waits for its loads."""
        load = self._loads.pop(seq, None)
        for move_id in load.outstanding if load else ():
            self._awaited[self._open[move_id].label] -= 1

    def take(self) -> tuple[Move, ...]:
        """Return the moves to start with the next batch."""
        fresh = tuple(self._fresh)
        self._fresh.clear()
        return fresh

    @property
    def open(self) -> int:
        """Moves whose outcome is not known."""
        return len(self._open)

    def holders(self, in_tables: Iterable[BlockId]) -> list[Counter[BlockId]]:
        """Count, tier by tier, the references that open moves and tables hold.

        in_tables: a block of the first tier for each place in which one stands.
        """
        held = [Counter[BlockId]() for _ in self._tiers]
        held[0].update(in_tables)
        for transfer in self._open.values():
            for tier, block in (transfer.source, transfer.target):
                held[tier][block.id] += 1
        return held

    def _start(
        self, text: Text, source: tuple[int, Block], target: tuple[int, Block], seq: SeqId | None
    ) -> Move:
        self._last_id += 1
        src, dst = (Place(self._tiers[tier].name, block.id) for tier, block in (source, target))
        # A freed device block may still be written by a step in flight; a move does not run on
        # the compute stream, so it has to wait for that step.
        move = Move(self._last_id, text.key, src, dst, target[1].busy_step)
        self._open[move.id] = _Transfer(move, text, source, target, seq)
        self._fresh.append(move)
        return move

    def _close(self, transfer: _Transfer, *, done: bool) -> None:
        source_tier, source = transfer.source
        target_tier, target = transfer.target
        if transfer.late:
            self._late[transfer.label] -= 1
        if done:
            self._tiers[target_tier].publish(target, transfer.text)
        self._tiers[source_tier].pool.drop([source.id])
        self._tiers[target_tier].pool.drop([target.id])

    def _account(self, transfer: _Transfer, *, done: bool, ready: dict[SeqId, int]) -> None:
        seq, move_id = transfer.seq, transfer.move.id
        load = None if seq is None else self._loads.get(seq)
        if seq is None or load is None or move_id not in load.outstanding:
            return
        self._awaited[transfer.label] -= 1
        position = load.outstanding.pop(move_id)
        if not done:
            load.good = min(load.good, position)
        if not load.outstanding:
            del self._loads[seq]
            ready[seq] = load.good
