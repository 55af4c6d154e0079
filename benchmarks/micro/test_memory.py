"""What the memory plane costs: prefixes, extension, and the pool itself."""

from __future__ import annotations

from itertools import cycle
from random import Random

import pytest

from octavo.build import EVICTION_POLICIES
from octavo.contract.retention import TenantShare
from octavo.testing.desk import Desk

BLOCK_SIZE = 16
PROMPT = 4096
ROUNDS = 300


class Visits:
    """One request after another comes, is admitted, computed and goes."""

    def __init__(
        self, *, warm: bool, policy: str = "lru", tenants: tuple[str, ...] = ("default",)
    ) -> None:
        """tenants: their requests come in turn."""
        blocks, make = 4 * PROMPT // BLOCK_SIZE, EVICTION_POLICIES[policy]
        shares = [TenantShare(name) for name in tenants]
        self.desk = Desk.paged(blocks, (BLOCK_SIZE,), policy=make, tenants=shares)
        self.turns = cycle(tenants)
        self.draw = Random(0)
        self.known = self.text() if warm else None
        for _ in range(8):  # from then on a cold text has to evict others
            self.visit(*self.arrive()[0])

    def text(self) -> list[int]:
        return [self.draw.randrange(32_000) for _ in range(PROMPT)]

    def arrive(self):
        self.desk.step += 1
        seq = self.desk.waiting(self.known or self.text(), tenant=next(self.turns))
        return (seq, self.desk.step), {}

    def visit(self, seq, step) -> int:
        cache = self.desk.cache
        cache.pass_time(0.0)
        hit = cache.lookup(seq)
        cache.explain(seq, hit)
        assert cache.admit(seq, hit, PROMPT, step)
        cache.commit(step)
        cache.release(seq, step)
        return hit.tokens


@pytest.mark.benchmark(group="a prompt of 4,096 tokens")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_lookup_admit_commit_release_of_4096_tokens(benchmark, policy, warm):
    visits = Visits(warm=warm, policy=policy)
    benchmark.extra_info["target_ms"] = 1.0

    found = benchmark.pedantic(visits.visit, setup=visits.arrive, rounds=ROUNDS, warmup_rounds=10)

    assert found == (PROMPT - 1 if warm else 0)


@pytest.mark.benchmark(group="a prompt of 4,096 tokens, of two tenants in turn")
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("policy", EVICTION_POLICIES)
def test_a_text_of_4096_tokens_that_goes_from_one_account_to_another(benchmark, policy, warm):
    visits = Visits(warm=warm, policy=policy, tenants=("default", "other"))
    benchmark.extra_info["target_ms"] = 1.0

    found = benchmark.pedantic(visits.visit, setup=visits.arrive, rounds=ROUNDS, warmup_rounds=10)

    assert found == (PROMPT - 1 if warm else 0)


@pytest.mark.benchmark(group="extend by one token")
@pytest.mark.parametrize("length", [1_000, 10_000_000])
def test_extend_by_one_token(benchmark, length):
    desk = Desk.paged(length // BLOCK_SIZE + 200, (BLOCK_SIZE,))
    seq = desk.waiting([7] * BLOCK_SIZE)
    assert desk.admit(seq)
    assert desk.extend(seq, *bytes(length - BLOCK_SIZE))
    desk.commit()

    def commit():
        desk.commit()
        seq.tokens.append(7)
        return (), {}

    def extend():
        assert desk.cache.extend(seq, seq.length, desk.step)
        seq.scheduled = seq.length
        desk.cache.growth(seq)

    desk.cache.growth(seq)  # the runner knows all of the table
    benchmark.pedantic(extend, setup=commit, rounds=2000, warmup_rounds=20)


@pytest.mark.benchmark(group="256 blocks")
@pytest.mark.parametrize("verb", ["take and drop", "share and drop"])
def test_256_blocks_of_a_pool(benchmark, verb):
    pool = Desk.paged(4096).tiers[0].pool
    held = pool.take(256)

    def take_and_drop():
        pool.drop(reversed(pool.take(256)))

    def share_and_drop():
        pool.share(held)
        pool.drop(reversed(held))

    benchmark(take_and_drop if verb == "take and drop" else share_and_drop)
