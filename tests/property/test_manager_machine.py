"""Random lives of the cache manager over several groups, forks, failing steps and a host tier.

The model is what a device would hold: each slot remembers the text it was written for.
"""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.build import EVICTION_POLICIES
from octavo.contract.batch import Move
from octavo.contract.hint import CacheHint
from octavo.contract.request import Sequence
from octavo.contract.retention import DEFAULT_TENANT, Retention, TenantShare
from octavo.errors import RequestError
from octavo.memory.groups import Groups
from octavo.testing.desk import Desk

PREFIXES = ([1] * 9, [1] * 17, [1, 2, 3, 4, 5, 6, 7, 8], [4, 3] * 12, [5])
TENANTS = (
    (),
    (TenantShare("a", 0.3, 0.6), TenantShare("b", 0.2)),
    (TenantShare("a", 0.0, 0.5), TenantShare("b", 0.5), TenantShare(DEFAULT_TENANT, 0.1, 0.9)),
)
HINTS = (
    (),
    (CacheHint("continues"),),
    (CacheHint("shared", 6), CacheHint("closed", 9, source="tenant")),
    (CacheHint(0.25, 1), CacheHint(1.0)),
)
SIZES = ((4,), (1,), (4, 8), (6, 4), (3, 3, 3), (2,))


@dataclass
class Slot:
    """What was written once into a slot; copies and moves carry it along."""

    text: tuple[object, ...]
    bad: bool = False
    """A step that failed wrote it, or one that read what such a step wrote."""


def text_at(seq: Sequence, position: int) -> tuple[object, ...]:
    """Return what the slot of a position must have been written for."""
    return (seq.root, *seq.tokens[: position + 1])


