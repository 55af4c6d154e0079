"""The torch runner: order within a step, tokens in flight, and errors that leave it usable."""

from __future__ import annotations

import pytest
import torch

from octavo.attention.reference import ReferenceAttention
from octavo.contract.batch import Batch, Copy, Move, Place, Sample, Slice
from octavo.contract.ids import PENDING
from octavo.contract.layout import kv_layout
from octavo.contract.sampling import SamplingParams
from octavo.errors import ConfigError
from octavo.pages.arena import Arena
from octavo.runner.torch_runner import TorchRunner
from octavo.testing.tiny import GREEDY, hand_for, tiny_decoder

PROMPT = (5, 17, 3, 90, 41, 8)
HOT = SamplingParams(temperature=1.0, max_tokens=None)


@pytest.fixture(scope="module")
def decoder():
    return tiny_decoder()


class Bench:
    """A runner whose backend and logits a test may spoil."""

    def __init__(self, decoder, *, block_size=4, num_blocks=16):
        self.arena = Arena(
            kv_layout(decoder.spec, block_size=block_size, dtype="float32"), num_blocks
        )
        self.arena.blocks(0).fill_(torch.nan)
        self.backend = ReferenceAttention(self.arena, num_heads=decoder.spec.num_heads)
        self.spoil = None
        self.runner = TorchRunner(decoder, self.arena, self.backend, on_logits=self._look)

    def _look(self, batch, logits):
        if self.spoil is not None:
            self.spoil(batch, logits)

    def run(self, *slices, step=1, **rest):
        self.runner.submit(Batch(step=step, slices=slices, **rest))
        return self.runner.collect()


@pytest.fixture
def bench(decoder):
    return Bench(decoder)


def greedy(seq):
    return (Sample(seq, 0, GREEDY),)


def prompt_slice(seq=1, blocks=(0, 1), tokens=PROMPT, samples=None):
    return Slice(seq, 0, tokens, (0,), (blocks,), greedy(seq) if samples is None else samples)


def next_slice(seq=1, token=PENDING, kept=2, blocks=()):
    return Slice(seq, len(PROMPT), (token,), (kept,), (blocks,), greedy(seq))


def continuation(decoder, tokens, count):
    hand = hand_for(decoder, block_size=4)
    hand.start(1, tokens)
    return hand.generate(1, count)


def test_a_pending_token_is_the_one_that_the_step_before_samples(bench, decoder):
    expected = continuation(decoder, PROMPT, 2)

    bench.runner.submit(Batch(step=1, slices=(prompt_slice(),)))
    bench.runner.submit(Batch(step=2, slices=(next_slice(),)))
    results = [bench.runner.collect(), bench.runner.collect()]

    assert [result.step for result in results] == [1, 2]
    assert [result.sampled[1].token for result in results] == expected


def test_a_known_token_wins_over_the_last_sampled_one(bench, decoder):
    (first, _) = continuation(decoder, PROMPT, 2)
    other = (first + 1) % decoder.spec.vocab_size
    bench.run(prompt_slice())

    got = bench.run(next_slice(token=other), step=2)

    assert got.sampled[1].token == continuation(decoder, (*PROMPT, other), 1)[0]


def test_a_prompt_that_is_not_complete_samples_nothing(bench):
    result = bench.run(prompt_slice(samples=()))

    assert result.error is None
    assert result.sampled == {}


def test_forks_sample_from_one_row_with_their_own_seeds(bench, decoder):
    seeds = {1: 11, 2: 22, 3: 33, 4: 11}
    samples = tuple(Sample(seq, seed, HOT) for seq, seed in seeds.items())

    got = bench.run(prompt_slice(samples=samples)).sampled

    alone = {
        seq: Bench(decoder).run(prompt_slice(samples=(Sample(1, seed, HOT),))).sampled[1]
        for seq, seed in seeds.items()
    }
    assert got == alone
    assert len({one.token for one in got.values()}) == 3


def test_a_fork_goes_on_from_the_token_it_sampled(bench, decoder):
    samples = (Sample(1, 11, HOT), Sample(2, 22, HOT))
    bench.runner.submit(Batch(step=1, slices=(prompt_slice(samples=samples),)))
    fork = Slice(2, len(PROMPT), (PENDING,), (0,), ((0, 2),), greedy(2))
    bench.runner.submit(Batch(step=2, slices=(next_slice(), fork), copies=(Copy(1, 2),)))

    first, second = bench.runner.collect(), bench.runner.collect()

    for seq in (1, 2):
        text = (*PROMPT, first.sampled[seq].token)
        assert second.sampled[seq].token == continuation(decoder, text, 1)[0]


def test_copies_run_before_the_first_write(bench, decoder):
    bench.run(prompt_slice())
    # Sequence 1 goes on in a copy of its last block; the original is overwritten in the same step.
    bold = next_slice(kept=1, blocks=(3,), token=7)
    other = prompt_slice(seq=2, blocks=(1, 4), tokens=(9, 9, 9, 9, 9))

    got = bench.run(other, bold, step=2, copies=(Copy(1, 3),))

    assert got.sampled[1].token == continuation(decoder, (*PROMPT, 7), 1)[0]


