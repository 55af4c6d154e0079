"""Sampling against an independent float64 implementation, and against the distributions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from octavo.contract.batch import Sample
from octavo.contract.sampling import SamplingParams
from octavo.errors import ModelError
from octavo.runner.philox import uniforms
from octavo.runner.sampler import log_probability, sample

NEAR = 1e-9


def params(temperature=1.0, top_k=0, top_p=1.0):
    return SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=None)


def sample_one(row, options, *, seed=0, position=0):
    return sample(row[None], [Sample(0, seed, options)], [position])[0]


def expected_token(row, options, draw):
    """Choose a token with sorted lists and plain sums; None: too near to a limit to say."""
    ranked = sorted(range(len(row)), key=lambda token: (-row[token], token))
    if options.temperature == 0:
        return ranked[0]
    peak = float(row.max())
    weight = [math.exp((float(x) - peak) / options.temperature) for x in row]
    if 0 < options.top_k < len(row):
        ranked = ranked[: options.top_k]
    if options.top_p < 1:
        total, reached, kept = math.fsum(weight[token] for token in ranked), 0.0, []
        for token in ranked:
            kept.append(token)
            reached += weight[token]
            if abs(reached - options.top_p * total) < NEAR * total:
                return None
            if reached >= options.top_p * total:
                break
        ranked = kept
    total, reached = math.fsum(weight[token] for token in ranked), 0.0
    for token in sorted(ranked):
        reached += weight[token]
        if abs(reached - draw * total) < NEAR * total:
            return None
        if reached > draw * total:
            return token
    return None


options_of = st.builds(
    params,
    temperature=st.sampled_from([0.0, 0.05, 0.7, 1.0, 3.0]),
    top_k=st.integers(-1, 30),
    top_p=st.sampled_from([0.01, 0.3, 0.9, 0.999, 1.0]),
)


@settings(max_examples=300, deadline=None)
@given(
    row=hnp.arrays(
        np.float32,
        st.integers(1, 25),
        elements=st.one_of(
            st.integers(-3, 3).map(float), st.floats(-30, 30, width=32, allow_subnormal=False)
        ),
    ),
    options=options_of,
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**20),
)
def test_a_token_is_that_of_plain_sums_in_float64(row, options, seed, position):
    expected = expected_token(row, options, float(uniforms([seed], [position])[0]))
    assume(expected is not None)

    got = sample_one(row, options, seed=seed, position=position)

    assert got.token == expected
    wide = row.astype(np.float64)
    exact = wide[expected] - wide.max() - np.log(np.exp(wide - wide.max()).sum())
    assert got.logprob == pytest.approx(exact, abs=2e-6)


@pytest.mark.parametrize("top_p", [0.5, 0.95, 0.9999])
def test_the_nucleus_of_a_large_vocabulary_is_that_of_a_full_sort(top_p):
    rows = np.random.default_rng(0).normal(size=(6, 5000)).astype(np.float32)
    rows[3:] *= 0.01

    for place, row in enumerate(rows):
        draw = float(uniforms([7], [place])[0])
        assert sample_one(row, params(top_p=top_p), seed=7, position=place).token == (
            expected_token(row, params(top_p=top_p), draw)
        )


def test_greedy_takes_the_lowest_of_equally_likely_tokens():
    assert sample_one(np.array([0, 2, 1, 2, 2], np.float32), params(temperature=0)).token == 1


@pytest.mark.parametrize("options", [params(top_k=2), params(top_p=0.3)])
def test_equally_likely_tokens_are_kept_by_ascending_id(options):
    row = np.array([0, 5, 5, 5, 5], np.float32)

    drawn = {sample_one(row, options, position=place).token for place in range(200)}

    assert drawn == {1, 2}


@pytest.mark.parametrize("temperature", [1e-300, 1e-6, 1e300])
def test_extreme_temperatures_are_sampled_without_warnings(temperature):
    row = np.array([0, 1, 3, -80], np.float32)

    drawn = {sample_one(row, params(temperature), position=place).token for place in range(100)}

    assert drawn == ({0, 1, 2, 3} if temperature > 1 else {2})


def test_the_log_probability_ignores_the_options():
    row = np.array([1, 2, 3, 4], np.float32)

    got = sample_one(row, params(temperature=0.1, top_k=1))

    assert got.token == 3
    assert got.logprob == pytest.approx(math.log(math.exp(4) / sum(map(math.exp, row))), abs=1e-6)


def test_log_probabilities_of_a_large_vocabulary_sum_to_one():
    row = np.random.default_rng(1).normal(size=5000).astype(np.float32) * 4

    total = math.fsum(math.exp(log_probability(row, token)) for token in range(5000))

    assert total == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (params(), 8),
        (params(temperature=0.5), 8),
        (params(temperature=2.0), 8),
        (params(top_k=3), 3),
        (params(top_p=0.8), None),
        (params(temperature=1.5, top_k=5, top_p=0.9), None),
    ],
)
def test_tokens_follow_the_distribution(options, kept):
    row = np.array([0.3, 2.0, -1.0, 1.5, 0.0, 1.9, -0.5, 0.9], np.float32)
    draws = 20_000

    got = sample(
        np.tile(row, (draws, 1)), [Sample(0, 99, options)] * draws, list(range(100, 100 + draws))
    )

    ranked = np.argsort(-row, kind="stable")[: options.top_k or len(row)]
    share = np.exp(row[ranked].astype(np.float64) / options.temperature)
    share /= share.sum()
    count = int(np.searchsorted(np.cumsum(share), options.top_p)) + 1
    share, ranked = share[:count] / share[:count].sum(), ranked[:count]
    observed = np.bincount([one.token for one in got], minlength=len(row))
    assert kept is None or len(share) == kept
    assert observed[ranked].sum() == draws
    chi_squared = ((observed[ranked] - draws * share) ** 2 / (draws * share)).sum()
    assert chi_squared < 24.3  # 7 degrees of freedom, one in a thousand


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_row_has_the_same_answer_in_any_company(data):
    count = data.draw(st.integers(2, 6))
    rows = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=(count, 300))
    rows = rows.astype(np.float32)
    samples = [
        Sample(n, data.draw(st.integers(0, 2**64 - 1)), data.draw(options_of)) for n in range(count)
    ]
    positions = data.draw(st.lists(st.integers(0, 500), min_size=count, max_size=count))

    together = sample(rows, samples, positions)

    alone = [
        sample(rows[n : n + 1], samples[n : n + 1], positions[n : n + 1])[0] for n in range(count)
    ]
    assert together == alone


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_logit_that_is_not_finite_is_an_error_that_names_the_sequence(bad, temperature):
    rows = np.zeros((2, 5), np.float32)
    rows[1, 3] = bad
    samples = [Sample(4, 0, params(temperature)), Sample(9, 0, params(temperature))]

    with pytest.raises(ModelError, match="1 of 5 logits are not finite for sequence 9"):
        sample(rows, samples, [1, 1])
