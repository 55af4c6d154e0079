"""The native sampler against that of numpy: every option, the same tokens, on any threads."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import LLM, SamplingParams, StructuredOutputs, cpu
from octavo.contract.batch import Candidates, Sample, Sampled, Slice
from octavo.errors import ModelError
from octavo.runner.history import Histories
from octavo.runner.inputs import StepArrays, Target, Work
from octavo.runner.logprobs import log_probabilities
from octavo.runner.numpy_sampler import NumpySampler
from octavo.runner.philox import uniforms
from octavo.runner.processors import process
from octavo.runner.sampler import Refused
from octavo.testing.fake_grammars import random_mask
from tiny_model import write_tiny_gguf

_cpu = cpu.native()
if _cpu is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

from octavo.runner.native_sampler import NativeSampler  # noqa: E402

ISAS = _cpu.available_isas()
EDGE = 1e-9
"""A draw so near to the edge of a token may fall on either side."""


class GivenLogits:
    """Stands in for the native executor: logits are given, the sampler is the extension's."""

    def __init__(self, rows, *, threads=1, isa=None):
        self.rows = np.ascontiguousarray(rows, dtype=np.float32)
        self.vocab_size = self.rows.shape[1]
        pool = _cpu.ThreadPool(threads)
        self._sampler = _cpu.Sampler(self.vocab_size, pool=pool, isa=isa)

    def logits(self, first, count):
        return self.rows[first : first + count]

    def write_logits(self, first, rows):
        rows[:] = self.logits(first, len(rows))

    def choose(self, logits, *options):
        return self._sampler.sample(logits, *options)


_NO_INTS = np.empty(0, dtype=np.int64)
NO_STEP = StepArrays((), (), _NO_INTS, _NO_INTS, (), _NO_INTS)


def work_of(samples, positions, histories=None, masks=(), *, rows=None):
    rows = list(range(len(samples))) if rows is None else rows
    histories = [None] * len(samples) if histories is None else histories
    count = max(rows) + 1
    masks = list(masks)
    return Work(NO_STEP, count, list(samples), rows, list(positions), list(histories), masks=masks)


def native(executor, work):
    """Never the short way, which these logits do not have."""
    return NativeSampler(executor).sample(work, executor.rows[: work.sampled])


def history_of(one, prompt, output):
    part = Slice(one.seq, 0, tuple(prompt), (0,), ((),), (one,))
    return Histories().follow(part, [*prompt, *output])


def differs(got, expected):
    """True if the tokens of two answers are not the same."""
    names = ("tokens", "token", "reason")
    return any(getattr(got, name, None) != getattr(expected, name, None) for name in names)


def assert_same(got, expected):
    assert type(got) is type(expected), (got, expected)
    if isinstance(expected, Sampled):
        assert got.token == expected.token
        assert got.logprob == pytest.approx(expected.logprob, abs=1e-5)
        assert (got.logprobs is None) == (expected.logprobs is None)
        if expected.logprobs is not None:
            assert got.logprobs.ids == expected.logprobs.ids
            assert got.logprobs.ranks == expected.logprobs.ranks
            assert got.logprobs.values == pytest.approx(expected.logprobs.values, abs=1e-5)
    elif isinstance(expected, Candidates):
        assert got.tokens == expected.tokens
        assert got.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    else:
        assert got == expected


# ── any mix of options ────────────────────────────────────────────────────────────────────


