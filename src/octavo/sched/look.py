"""Shows sequences and what they hold to whoever watches."""

from __future__ import annotations

from array import array
from itertools import islice

import msgspec

from octavo.contract.batch import Copy
from octavo.contract.ids import BlockId, SeqId, StepId
from octavo.contract.memory_view import (
    MOST_COUNTED,
    PHASES,
    BlockFacts,
    CopyNote,
    MemoryFrame,
    Reserved,
    SeqFacts,
    SeqRows,
)
from octavo.contract.misses import Miss
from octavo.contract.request import Phase, Sequence
from octavo.memory.look import Look
from octavo.memory.reservation import RESERVATIONS
from octavo.sched.roster import Roster

MOST_SEQUENCES = 512
"""Sequences that are told of at once; those that run go first."""

_MOST_COPIES = 256
_LOOKED_AT = 4 * MOST_SEQUENCES
"""Of those that do not run, at most so many are looked at."""

_RULES = ("max", "pow2", "oracle")
_RESERVED_EVERY_S = 1.0
_PHASE = {Phase(name): number for number, name in enumerate(PHASES)}


class Lookout:
    """Takes frames of memory and sequences, one after the other.

    A frame costs O(blocks that have changed since the last one) and O(sequences told of); nothing
    is kept while nobody looks. longest: tokens of the longest text.
    """

    def __init__(self, roster: Roster, look: Look, longest: int) -> None:
        self._roster = roster
        self._look = look
        self._longest = longest
        self._number = 0
        self._told: dict[SeqId, tuple[int | None, Miss | None]] = {}
        """By sequence, what was said of its hit."""
        self._copies: list[CopyNote] = []
        self._lost = 0
        self._reserved_s = -_RESERVED_EVERY_S
        self.open = False
        """Somebody looks."""

    def note(self, copies: tuple[Copy, ...], step: StepId) -> None:
        """A step that somebody watches copies blocks."""
        for copy in copies:
            why = "prefix" if self._look.lends(copy.src, step) else "fork"
            self._copies.append(CopyNote(step, copy.src, copy.dst, why))
        lost = len(self._copies) - _MOST_COPIES
        if lost > 0:
            self._lost += lost
            del self._copies[:lost]

    def frame(self, now_s: float, seen: int) -> MemoryFrame:
        """Return the next frame: what has changed since the one before, if that was `seen`."""
        whole = not self.open or seen != self._number
        if whole:
            self._told.clear()
            self._copies.clear()
            self._lost = 0
            self._reserved_s = now_s - _RESERVED_EVERY_S
        self.open = True
        self._number += 1
        memory = self._look.take(whole=whole)
        shown = self._shown()
        copies, self._copies = tuple(self._copies), []
        lost, self._lost = self._lost, 0
        return MemoryFrame(
            number=self._number,
            at_s=now_s,
            step=self._roster.step,
            memory=memory,
            seqs=_rows(shown),
            facts=tuple(self._facts(shown)),
            ended=self._ended(),
            copies=copies,
            lost_copies=lost,
            sequences=self._look.sequences,
            reserved=self._reserve(now_s),
        )

    def end(self) -> None:
        """Nobody looks any more."""
        self.open = False
        self._told.clear()
        self._copies.clear()
        self._look.end()

    def block(self, block: BlockId, now_s: float, *, prefix: bool) -> BlockFacts | None:
        """Tell of one block, of which a sequence may know the text; None: there is none such."""
        if not 0 <= block < self._look.num_blocks:
            return None
        facts = self._look.block(block, prefix=prefix)
        facts = msgspec.structs.replace(facts, age_s=max(0.0, now_s - facts.used_s))
        place = self._look.place(block) if facts.tokens is None and facts.filled else None
        seq = None if place is None else self._roster.get(place[0])
        if place is None or seq is None:
            return facts
        start = place[2] * self._look.sizes[place[1]]
        end = min(start + facts.filled, seq.length)
        return msgspec.structs.replace(
            facts,
            tokens=tuple(seq.tokens[start:end]),
            prefix=tuple(seq.tokens[:end]) if prefix else None,
        )

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _shown(self) -> list[Sequence]:
        """Return the sequences that are told of."""
        roster = self._roster
        shown = [*roster.running, *roster.loading][:MOST_SEQUENCES]
        room = MOST_SEQUENCES - len(shown)
        if room:
            idle = (
                seq
                for seq in islice(roster.each(), _LOOKED_AT)
                if seq.phase is Phase.WAITING or seq.phase is Phase.PARKED
            )
            shown += islice(idle, room)
        return shown

    def _facts(self, shown: list[Sequence]) -> list[SeqFacts]:
        """Return facts that have not been told, or not all of them."""
        told, new = self._told, list[SeqFacts]()
        for seq in shown:
            known = told.get(seq.id)
            if known is None or known[0] != seq.cached_tokens or known[1] is not seq.miss:
                told[seq.id] = (seq.cached_tokens, seq.miss)
                new.append(_facts_of(seq))
        return new

    def _ended(self) -> tuple[SeqId, ...]:
        ended = tuple(seq for seq in self._told if self._roster.get(seq) is None)
        for seq in ended:
            del self._told[seq]
        return ended

    def _reserve(self, now_s: float) -> tuple[Reserved, ...] | None:
        """Work out what other rules would reserve; None: that was told a moment ago."""
        if now_s - self._reserved_s < _RESERVED_EVERY_S:
            return None
        self._reserved_s = now_s
        holding = sorted(
            (seq for seq in (*self._roster.running, *self._roster.loading) if seq.pooled is None),
            key=lambda seq: seq.rank[1:],
        )
        lengths = [_lengths(seq) for seq in holding]
        exact = all(certain for _, _, certain in lengths)
        return tuple(self._under(rule, lengths, exact=exact or rule == "max") for rule in _RULES)

    def _under(self, name: str, lengths: list[tuple[int, int, bool]], *, exact: bool) -> Reserved:
        tokens = RESERVATIONS[name].tokens
        assert tokens is not None, f"{name} reserves nothing"
        blocks, fits = 0, 0
        for prompt, output, _ in lengths:
            slots = tokens(prompt, output, self._longest)
            blocks += sum(-(-slots // size) for size in self._look.sizes)
            fits += blocks <= self._look.num_blocks
        return Reserved(name, blocks, fits, exact)


def _lengths(seq: Sequence) -> tuple[int, int, bool]:
    """Return the length of a prompt and of its output, and whether that is more than a bound."""
    request, prompt = seq.request, seq.prompt_length
    if request.expected_output_tokens is not None:
        return prompt, request.expected_output_tokens, True
    if request.sampling.ignore_eos and not request.sampling.stop_token_ids:
        return prompt, seq.limit - prompt, True
    return prompt, max(1, seq.length - prompt), False


def _facts_of(seq: Sequence) -> SeqFacts:
    return SeqFacts(
        seq=seq.id,
        number=seq.rank[1],
        request=seq.request.id,
        index=seq.index,
        tenant=seq.request.tenant,
        prompt=seq.prompt_length,
        limit=seq.limit,
        arrived_s=seq.request.arrival_s,
        hit=seq.cached_tokens,
        miss=None if seq.miss is None else seq.miss.for_caller(),
    )


def _rows(shown: list[Sequence]) -> SeqRows:
    return SeqRows(
        seq=array("i", [seq.id for seq in shown]).tobytes(),
        phase=bytes([_PHASE[seq.phase] for seq in shown]),
        tokens=array("I", [len(seq.tokens) for seq in shown]).tobytes(),
        computed=array("I", [seq.scheduled for seq in shown]).tobytes(),
        preemptions=array("H", [min(seq.preemptions, MOST_COUNTED) for seq in shown]).tobytes(),
        paused=bytes([seq.paused for seq in shown]),
    )