class ManagerMachine(RuleBasedStateMachine):
    """Plays the scheduler, the runner and the mover."""

    @initialize(
        data=st.data(),
        sizes=st.sampled_from(SIZES),
        blocks=st.integers(4, 40),
        host=st.sampled_from((0, 5, 40)),
        policy=st.sampled_from(sorted(EVICTION_POLICIES)),
        tenants=st.sampled_from(TENANTS),
        pin_limit=st.sampled_from((0.0, 0.2, 0.5)),
    )
    def build(self, data, sizes, blocks: int, host: int, policy: str, tenants, pin_limit) -> None:
        self.sizes = sizes
        self.tenants = sorted({DEFAULT_TENANT, *(one.name for one in tenants)})
        self.now_s = 0
        windows = tuple(data.draw(st.sampled_from((None, None, 1, 2, 5, 16))) for _ in sizes)
        self.groups = Groups(sizes, windows)
        self.desk = Desk.paged(
            blocks * len(sizes),
            sizes,
            windows=windows,
            host_blocks=host,
            policy=EVICTION_POLICIES[policy],
            tenants=tenants,
            pin_limit=pin_limit,
        )
        self.cache = self.desk.cache
        self.running: dict[int, Sequence] = {}
        self.loading: dict[int, Sequence] = {}
        self.memory: dict[tuple[str, int], dict[int, Slot]] = {}
        self.writes: dict[int, list[tuple[list[Slot], list[Slot]]]] = {}
        """Step to its writes: (slots that were read, slots that were written)."""
        self.writers: dict[int, set[int]] = {}
        self.oldest = 1
        """The oldest step that has not been collected."""
        self.moves: dict[int, Move] = {}

    # ── what a runner does ────────────────────────────────────────────────────────────────

    def write(self, seq: Sequence, start: int, upto: int) -> None:
        for copy in self.cache.take_copies():
            self.memory["device", copy.dst] = dict(self.memory["device", copy.src])
        read, written = self.slots(seq, start), list[Slot]()
        for group, size in enumerate(self.sizes):
            ids = self.desk.blocks(seq, group)
            for position in range(start, upto):
                block = self.memory.setdefault(("device", ids[position // size]), {})
                block[position % size] = Slot(text_at(seq, position))
                written.append(block[position % size])
        self.writers.setdefault(self.desk.step, set()).add(seq.id)
        self.writes.setdefault(self.desk.step, []).append((read, written))

    def slots(self, seq: Sequence, upto: int) -> list[Slot]:
        """Return the slots that a query at position `upto` sees before itself, by group."""
        return [
            self.memory["device", ids[position // size]][position % size]
            for group, size in enumerate(self.sizes)
            for ids in [self.desk.blocks(seq, group)]
            for position in self.seen(group, upto)
        ]

    def seen(self, group: int, upto: int) -> range:
        window = self.groups.windows[group]
        return range(0 if window is None else max(0, upto - window + 1), upto)

    def spoil(self, failed: int) -> None:
        """Mark what a failed step wrote, and what later steps wrote after reading that."""
        for step in sorted(self.writes):
            for read, written in self.writes[step]:
                if step == failed or any(slot.bad for slot in read):
                    for slot in written:
                        slot.bad = True

    # ── sequences come and go ─────────────────────────────────────────────────────────────

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.integers(0, 5), max_size=6),
        chunk=st.integers(1, 40),
        salt=st.sampled_from(("", "", "tenant")),
        hints=st.sampled_from(HINTS),
        tenant=st.integers(0, 2),
        wishes=st.tuples(
            st.sampled_from((None, 2, 7)),
            st.sampled_from((0, 35, 90)),
            st.sampled_from((None, 3)),
            st.sampled_from((None, None, "x", "y")),
            st.booleans(),
        ),
    )
    def admit(self, prefix, tail, chunk: int, salt: str, hints, tenant: int, wishes) -> None:
        end, priority, ttl_s, pin, withdrawn = wishes
        before, pins = self.desk.snapshot(), self.pins()
        try:
            seq = self.desk.waiting(
                prefix + tail,
                salt=salt,
                hints=hints,
                tenant=self.tenants[tenant % len(self.tenants)],
                retention=(Retention(0, end, priority, ttl_s, pin),),
            )
        except RequestError:
            assert self.desk.snapshot() == before, "a refused request changed something"
            return
        before = self.desk.snapshot()
        found = self.cache.lookup(seq).tokens
        assert found < seq.length
        assert self.desk.snapshot() == before, "lookup changed something"
        if not self.desk.admit(seq, min(seq.length, found + chunk)):
            assert self.desk.snapshot() == before, "a refused admission changed something"
            if withdrawn:
                self.cache.withdraw(seq.request)
                assert self.pins() == pins, "a request that was taken back left a pin"
            self.cache.part(seq.request)
        elif self.cache.loading(seq):
            self.loading[seq.id] = seq
        else:
            self.running[seq.id] = seq
            self.write(seq, found, seq.scheduled)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), tokens=st.lists(st.integers(0, 5), min_size=1, max_size=9))
    def go_on(self, data: st.DataObject, tokens: list[int]) -> None:
        seq = self.pick(data)
        if seq.scheduled < seq.length:
            gained = self.cache.adopt(seq)
            seq.scheduled += gained
            assert seq.scheduled < seq.length, "nothing is left to compute"
            tokens = []
        start, before = seq.scheduled, self.desk.snapshot()
        if self.desk.extend(seq, *tokens):
            self.write(seq, start, seq.scheduled)
        else:
            assert self.desk.snapshot() == before, "a refused extension changed something"

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = self.pick(data)
        if parent.scheduled == parent.length:
            child = self.desk.fork(parent)
            self.running[child.id] = child
            self.writers.setdefault(self.desk.step, set()).add(child.id)

    @precondition(lambda self: self.running or self.loading)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        everybody = sorted([*self.running, *self.loading])
        self.let_go(data.draw(st.sampled_from(everybody)), returns=data.draw(st.booleans()))

    def let_go(self, seq_id: int, *, returns: bool = False) -> None:
        seq = self.running.pop(seq_id, None) or self.loading.pop(seq_id)
        self.cache.release(seq, self.desk.step, returns=returns)
        self.cache.release(seq, self.desk.step)
        live = [*self.running.values(), *self.loading.values()]
        if not any(other.request is seq.request for other in live):
            self.cache.part(seq.request)

    def pins(self) -> list[int]:
        """Return how many texts each tenant pins by each name."""
        pins = self.desk.tiers[0].pool.shelves.pins
        return [pins.count(tenant, name) for tenant in self.tenants for name in "xy"]

    def pick(self, data: st.DataObject) -> Sequence:
        return self.running[data.draw(st.sampled_from(sorted(self.running)))]

    @rule()
    def clear(self) -> None:
        self.cache.clear()

    @rule(seconds=st.sampled_from((1, 2, 4, 4000)))
    def time_passes(self, seconds: int) -> None:
        self.now_s += seconds
        self.cache.pass_time(self.now_s)

    @rule(name=st.sampled_from((None, "x")))
    def unpin(self, name: str | None) -> None:
        self.cache.unpin(None, name)

    # ── steps end ─────────────────────────────────────────────────────────────────────────

    @precondition(lambda self: self.desk.step == self.oldest)
    @rule()
    def plan_another_step(self) -> None:
        self.desk.step += 1

    @rule(fails=st.sampled_from((False, False, False, True)))
    def collect_a_step(self, fails: bool) -> None:
        step = self.oldest
        self.oldest += 1
        self.desk.step = max(self.desk.step, self.oldest)
        writers = self.writers.pop(step, set())
        if not fails:
            self.writes.pop(step, None)
            self.cache.commit(step)
            return
        self.spoil(step)
        self.writes.pop(step, None)
        alive = writers & {*self.running, *self.loading}
        doomed = self.cache.revoke(step, alive)
        assert alive <= doomed
        for seq_id in doomed:
            self.let_go(seq_id)

    # ── moves end ─────────────────────────────────────────────────────────────────────────

    @rule(data=st.data(), fails=st.booleans())
    def settle(self, data: st.DataObject, fails: bool) -> None:
        self.moves |= {move.id: move for move in self.cache.take_moves()}
        may_end = sorted(i for i, move in self.moves.items() if move.after < self.oldest)
        if not may_end:
            return
        ids = data.draw(st.lists(st.sampled_from(may_end), unique=True))
        self.end_moves(ids, fails=fails)

    def end_moves(self, ids: list[int], *, fails: bool) -> None:
        for move_id in ids:
            move = self.moves.pop(move_id)
            if not fails:
                source = self.memory[move.src.tier, move.src.block]
                self.memory[move.dst.tier, move.dst.block] = dict(source)
        ready = self.cache.settle(() if fails else ids, ids if fails else ())
        for seq_id, tokens in ready.items():
            self.loaded(seq_id, tokens)

    def loaded(self, seq_id: int, tokens: int) -> None:
        seq = self.loading.pop(seq_id)
        assert tokens <= seq.scheduled
        seq.scheduled = tokens
        self.running[seq_id] = seq

    @precondition(lambda self: self.loading)
    @rule()
    def give_up_on_a_load(self) -> None:
        seq_id = min(self.loading)
        self.loaded(seq_id, self.cache.give_up(self.loading[seq_id]))

    # ── what must always hold ─────────────────────────────────────────────────────────────

    @invariant()
    def counts_add_up(self) -> None:
        self.cache.check()

    @invariant()
    def every_sequence_reads_its_own_text(self) -> None:
        for seq in self.running.values():
            truth = [
                text_at(seq, position)
                for group in range(len(self.sizes))
                for position in self.seen(group, seq.scheduled)
            ]
            slots = self.slots(seq, seq.scheduled)
            assert [slot.text for slot in slots] == truth, f"sequence {seq.id}"
            assert not any(slot.bad for slot in slots), f"sequence {seq.id} reads garbage"

    def teardown(self) -> None:
        if not hasattr(self, "cache"):
            return
        for seq_id in [*self.running, *self.loading]:
            self.let_go(seq_id)
        self.cache.pass_time(self.now_s + 1e6)
        for step in range(self.oldest, self.desk.step + 1):
            self.cache.commit(step)
        for _ in range(3):  # a store may begin when a step is collected
            self.moves |= {move.id: move for move in self.cache.take_moves()}
            self.end_moves(list(self.moves), fails=False)
        self.cache.check()
        assert self.cache.open_moves == 0
        assert self.cache.usage().blocks_used == 0
        assert self.cache.usage().blocks_pinned == 0


TestManager = ManagerMachine.TestCase
TestManager.settings = settings(
    max_examples=120,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