def random_options(draw, size):
    """A few options of each kind, rare and harsh ones among them."""
    some = lambda most: draw.choice(size, min(size, most), replace=False).tolist()  # noqa: E731
    pool = {
        "temperature": draw.choice([0.0, 1e-300, 0.2, 0.7, 1.0, 3.0, 1e6]),
        "top_k": int(draw.choice([-1, 1, 2, 50, 400, size, size + 5])),
        "top_p": draw.choice([1e-9, 0.1, 0.5, 0.9, 0.99, 0.999999]),
        "min_p": draw.choice([1e-6, 0.01, 0.3, 1.0]),
        "presence_penalty": draw.choice([-2.0, -0.5, 0.7, 2.0]),
        "frequency_penalty": draw.choice([-2.0, -0.3, 0.4, 2.0]),
        "repetition_penalty": draw.choice([0.5, 0.9, 1.3, 5.0]),
        "logit_bias": dict(zip(some(5), (5 * draw.standard_normal(5)).tolist(), strict=False)),
        "allowed_token_ids": some(int(draw.choice([1, 3, 200]))),
        "logprobs": int(draw.choice([0, 1, 5, -1 if size < 100 else 300])),
        "min_tokens": 4,
    }
    kept = [name for name in pool if draw.random() < 0.3]
    options = {name: pool[name] for name in kept}
    if draw.random() < 0.3:
        options["structured_outputs"] = StructuredOutputs(regex="a")
    return options


def random_sample(draw, seq, size):
    """A sample with its position and its text."""
    options = random_options(draw, size)
    candidates = int(draw.choice([0, 0, 0, 1, 9, size]))
    words = []
    if draw.random() < 0.3:
        words = [tuple(draw.integers(0, size, draw.integers(1, 4)).tolist()) for _ in range(3)]
    prompt, output = draw.integers(0, size, 6).tolist(), draw.integers(0, size, 9).tolist()
    if words and len(words[0]) > 1:
        output += words[0][:-1]
    one = Sample(
        seq,
        int(draw.integers(0, 2**64, dtype=np.uint64)) - 2**63,
        SamplingParams(max_tokens=None, **options),
        len(prompt),
        tuple(draw.integers(0, size + 3, 2).tolist()) if "min_tokens" in options else (),
        tuple(words),
        candidates,
    )
    history = history_of(one, prompt, output) if one.looks_back else None
    mask = random_mask(draw, size) if one.constrained else None
    return one, len(prompt) + len(output), history, mask


def random_row(draw, size):
    """Peaked, flat, or full of ties."""
    kind = draw.integers(0, 4)
    row = draw.standard_normal(size) * draw.choice([0.01, 1.0, 4.0, 30.0])
    return np.round(row * 2) / 2 if kind == 0 else row


def is_near_an_edge(row, one, position, history, mask=None):
    """True if the last of the sums of `sampler` might be rounded to another token."""
    eligible = process(row, one, history, position, mask)
    p = one.params
    if one.candidates:
        level = log_probabilities(row)
        steps = np.diff(np.sort(process(level, one, history, position, mask).row))
        return bool(np.any((steps > 0) & (steps < EDGE)))
    if p.greedy or len(eligible.row) == 0:
        return False
    weights = np.exp((eligible.row.astype(float) - float(eligible.row.max())) / p.temperature)
    if p.min_p and np.any(np.abs(weights[weights != 1] - p.min_p) < EDGE):
        return True
    weights[weights < p.min_p] = 0
    ranked = np.argsort(-eligible.row, kind="stable")
    if p.top_k > 0:
        weights[ranked[p.top_k :]] = 0
    if p.top_p < 1:
        sums = np.cumsum(weights[ranked])
        enough = p.top_p * sums[-1]
        if np.any(np.abs(sums - enough) < EDGE * sums[-1]):
            return True
        weights[ranked[np.searchsorted(sums, enough) + 1 :]] = 0
    sums = np.cumsum(weights)
    wanted = uniforms([one.seed], [position])[0] * sums[-1]
    return bool(np.any(np.abs(sums - wanted) < EDGE * sums[-1]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("size", "rounds"), [(3, 50), (127, 40), (128, 40), (999, 40), (9001, 9)])
def test_any_mix_of_options_gives_the_answer_of_numpy(isa, size, rounds):
    draw = np.random.default_rng([size, ISAS.index(isa)])
    near = compared = 0
    for number in range(rounds):
        mixed = [random_sample(draw, seq, size) for seq in range(12)]
        rows = np.array([random_row(draw, size) for _ in mixed], dtype=np.float32)
        executor = GivenLogits(rows, threads=1 + number % 3, isa=isa)
        work = work_of(*zip(*mixed, strict=True))
        expected = NumpySampler(executor).sample(work, None)
        for row, (one, position, text, mask), got, wanted in zip(
            rows, mixed, native(executor, work), expected, strict=True
        ):
            if differs(got, wanted) and is_near_an_edge(row, one, position, text, mask):
                near += 1
                continue
            compared += 1
            assert_same(got, wanted)

    assert near < compared / 100


@settings(max_examples=300, deadline=None)
@given(
    row=st.lists(st.floats(-90, 90, width=32), min_size=1, max_size=40),
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 2**40),
    temperature=st.sampled_from([0.0, 5e-324, 1e-3, 1.0, 1e300]),
    top_p=st.sampled_from([1e-300, 0.3, 0.95, 1.0]),
)
def test_strange_rows_are_chosen_from_as_numpy_does(row, seed, position, temperature, top_p):
    one = Sample(0, seed, SamplingParams(max_tokens=None, temperature=temperature, top_p=top_p))
    executor = GivenLogits([row])
    work = work_of([one], [position])

    (got,) = native(executor, work)

    (expected,) = NumpySampler(executor).sample(work, None)
    if got.token != expected.token:
        assert is_near_an_edge(executor.rows[0], one, position, None)
    else:
        assert_same(got, expected)


