"""Named log-probabilities against a full sort in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.contract.batch import Sample
from octavo.contract.sampling import SamplingParams
from octavo.runner.logprobs import name_likely
from octavo.runner.sampler import sample


@settings(max_examples=200, deadline=None)
@given(
    row=st.lists(st.integers(-4, 4).map(float), min_size=1, max_size=20),
    token=st.integers(0, 19),
    top=st.integers(-1, 25),
)
def test_the_most_likely_tokens_and_the_own_are_named_with_their_ranks(row, token, top):
    row = np.array(row, np.float32)
    token %= len(row)
    ranked = sorted(range(len(row)), key=lambda other: (-row[other], other))
    count = len(row) if top == -1 else min(top, len(row))
    total = math.log(math.fsum(math.exp(x) for x in row.tolist()))

    got = name_likely(row, token, top)

    expected = ranked[:count] + ([] if token in ranked[:count] else [token])
    assert list(got.ids) == expected
    assert list(got.ranks) == [ranked.index(other) + 1 for other in expected]
    assert got.values == pytest.approx([row[other] - total for other in expected], abs=1e-5)


@pytest.mark.parametrize("top", [0, 1, 3, -1])
def test_a_sample_carries_them_as_the_model_gives_them(top):
    row = np.array([[1.0, 4.0, 2.0, 3.0]], np.float32)
    options = SamplingParams(
        temperature=0.1, max_tokens=None, logprobs=top, logit_bias={0: 90.0}, top_k=1
    )

    (got,) = sample(row, [Sample(0, 0, options)], [1])

    assert got.token == 0
    assert got.logprobs is not None
    assert got.logprobs.ids == {0: (0,), 1: (1, 0), 3: (1, 3, 2, 0), -1: (1, 3, 2, 0)}[top]
    assert got.logprobs.ranks[-1] == 4
    assert got.logprobs.values[-1] == pytest.approx(got.logprob)


def test_nothing_is_named_unless_asked_for():
    options = SamplingParams(max_tokens=None)

    (got,) = sample(np.zeros((1, 4), np.float32), [Sample(0, 0, options)], [1])

    assert got.logprobs is None
