"""One stream's view of the memory: what it has been told, and what is to be told next."""

from __future__ import annotations

import time
from base64 import b64encode
from typing import Any

import msgspec
import numpy as np

from octavo.contract.ids import SeqId
from octavo.contract.memory_view import CellState, SeqFacts
from octavo.contract.misses import Miss
from octavo.engine.messages import CoreFacts, MemoryShown
from octavo.server.watch.mirror import NOBODY, Column, Mirror
from octavo.server.watch.tree import Tree
from octavo.server.watch.wants import Wants

Told = dict[str, object]
"""An object as JSON has it."""

_TREE_EVERY_S = 2.0
_MOST_COPIES = 256
_MOST_ENTRIES = 4096
_COUNTED = (
    "steps",
    "prefix_query_tokens",
    "prefix_hit_tokens",
    "computed_prompt_tokens",
    "recomputed_tokens",
    "copies",
    "preemptions",
    "preemptions_by_reason",
    "misses",
    "missed_tokens",
)


class View:
    """Writes the frames of one stream, each from what has changed since the last it has written.

    model: as clients name it.
    """

    def __init__(self, mirror: Mirror, facts: CoreFacts, model: str, wants: Wants) -> None:
        self._mirror = mirror
        self._facts = facts
        self._model = model
        self._wants = wants
        self._seen = 0
        self._told = set[SeqId]()
        """Sequences whose facts it knows."""
        self._tables: dict[tuple[SeqId, int], Told] = {}
        windows = facts.windows or (None,)
        # A group that sees all of a text has all of its blocks.
        self._tree = Tree(mirror, windows.index(None) if None in windows else 0)
        self._tree_s = -_TREE_EVERY_S
        self._what_if: Told | None = None
        self._mine: Column = np.zeros(0, bool)
        self._shown: Column = np.zeros(0, np.uint8)
        """States of the blocks as they were told."""

    @property
    def mirror(self) -> Mirror:
        """What it shows."""
        return self._mirror

    @property
    def late(self) -> bool:
        """True if there is something to tell."""
        return self._seen < self._mirror.news

    def frame(self) -> Told:
        """Return what there is to tell now: everything at first, or too long after the last."""
        mirror, shown = self._mirror, self._mirror.shown
        assert shown is not None, "nothing has been shown yet"
        whole = self._seen < mirror.least
        told: Told = {
            "type": "snapshot" if whole else "delta",
            "epoch": mirror.epoch,
            "seq": mirror.number,
            "base": None if whole else self._seen,
            "now_s": shown.frame.at_s,
            "wall_s": time.time(),
            "step": shown.frame.step,
            "scope": "all" if self._wants.tenant is None else "tenant",
            "paused": shown.paused,
        }
        if whole:
            self._told.clear()
            self._tables.clear()
            told["pool"] = self._pool()
        mine = self._whose()
        if self._wants.cells:
            cells = self._cells(mine, whole=whole)
            if cells is not None:
                told["cells"] = cells
        told["counts"] = self._counts(shown)
        told["requests"] = self._requests(whole=whole)
        tables = self._followed()
        if tables:
            told["tables"] = tables
        self._add_copies(told, whole=whole)
        self._add_tree(told, mine, shown.frame.at_s, whole=whole)
        if self._wants.tenant is None:
            told["counters"] = _counters(shown)
            self._add_what_if(told, shown, whole=whole)
        self._seen = mirror.number
        return told

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _pool(self) -> Told:
        facts, size = self._facts, self._mirror.size
        first = min(self._wants.first, size)
        windows = facts.windows or (None,) * len(facts.block_sizes)
        return {
            "tier": "device",
            "blocks": size,
            "first": first,
            "count": min(self._wants.count, size - first),
            "block_bytes": facts.block_bytes,
            "groups": [
                {"group": group, "block_size": tokens, "window": window}
                for group, (tokens, window) in enumerate(
                    zip(facts.block_sizes, windows, strict=True)
                )
            ],
            "max_model_len": facts.max_model_len,
            "model": self._model,
            "tiers": [{"name": "device", "blocks": size}],
        }

    def _whose(self) -> Column | None:
        """Say of each block whether its contents are told; None: of all."""
        tenant = self._wants.tenant
        if tenant is None:
            return None
        names = self._mirror.tenants
        if tenant not in names:  # it has never had a block
            return np.zeros(self._mirror.size, bool)
        return self._mirror.is_tenants(names.index(tenant))

    def _cells(self, mine: Column | None, *, whole: bool) -> Told | None:
        mirror, first = self._mirror, min(self._wants.first, self._mirror.size)
        end = min(first + self._wants.count, mirror.size)
        if whole:
            index = np.arange(first, end)
        else:
            fresh = mirror.changed[first:end] > self._seen
            if mine is not None:
                # What only others do with their own is nobody's business.
                own = mine[first:end]
                seen = mirror.state[first:end] != self._shown[first:end]
                fresh = (fresh & own) | seen | (own != self._mine[first:end])
            index = np.flatnonzero(fresh) + first
        if mine is not None:
            self._mine, self._shown = mine, mirror.state.copy()
        if not len(index) and not whole:
            return None
        told: Told = {} if whole else {"index": _b64(index, np.uint32)}
        told["state"] = _b64(mirror.state[index], np.uint8)
        own = None if mine is None else mine[index]
        for name, column, dtype, nothing in (
            ("group", mirror.group, np.uint8, None),
            ("refs", mirror.refs, np.uint16, 0),
            ("tokens", mirror.tokens, np.uint16, 0),
            ("owner", mirror.owner, np.int32, NOBODY),
            ("hits", mirror.hits, np.uint16, 0),
            ("used_s", mirror.used, np.uint32, 0),
        ):
            values = column[index]
            if own is not None and nothing is not None:
                values = np.where(own, values, nothing)
            told[name] = _b64(values, dtype)
        if own is not None:
            told["mine"] = _b64(own, np.uint8)
        return told

    def _counts(self, shown: MemoryShown) -> Told:
        counts = self._mirror.counts()
        told: Told = {state.name.lower(): counts[state] for state in CellState}
        if self._wants.tenant is None:
            usage = shown.usage
            told["held"] = usage.blocks_used
            told["logical"] = usage.blocks_logical
            told["tokens_share"] = usage.tokens / usage.slots if usage.slots else 0.0
            used = usage.allocated
            told["waste_share"] = 1 - usage.tokens / used if used else None
        return told

    def _may_see(self, facts: SeqFacts) -> bool:
        return self._wants.tenant in (None, facts.tenant)

    def _requests(self, *, whole: bool) -> Told:
        mirror, live = self._mirror, self._mirror.live
        facts = mirror.facts
        keep = [
            row
            for row, seq in enumerate(live.seq.tolist())
            if seq in facts and self._may_see(facts[seq][0])
        ]
        rows = np.array(keep, np.int64)
        seqs: list[SeqId] = live.seq[rows].tolist()
        blocks = [
            0 if table is None else sum(map(len, table.groups))
            for table in map(mirror.tables.get, seqs)
        ]
        new = [facts[seq][0] for seq in seqs if facts[seq][1] > self._seen or seq not in self._told]
        self._told.update(seqs)
        gone = [
            {"seq": one.seq, "request": one.request}
            for number, one in mirror.ended
            if not whole and number > self._seen and one.seq in self._told
        ]
        self._told.difference_update([one.seq for _, one in mirror.ended])
        told: Told = {
            "live": {
                "seq": _b64(live.seq[rows], np.int32),
                "phase": _b64(live.phase[rows], np.uint8),
                "tokens": _b64(live.tokens[rows], np.uint32),
                "computed": _b64(live.computed[rows], np.uint32),
                "blocks": _b64(np.array(blocks), np.uint32),
                "preemptions": _b64(live.preemptions[rows], np.uint16),
                "paused": _b64(live.paused[rows], np.uint8),
            },
            "new": [_facts(one) for one in new],
            "gone": gone,
        }
        shown = mirror.shown
        if self._wants.tenant is None and shown is not None:
            told["running"], told["waiting"] = shown.running, shown.waiting
        else:
            running = int(np.isin(live.phase[rows], (1, 2)).sum())
            told["running"], told["waiting"] = running, len(keep) - running
        return told

    def _followed(self) -> list[Told]:
        """Return the tables of followed requests that are not as they were told."""
        if not self._wants.follow:
            return []
        mirror, news = self._mirror, list[Told]()
        for place in [place for place in self._tables if place[0] not in mirror.tables]:
            del self._tables[place]
        for seq, table in mirror.tables.items():
            known = mirror.facts.get(seq)
            if known is None or known[0].request not in self._wants.follow:
                continue
            if not self._may_see(known[0]):
                continue
            for group, ids in enumerate(table.groups):
                offset = max(0, len(ids) - _MOST_ENTRIES)
                told: Told = {
                    "seq": seq,
                    "group": group,
                    "first": table.first[group],
                    "offset": offset,
                    "blocks": _b64(np.array(ids[offset:]), np.int32),
                    "shared": self._shared(seq, ids[offset:]),
                }
                if self._tables.get((seq, group)) != told:
                    self._tables[seq, group] = told
                    news.append(told)
        return news

    def _shared(self, seq: SeqId, ids: list[int]) -> list[list[object]]:
        """Return, by position, who else holds blocks."""
        holders, shared = self._mirror.holders, list[list[object]]()
        for position, block in enumerate(ids):
            there = holders.get(block, ())
            if len(there) > 1:
                others = [self._name(other) for other in there if other != seq]
                shared.append([position, others])
        return shared

    def _name(self, seq: SeqId) -> SeqId:
        """Return a sequence's number, or `NOBODY` for one of another tenant."""
        known = self._mirror.facts.get(seq)
        if self._wants.tenant is None:
            return seq
        return seq if known is not None and self._may_see(known[0]) else NOBODY

    def _add_copies(self, told: Told, *, whole: bool) -> None:
        if whole:
            return
        copies: list[Told] = []
        for number, note, seq in self._mirror.copies:
            if number <= self._seen:
                continue
            if self._wants.tenant is not None and self._name(seq) == NOBODY:
                continue
            why = {"step": note.step, "src": note.src, "dst": note.dst, "why": note.why}
            copies.append({**why, "seq": seq})
        if copies:
            told["copies"] = copies[-_MOST_COPIES:]
        lost = max(0, len(copies) - _MOST_COPIES)
        if self._wants.tenant is None and self._mirror.shown is not None:
            lost += self._mirror.shown.frame.lost_copies
        if lost:
            told["lost_copies"] = lost

    def _add_tree(self, told: Told, mine: Column | None, now_s: float, *, whole: bool) -> None:
        if self._wants.tree and (whole or now_s - self._tree_s >= _TREE_EVERY_S):
            self._tree_s = now_s
            told["tree"] = self._tree.told(self._wants.tree, mine)

    def _add_what_if(self, told: Told, shown: MemoryShown, *, whole: bool) -> None:
        mirror = self._mirror
        if mirror.reserved is None:
            return
        usage = shown.usage
        what_if: Told = {
            "sequences": mirror.reserving,
            "paged": {"blocks": usage.blocks_used, "logical": usage.blocks_logical},
        }
        for one in mirror.reserved:
            what_if[one.rule] = {"blocks": one.blocks, "fits": one.fits, "exact": one.exact}
        if whole or (shown.frame.reserved is not None and what_if != self._what_if):
            told["what_if"] = self._what_if = what_if


def _facts(one: SeqFacts) -> Told:
    return {
        "seq": one.seq,
        "number": one.number,
        "request": one.request,
        "index": one.index,
        "tenant": one.tenant,
        "prompt": one.prompt,
        "limit": one.limit,
        "arrived_s": one.arrived_s,
        "hit": one.hit,
        "miss": None if one.miss is None else _miss(one.miss),
    }


def _miss(miss: Miss) -> Told:
    told = msgspec.to_builtins(miss)
    told.pop("elsewhere", None)
    return told


def _counters(shown: MemoryShown) -> Told:
    told: Told = {name: getattr(shown.stats, name) for name in _COUNTED}
    told["evictions"] = shown.usage.evictions
    return told


def _b64(values: Column, dtype: Any) -> str:
    return b64encode(values.astype(dtype).tobytes()).decode()
