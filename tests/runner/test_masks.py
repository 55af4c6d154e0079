"""What a grammar forbids is never chosen, with any other option, whatever the logits say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contract.batch import Sample
from octavo.contract.sampling import SamplingParams
from octavo.contract.structured import StructuredOutputs
from octavo.runner.masks import allowed_by, mask_words
from octavo.runner.sampler import Refused, sample

VOCAB = 70
FORM = StructuredOutputs(regex="a")


def mask_of(allowed):
    mask = np.zeros(mask_words(VOCAB), dtype=np.int32)
    for token in allowed:
        mask[token // 32] |= np.int32(np.uint32(1 << token % 32).astype(np.int32))
    return mask


def answer(mask, seed=0, logits=None, **options):
    asked = {
        name: options.pop(name) for name in ("candidates", "ends", "bad_words") & options.keys()
    }
    params = SamplingParams(max_tokens=None, structured_outputs=FORM, **options)
    one = Sample(0, seed, params, **asked)
    row = np.zeros((1, VOCAB), dtype=np.float32) if logits is None else logits
    (found,) = sample(row, [one], [3], None, [mask])
    return found


@given(st.sets(st.integers(0, VOCAB - 1), min_size=1), st.sampled_from([0.0, 1.0]), st.integers())
@settings(max_examples=60, deadline=None)
def test_only_what_the_mask_allows_is_chosen(allowed, temperature, seed):
    chosen = answer(mask_of(allowed), seed % 2**64, temperature=temperature)

    assert chosen.token in allowed


@given(st.sets(st.integers(0, VOCAB - 1)))
def test_a_mask_names_each_token_by_its_bit(allowed):
    assert set(np.flatnonzero(allowed_by(mask_of(allowed), VOCAB))) == allowed


def test_tokens_beyond_the_mask_may_not_come():
    short = np.full(1, -1, dtype=np.int32)

    assert set(np.flatnonzero(allowed_by(short, VOCAB))) == set(range(32))


def test_the_likeliest_of_the_allowed_wins_and_its_probability_is_the_models_own():
    logits = np.zeros((1, VOCAB), dtype=np.float32)
    logits[0, 5], logits[0, 40] = 9, 3
    free = sample(logits, [Sample(0, 0, SamplingParams(temperature=0, logprobs=1))], [3])[0]

    held = answer(mask_of({7, 40}), logits=logits, temperature=0, logprobs=1)

    assert (free.token, held.token) == (5, 40)
    assert held.logprobs.ids[0] == 5  # as the model gives it
    assert held.logprob == pytest.approx(free.logprob - 6)


def test_candidates_of_a_beam_are_allowed_ones():
    found = answer(mask_of({1, 2, 69}), candidates=5)

    assert sorted(found.tokens) == [1, 2, 69]


def test_a_grammar_and_allowed_tokens_that_share_none_refuse_the_sample_by_both_names():
    refused = answer(mask_of({1}), allowed_token_ids=[2])

    assert isinstance(refused, Refused)
    assert refused.reason.startswith("every token is banned for output token 4")
    assert "structured_outputs and allowed_token_ids" in refused.reason


@pytest.mark.parametrize(
    ("allowed", "options", "left"),
    [
        ({1, 2}, {}, {1, 2}),
        ({1, 2, 7}, {}, {7}),
        ({1, 7}, {"bad_words": ((7,),)}, {1}),
        ({1, 2, 7}, {"allowed_token_ids": [2, 9]}, {2}),
        ({1, 2, 7, 9}, {"allowed_token_ids": [2, 9]}, {9}),
    ],
    ids=["ends alone", "more than ends", "a bad word", "allowed ends", "allowed more"],
)
def test_an_end_comes_early_only_where_the_form_and_the_rest_let_nothing_else_come(
    allowed, options, left
):
    found = answer(mask_of(allowed), ends=(1, 2, VOCAB + 5), min_tokens=9, candidates=9, **options)

    assert set(found.tokens) == left


def test_a_form_that_other_options_leave_nothing_is_refused_without_a_word_of_min_tokens():
    refused = answer(mask_of({7}), ends=(1,), min_tokens=9, bad_words=((7,),))

    assert "by structured_outputs and bad_words:" in refused.reason


def test_a_sample_that_a_grammar_binds_is_never_chosen_without_its_mask():
    with pytest.raises(AssertionError, match="none with one"):
        answer(None)