def test_a_slice_reads_what_another_slice_of_the_step_writes(bench, decoder):
    leader = prompt_slice()
    follower = Slice(2, 4, (1, 2), (0,), ((0, 5),), greedy(2))

    got = bench.run(follower, leader)

    assert got.sampled[2].token == continuation(decoder, (*PROMPT[:4], 1, 2), 1)[0]


def test_an_ended_sequence_is_forgotten(bench):
    bench.run(prompt_slice())
    bench.run(step=2, ended=(1,))

    with pytest.raises(AssertionError, match="keeps 2 entries"):
        bench.run(next_slice(token=3), step=3)


def test_moves_are_reported_as_failed(bench):
    move = Move(id=8, key=b"k", src=Place("host", 0), dst=Place("device", 1))

    result = bench.run(step=1, moves=(move,))

    assert result.failed == (8,)
    assert result.error is None


def test_a_third_step_in_flight_is_refused(bench):
    bench.runner.submit(Batch(step=1))
    bench.runner.submit(Batch(step=2))

    with pytest.raises(AssertionError, match="2 steps in flight"):
        bench.runner.submit(Batch(step=3))


def test_nothing_is_accepted_after_close(bench):
    bench.runner.close()
    bench.runner.close()

    with pytest.raises(AssertionError, match="after close"):
        bench.runner.submit(Batch(step=1))


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (prompt_slice(tokens=()), "without tokens"),
        (prompt_slice(blocks=(0,)), "holds 4 tokens"),
        (prompt_slice(blocks=(0, 16)), "names block 16"),
        (prompt_slice(blocks=(0, -1)), "names block -1"),
        (prompt_slice(tokens=(5, 96)), "token ids from 5 to 96"),
        (prompt_slice(tokens=(PENDING, 4)), "token ids from -1 to 4"),
        (prompt_slice(tokens=(4, PENDING)), "no step has sampled one"),
        (next_slice(token=3), "keeps 2 entries of the table of group 0, which has 0"),
        (Slice(1, 0, PROMPT, (0, 0), ((0, 1), ()), ()), "for 1 KV groups"),
    ],
)
def test_a_batch_that_cannot_be_is_refused_before_anything_is_written(bench, part, message):
    before = bench.arena.blocks(0).clone()
    fine = prompt_slice(seq=5, blocks=(6, 7))

    with pytest.raises(AssertionError, match=message):
        bench.run(fine, part)

    assert torch.equal(bench.arena.blocks(0).isnan(), before.isnan())
    assert bench.run(fine).error is None


def test_two_slices_of_one_sequence_are_refused(bench):
    with pytest.raises(AssertionError, match="two slices"):
        bench.run(prompt_slice(), prompt_slice())


def test_logits_that_are_not_numbers_are_an_error_of_the_step(bench, decoder):
    bench.spoil = lambda batch, logits: logits.fill_(torch.nan)

    result = bench.run(prompt_slice())

    assert result.sampled == {}
    assert result.error is not None
    assert result.error.startswith("ModelError: 96 of 96 logits are not finite for sequence 1")


def test_a_runner_is_usable_after_an_error(bench, decoder):
    def fail(batch, logits):
        raise RuntimeError("out of memory\nwith a long report")

    bench.spoil = fail
    failed = bench.run(prompt_slice())
    bench.spoil = None

    again = bench.run(prompt_slice(seq=2), step=2, ended=(1,))

    assert failed.error == "RuntimeError: out of memory"
    assert again.sampled[2].token == continuation(decoder, PROMPT, 1)[0]


def test_a_failed_step_takes_down_only_the_slices_that_wait_for_its_tokens(bench, decoder):
    def fail_first(batch, logits):
        if batch.step == 1:
            raise RuntimeError("lost")

    bench.spoil = fail_first
    bench.runner.submit(Batch(step=1, slices=(prompt_slice(),)))
    bystander = prompt_slice(seq=2, blocks=(4, 5))
    bench.runner.submit(Batch(step=2, slices=(next_slice(), bystander)))

    failed, result = bench.runner.collect(), bench.runner.collect()

    assert failed.error is not None
    assert result.error is None
    assert set(result.sampled) == {2}
    assert result.sampled[2].token == continuation(decoder, PROMPT, 1)[0]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit])
def test_interruptions_pass_through(bench, interruption):
    def interrupt(batch, logits):
        raise interruption

    bench.spoil = interrupt

    with pytest.raises(interruption):
        bench.run(prompt_slice())


def test_a_backend_that_depends_on_the_batch_cannot_be_deterministic(decoder):
    class Sloppy(ReferenceAttention):
        @property
        def batch_invariant(self):
            return False

    arena = Arena(kv_layout(decoder.spec, block_size=4, dtype="float32"), 4)
    backend = Sloppy(arena, num_heads=decoder.spec.num_heads)

    with pytest.raises(ConfigError, match="Sloppy cannot give the same bits"):
        TorchRunner(decoder, arena, backend, deterministic=True)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_memory_is_enough_for_a_step(decoder, dtype):
    hand = hand_for(decoder, dtype=dtype)
    hand.start(1, PROMPT)

    assert len(hand.generate(1, 4)) == 4
