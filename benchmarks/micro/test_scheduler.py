"""What deciding one step costs: `plan` and `apply`, without any computing."""

from __future__ import annotations

from random import Random

import pytest

from octavo.contract.batch import Sampled, StepResult
from octavo.memory.groups import Groups
from octavo.sched.limits import Limits
from octavo.sched.order import ORDERS
from octavo.sched.scheduler import Scheduler
from octavo.testing.driver import make_cache, make_request

SEQUENCES = 256
CONTEXT = 1000
BLOCK_SIZE = 16
ROUNDS = 500


class Decoding:
    """A scheduler in the middle of its work: everybody writes one token per step."""

    def __init__(self, *, order: str = "fcfs", waiting: int = 0) -> None:
        blocks = SEQUENCES * (CONTEXT + ROUNDS + 400) // BLOCK_SIZE
        limits = Limits(SEQUENCES, 2048, 100_000, blocks * BLOCK_SIZE)
        self.scheduler = Scheduler(
            make_cache(blocks, Groups((BLOCK_SIZE,))), ORDERS[order](), limits
        )
        draw = Random(0)
        for i in range(SEQUENCES + waiting):
            # Lengths differ, so that in each step one in sixteen fills a block, as in real life.
            prompt = [draw.randrange(32_000) for _ in range(CONTEXT + i % BLOCK_SIZE)]
            self.scheduler.add(make_request(f"r{i}", prompt, max_tokens=10_000))
        self.sampled = {seq: Sampled(draw.randrange(32_000), -1.0) for seq in range(SEQUENCES)}
        self.step = 0
        while self.scheduler.queue_lengths[0] < SEQUENCES:
            self.plan_and_apply(self.result())
        self.plan_and_apply(self.result())  # the end of the last prompt

    def result(self) -> StepResult:
        self.step += 1
        return StepResult(self.step, self.sampled)

    def plan_and_apply(self, result: StepResult):
        batch = self.scheduler.plan()
        self.scheduler.apply(batch, result)
        return batch


@pytest.mark.parametrize(
    ("order", "waiting"), [("fcfs", 0), ("fcfs", 1000), ("priority", 1000)], ids=str
)
def test_plan_and_apply_of_256_decoding_sequences(benchmark, order, waiting):
    decoding = Decoding(order=order, waiting=waiting)
    benchmark.extra_info["target_ms"] = 1.0

    batch = benchmark.pedantic(
        decoding.plan_and_apply,
        setup=lambda: ((decoding.result(),), {}),
        rounds=ROUNDS,
        warmup_rounds=10,
    )

    assert len(batch.slices) == SEQUENCES
