"""Watches a memory from outside, and asserts that what it is shown is what is there."""

from __future__ import annotations

import numpy as np

from octavo.contract.memory_view import CellState
from octavo.engine.messages import MemoryShown
from octavo.sched.cache import Cache
from octavo.sched.scheduler import Scheduler
from octavo.server.watch.mirror import NOBODY, Mirror

_HELD = (CellState.IN_USE, CellState.SHARED, CellState.TENTATIVE)


class Watcher:
    """Keeps a mirror up to date, by frames that may lie any number of steps apart."""

    def __init__(self, scheduler: Scheduler, cache: Cache) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self.mirror = Mirror(cache.view.sizes, 0)

    def look(self, now_s: float) -> MemoryShown:
        """Take in the next frame, and return what was shown."""
        shown = MemoryShown(
            0,
            self._scheduler.lookout.frame(now_s, self.mirror.number),
            self._cache.usage(),
            self._scheduler.stats,
            *self._scheduler.queue_lengths,
        )
        self.mirror.take_in(shown)
        return shown

    def check(self, now_s: float) -> None:
        """Look, and assert that every block is shown as it is, and as `check` counts them."""
        self.look(now_s)
        self._check_blocks()
        self._check_counts()
        self._check_sequences()

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _check_blocks(self) -> None:
        mirror, view = self.mirror, self._cache.view
        for block in range(view.num_blocks):
            true = view.block(block)
            shown = (
                CellState(int(mirror.state[block])),
                None if mirror.group[block] == 255 else int(mirror.group[block]),
                int(mirror.refs[block]),
                int(mirror.tokens[block]),
                int(mirror.hits[block]),
                mirror.keys[block].tobytes(),
            )
            key = true.key or bytes(16)
            wanted = (true.state, true.group, true.refs, true.filled, true.hits, key)
            assert shown == wanted, f"block {block} is shown as {shown}, and is {wanted}"
            holders = sorted(mirror.holders.get(block, ()))
            assert holders == sorted(true.sequences), f"block {block}: held by {holders}"
            owner = int(mirror.owner[block])
            assert owner == min(holders, default=NOBODY), f"block {block} is shown as {owner}'s"
            names = {mirror.tenants[int(mirror.tenant[block])]}
            names |= {mirror.tenants[one] for one in mirror.also.get(block, ())}
            assert not true.tenants or names == set(true.tenants), f"block {block}: of {names}"

    def _check_counts(self) -> None:
        mirror, usage, counts = self.mirror, self._cache.usage(), self.mirror.counts()
        held = sum(counts[state] for state in _HELD)
        assert sum(counts) == mirror.size, f"{counts} are not {mirror.size} blocks"
        assert held == usage.blocks_used, f"{held} blocks are shown as held, not {usage}"
        assert int(mirror.refs.sum()) == usage.blocks_logical, f"not all holders of {usage}"
        assert int((mirror.refs > 1).sum()) == usage.blocks_shared, f"not what {usage} shares"
        if usage.group_blocks:
            cached = counts[CellState.CACHED] + counts[CellState.PINNED]
            assert cached == usage.blocks_cached, f"{cached} are shown as cached, not {usage}"
            assert counts[CellState.PINNED] == usage.blocks_pinned, f"{counts}, not {usage}"
            assert counts[CellState.FREE] == usage.blocks_free, f"{counts}, not {usage}"
            groups = np.bincount(mirror.group[mirror.refs > 0], minlength=len(usage.group_blocks))
            assert tuple(groups.tolist()) == usage.group_blocks, f"{groups}, not {usage}"

    def _check_sequences(self) -> None:
        live = self.mirror.live.seq.tolist()
        seqs = [self._scheduler.sequence(seq) for seq in live]
        assert all(seqs), f"some of {live} have ended"
        told = [(one.phase.value, one.length, one.scheduled) for one in seqs if one is not None]
        from_rows = [
            (("waiting", "loading", "running", "parked")[phase], tokens, computed)
            for phase, tokens, computed in zip(
                self.mirror.live.phase.tolist(),
                self.mirror.live.tokens.tolist(),
                self.mirror.live.computed.tolist(),
                strict=True,
            )
        ]
        assert told == from_rows, f"sequences are shown as {from_rows}, and are {told}"
        assert set(live) <= self.mirror.facts.keys(), "sequences without facts"
        gone = [seq for seq in self.mirror.facts if self._scheduler.sequence(seq) is None]
        assert not gone, f"facts of {gone}, which have ended"
