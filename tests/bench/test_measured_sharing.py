"""Blocks that beams and samples share: the arithmetic, the watch, and the loop outside."""

from __future__ import annotations

import pytest

from octavo.bench.resubmit import compare, resubmit
from octavo.bench.sharing import (
    Bench,
    Setting,
    common_tokens,
    curve_of,
    measure,
    repeated,
    row_of,
)
from octavo.bench.texts import cut, read_text
from octavo.bench.watch import Moment, Tap, Watch
from octavo.bench.workload import DISTRIBUTIONS, Workload, draw_evenly
from octavo.build import build_engine
from octavo.config import EngineConfig
from octavo.contract.batch import Batch, Sample, Slice
from octavo.contract.sampling import SamplingParams
from octavo.errors import ConfigError

FOUR_BEAMS = Setting("beams", 4)


def moments(first, *blocks):
    return [Moment(first + place, *pair) for place, pair in enumerate(blocks)]


def row(*requests):
    answers, lengths = [[[1, 2]] for _ in requests], [3 for _ in requests]
    return row_of("w", FOUR_BEAMS, list(requests), answers, lengths)


@pytest.fixture
def opened(tiny_gguf):
    """A tiny engine, its bench, and the number of steps in which watch and cache disagreed."""
    tap, disagreed = Tap(), []

    def look(batch, logits):
        tap(batch, logits)
        if tap.watch is not None:
            usage = built.engine.usage()
            last = [own[-1] for own in tap.watch.moments.values()]
            seen = [one for one in last if one.step == tap.watch.steps - 1]
            counted = sum(m.logical for m in seen), sum(m.physical for m in seen)
            if counted != (usage.blocks_logical, usage.blocks_used):
                disagreed.append((batch.step, counted, usage))

    config = EngineConfig(model=str(tiny_gguf), block_size=4, max_model_len=128)
    built = build_engine(config, report=lambda text: None, on_logits=look)
    tokens = built.tokenizer.encode(read_text(None), add_special_tokens=False)
    yield Bench(built.engine, tap, built.namespace, tokens, "a text"), disagreed
    built.engine.close()


# ── the arithmetic ────────────────────────────────────────────────────────────────────────


def test_what_is_saved_is_the_share_of_blocks_that_would_be_held_without_sharing():
    got = row(moments(0, (8, 2), (12, 6)))

    assert (got.logical_blocks, got.physical_blocks) == (10, 4)
    assert got.blocks_saved_share == pytest.approx(1 - 8 / 20)
    assert got.mean_step_share == pytest.approx((6 / 8 + 6 / 12) / 2)


def test_a_request_that_holds_more_and_longer_counts_for_more():
    long, short = moments(0, (90, 45), (90, 45)), moments(0, (10, 10))
    got = row(long, short)

    assert got.blocks_saved_share == pytest.approx(90 / 190)
    assert (got.requests_saved_share.lowest, got.requests_saved_share.highest) == (0, 0.5)
    assert got.requests_saved_share.median == 0.25
    assert [one.saved_share for one in got.prompts] == [0.5, 0]
    assert got.steps == 2


def test_requests_that_never_run_together_are_counted_in_their_own_steps():
    got = row(moments(0, (4, 2)), moments(7, (8, 2)))

    assert got.steps == 2
    assert (got.logical_blocks, got.physical_blocks) == (6, 2)


def test_equal_requests_leave_no_doubt_and_one_alone_says_nothing_about_it():
    same = moments(0, (8, 2), (12, 6))

    assert row(same, same).blocks_saved_error == pytest.approx(0)
    assert row(same).blocks_saved_error is None


def test_answers_have_in_common_what_they_begin_with():
    assert common_tokens([[1, 2, 3], [1, 2, 4], [1, 2, 3]]) == 2
    assert common_tokens([[5, 6]]) == 2


def test_a_loop_repeats_itself_and_a_short_text_does_not():
    assert repeated([7, 8] * 50) == pytest.approx(1 - 2 / 97)
    assert repeated(list(range(20))) == 0
    assert repeated([7, 7, 7]) == 0


def test_a_curve_is_thinned_out_to_sixty_points():
    curve = curve_of("w", FOUR_BEAMS, [moments(0, *[(4, 1)] * 150), moments(0, (3, 3))])

    assert curve.every == 3
    assert len(curve.logical) == 50
    assert (curve.logical[:2], curve.physical[:2]) == ([7, 4], [4, 1])


# ── the watch ─────────────────────────────────────────────────────────────────────────────


def piece(seq, kept, blocks, *samples, owner=5):
    params = SamplingParams(seed=owner)
    asked = tuple(Sample(sample, 0, params) for sample in samples)
    return Slice(seq, 0, (1,), (kept,), (blocks,), asked)


