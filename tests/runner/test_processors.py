"""Every option in any mix, against an independent float64 implementation and distributions."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from octavo.contract.batch import Sample, Slice
from octavo.contract.sampling import SamplingParams
from octavo.runner.history import Histories, History
from octavo.runner.philox import uniforms
from octavo.runner.sampler import Refused, sample

VOCAB = 12
NEAR = 1e-9


def params(**options):
    return SamplingParams(max_tokens=None, **options)


def history_of(prompt, output):
    """A history as a runner makes it: a first slice, then one token at a time."""
    one = Sample(0, 0, params(presence_penalty=1.0), len(prompt))
    histories = Histories()
    history = histories.follow(Slice(0, 0, tuple(prompt), (0,), ((),), (one,)), prompt)
    for place, token in enumerate(output, len(prompt)):
        history = histories.follow(Slice(0, place, (token,), (1,), ((),), (one,)), (token,))
    return history


def processed(row, one, prompt, output):
    """Logits after all processors, as {id: float}; what is banned is missing."""
    options = one.params
    logits = {token: float(value) for token, value in enumerate(row)}
    if options.allowed_token_ids is not None:
        logits = {t: x for t, x in logits.items() if t in options.allowed_token_ids}
    for word in one.bad_words:
        head = list(word[:-1])
        if not head or (len(output) >= len(head) and output[len(output) - len(head) :] == head):
            logits.pop(word[-1], None)
    if len(output) < options.min_tokens:
        for token in one.ends:
            logits.pop(token, None)
    for token, bias in (options.logit_bias or {}).items():
        if token in logits:
            logits[token] += bias
    times = Counter(output)
    for token in logits:
        if token in times or token in prompt:
            factor = options.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
        logits[token] -= options.frequency_penalty * times[token]
        logits[token] -= options.presence_penalty * (times[token] > 0)
    return logits


def near(one, other, scale=1.0):
    return abs(one - other) < NEAR * scale


def expected_token(logits, options, draw):
    """Choose with sorted lists and plain sums; None: too near to a limit to say."""
    values = sorted(logits.values())
    if any(a != b and near(a, b, 10) for a, b in itertools.pairwise(values)):
        return None
    ranked = sorted(logits, key=lambda token: (-logits[token], token))
    if options.temperature == 0:
        return ranked[0]
    peak = logits[ranked[0]]
    weight = {t: math.exp((x - peak) / options.temperature) for t, x in logits.items()}
    if options.min_p and any(near(w, options.min_p) for w in weight.values() if w != 1):
        return None
    ranked = [token for token in ranked if weight[token] >= options.min_p]
    if options.top_k > 0:
        ranked = ranked[: options.top_k]
    if options.top_p < 1:
        total, reached, kept = math.fsum(weight[token] for token in ranked), 0.0, []
        for token in ranked:
            kept.append(token)
            reached += weight[token]
            if near(reached, options.top_p * total, total):
                return None
            if reached >= options.top_p * total:
                break
        ranked = kept
    total, reached = math.fsum(weight[token] for token in ranked), 0.0
    for token in sorted(ranked):
        reached += weight[token]
        if near(reached, draw * total, total):
            return None
        if reached > draw * total:
            return token
    return None


tokens = st.integers(0, VOCAB - 1)
mixes = st.fixed_dictionaries(
    {},
    optional={
        "temperature": st.sampled_from([0.0, 0.3, 1.0, 2.5]),
        "top_k": st.integers(-1, VOCAB + 2),
        "top_p": st.sampled_from([0.05, 0.5, 0.95]),
        "min_p": st.sampled_from([0.01, 0.2, 0.9, 1.0]),
        "presence_penalty": st.floats(-2, 2),
        "frequency_penalty": st.floats(-2, 2),
        "repetition_penalty": st.sampled_from([0.5, 1.3, 7.0]),
        "logit_bias": st.dictionaries(tokens, st.floats(-50, 50), max_size=3),
        "allowed_token_ids": st.lists(tokens, min_size=1, max_size=VOCAB),
        "min_tokens": st.integers(0, 5),
    },
)
words = st.lists(st.lists(tokens, min_size=1, max_size=3).map(tuple), max_size=4).map(tuple)
texts = st.lists(tokens, max_size=8)


@settings(max_examples=400, deadline=None)
@given(
    row=st.lists(st.floats(-8, 8, width=32), min_size=VOCAB, max_size=VOCAB),
    options=mixes,
    bad_words=words,
    ends=st.sets(tokens, max_size=3),
    prompt=st.lists(tokens, min_size=1, max_size=8),
    output=texts,
    seed=st.integers(0, 2**64 - 1),
)
def test_any_mix_of_options_gives_the_token_of_plain_float64(
    row, options, bad_words, ends, prompt, output, seed
):
    row = np.array(row, np.float32)
    one = Sample(0, seed, params(**options), len(prompt), tuple(ends), bad_words)
    position = len(prompt) + len(output)
    logits = processed(row, one, prompt, output)
    before = row.copy()

    (got,) = sample(row[None], [one], [position], [history_of(prompt, output)])

    assert np.array_equal(row, before)
    if not logits:
        assert isinstance(got, Refused)
        return
    expected = expected_token(logits, one.params, float(uniforms([seed], [position])[0]))
    assume(expected is not None)
    assert got.token == expected
    wide = row.astype(np.float64)
    exact = wide[expected] - np.log(np.exp(wide - wide.max()).sum()) - wide.max()
    assert got.logprob == pytest.approx(exact, abs=2e-6)


def drawn(row, options, *, prompt=(0,), output=(), bad_words=(), ends=(), draws=20_000):
    """Count the tokens of many draws at one position, each with a seed of its own."""
    samples = [
        Sample(0, seed, params(**options), len(prompt), ends, bad_words) for seed in range(draws)
    ]
    history = history_of(prompt, output)
    rows = np.tile(np.array(row, np.float32), (draws, 1))
    position = len(prompt) + len(output)
    got = sample(rows, samples, [position] * draws, [history] * draws)
    return np.bincount([one.token for one in got], minlength=len(row))


ROW = [0.3, 2.0, -1.0, 1.5, 0.0, 1.9, -0.5, 0.9]
CHI_SQUARED = {7: 24.32, 6: 22.46, 5: 20.52, 4: 18.47, 3: 16.27, 2: 13.82, 1: 10.83}
"""One in a thousand lies above, by degrees of freedom."""


@pytest.mark.parametrize(
    ("options", "rest"),
    [
        ({"temperature": 0.6}, {}),
        ({"top_k": 4}, {}),
        ({"top_p": 0.8}, {}),
        ({"min_p": 0.3}, {}),
        ({"min_p": 0.1, "top_p": 0.9, "temperature": 1.5}, {}),
        ({"presence_penalty": 1.5}, {"output": (1, 1, 5)}),
        ({"frequency_penalty": 0.7}, {"output": (1, 1, 1, 5)}),
        ({"frequency_penalty": -0.7}, {"output": (1, 1, 1, 5)}),
        ({"repetition_penalty": 1.8}, {"prompt": (1, 2), "output": (3, 3)}),
        ({"logit_bias": {2: 3.0, 1: -1.0}}, {}),
        ({"allowed_token_ids": [0, 2, 5, 7]}, {}),
        ({"min_tokens": 3}, {"ends": (1, 4), "output": (1, 1)}),
        ({}, {"bad_words": ((1,), (3, 5), (4, 7)), "output": (2, 3)}),
    ],
)
def test_tokens_follow_the_distribution_of_each_option(options, rest):
    observed = drawn(ROW, options, **rest)

    one = Sample(
        0, 0, params(**options), len(rest.get("prompt", (0,))), rest.get("ends", ()),
        rest.get("bad_words", ()),
    )  # fmt: skip
    logits = processed(ROW, one, list(rest.get("prompt", (0,))), list(rest.get("output", ())))
    weight = {t: math.exp(x / one.params.temperature) for t, x in logits.items()}
    ranked = sorted(weight, key=lambda token: -weight[token])
    ranked = [t for t in ranked if weight[t] >= one.params.min_p * weight[ranked[0]]]
    ranked = ranked[: one.params.top_k or None]
    total, reached, kept = sum(weight[t] for t in ranked), 0.0, []
    for token in ranked:
        kept.append(token)
        reached += weight[token]
        if reached >= one.params.top_p * total:
            break
    share = np.array([weight[token] for token in kept]) / reached
    counts = observed[kept]
    assert counts.sum() == observed.sum()
    expected = share * observed.sum()
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < CHI_SQUARED[len(kept) - 1]


def test_the_penalties_act_on_greedy_choices_too():
    row = np.array([[1.0, 2.0, 1.9]], np.float32)
    one = Sample(0, 0, params(temperature=0, presence_penalty=0.5), 1)

    assert sample(row, [one], [2], [history_of([0], [1])])[0].token == 2
    assert sample(row, [one], [2], [history_of([0], [0])])[0].token == 1
    assert sample(row, [one], [2], [history_of([1], [0])])[0].token == 1, "the prompt is no output"


def test_a_bias_is_added_before_the_penalty_divides():
    # (2 + 2) / 2 = 2 stays below 2.5; 2 / 2 + 2 = 3 would not.
    row = np.array([[2.0, 2.5]], np.float32)
    one = Sample(0, 0, params(temperature=0, logit_bias={0: 2.0}, repetition_penalty=2.0), 1)

    assert sample(row, [one], [1], [history_of([0], [])])[0].token == 1


def test_what_is_banned_stays_banned_whatever_its_bias():
    row = np.array([[0.0, 0.0, 5.0]], np.float32)
    options = params(temperature=0, logit_bias={2: 100.0, 1: 1.0}, min_tokens=1)

    assert sample(row, [Sample(0, 0, options, 1, (2,))], [1], [None])[0].token == 1
    assert sample(row, [Sample(0, 0, options, 1, (2,))], [2], [None])[0].token == 2


def test_a_bad_word_looks_back_at_the_output_alone():
    row = np.array([[0.0, 0.0, 5.0]], np.float32)
    one = Sample(0, 0, params(temperature=0), 2, (), ((0, 1, 2),))

    assert sample(row, [one], [2], [history_of([0, 1], [])])[0].token == 2
    assert sample(row, [one], [3], [history_of([0, 0], [1])])[0].token == 2
    assert sample(row, [one], [4], [history_of([0, 0], [0, 1])])[0].token == 0


def test_extreme_penalties_and_biases_neither_overflow_nor_warn():
    row = np.array([[1.0, -1.0, 3.0]], np.float32)
    for options in (
        {"repetition_penalty": 1e308},
        {"repetition_penalty": 1e-308},
        {"logit_bias": {0: 1e308, 1: -1e308}},
    ):
        one = Sample(0, 3, params(temperature=0.01, **options), 3)
        assert sample(row, [one], [3], [history_of([0, 1, 2], [])])[0].token in (0, 1, 2)


def test_a_row_without_a_token_left_is_refused_and_the_others_are_not():
    rows = np.zeros((2, 3), np.float32)
    banned = Sample(4, 0, params(allowed_token_ids=[1], min_tokens=2), 5, (1,))
    free = Sample(5, 0, params(temperature=0), 5)

    refused, token = sample(rows, [banned, free], [6, 6])

    assert isinstance(refused, Refused)
    assert "output token 2 by allowed_token_ids and min_tokens" in refused.reason
    assert token.token == 0


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_a_row_has_the_same_answer_in_any_company(data):
    count = data.draw(st.integers(2, 5))
    rows = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=(count, VOCAB))
    rows = rows.astype(np.float32)
    made, positions, histories = [], [], []
    for number in range(count):
        prompt, output = data.draw(st.lists(tokens, min_size=1, max_size=4)), data.draw(texts)
        options = params(logprobs=data.draw(st.sampled_from([None, 0, 3, -1])), **data.draw(mixes))
        made.append(Sample(number, number, options, len(prompt), (1, 2), data.draw(words)))
        positions.append(len(prompt) + len(output))
        histories.append(history_of(prompt, output))

    together = sample(rows, made, positions, histories)

    for n in range(count):
        alone = sample(rows[n : n + 1], [made[n]], [positions[n]], [histories[n]])
        assert alone == [together[n]]


def test_a_history_counts_output_and_remembers_the_prompt():
    history = history_of([7, 8, 7], [8, 9, 9])

    ids, times = history.counts()

    assert dict(zip(ids.tolist(), times.tolist(), strict=True)) == {8: 1, 9: 2}
    assert sorted(history.seen().tolist()) == [7, 8, 9]
    assert history.output_end(3) == [8, 9, 9]
    assert history.output_end(4) is None
    assert History([7, 8, 7, 8, 9, 9], 3).tokens == history.tokens