def test_draws_are_those_of_philox():
    """Between two equally likely tokens the draw decides at a half: 53 bits are seen bit by bit."""
    seeds = [0, 1, -1, 2**63, 2**64 - 1, -(2**63), 123456789]
    positions = [0, 1, 2**31, 2**32, 2**40, 2**53, 2**62]
    size = 4096
    samples = [Sample(i, seed, SamplingParams(max_tokens=None)) for i, seed in enumerate(seeds)]
    executor = GivenLogits(np.zeros((len(seeds), size)))

    got = native(executor, work_of(samples, positions))

    draws = uniforms(seeds, positions)
    assert [one.token for one in got] == [math.floor(draw * size) for draw in draws]


# ── ties, bans, refusals, errors ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "options", [{"temperature": 0}, {"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0, "top_k": 1}]
)
def test_the_lowest_of_equally_likely_tokens_is_taken(isa, options):
    rows = np.full((300, 300), -1, dtype=np.float32)
    for first in range(300):
        rows[first, first:] = 2.5
    samples = [Sample(i, i, SamplingParams(max_tokens=None, **options)) for i in range(300)]

    got = native(GivenLogits(rows, isa=isa), work_of(samples, range(300)))

    assert [one.token for one in got] == list(range(300))


def test_a_row_without_a_token_left_is_refused_and_the_others_are_not():
    only = SamplingParams(max_tokens=None, allowed_token_ids=(3, 7))
    banned = Sample(0, 0, only, bad_words=((3,), (7,)))
    executor = GivenLogits(np.zeros((2, 20)))
    work = work_of([banned, Sample(1, 0, only)], [4, 4])

    refused, drawn = native(executor, work)

    assert refused == NumpySampler(executor).sample(work, None)[0]
    assert isinstance(refused, Refused)
    assert drawn.token in (3, 7)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 127, 128, 299])
def test_a_logit_that_is_not_finite_is_an_error_that_names_the_sequence(isa, bad, place):
    rows = np.zeros((2, 300), dtype=np.float32)
    rows[1, place] = bad
    samples = [Sample(seq, 0, SamplingParams(max_tokens=None)) for seq in (5, 6)]
    message = "1 of 300 logits are not finite for sequence 6 at position 9"

    with pytest.raises(ModelError, match=message):
        native(GivenLogits(rows, isa=isa), work_of(samples, [4, 9]))


def test_a_prompt_with_a_logit_that_is_not_finite_is_an_error_too():
    executor = GivenLogits([[0, 1, 2], [0, math.nan, 1]])

    with pytest.raises(ModelError, match=r"1 of 3 logits .* the prompt of sequence 8"):
        NativeSampler(executor).name(0, [Target(8, 1, 0), Target(8, 1, 0)])


