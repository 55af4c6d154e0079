"""Finds the longest known prefix of a text over all KV groups and tiers. Changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from octavo.contract.ids import BlockKey
from octavo.contract.request import Sequence
from octavo.memory.block import Block
from octavo.memory.groups import Groups
from octavo.memory.keys import TOKEN_BYTES, extend_keys, token_bytes
from octavo.memory.siblings import Siblings
from octavo.memory.tier import Text, Tier

Found = tuple[int, Block]
"""Number of the tier, and the block there."""


class Hit(NamedTuple):
    """What is known of a sequence's text before it is computed."""

    tokens: int
    """Leading tokens that some tier holds, as far as what follows them needs."""
    runs: tuple[list[Found], ...]
    """Per KV group, the (tier, block) of each block that was found, in order."""
    firsts: tuple[int, ...]
    """Per KV group, the index of the first of these in a table."""
    tails: tuple[Block | None, ...] = ()
    """Per KV group, the device block whose first tokens are the hit's last ones, to be copied since
    they do not fill a block; None where they do. Empty: the hit ends with a block everywhere."""
    arriving: bool = False
    """Part of it is being loaded for another sequence: worth waiting for."""

    def first_load(
        self, sizes: tuple[int, ...], concerns: Callable[[int, BlockKey], bool]
    ) -> int | None:
        """Position of the first block in a slower tier whose text `concerns` says yes to.

        sizes: tokens per block.
        """
        positions = [
            index * sizes[group]
            for group, (run, first) in enumerate(zip(self.runs, self.firsts, strict=True))
            for index, (tier, block) in enumerate(run, start=first)
            if tier and block.key is not None and concerns(group, block.key)
        ]
        return min(positions, default=None)

    @property
    def loads(self) -> bool:
        """True if part of it has to come from a slower tier."""
        return any(tier for run in self.runs for tier, _ in run)


