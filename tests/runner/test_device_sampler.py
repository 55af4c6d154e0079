"""The sampler of a device against that of numpy: every option, the same tokens, no waiting."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from octavo.contract.batch import Candidates, Sample, Sampled
from octavo.contract.sampling import SamplingParams
from octavo.errors import ConfigError, ModelError
from octavo.runner.device_choice import Limits, Options, draw
from octavo.runner.device_rows import Real
from octavo.runner.device_sampler import DeviceSampler
from octavo.runner.history import History
from octavo.runner.inputs import Target
from octavo.runner.logprobs import name_likely
from octavo.runner.philox import uniforms
from octavo.runner.sampler import Refused
from octavo.testing.sampling import (
    Asked,
    assert_same,
    assert_same_names,
    check_device_sampler,
    hide_newest,
    is_near_an_edge,
    numpy_answers,
    random_row,
    random_sample,
    work_of,
)

CPU = torch.device("cpu")
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
TINY_ROOM = 100_000
"""Bytes: a few rows of a small vocabulary, one of a large one."""


def params(**options):
    return SamplingParams(max_tokens=None, **options)


def asked(seq=0, *, prompt=(1, 2), output=(), seed=0, ends=(), bad_words=(), **options):
    candidates = options.pop("candidates", 0)
    one = Sample(seq, seed, params(**options), len(prompt), ends, bad_words, candidates)
    history = History((*prompt, *output), len(prompt)) if one.looks_back else None
    return Asked(one, len(prompt) + len(output), history)


def launch(logits, mix, rows=None, newest=None, **options):
    sampler = DeviceSampler(logits.shape[1], CPU, **options)
    return sampler.launch(logits, work_of(mix, rows), newest)


def answers(logits, mix, rows=None, newest=None, **options):
    return launch(logits, mix, rows, newest, **options).answers()


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ── any mix of options ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("pending", [False, True], ids=["known", "pending"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "rounds"), [(3, 20), (127, 25), (1024, 12), (2500, 8)])
def test_any_mix_of_options_gives_the_answer_of_numpy(size, rounds, dtype, pending):
    check_device_sampler(CPU, size=size, rounds=rounds, dtype=dtype, pending=pending)


@pytest.mark.parametrize("size", [127, 2500])
def test_any_mix_is_answered_in_little_memory_too(size):
    check_device_sampler(CPU, size=size, rounds=8, seed=1, pending=True, room_bytes=TINY_ROOM)


@settings(max_examples=300, deadline=None)
@given(
    row=st.lists(st.floats(-90, 90, width=32), min_size=1, max_size=40),
    seed=st.integers(-(2**63), 2**64 - 1),
    position=st.integers(0, 2**40),
    temperature=st.sampled_from([0.0, 5e-324, 1e-3, 1.0, 1e300]),
    top_p=st.sampled_from([1e-300, 0.3, 0.95, 1.0]),
)
def test_strange_rows_are_chosen_from_as_numpy_does(row, seed, position, temperature, top_p):
    one = Asked(Sample(0, seed, params(temperature=temperature, top_p=top_p)), position, None)
    logits = torch.tensor([row])

    (got,) = answers(logits, [one])

    (expected,) = numpy_answers(logits, [one])
    if got.token != expected.token:
        assert is_near_an_edge(logits[0].numpy(), one)
    else:
        assert_same(got, expected)


def test_draws_are_those_of_philox():
    """Between equally likely tokens the draw decides: 12 bits of it are seen."""
    seeds = [0, 1, -1, 2**63, 2**64 - 1, -(2**63), 123456789]
    positions = [0, 1, 2**31, 2**32, 2**40, 2**53, 2**62]
    size = 4096
    mix = [
        Asked(Sample(seq, seed, params()), position, None)
        for seq, (seed, position) in enumerate(zip(seeds, positions, strict=True))
    ]

    got = answers(torch.zeros(len(seeds), size), mix)

    draws = uniforms(seeds, positions)
    assert [one.token for one in got] == [math.floor(drawn * size) for drawn in draws]


@pytest.mark.parametrize("top_p", [0.5, 0.95, 0.9999])
@pytest.mark.parametrize("top_k", [0, 900, 3000])
def test_the_nucleus_of_a_large_vocabulary_is_that_of_numpy(top_p, top_k):
    logits = normal(6, 5000) * torch.tensor([1.0, 1, 1, 0.01, 0.01, 5])[:, None]
    mix = [asked(seq, seed=seq, top_p=top_p, top_k=top_k) for seq in range(6)]

    got = answers(logits, mix)

    assert [one.token for one in got] == [one.token for one in numpy_answers(logits, mix)]


@pytest.mark.parametrize(("drawn", "token"), [(0.0, 1), (0.25, 3), (0.5, 4), (1 - 2**-53, 5)])
@pytest.mark.parametrize("depth", [0, 4, 7], ids=["all", "few", "sorted"])
def test_a_token_is_the_first_whose_sum_exceeds_the_draw(drawn, token, depth):
    """Of 1, 3, 4 and 5, which are equally likely; the others have no weight."""
    row = torch.tensor([[-1e5, 0, -1e5, 0, 0, 0, -1e5]])
    reals = torch.zeros(1, len(Real), dtype=torch.float64)
    reals[0, [Real.TEMPERATURE, Real.TOP_P]] = 1.0
    reals[0, Real.DRAW] = drawn

    got = draw(
        row, torch.tensor([1]), Options(reals, torch.tensor([[7]])), Limits(depth, False, False)
    )

    assert got.tolist() == [token]


# ── ties ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 0, "logit_bias": {0: -1.0}},
        {"top_k": 1},
        {"top_p": 1e-9},
        {"min_p": 1.0, "top_k": 1},
    ],
    ids=str,
)
def test_the_lowest_of_equally_likely_tokens_is_taken(options):
    logits = torch.full((99, 99), -1.0)
    for first in range(99):
        logits[first, first:] = 2.5

    got = answers(logits, [asked(seq, seed=seq, **options) for seq in range(99)])

    biased = "logit_bias" in options
    assert [one.token for one in got] == [1 if biased and seq == 0 else seq for seq in range(99)]


@pytest.mark.parametrize("options", [{"top_k": 2}, {"top_p": 0.3}], ids=str)
def test_equally_likely_tokens_are_kept_by_ascending_id(options):
    mix = [asked(seq, seed=seq, **options) for seq in range(200)]

    got = answers(torch.tensor([[0.0, 5, 5, 5, 5]]).repeat(200, 1), mix)

    assert {one.token for one in got} == {1, 2}


def test_equally_likely_tokens_are_named_by_ascending_id():
    logits = torch.tensor([[1.0, 3, 3, 1, 3, 3]])

    (got,) = answers(logits, [asked(logprobs=3, temperature=0, logit_bias={5: 9.0})])

    assert got.logprobs.ids == (1, 2, 4, 5)
    assert got.logprobs.ranks == (1, 2, 3, 4)


@pytest.mark.parametrize("candidates", [1, 3, 5, 6])
@pytest.mark.parametrize("size", [6, 2000])
def test_equally_likely_candidates_come_by_ascending_id(candidates, size):
    logits = torch.zeros(1, size)
    logits[0, :6] = torch.tensor([1.0, 3, 3, 1, 3, 3])

    (got,) = answers(logits, [asked(candidates=candidates)])

    assert got.tokens == (1, 2, 4, 5, 0, 3)[:candidates]


# ── bans, refusals, errors ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"top_k": 1}, {"top_p": 0.5}], ids=str)
def test_a_row_without_a_token_left_is_refused_and_the_others_are_not(options):
    only = {"allowed_token_ids": (3, 7), **options}
    mix = [asked(0, bad_words=((3,), (7,)), **only), asked(1, **only)]
    logits = normal(2, 20)

    launched = launch(logits, mix)
    refused, drawn = launched.answers()

    assert refused == numpy_answers(logits, mix)[0]
    assert isinstance(refused, Refused)
    assert drawn.token in (3, 7)
    assert 0 <= launched.tokens[0] < 20


def test_candidates_are_fewer_if_tokens_are_banned():
    mix = [asked(0, allowed_token_ids=(3, 7, 9), bad_words=((7,),), candidates=8)]
    logits = normal(1, 20)

    (got,) = answers(logits, mix)

    assert sorted(got.tokens) == [3, 9]
    assert_same(got, numpy_answers(logits, mix)[0])


def test_a_row_whose_tokens_are_all_banned_has_no_candidates():
    got = answers(normal(1, 20), [asked(allowed_token_ids=(3,), bad_words=((3,),), candidates=8)])

    assert got == [Candidates((), ())]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 128, 299])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0},
        {"top_k": 5, "min_p": 0.1},
        {"top_p": 0.5, "logprobs": 2},
        {"presence_penalty": 1.0, "allowed_token_ids": (0, 4), "logprobs": -1},
        {"candidates": 4},
    ],
    ids=str,
)
def test_a_logit_that_is_not_finite_is_an_error_that_names_the_sequence(options, bad, place):
    logits = torch.zeros(2, 300)
    logits[1, place] = bad
    mix = [asked(5, output=(1,), **options), asked(6, output=(1, 2, 3), **options)]

    launched = launch(logits, mix)

    # The next step reads them before anybody knows.
    assert 0 <= launched.tokens.min() <= launched.tokens.max() < 300
    with pytest.raises(ModelError, match="1 of 300 logits are not finite for sequence 6 at pos"):
        launched.answers()


def test_the_first_sample_of_a_broken_row_is_named_whatever_the_options():
    logits = normal(3, 50)
    logits[1:, 9:11] = math.nan
    mix = [asked(0), asked(1, top_k=3), asked(2, temperature=0), asked(3)]

    with pytest.raises(ModelError, match="2 of 50 logits are not finite for sequence 1 at pos"):
        answers(logits, mix, [0, 1, 1, 2])


@pytest.mark.parametrize("options", [{"logit_bias": {20: 1.0}}, {"allowed_token_ids": (3, 20)}])
def test_a_token_beyond_the_vocabulary_never_reaches_the_device(options):
    with pytest.raises(AssertionError, match=r"tokens from .* to 20 in a vocabulary of 20"):
        launch(normal(1, 20), [asked(**options)])


def test_a_device_without_float64_is_refused():
    with pytest.raises(ConfigError, match="mps, which has no float64"):
        DeviceSampler(20, torch.device("mps"))


# ── log-probabilities ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("size", [30, 1500])
def test_the_whole_vocabulary_is_named_if_asked_for(size):
    mix = [asked(0, logprobs=-1, temperature=0), asked(1, logprobs=2), asked(2, logprobs=-1)]
    logits = torch.round(normal(3, size) * 4)

    got = answers(logits, mix, room_bytes=TINY_ROOM)

    assert [len(one.logprobs.ids) >= size for one in got] == [True, False, True]
    for one, expected in zip(got, numpy_answers(logits, mix), strict=True):
        assert_same(one, expected)


def test_an_unlikely_token_is_named_after_the_likeliest_with_its_rank():
    mix = [asked(0, logprobs=1, temperature=0, logit_bias={7: 1e6})]
    logits = normal(1, 40)
    logits[0, 7] = -9

    (got,) = answers(logits, mix)

    assert got.token == got.logprobs.ids[-1] == 7
    assert got.logprobs.ranks == (1, 40)
    assert got.logprobs.values[-1] == got.logprob


@pytest.mark.parametrize("top", [-1, 0, 1, 4, 1000])
def test_tokens_of_a_prompt_are_named_as_numpy_does(top):
    rng = np.random.default_rng(top + 1)
    rows = np.array([random_row(rng, 700) for _ in range(20)], dtype=np.float32)
    targets = [Target(seq, int(rng.integers(0, 700)), top) for seq in range(20)]
    sampler = DeviceSampler(700, CPU, room_bytes=TINY_ROOM)

    got = sampler.launch_names(torch.from_numpy(rows), targets).answers()

    for one, row, target in zip(got, rows, targets, strict=True):
        assert_same_names(one, name_likely(row, target.token, top))


def test_tokens_of_prompts_may_ask_for_different_numbers_of_names():
    targets = [Target(seq, 3 * seq, top) for seq, top in enumerate((5, -1, 0, 1200, 1))]
    logits = normal(5, 1300)

    got = DeviceSampler(1300, CPU).launch_names(logits, targets).answers()

    for one, row, target in zip(got, logits.numpy(), targets, strict=True):
        assert_same_names(one, name_likely(row, target.token, target.top))


def test_a_prompt_with_a_logit_that_is_not_finite_is_an_error_too():
    logits = torch.tensor([[0.0, 1, 2], [0, math.nan, 1]])
    launched = DeviceSampler(3, CPU).launch_names(logits, [Target(8, 1, 0), Target(8, 1, 0)])

    with pytest.raises(ModelError, match=r"1 of 3 logits .* the prompt of sequence 8"):
        launched.answers()


# ── tokens that only the device knows ─────────────────────────────────────────────────────

PENALTIES = [
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.4},
    {"repetition_penalty": 1.3, "presence_penalty": -0.5, "frequency_penalty": 0.7},
]


@pytest.mark.parametrize("options", PENALTIES, ids=str)
@pytest.mark.parametrize("newest", [0, 5, 9, 7], ids=["zero", "prompt", "output", "nowhere"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_newest_token_is_penalized_like_any_other(options, newest, sign):
    before = {"prompt": (4, 5, 4), "output": (9, 4, 9)}
    whole = {**before, "output": (*before["output"], newest)}
    logits = torch.full((1, 12), 2.0 * sign)

    (got,) = answers(
        logits,
        [Asked(asked(candidates=12, **whole, **options).sample, 7, History((4, 5, 4, 9, 4, 9), 3))],
        newest=torch.tensor([newest]),
    )

    (expected,) = numpy_answers(logits, [asked(candidates=12, **whole, **options)])
    assert got.tokens == expected.tokens
    assert got.logprobs == pytest.approx(expected.logprobs, rel=1e-12)


def test_the_first_token_of_an_output_is_penalized_while_only_the_device_knows_it():
    logits = torch.tensor([[0.0, 0, 0, 0, 1, 0]] * 2)
    penalized = asked(presence_penalty=2.0, temperature=0).sample
    mix = [Asked(penalized, 3, History((1, 2), 2)), asked(1, temperature=0)]

    got = answers(logits, mix, newest=torch.tensor([4, -1]))

    assert [one.token for one in got] == [0, 4]


@pytest.mark.parametrize(
    ("words", "newest", "banned"),
    [
        (((5, 3),), 5, {3}),
        (((5, 3),), 6, set()),
        (((9, 5, 3),), 5, {3}),
        (((8, 5, 3),), 5, set()),
        (((1, 9, 5, 3),), 5, set()),
        (((3,), (5, 4)), 5, {3, 4}),
        (((5, 3), (6, 3), (6, 3)), 5, {3}),
        (((6, 3), (5, 3)), 6, {3}),
        (((5, 3), (5, 99)), 5, {3}),
    ],
)
def test_a_bad_word_is_banned_if_the_newest_token_stands_before_its_end(words, newest, banned):
    # The prompt ends with 1: it does not count.
    one = asked(prompt=(2, 1), output=(9, 0), bad_words=words, candidates=12)
    short = Asked(one.sample, one.position, History((2, 1, 9), 2))

    (got,) = answers(normal(1, 12), [short], newest=torch.tensor([newest]))

    assert set(range(12)) - set(got.tokens) == banned


def test_a_text_may_be_known_although_others_have_pending_tokens():
    mix = [asked(seq, output=(3, 4), frequency_penalty=2.0, candidates=9) for seq in range(2)]
    pending = Asked(mix[0].sample, 4, History((1, 2, 3), 2))
    logits = normal(2, 9)

    got = answers(logits, [pending, mix[1]], newest=torch.tensor([4, -1]))

    for one, expected in zip(got, numpy_answers(logits, mix), strict=True):
        assert_same(one, expected)


@pytest.mark.parametrize("missing", [1, 2])
def test_a_history_that_lacks_tokens_nobody_knows_is_refused(missing):
    one = asked(output=(3, 4), presence_penalty=1.0)
    short = Asked(one.sample, one.position, History((1, 2, 3, 4)[:-missing], 2))

    with pytest.raises(AssertionError, match=r"lacks its newest token|2 tokens are known"):
        launch(normal(1, 9), [short])


def test_histories_may_grow_once_the_launch_has_returned():
    mix = [asked(output=(3, 4), frequency_penalty=2.0, repetition_penalty=1.5, candidates=20)]
    logits = normal(1, 20)
    expected = numpy_answers(logits, mix)

    launched = launch(logits, mix)
    mix[0].history.extend([4, 4, 5, 6])

    assert_same(launched.answers()[0], expected[0])


# ── company ───────────────────────────────────────────────────────────────────────────────


def test_an_answer_does_not_depend_on_company():
    rng = np.random.default_rng(1)
    mix = [random_sample(rng, seq, 500) for seq in range(64)]
    logits = torch.tensor(np.array([random_row(rng, 500) for _ in mix]), dtype=torch.float32)

    together = answers(logits, mix)

    alone = [answers(row[None], [one])[0] for row, one in zip(logits, mix, strict=True)]
    assert alone == together


@pytest.mark.parametrize("options", [{}, {"top_k": 3}, {"temperature": 0}], ids=str)
def test_forks_read_one_row(options):
    rows = [0, 0, 0, 1, 2, 2, 3, 4, 4]
    logits = normal(5, 50)
    mix = [asked(seq, seed=seq, **options) for seq in range(9)]

    launched = launch(logits, mix, rows)

    expected = [one.token for one in numpy_answers(logits, mix, rows)]
    assert [one.token for one in launched.answers()] == expected == launched.tokens.tolist()


def test_rows_behind_those_of_samples_are_left_alone():
    logits = normal(5, 50)
    logits[3:] = math.nan
    mix = [asked(seq, seed=seq) for seq in range(3)]

    assert all(isinstance(one, Sampled) for one in answers(logits, mix))


def test_logits_are_not_changed():
    rng = np.random.default_rng(3)
    mix = [random_sample(rng, seq, 99) for seq in range(40)]
    logits = normal(40, 99)
    before = logits.clone()

    answers(logits, mix)

    assert torch.equal(logits, before)


def test_a_step_without_samples_has_no_answers():
    work = work_of([asked()])
    nothing = type(work)(work.inputs, 0)

    assert DeviceSampler(9, CPU).launch(normal(4, 9), nothing).answers() == []


# ── no waiting ────────────────────────────────────────────────────────────────────────────


class Watch(TorchDispatchMode):
    """Notes what would make the host wait for a GPU, or run there with another count each time."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")

    def __init__(self):
        super().__init__()
        self.names = []
        self.waits = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        self.names.append(name)
        masks = name.startswith("index") and any(
            one is not None and one.dtype in (torch.bool, torch.uint8)
            for group in args
            if isinstance(group, (list, tuple))
            for one in group
        )
        sized = name == "repeat_interleave" and kwargs.get("output_size") is None
        if masks or sized or any(word in name for word in self.WAITING):
            self.waits.append(name)
        return func(*args, **kwargs)


def test_nothing_is_launched_that_waits_for_the_device():
    rng = np.random.default_rng(2)
    mix = [random_sample(rng, seq, 1500) for seq in range(150)]
    logits = normal(150, 1500)
    mix, newest = hide_newest(rng, mix)

    with Watch() as watch:
        launch(logits, mix, newest=newest)
        DeviceSampler(1500, CPU).launch_names(logits, [Target(0, 3, 5), Target(0, 3, -1)])

    assert {"sort", "topk", "scatter_reduce_", "searchsorted"} < set(watch.names)
    assert watch.waits == []


def test_greedy_samples_are_found_without_a_sort_or_float64_sums_along_rows():
    logits = normal(8, 100)
    plain = [asked(seq, temperature=0) for seq in range(8)]

    with Watch() as watch:
        launch(logits, plain)

    assert not {"sort", "topk", "cumsum", "index_select", "scatter_"} & set(watch.names)
