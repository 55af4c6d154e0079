"""What crosses between the process that serves and the engine's: whole, and of the right kind."""

from __future__ import annotations

import msgspec
import pytest

from octavo.contract.batch import Logprobs
from octavo.contract.hint import CacheHint
from octavo.contract.misses import Miss, MissReason
from octavo.contract.namespace import Namespace
from octavo.contract.pooling import Pooling
from octavo.contract.request import FinishReason, Request, Update
from octavo.contract.retention import PinFacts, Retention
from octavo.contract.sampling import SamplingParams
from octavo.contract.structured import StructuredOutputs
from octavo.contract.usage import Usage
from octavo.engine.histogram import Histogram, ladder
from octavo.engine.messages import (
    Abort,
    Accepted,
    Begun,
    Check,
    Checked,
    Checks,
    CoreFacts,
    CoreSpec,
    Count,
    Counted,
    Failed,
    Finish,
    ListPins,
    News,
    Pause,
    PinsListed,
    Ready,
    Refused,
    ResetCache,
    Resume,
    Said,
    Snapshot,
    StepTimes,
    Stop,
    Submit,
    TakeSnapshot,
    Unpin,
    pack,
    read_command,
    read_report,
)
from octavo.sched.stats import Stats

REQUEST = Request(
    id="r7",
    prompt=(1, 2, 3),
    sampling=SamplingParams(
        n=2,
        stop=["x"],
        logit_bias={1: 2.0},
        allowed_token_ids=[1, 2],
        logprobs=3,
        seed=2**63,
        structured_outputs=StructuredOutputs(json={"type": "null"}, after="</think>"),
    ),
    seed=2**64 - 1,
    namespace=Namespace(model="m", salt="alice"),
    priority=-5,
    tenant="alice",
    retention=(Retention(pin="rules", end=2),),
    eos_token_ids=frozenset({0, 2}),
    bad_words=((1, 2), (3,)),
    cache_hints=(CacheHint("closed", 2), CacheHint(0.5, source="alice")),
    pooling=Pooling("mean", dimensions=64),
)
UPDATE = Update(
    "r7",
    1,
    (4, 5),
    logprob=-0.5,
    cached_tokens=2,
    finish=FinishReason.STOP,
    stop_token=5,
    logprobs=(Logprobs((4,), (-0.1,), (1,)), Logprobs((5, 4), (-0.1, -0.4), (1, 2))),
    miss=Miss(reason=MissReason.EVICTED, position=2, tokens=1, age_s=0.5),
)
USAGE = Usage(
    slots=8, allocated=4, tokens=3, blocks_used=1, blocks_logical=2, blocks_shared=1,
    tenant_blocks=(("alice", 1),),
)  # fmt: skip
FACTS = CoreFacts(
    namespace=Namespace(model="m"), vocab_size=50, max_model_len=100, longest_text=90,
    num_blocks=2, block_sizes=(4,), block_bytes=64, max_num_seqs=8, max_num_batched_tokens=32,
    settings={"block_size": 4, "dtype": "auto", "offline": False, "model": None},
)  # fmt: skip
COMMANDS = [
    CoreSpec("a.b:c", b"\x00\xff"),
    Submit(REQUEST),
    Abort("r7"),
    Finish("r7", 1),
    Pause(1, abort=True),
    Resume(2),
    ResetCache(3),
    Unpin(4, "rules"),
    ListPins(4, "acme"),
    TakeSnapshot(5),
    Check(6),
    Stop(),
]
REPORTS = [
    Ready(FACTS),
    Failed("ConfigError", "too small"),
    Said("packing weights"),
    Accepted("r7", 16),
    Refused("r7", "the prompt is empty"),
    News(3, 1.25, (UPDATE, Update("r8", 0, (9,))), (Begun("r8", 1.0),)),
    Count(3, 7),
    Counted(
        5,
        Snapshot(
            at_s=1.0, usage=USAGE, stats=Stats(steps=3, misses={"evicted": 1}), running=1,
            waiting=0, num_blocks=2,
        ),
    ),
    PinsListed(4, (PinFacts("acme", "rules", 3, 0, 12.5), PinFacts("acme", "x", 0, 1, None))),
    Checked(6, Checks(2, 1, 1, "block 0"), "block 0"),
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=lambda one: type(one).__name__)
def test_a_command_arrives_as_it_was_sent(command):
    assert read_command(pack(command)) == command


@pytest.mark.parametrize("report", REPORTS, ids=lambda one: type(one).__name__)
def test_a_report_arrives_as_it_was_sent(report):
    assert read_report(pack(report)) == report


def test_a_report_is_no_command():
    with pytest.raises(msgspec.DecodeError):
        read_command(pack(Said("hello")))


def test_a_request_that_could_not_be_made_here_does_not_arrive_either():
    frame = pack(Submit(REQUEST)).replace(b"\xa1n\x02", b"\xa1n\x00")

    with pytest.raises(msgspec.ValidationError, match="n must be at least 1"):
        read_command(frame)


def test_a_histogram_counts_values_up_to_each_bound():
    histogram = Histogram.of((1.0, 2.0))

    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.add(value)
    histogram.add(2.0, times=3)

    assert histogram.counts == [2, 4, 1]
    assert histogram.count == 7
    assert histogram.total == pytest.approx(18.0)


def test_a_ladder_ends_with_the_first_bound_that_is_enough():
    assert ladder(30) == (1, 2, 5, 10, 20, 50)
    assert ladder(5.0, 0.5) == (0.5, 1.0, 2.5, 5.0)


def test_two_processes_that_count_share_no_histogram():
    StepTimes().plan.add(1.0)

    assert StepTimes().plan.count == 0
