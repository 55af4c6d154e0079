"""Random lives of a scheduler: whatever happens, the counts add up and every text is right."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.contract.batch import Batch
from octavo.contract.request import FinishReason, choice_seed
from octavo.errors import RequestError
from octavo.sched.limits import Limits
from octavo.testing.driver import EOS, Driver, make_regions, make_request
from octavo.testing.fake_runner import FakeRunner, expected_output

VOCAB = 12
PREFIXES = [[1] * 9, [1] * 17, [1, 2, 3, 4, 5, 6, 7, 8, 9], [5], [11, 10, 9] * 8]


class SchedulerMachine(RuleBasedStateMachine):
    """Requests with common prefixes, forks, aborts, priorities, failing steps, late moves."""

    depths = (1, 2)
    block_sizes = ((4,), (1,), (4, 8), (6, 4), (3, 3, 3))
    host_blocks = (0, 6, 40)

    @initialize(data=st.data())
    def build(self, data: st.DataObject) -> None:
        draw = data.draw
        self.sizes = draw(st.sampled_from(self.block_sizes))
        self.order = draw(st.sampled_from(("fcfs", "priority")))
        blocks = draw(st.integers(2 * len(self.sizes), 24 * len(self.sizes)))
        self.fail_next = 0
        self.failures_per_request: dict[str, int] = {}
        self.driver = self.make_driver(
            blocks,
            depth=draw(st.sampled_from(self.depths)),
            budget=draw(st.sampled_from((1, 5, 16, 64))),
            max_num_seqs=draw(st.sampled_from((1, 2, 5, 9))),
            host_blocks=draw(st.sampled_from(self.host_blocks)),
            random=Random(draw(st.integers(0, 2**32))),
            move_failure=draw(st.sampled_from((0.0, 0.1, 0.5))),
        )
        self.requests: dict[str, object] = {}
        self.aborted: set[str] = set()

    def make_driver(self, blocks: int, **options: object) -> Driver:
        driver = Driver.paged(blocks, self.sizes, order=self.order, fate=self.fate, **options)
        driver.runner.vocab_size = VOCAB
        return driver

    def fate(self, batch: Batch) -> str | None:
        if not self.fail_next or not batch.slices:
            return None
        self.fail_next -= 1
        return "the device caught fire"

    @rule(
        prefix=st.sampled_from(PREFIXES),
        tail=st.lists(st.integers(0, VOCAB - 1), max_size=9),
        n=st.sampled_from((1, 1, 1, 2, 4)),
        max_tokens=st.sampled_from((1, 2, 7, 30, None)),
        priority=st.integers(0, 2),
        eos=st.booleans(),
        seed=st.integers(0, 3),
        salt=st.sampled_from(("", "", "tenant")),
    )
    def add(self, prefix, tail, n, max_tokens, priority, eos, seed, salt) -> None:
        request = make_request(
            f"r{len(self.requests)}",
            prefix + tail,
            n=n,
            max_tokens=max_tokens if max_tokens is None or max_tokens < 30 else 30,
            priority=priority,
            eos=eos,
            seed=seed,
            salt=salt,
        )
        if max_tokens is None and not eos:
            return  # would only fill the pool to the brim each time
        try:
            self.driver.add(request)
        except RequestError:
            assert len(prefix + tail) + 1 > self.driver.scheduler._limits.pool_tokens
            return
        self.requests[request.id] = request

    @rule(count=st.integers(1, 6))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.driver.step()

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        self.driver.scheduler.abort(request_id)
        self.aborted.add(request_id)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def finish_one_choice(self, data: st.DataObject) -> None:
        request_id = data.draw(st.sampled_from(sorted(self.requests)))
        self.driver.scheduler.finish(request_id, 0)
        self.aborted.add(request_id)

    @rule(count=st.integers(1, 2))
    def fail_next_steps(self, count: int) -> None:
        self.fail_next = count

    @rule()
    def clear_the_cache(self) -> None:
        self.driver.cache.clear()

    @invariant()
    def counts_add_up(self) -> None:
        if hasattr(self, "driver"):
            self.driver.cache.check()

    @invariant()
    def finished_answers_are_right(self) -> None:
        if not hasattr(self, "driver"):
            return
        for (request_id, index), answer in self.driver.answers.items():
            request = self.requests[request_id]
            seed = choice_seed(request.seed, index)
            truth = expected_output(list(request.prompt), seed, len(answer.tokens), VOCAB)
            assert answer.tokens == truth
            if answer.finish is FinishReason.STOP:
                assert answer.tokens[-1] == EOS
                assert EOS not in answer.tokens[:-1]
            elif answer.finish is FinishReason.LENGTH:
                limit = request.sampling.max_tokens
                assert limit is None or len(answer.tokens) <= limit

    def teardown(self) -> None:
        if not hasattr(self, "driver"):
            return
        self.fail_next = 0
        self.driver.run()
        self.driver.cache.check()
        while self.driver.cache.open_moves:
            self.driver.step()
        assert self.driver.cache.usage().blocks_used == 0
        for (request_id, _), answer in self.driver.answers.items():
            assert answer.finish is not None or request_id in self.aborted


class RegionMachine(SchedulerMachine):
    """The same lives over contiguous regions."""

    def make_driver(self, blocks: int, **options: object) -> Driver:
        self.sizes = (4,)
        options.pop("host_blocks")
        rule_name = options["random"].choice(("max", "pow2", "oracle", "static"))
        longest = 4 * (1 << (blocks.bit_length() - 1))
        cache = make_regions(rule_name, blocks, longest=min(32, longest))
        limits = Limits(options["max_num_seqs"], options["budget"], 10_000, min(32, longest))
        driver = Driver(cache, limits=limits, order=self.order, depth=options["depth"])
        driver.runner = FakeRunner(
            (4,), vocab_size=VOCAB, text=driver.text, fate=self.fate, random=options["random"]
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