def test_a_watch_follows_forks_copies_and_ends():
    watch = Watch()
    watch.note(Batch(1, (piece(0, 0, (10, 11), 0, 1),)))
    watch.note(Batch(2, (piece(0, 2, (), 0), piece(1, 0, (10, 12), 1))))
    watch.note(Batch(3, (piece(1, 1, (13, 14), 1),), ended=(0,)))

    assert watch.moments == {5: [(0, 4, 2), (1, 4, 3), (2, 3, 3)]}


def test_a_watch_tells_requests_apart():
    watch = Watch()
    watch.note(Batch(1, (piece(0, 0, (10,), 0, owner=3), piece(1, 0, (11, 12), 1, owner=4))))

    assert watch.moments == {3: [(0, 1, 1)], 4: [(0, 2, 2)]}


def test_a_watch_counts_what_the_cache_counts(opened):
    bench, disagreed = opened
    work = Workload("small", "", ((7, 12), (3, 20), (16, 9)), None)
    settings = [Setting("samples", 3), FOUR_BEAMS, Setting("beams", 2)]

    measured = measure(bench, work, settings)

    assert disagreed == []
    assert [one.requests for one in measured.rows] == [3, 3, 3]
    assert measured.run.output_tokens == 9 * (12 + 20 + 9)
    assert measured.run.preemptions == 0


def test_samples_share_the_full_blocks_of_their_prompt(opened):
    bench, _ = opened
    # Blocks of 4: three of the prompt, then one for each sample, then two.
    measured = measure(bench, Workload("w", "", ((12, 9),), None), [Setting("samples", 2)])

    logical = 2 * 3 + 4 * 2 * 4 + 4 * 2 * 5
    physical = 3 + 4 * (3 + 2) + 4 * (3 + 4)
    (got,) = measured.rows
    assert got.steps == 9
    assert (got.prompts[0].prompt_tokens, got.prompts[0].output_tokens) == (12, 9)
    assert got.blocks_saved_share == pytest.approx(1 - physical / logical)


# ── the loop outside ──────────────────────────────────────────────────────────────────────


def test_all_ways_to_search_find_the_same_beams(opened):
    bench, _ = opened
    timing = compare(bench, tuple(bench.tokens[:10]), width=3, tokens=8, rounds=2)

    native, cold, warm = timing.ways
    assert timing.same_beams
    assert [len(way.seconds) for way in timing.ways] == [2, 2, 2]
    assert native.computed_tokens == 10 + 3 * 7
    assert cold.computed_tokens == 10 + sum(3 * (10 + length) for length in range(1, 8))
    assert native.computed_tokens < warm.computed_tokens < cold.computed_tokens
    assert timing.native_over_resubmit == pytest.approx(native.median_s / cold.median_s)


def test_the_loop_outside_returns_as_many_texts_as_beams(opened):
    bench, _ = opened
    texts = resubmit(
        bench.engine,
        tuple(bench.tokens[:5]),
        width=2,
        tokens=3,
        namespace=lambda: bench.namespace,
    )

    assert [len(text) for text in texts] == [3, 3]
    assert texts[0] != texts[1]


# ── prompts and their lengths ─────────────────────────────────────────────────────────────


def test_prompts_have_the_wanted_lengths_and_begin_at_different_places():
    prompts = cut(list(range(100)), [10, 40, 1], "a text")

    assert [len(prompt) for prompt in prompts] == [10, 40, 1]
    assert len({prompt[0] for prompt in prompts}) == 3


def test_a_text_may_be_just_long_enough_and_no_shorter():
    assert len({prompt[0] for prompt in cut(list(range(12)), [10, 10, 10], "a text")}) == 3
    with pytest.raises(ConfigError, match="a text has 11 tokens, but 3 prompts of up to 10 need"):
        cut(list(range(11)), [10, 10, 10], "a text")


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("requests", [4, 6, 16, 100])
def test_a_few_even_lengths_have_the_means_of_the_distribution(name, requests):
    work, source = draw_evenly(name, requests=requests, max_length=10_000, seed=0), DISTRIBUTIONS

    assert work.mean_input == pytest.approx(source[name].mean_input, rel=0.02)
    assert work.mean_output == pytest.approx(source[name].mean_output, rel=0.02)


def test_even_lengths_are_paired_without_correlation():
    work = draw_evenly("sharegpt-lognormal", requests=6, max_length=2048, seed=0)

    together = sum(prompt * output for prompt, output in work.lengths) / 6
    assert together == pytest.approx(work.mean_input * work.mean_output, rel=0.02)
    assert work.lengths == draw_evenly(
        "sharegpt-lognormal", requests=6, max_length=2048, seed=0
    ).lengths  # fmt: skip


def test_one_even_length_is_the_mean():
    assert draw_evenly("alpaca-lognormal", requests=1, max_length=2048, seed=0).lengths == (
        (19, 58),
    )


def test_even_lengths_of_an_unknown_distribution_are_refused():
    with pytest.raises(ConfigError, match="distribution 'normal' is not one of"):
        draw_evenly("normal", requests=1, max_length=10, seed=0)
