"""Random lives of a scheduler: whatever happens, the counts add up and every text is right."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.build import EVICTION_POLICIES
from octavo.contract.batch import Batch
from octavo.contract.retention import DEFAULT_TENANT, Retention, TenantShare
from octavo.errors import RequestError
from octavo.memory.groups import Groups
from octavo.sched.limits import Limits
from octavo.sched.order import ORDERS
from octavo.testing.driver import Driver, capacity, make_regions, make_request
from octavo.testing.fake_grammars import fake_form
from octavo.testing.fake_runner import FakeRunner

VOCAB = 12
PREFIXES = ([1] * 9, [1] * 17, [1, 2, 3, 4, 5, 6, 7, 8, 9], [5], [11, 10, 9] * 8)
BLOCK_SIZES = ((4,), (1,), (4, 8), (6, 4), (3, 3, 3))


class SchedulerMachine(RuleBasedStateMachine):
    """Requests with common prefixes, forks, aborts, priorities, failing steps, late moves."""

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        draw = data.draw
        self.failing_steps = 0
        self.requests_made = 0
        self.names, self.pin_limit = [DEFAULT_TENANT], 0.0
        self.dropped: set[str] = set()
        self.driver = self.make_driver(
            draw,
            depth=draw(st.sampled_from((1, 2))),
            order=draw(st.sampled_from(sorted(ORDERS))),
            budget=draw(st.sampled_from((1, 5, 16, 64))),
            max_num_seqs=draw(st.sampled_from((1, 2, 5, 9))),
            random=Random(draw(st.integers(0, 2**32))),
        )

    def make_driver(
        self, draw, *, depth: int, order: str, budget: int, max_num_seqs: int, random: Random
    ) -> Driver:
        sizes = draw(st.sampled_from(BLOCK_SIZES))
        windows = tuple(draw(st.sampled_from((None, None, 2, 5, 16))) for _ in sizes)
        blocks = draw(st.integers(2 * len(sizes), 24 * len(sizes)))
        self.longest = capacity(blocks, Groups(sizes, windows, step_tokens=budget))
        return Driver.paged(
            blocks,
            sizes,
            windows=windows,
            tenants=self.tenants(draw, blocks),
            pin_limit=self.pin_limit,
            policy=EVICTION_POLICIES[draw(st.sampled_from(sorted(EVICTION_POLICIES)))],
            depth=depth,
            order=order,
            budget=budget,
            max_num_seqs=max_num_seqs,
            host_blocks=draw(st.sampled_from((0, 6, 40))),
            partial_blocks=draw(st.sampled_from((True, True, False))),
            move_failure=draw(st.sampled_from((0.0, 0.1, 0.5))),
            storm_guard_tokens=draw(st.sampled_from((1, 4, 16))),
            long_prefills=draw(st.sampled_from(((0, 1), (0, 1), (2, 1), (5, 2)))),
            fate=self.fate,
            random=random,
            vocab_size=VOCAB,
        )

    def tenants(self, draw, blocks: int) -> list[TenantShare]:
        """Draw shares; with some, a request may be refused that fits into the whole pool."""
        if draw(st.booleans()):
            return []
        self.names = [DEFAULT_TENANT, "a", "b"]
        self.pin_limit = draw(st.sampled_from((0.0, 0.2)))
        self.longest = 0
        guaranteed, maximum = draw(st.sampled_from(((0.0, 0.5), (0.3, 0.7), (0.4, 1.0))))
        return [TenantShare("a", guaranteed, maximum), TenantShare("b")]

    def fate(self, batch: Batch) -> str | None:
        if not self.failing_steps or not batch.slices:
            return None
        self.failing_steps -= 1
        return "the device caught fire"

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.integers(0, VOCAB - 1), max_size=9),
        n=st.sampled_from((1, 1, 1, 2, 4)),
        max_tokens=st.sampled_from((1, 2, 7, 30)),
        priority=st.integers(0, 2),
        eos=st.booleans(),
        seed=st.integers(0, 3),
        salt=st.sampled_from(("", "", "tenant")),
        structured_outputs=st.sampled_from((None, None, fake_form(0), fake_form(1))),
        tenant=st.integers(0, 2),
        pin=st.sampled_from((None, None, None, "x")),
    )
    def add(self, prefix, tail, tenant, pin, **options) -> None:
        self.requests_made += 1
        name = self.names[tenant % len(self.names)]
        if self.pin_limit:
            options["retention"] = (Retention(priority=20 * tenant, ttl_s=6, pin=pin),)
        request = make_request(f"r{self.requests_made}", prefix + tail, tenant=name, **options)
        try:
            self.driver.add(request)
        except RequestError:
            assert len(request.prompt) + 1 > self.longest, "a request that fits was refused"

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    def pick(self, data: st.DataObject) -> str:
        request_id = data.draw(st.sampled_from(sorted(self.driver.requests)))
        self.dropped.add(request_id)
        return request_id

    @precondition(lambda self: self.driver.requests)
    @rule(data=st.data(), withdrawn=st.booleans())
    def abort(self, data: st.DataObject, withdrawn: bool) -> None:
        scheduler = self.driver.scheduler
        (scheduler.withdraw if withdrawn else scheduler.abort)(self.pick(data))

    @precondition(lambda self: self.driver.requests)
    @rule(data=st.data(), index=st.integers(0, 2))
    def finish_one_choice(self, data: st.DataObject, index: int) -> None:
        self.driver.scheduler.finish(self.pick(data), index)

    @precondition(lambda self: self.driver.requests)
    @rule(data=st.data(), index=st.integers(0, 2), paused=st.booleans())
    def pause_or_resume(self, data: st.DataObject, index: int, paused: bool) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.driver.requests)))
        scheduler = self.driver.scheduler
        (scheduler.pause if paused else scheduler.resume)(request_id, index)

    @rule(count=st.integers(1, 2))
    def fail_next_steps(self, count: int) -> None:
        self.failing_steps = count

    @rule()
    def clear_the_cache(self) -> None:
        self.driver.scheduler.clear_cache()

    @invariant()
    def counts_add_up_and_texts_are_right(self) -> None:
        self.driver.cache.check()
        self.driver.check_answers()

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.failing_steps = 0
        for request_id, index in self.driver.answers:
            self.driver.scheduler.resume(request_id, index)
        self.driver.run()
        while self.driver.cache.open_moves:
            self.driver.step()
        self.counts_add_up_and_texts_are_right()
        assert self.driver.cache.usage().blocks_used == 0
        for (request_id, _), answer in self.driver.answers.items():
            assert answer.finish is not None or request_id in self.dropped, "no answer"


class RegionMachine(SchedulerMachine):
    """The same lives over contiguous regions."""

    def make_driver(
        self, draw, *, depth: int, order: str, budget: int, max_num_seqs: int, random: Random
    ) -> Driver:
        rule_name = draw(st.sampled_from(("max", "pow2", "oracle", "static")))
        cache = make_regions(rule_name, draw(st.integers(2, 24)), longest=32)
        self.longest = cache.longest
        limits = Limits(max_num_seqs, budget, 10_000, cache.longest)
        driver = Driver(cache, limits=limits, order=order, depth=depth)
        driver.runner = FakeRunner(
            (4,), vocab_size=VOCAB, text=driver.text, fate=self.fate, random=random
        )
        return driver


_LIVES = settings(
    max_examples=60,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = _LIVES
TestRegions = RegionMachine.TestCase
TestRegions.settings = _LIVES
