"""A suite is worth something only if it can fail: broken parts are caught, with the reason."""

from __future__ import annotations

import subprocess
import sys
from itertools import count

import msgspec
import pytest

from octavo.contract.batch import Candidates, Sampled
from octavo.memory.groups import Groups
from octavo.memory.manager import KVCacheManager
from octavo.memory.policies.lru import Lru
from octavo.memory.reservation import Reservation
from octavo.sched.limits import Limits
from octavo.testing.conformance import (
    check_cache,
    check_eviction_policy,
    check_order,
    check_reservation,
    check_runner,
)
from octavo.testing.desk import Desk
from octavo.testing.driver import Driver
from octavo.testing.fake_runner import FakeRunner

# ── eviction policies ─────────────────────────────────────────────────────────────────────


class HeadFirst(Lru):
    def pop(self):
        blocks = [super(HeadFirst, self).pop() for _ in range(len(self))]
        for block in blocks[:-1]:
            self.add(block)
        return blocks[-1] if blocks else super().pop()


class Forgetful(Lru):
    def remove(self, block):
        pass


class ReturnsNothing(Lru):
    def pop(self):
        return super().pop() if len(self) else None


class Writes(Lru):
    def add(self, block):
        block.depth += 1
        super().add(block)


class Miscounts(Lru):
    def __len__(self):
        return min(3, super().__len__())


class TakesHits(Lru):
    def hit(self, block):
        self.add(block)