class PrefixFinder:
    """Longest-prefix search by chained keys: one dictionary look-up per block.

    A block is found by the key of its last hash unit. A prefix counts only as far as every
    group has it: whole, or as much of its end as a window sees.
    """

    def __init__(self, groups: Groups, tiers: tuple[Tier, ...]) -> None:
        self._groups = groups
        self._tiers = tiers
        whole = (group for group, window in enumerate(groups.windows) if window is None)
        self._witness = next(whole, 0)
        """The group that `probe` looks at."""
        self._places = [tier.keys(self._witness) for tier in tiers]

    def find(self, seq: Sequence, upto: int, start: int = 0, *, tiers: int | None = None) -> Hit:
        """Find known blocks from position `start` (aligned) on, at most up to position `upto`.

        tiers: look only in the first so many; None: in all, faster ones first.
        """
        groups = self._groups
        extend_keys(seq, groups.unit, seq.length)
        search = _Search(groups, seq, self._tiers[:tiers])
        best = upto // groups.align * groups.align
        for group, (size, window) in enumerate(zip(groups.sizes, groups.windows, strict=True)):
            if window is None:
                best = search.end_of_run(group, start // size, best // size)
        if groups.windowed:
            best = self._end_for_windows(search, start, best)
        best = max(best, start)
        firsts = tuple(
            max(start // size, groups.first_seen(group, best))
            for group, size in enumerate(groups.sizes)
        )
        runs = tuple(
            search.run(group, first, best // size)
            for group, (first, size) in enumerate(zip(firsts, groups.sizes, strict=True))
        )
        return Hit(best, runs, firsts)

    def lengthen(self, seq: Sequence, hit: Hit, upto: int) -> Hit:
        """Add what the next block begins with, at most up to position `upto`.

        hit: found by `find`, which ends with blocks of the device. Of the blocks that follow it in
        each group, the one that begins most like the text counts; what all groups have is added.
        Only committed blocks are looked at: no failing step can spoil what is copied from them.
        """
        groups, siblings, start = self._groups, self._tiers[0].siblings, hit.tokens
        if siblings is None or start >= upto:
            return hit
        ahead = token_bytes(seq.tokens[start : min(upto, start + groups.align)])
        parent = seq.keys[start // groups.unit - 1] if start else seq.root
        chains: list[list[Block]] = []
        end = start + groups.align
        for group, size in enumerate(groups.sizes):
            chain, shared = _alike(siblings, group, parent, ahead, size)
            end = min(end, start + shared)
            if end == start:
                return hit
            chains.append(chain)
        firsts = tuple(
            max(first, groups.first_seen(group, end)) for group, first in enumerate(hit.firsts)
        )
        runs = list[list[Found]]()
        tails = list[Block | None]()
        for size, chain, run, before, first in zip(
            groups.sizes, chains, hit.runs, hit.firsts, firsts, strict=True
        ):
            whole = (end - start) // size
            run = run + [(0, block) for block in chain[:whole]]
            runs.append(run[first - before :])
            tails.append(chain[whole] if end % size else None)
        return Hit(end, tuple(runs), firsts, tuple(tails))

    def probe(self, seq: Sequence, guess: int) -> int:
        """Return about how many leading tokens are known, in O(1) if that is `guess` still.

        A block is looked for only at the end of what is known: blocks go tail first. Of a model
        with windows, one group stands for all.
        """
        groups, keys = self._groups, seq.keys
        if len(keys) < seq.length // groups.unit:
            extend_keys(seq, groups.unit, seq.length)
        size = groups.sizes[self._witness]
        ratio, places = size // groups.unit, self._places
        end = seq.reusable // size
        at = min(guess // size, end)
        while at and not any([keys[at * ratio - 1] in there for there in places]):
            at -= 1
        while at < end and any([keys[(at + 1) * ratio - 1] in there for there in places]):
            at += 1
        return at * size

    def _end_for_windows(self, search: _Search, start: int, best: int) -> int:
        """Return the longest prefix up to `best` whose end every window finds in memory."""
        groups = self._groups
        group = 0
        while best > start and group < len(groups):
            size = groups.sizes[group]
            first = max(start // size, groups.first_seen(group, best))
            lacking = None
            if groups.windows[group] is not None:
                lacking = search.last_missing(group, first, best // size)
            if lacking is None:
                group += 1
                continue
            # A prefix that ends before the missing block may do without it.
            best = lacking * size // groups.align * groups.align
            group = 0
        return best


def block_text(groups: Groups, seq: Sequence, group: int, index: int) -> Text:
    """Return what block `index` of a group holds of a sequence's text, whose keys are known."""
    ratio = groups.sizes[group] // groups.unit
    first, last = index * ratio, (index + 1) * ratio
    tokens = seq.units[first] if ratio == 1 else b"".join(seq.units[first:last])
    return Text(seq.keys[last - 1], seq.keys[first - 1] if first else seq.root, tokens, index)


def _alike(
    siblings: Siblings, group: int, parent: BlockKey, ahead: bytes, size: int
) -> tuple[list[Block], int]:
    """Follow a text from a block's end on; returns blocks and how many tokens they share with it.

    ahead: the text, int32, little-endian. All blocks but the last are shared whole.
    """
    chain, shared, width = list[Block](), 0, size * TOKEN_BYTES
    while shared * TOKEN_BYTES < len(ahead):
        rest = ahead[shared * TOKEN_BYTES :][:width]
        found = siblings.best(group, parent, rest)
        if found is None:
            break
        block, common = found
        chain.append(block)
        shared += common
        if common < size:
            break
        assert block.key is not None, f"{block} is a sibling without a text"
        parent = block.key
    return chain, shared


def run_texts(
    groups: Groups, seq: Sequence, group: int, first: int, end: int
) -> Iterable[tuple[BlockKey, BlockKey, bytes, int]]:
    """Return the fields of `block_text` for blocks `first` … `end` - 1."""
    if groups.sizes[group] != groups.unit:
        return (block_text(groups, seq, group, index) for index in range(first, end))
    keys = seq.keys[first:end]
    parents = [seq.keys[first - 1] if first else seq.root, *keys]
    return zip(keys, parents, seq.units[first:end], range(first, end), strict=False)


class _Search:
    """The look-ups of one search: each block is looked up once."""

    def __init__(self, groups: Groups, seq: Sequence, tiers: tuple[Tier, ...]) -> None:
        self._groups = groups
        self._seq = seq
        self._tiers = tiers
        self._runs: dict[int, list[Found]] = {}
        """Of the groups without a window, from where they were asked for."""
        self._known: dict[tuple[int, int], Found | None] = {}
        """Of the others, by group and index."""

    def end_of_run(self, group: int, first: int, end: int) -> int:
        """Return the aligned position up to which blocks from index `first` on are found."""
        texts = run_texts(self._groups, self._seq, group, first, end)
        run: list[Found] = [(0, block) for block in self._tiers[0].find_run(group, texts)]
        self._runs[group] = run
        for index in range(first + len(run), end):
            found = self._look_up(group, index)
            if found is None:
                break
            run.append(found)
        size, align = self._groups.sizes[group], self._groups.align
        return (first + len(run)) * size // align * align

    def last_missing(self, group: int, first: int, end: int) -> int | None:
        """Return the last index of first … end - 1 whose block is not found; None: all are."""
        missing = (i for i in range(end - 1, first - 1, -1) if self._at(group, i) is None)
        return next(missing, None)

    def run(self, group: int, first: int, end: int) -> list[Found]:
        """Return the blocks of indices first … end - 1, all of which are found."""
        if group in self._runs:
            return self._runs[group][: max(0, end - first)]
        found = (self._at(group, index) for index in range(first, end))
        return [one for one in found if one is not None]

    def _at(self, group: int, index: int) -> Found | None:
        place = (group, index)
        if place not in self._known:
            self._known[place] = self._look_up(group, index)
        return self._known[place]

    def _look_up(self, group: int, index: int) -> Found | None:
        text = block_text(self._groups, self._seq, group, index)
        for number, tier in enumerate(self._tiers):
            block = tier.find(group, text)
            if block is not None:
                return number, block
        return None
