"""What a beam may go on with: the likeliest tokens, against plain float64, and in any company."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octavo.contract.batch import Batch, Candidates, Sample, Slice
from octavo.contract.sampling import SamplingParams
from octavo.errors import ModelError
from octavo.runner.history import History
from octavo.runner.sampler import sample
from octavo.testing.tiny import hand_for, tiny_decoder

VOCAB = 12
NEAR = 1e-9


def beam(count=4, *, seq=0, prompt_length=0, ends=(), bad_words=(), **options):
    params = SamplingParams(use_beam_search=True, max_tokens=None, **options)
    return Sample(seq, 0, params, prompt_length, ends, bad_words, candidates=count)


def candidates_of(row, one, *, position=0, history=None):
    return sample(np.array([row], np.float32), [one], [position], [history])[0]


def expected_values(row, one, prompt, output):
    """Every token that is not banned with what it adds to a beam, by plain sums."""
    options = one.params
    level = math.log(math.fsum(math.exp(float(x)) for x in row))
    values = {token: float(x) - level for token, x in enumerate(row)}
    banned = set(one.ends) if len(output) < options.min_tokens else set()
    for word in one.bad_words:
        head = list(word[:-1])
        if len(output) >= len(head) and output[len(output) - len(head) :] == head:
            banned.add(word[-1])
    values = {token: value for token, value in values.items() if token not in banned}
    for token in values:
        values[token] += (options.logit_bias or {}).get(token, 0)
        if token in prompt + output:
            penalty = options.repetition_penalty
            values[token] *= penalty if values[token] <= 0 else 1 / penalty
        values[token] -= options.frequency_penalty * output.count(token)
        values[token] -= options.presence_penalty * (token in output)
    return values


tokens = st.integers(0, VOCAB - 1)


@settings(max_examples=200, deadline=None)
@given(
    row=hnp.arrays(np.float32, VOCAB, elements=st.integers(-400, 400).map(lambda x: x / 16)),
    count=st.integers(1, 2 * VOCAB),
    prompt=st.lists(tokens, min_size=1, max_size=5),
    output=st.lists(tokens, max_size=5),
    ends=st.sets(tokens, max_size=3),
    words=st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=3),
    options=st.fixed_dictionaries(
        {},
        optional={
            "repetition_penalty": st.sampled_from([0.5, 1.5]),
            "frequency_penalty": st.sampled_from([-1.0, 0.7]),
            "presence_penalty": st.sampled_from([-1.0, 0.7]),
            "logit_bias": st.dictionaries(tokens, st.sampled_from([-3.0, 20.0]), max_size=3),
            "min_tokens": st.integers(0, 6),
        },
    ),
)
def test_candidates_are_those_of_plain_float64(row, count, prompt, output, ends, words, options):
    one = beam(
        count,
        prompt_length=len(prompt),
        ends=tuple(sorted(ends)),
        bad_words=tuple(words),
        **options,
    )
    history = History([*prompt, *output], len(prompt))

    got = candidates_of(row, one, position=len(prompt) + len(output), history=history)

    truth = expected_values(row, one, prompt, output)
    assert len(got.tokens) == min(count, len(truth))
    assert set(got.tokens) <= set(truth), "a banned token"
    assert list(got.logprobs) == pytest.approx([truth[t] for t in got.tokens], abs=NEAR)
    assert list(got.logprobs) == sorted(got.logprobs, reverse=True)
    left_out = [value for token, value in truth.items() if token not in got.tokens]
    if left_out:
        assert max(left_out) <= got.logprobs[-1] + NEAR


def test_equally_likely_tokens_come_by_ascending_id():
    assert candidates_of([0, 5, 1, 5, 5, 1], beam(4)).tokens == (1, 3, 4, 2)
    assert candidates_of([0, 5, 1, 5, 5, 1], beam(2)).tokens == (1, 3)
    assert candidates_of([2, 2, 2, 2], beam(3)).tokens == (0, 1, 2)


def test_ties_count_after_bans_and_biases():
    row = [5, 4, 3, 5, 4]

    got = candidates_of(row, beam(3, bad_words=((0,),), logit_bias={1: 1.0}))

    assert got.tokens == (1, 3, 4)
    assert got.logprobs[0] == got.logprobs[1]


def test_a_bias_changes_the_value_of_its_own_token_alone():
    row = [0.5, 1, 2, 3]
    plain, biased = (candidates_of(row, beam(4, logit_bias=b)) for b in (None, {0: 9.0}))

    assert plain.tokens == (3, 2, 1, 0)
    assert biased.tokens == (0, 3, 2, 1)
    assert biased.logprobs[1:] == plain.logprobs[:3]


def test_all_tokens_banned_leaves_no_candidate_and_is_no_error():
    one = beam(4, bad_words=tuple((token,) for token in range(3)))

    assert candidates_of([1, 2, 3], one) == Candidates((), ())


def test_candidates_of_a_large_vocabulary_are_those_of_a_full_sort():
    row = np.random.default_rng(0).integers(-50, 50, 50_000).astype(np.float32)

    got = candidates_of(row, beam(700))

    assert list(got.tokens) == np.argsort(-row, kind="stable")[:700].tolist()


@settings(max_examples=30, deadline=None)
@given(kinds=st.lists(st.sampled_from(["beam", "greedy", "drawn"]), min_size=2, max_size=6))
def test_beams_and_drawn_tokens_share_a_batch(kinds):
    rows = np.random.default_rng(len(kinds)).normal(size=(len(kinds), 300)).astype(np.float32)
    plain = {"greedy": {"temperature": 0}, "drawn": {"top_p": 0.9}}
    samples = [
        beam(8, seq=seq)
        if kind == "beam"
        else Sample(seq, seq, SamplingParams(max_tokens=None, **plain[kind]))
        for seq, kind in enumerate(kinds)
    ]

    together = sample(rows, samples, [3] * len(rows))

    assert [isinstance(one, Candidates) for one in together] == [k == "beam" for k in kinds]
    for row, one, answer in zip(rows, samples, together, strict=True):
        assert sample(row[None], [one], [3]) == [answer]


def test_a_logit_that_is_not_finite_is_an_error_for_beams_too():
    with pytest.raises(ModelError, match="1 of 3 logits are not finite for sequence 0"):
        candidates_of([1, math.nan, 2], beam())


# ── through the runner ────────────────────────────────────────────────────────────────────

PROMPT = (5, 9, 1, 7, 3, 2)


def run(hand, step, *slices, ended=()):
    hand.runner.submit(Batch(step, slices, ended=ended))
    result = hand.runner.collect()
    assert result.error is None, result.error
    return result


def piece(seq, tokens, samples, *, start=0, kept=0, blocks=(), past=()):
    return Slice(seq, start, tokens, (kept,), (blocks,), samples, past)


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("penalty", [1.0, 1.8])
def test_a_branch_is_worth_what_its_text_is_worth_alone(penalty, deterministic):
    decoder = tiny_decoder()

    def asks(seq):
        return (beam(6, seq=seq, prompt_length=len(PROMPT), repetition_penalty=penalty),)

    def alone(text):
        hand = hand_for(decoder, deterministic=deterministic)
        return run(hand, 1, piece(0, text, asks(0), blocks=(0,))).candidates[0]

    told = PROMPT if penalty != 1 else ()
    hand = hand_for(decoder, deterministic=deterministic)
    first = run(hand, 1, piece(0, PROMPT, asks(0), blocks=(0,))).candidates[0]
    # The best two texts go on; a block of 16 is copied by computing it again.
    copied = piece(8, PROMPT, (), blocks=(1,))
    run(hand, 2, copied)
    one, two = first.tokens[:2]
    second = run(
        hand,
        3,
        piece(0, (one,), asks(0), start=6, kept=1),
        piece(8, (two,), asks(8), start=6, kept=1, past=told),
    ).candidates
    for seq, token in ((0, one), (8, two)):
        truth = alone((*PROMPT, token))
        assert second[seq].tokens == truth.tokens
        exact = 0 if deterministic else 1e-5
        assert second[seq].logprobs == pytest.approx(truth.logprobs, abs=exact)


def test_a_number_of_an_ended_beam_can_be_given_to_another_text():
    hand = hand_for(tiny_decoder())
    asks = (beam(4, seq=3, prompt_length=4, presence_penalty=1.0),)
    run(hand, 1, piece(3, PROMPT[:4], asks, blocks=(0,)))

    again = run(hand, 2, piece(3, PROMPT[::-1][:4], asks, blocks=(1,)), ended=(3,)).candidates[3]

    fresh = run(hand_for(tiny_decoder()), 1, piece(3, PROMPT[::-1][:4], asks, blocks=(0,)))
    assert again.tokens == fresh.candidates[3].tokens