class KeepsByText(Lru):
    """Takes a text that it has seen for one that is inside."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def add(self, block):
        super().add(block)
        self.seen[block.id] = self.seen.get(block.id, 0) + 1

    def pop(self):
        block = super().pop()
        if self.seen[block.id] > 20:
            self.add(block)
        return block


class HeadFirstAtOnce(Lru):
    def add_all(self, blocks):
        super().add_all(blocks[::-1])


class Drifting(Lru):
    """Its victims depend on how many bags there were before."""

    bags = count()

    def __init__(self):
        super().__init__()
        self.turns = next(self.bags) % 2
        self.pops = 0

    def pop(self):
        self.pops += 1
        if self.turns and self.pops > 8 and len(self) > 1:
            self.add(super().pop())
        return super().pop()


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (HeadFirst, "tail first"),
        (Forgetful, "were removed"),
        (ReturnsNothing, "must raise IndexError"),
        (Writes, "must not write"),
        (Miscounts, "len is 3"),
        (Drifting, "different victims"),
        (HeadFirstAtOnce, "given and taken together"),
        (TakesHits, "a hit of a held block"),
        (KeepsByText, "blocks with new texts"),
    ],
)
def test_a_broken_eviction_policy_is_caught(broken, reason):
    with pytest.raises(AssertionError, match=reason):
        check_eviction_policy(broken)


# ── orders and reservations ───────────────────────────────────────────────────────────────


class Moody:
    def __init__(self):
        self.calls = 0

    def urgency(self, request):
        self.calls += 1
        return self.calls


class Fractional:
    def urgency(self, request):
        return 0.5


@pytest.mark.parametrize(
    ("broken", "reason"), [(Moody, "must not depend"), (Fractional, "must be an int")]
)
def test_a_broken_order_is_caught(broken, reason):
    with pytest.raises(AssertionError, match=reason):
        check_order(broken)


class Remembers:
    def __init__(self):
        self.calls = 0

    def __call__(self, prompt, output, longest):
        self.calls += 1
        return min(longest, prompt + output + self.calls % 2)


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        (lambda prompt, output, longest: prompt, "too short"),
        (lambda prompt, output, longest: prompt + output, "no longer than"),
        (Remembers(), "remember"),
    ],
    ids=["prompt only", "too long", "random"],
)
def test_a_broken_reservation_is_caught(tokens, reason):
    with pytest.raises(AssertionError, match=reason):
        check_reservation(Reservation("broken", tokens))


def test_a_batch_without_regions_is_caught():
    with pytest.raises(AssertionError, match="no fixed batch"):
        check_reservation(Reservation("broken", None, together=True))


# ── caches ────────────────────────────────────────────────────────────────────────────────


class KeepsBlocks(KVCacheManager):
    def release(self, seq, last_step, *, returns=False):
        if seq.id % 5:
            super().release(seq, last_step)


class SharesPartialBlocks(KVCacheManager):
    def fork(self, parent, child):
        super().fork(parent, child)
        for table in self._tables.values():
            table.forked = False


class ClaimsTooMuch(KVCacheManager):
    def lookup(self, seq):
        return super().lookup(seq)._replace(tokens=seq.length)


class NeverShort(KVCacheManager):
    def shortage(self, seq, hit):
        return 0

    def admit(self, seq, hit, upto, step):
        return not super().shortage(seq, hit) and super().admit(seq, hit, upto, step)


@pytest.mark.parametrize("broken", [KeepsBlocks, SharesPartialBlocks, ClaimsTooMuch, NeverShort])
def test_a_broken_cache_is_caught(broken):
    def make_driver(depth):
        tiers = Desk.paged(24).tiers
        return Driver(broken(Groups((4,)), tiers), limits=Limits(8, 64, 1000, 96), depth=depth)

    with pytest.raises(AssertionError):
        check_cache(make_driver)


# ── runners ───────────────────────────────────────────────────────────────────────────────


class LastInFirstOut(FakeRunner):
    def collect(self):
        self._queue.reverse()
        return super().collect()


class AcceptsAll(FakeRunner):
    def submit(self, batch):
        self._queue.append(batch)


class SamplesLess(FakeRunner):
    def collect(self):
        result = super().collect()
        sampled = dict(list(result.sampled.items())[:1])
        return msgspec.structs.replace(result, sampled=sampled)


class IgnoresCopies(FakeRunner):
    def submit(self, batch):
        for copy in batch.copies:
            self._memory["device", copy.dst] = dict(self._memory.get(("device", copy.dst), {}))
        super().submit(msgspec.structs.replace(batch, copies=()))


class LosesMoves(FakeRunner):
    def submit(self, batch):
        super().submit(msgspec.structs.replace(batch, moves=()))


class GuessesPending(FakeRunner):
    def submit(self, batch):
        slices = tuple(
            msgspec.structs.replace(piece, tokens=tuple(max(0, t) for t in piece.tokens))
            for piece in batch.slices
        )
        super().submit(msgspec.structs.replace(batch, slices=slices))


class HidesErrors(FakeRunner):
    def collect(self):
        result = super().collect()
        if result.error is None:
            return result
        return msgspec.structs.replace(result, error=None, sampled={0: Sampled(1, -1.0)})


class DrawsForBeams(FakeRunner):
    def collect(self):
        result = super().collect()
        drawn = {seq: Sampled(one.tokens[0], -1.0) for seq, one in result.candidates.items()}
        return msgspec.structs.replace(result, sampled=result.sampled | drawn)


class NamesTheWorst(FakeRunner):
    def collect(self):
        result = super().collect()
        turned = {
            seq: Candidates(one.tokens[::-1], one.logprobs[::-1])
            for seq, one in result.candidates.items()
        }
        return msgspec.structs.replace(result, candidates=turned)


@pytest.mark.parametrize(
    "broken",
    [
        LastInFirstOut,
        AcceptsAll,
        SamplesLess,
        IgnoresCopies,
        LosesMoves,
        GuessesPending,
        DrawsForBeams,
        NamesTheWorst,
    ],
)
def test_a_broken_runner_is_caught(broken):
    with pytest.raises((AssertionError, KeyError)):
        check_runner(lambda: broken((4,)))


def test_a_runner_that_hides_its_errors_is_caught():
    def make_failing(step):
        return HidesErrors((4,), fate=lambda batch: "broken" if batch.step == step else None)

    with pytest.raises(AssertionError, match="must sample nothing"):
        check_runner(lambda: FakeRunner((4,)), make_failing=make_failing)


def test_the_suites_do_not_need_pytest():
    code = "import octavo.testing.conformance, sys; print('pytest' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