@pytest.mark.parametrize("top", [-1, 0, 1, 4, 1000])
def test_tokens_of_a_prompt_are_named_as_numpy_does(top):
    draw = np.random.default_rng(top + 1)
    executor = GivenLogits([random_row(draw, 700) for _ in range(20)])
    targets = [Target(seq, int(draw.integers(0, 700)), top) for seq in range(20)]

    got = NativeSampler(executor).name(0, targets)

    for one, expected in zip(got, NumpySampler(executor).name(0, targets), strict=True):
        assert (one.ids, one.ranks) == (expected.ids, expected.ranks)
        assert one.values == pytest.approx(expected.values, abs=1e-5)


# ── company ───────────────────────────────────────────────────────────────────────────────


def test_an_answer_depends_neither_on_company_nor_on_threads():
    draw = np.random.default_rng(1)
    mixed = [random_sample(draw, seq, 500) for seq in range(64)]
    rows = np.array([random_row(draw, 500) for _ in mixed], dtype=np.float32)
    together = native(GivenLogits(rows, threads=5), work_of(*zip(*mixed, strict=True)))

    alone = [
        native(GivenLogits(row[None], threads=1), work_of(*zip(one, strict=True)))[0]
        for row, one in zip(rows, mixed, strict=True)
    ]

    assert alone == together


def test_forks_read_one_row(monkeypatch):
    monkeypatch.setattr("octavo.runner.native_sampler.ROOM", 2 * 4 * 50)
    draw = np.random.default_rng(0)
    rows = draw.standard_normal((5, 50)).astype(np.float32)
    samples = [Sample(i, i, SamplingParams(max_tokens=None)) for i in range(9)]
    of_sample = [0, 0, 0, 1, 2, 2, 3, 4, 4]
    executor = GivenLogits(rows)
    work = work_of(samples, range(9), rows=of_sample)

    assert [one.token for one in NativeSampler(executor).sample(work, None)] == [
        one.token for one in NumpySampler(executor).sample(work, None)
    ]


# ── the engine ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_tiny_gguf(tmp_path_factory.mktemp("sampler") / "model.gguf", matrix_type="Q8_0")


def generate(model, asked, **options):
    prompts = [{"prompt_token_ids": [7, i, *range(3, 20)]} for i in range(len(asked))]
    given = {"kv_cache_memory_bytes": 4 << 20, "threads": 2, "backend": "cpu"} | options
    with LLM(str(model), report=lambda _: None, **given) as llm:
        return [result.outputs for result in llm.generate(prompts, asked)]


def mixes():
    likely = {"max_tokens": 24, "ignore_eos": True}
    return [
        SamplingParams(temperature=0, **likely),
        SamplingParams(seed=1, n=3, **likely),
        SamplingParams(seed=2, top_p=0.9, temperature=0.8, **likely),
        SamplingParams(seed=3, top_k=20, min_p=0.05, logprobs=4, **likely),
        SamplingParams(
            seed=4, presence_penalty=0.5, frequency_penalty=0.3, repetition_penalty=1.2, **likely
        ),
        SamplingParams(temperature=0, logit_bias={5: 3.0}, bad_words=("the",), **likely),
        SamplingParams(seed=6, allowed_token_ids=tuple(range(40)), min_tokens=24, max_tokens=24),
        SamplingParams(use_beam_search=True, beam_width=3, **likely),
        SamplingParams(temperature=0, prompt_logprobs=3, logprobs=0, **likely),
    ]


def test_an_engine_gives_the_tokens_of_the_sampler_of_numpy(model, monkeypatch):
    got = generate(model, mixes())

    monkeypatch.setattr("octavo.runner.native_sampler.NativeSampler", NumpySampler)
    expected = generate(model, mixes())

    for outputs, others in zip(got, expected, strict=True):
        for one, other in zip(outputs, others, strict=True):
            assert one.token_ids == other.token_ids
            assert one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-4)
