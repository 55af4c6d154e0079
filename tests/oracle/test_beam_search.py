"""Beam search against transformers: all texts of a search and their scores, in float32."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest

from octavo import LLM, RequestOutput, SamplingParams
from tiny_model import write_tiny_folder

MARGIN = 1e-4
"""Where a search of the oracle met two candidates nearer than this, another result is right too."""
NEAR = 2e-4
"""Of scores, for each token of the text."""
EOS = 2
"""The tiny model's end token."""
LETTERS = "the quick brown fox jumps over the lazy dog and sings to the hens "
PREFACE = "Here is what a patient teacher of young children would say, in plain words, about "
TOPICS = (
    "the tides", "bread", "Moby Dick", "prime numbers", "bees", "the moon", "glass", "rain",
    "a lighthouse", "clocks", "salt", "maps", "the violin", "ice", "honey", "ships", "tea",
    "paper", "thunder", "bridges",
)  # fmt: skip


@dataclass(frozen=True)
class Truth:
    """What the oracle's search found."""

    texts: list[list[int]]
    """Outputs, best first."""
    scores: list[float]
    gap: float
    """The smallest difference between two numbers that it compared."""


def true_search(model, prompt: list[int], params: SamplingParams, ends: list[int], **processors):
    """Search with transformers. ends: tokens that end a text; processors: its own options."""
    import torch
    from transformers import GenerationConfig

    config = GenerationConfig(
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        do_sample=False,
        eos_token_id=ends,
        pad_token_id=ends[0],
        return_dict_in_generate=True,
        output_scores=True,
        **processors,
    )
    ids = torch.tensor([prompt])
    found = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config)
    rows = [step.double().numpy() for step in found.scores]
    replayed, gap = replay(rows, params, ends)
    scores = found.sequences_scores.tolist()
    assert replayed == pytest.approx(scores, abs=1e-4), "the replay is another search"
    texts = [cut(ids[len(prompt) :], ends) for ids in found.sequences.tolist()]
    return Truth(texts, scores, gap)


def cut(output: list[int], ends: list[int]) -> list[int]:
    """Leave out the padding."""
    first = next((place for place, token in enumerate(output) if token in ends), len(output))
    return output[: first + 1]


def replay(rows: list[np.ndarray], params: SamplingParams, ends: list[int]):
    """Follow a search by its own log-probabilities; returns scores and the smallest gap met.

    rows: for each step, [beams, vocabulary].
    """
    width, penalty = params.beam_width, params.length_penalty
    count = max(2, 1 + len(ends)) * width
    running, ended, gap = np.array([0.0] + [-1e9] * (width - 1)), [], math.inf
    for length, row in enumerate(rows, 1):
        total = (row + running[:, None]).ravel()
        best = np.argsort(-total, kind="stable")[: count + 1]
        values = total[best]
        gap = min(gap, closest(values))
        complete = np.isin(best % row.shape[1], ends) | (length == params.max_tokens)
        ended += (values[:width][complete[:width]] / length**penalty).tolist()
        ended.sort(reverse=True)
        gap = min(gap, closest(np.array(ended[: width + 1])))
        del ended[width:]
        running = values[:count][~complete[:count]][:width]
        if len(ended) == width and len(running):
            far = params.early_stopping == "never" and penalty > 0
            possible = running[0] / (params.max_tokens if far else length) ** penalty
            gap = min(gap, abs(possible - ended[-1]))
    return ended, gap


def closest(values: np.ndarray) -> float:
    """Return the smallest difference between neighbours, best first."""
    possible = values[values > -1e8]
    return float(-np.diff(possible).max()) if len(possible) > 1 else math.inf


def agrees(result: RequestOutput, params: SamplingParams, truth: Truth) -> bool:
    """Compare the answers to one prompt; False: they part at a near tie."""
    texts = [answer.token_ids for answer in result.outputs]
    if texts != truth.texts:
        assert truth.gap < MARGIN, f"{result.prompt!r}: {texts}, not {truth.texts}"
        return False
    for answer, score in zip(result.outputs, truth.scores, strict=True):
        length = len(answer.token_ids)
        ours = answer.cumulative_logprob / length**params.length_penalty
        assert ours == pytest.approx(score, abs=NEAR * length ** max(0, 1 - params.length_penalty))
    return True


def report(compared: list[bool]) -> None:
    """Print how many searches parted from the oracle's at a near tie, and bound it."""
    parted = compared.count(False)
    print(f"{len(compared)} searches, {parted} parted at a gap below {MARGIN}")  # noqa: T201
    assert parted <= 0.05 * len(compared)


# ── a tiny model, on which texts end early ────────────────────────────────────────────────


@pytest.fixture(scope="module", params=[0, 1])
def tiny(request, engine, tmp_path_factory):
    """A tiny random model in both engines."""
    from transformers import AutoModelForCausalLM

    folder = write_tiny_folder(tmp_path_factory.mktemp("beams"), seed=request.param)
    model = AutoModelForCausalLM.from_pretrained(folder).float().eval()
    with LLM(str(folder), **engine, kv_cache_memory_bytes=4 << 20) as llm:
        yield llm, model


def prompts_of(llm: LLM, count: int) -> list[dict[str, list[int]]]:
    """Prompts of several lengths that begin alike."""
    ids = llm.get_tokenizer().encode(LETTERS)
    return [{"prompt_token_ids": [*ids[: 20 + 3 * i], 70 + i]} for i in range(count)]


def compare(tiny, params: SamplingParams, **processors) -> list[bool]:
    """Search after a few prompts, all together here and one by one there."""
    llm, model = tiny
    ends = [EOS, *params.stop_token_ids]
    return [
        agrees(
            result, params, true_search(model, result.prompt_token_ids, params, ends, **processors)
        )
        for result in llm.generate(prompts_of(llm, 2), params)
    ]


def beams(width: int, penalty: float, early, *, stops: int = 0, **options) -> SamplingParams:
    """Options of a search. stops: how many tokens end a text, besides the end token."""
    random = np.random.default_rng(stops)
    tokens = tuple(random.choice(np.arange(3, 272), stops, replace=False).tolist())
    return SamplingParams(
        use_beam_search=True,
        beam_width=width,
        length_penalty=penalty,
        early_stopping=early,
        stop_token_ids=tokens,
        **{"max_tokens": 12} | options,
    )


@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [2, 4, 7])
def test_searches_whose_texts_end_early_equal_transformers(tiny, width, penalty, early):
    compared = []
    for stops in (5, 40):
        compared += compare(tiny, beams(width, penalty, early, stops=stops))

    report(compared)


def test_enough_texts_end_before_the_limit_for_that_to_mean_something(tiny):
    llm, _ = tiny
    results = llm.generate(prompts_of(llm, 3), beams(4, 1.0, early=False, stops=40))

    lengths = {len(answer.token_ids) for result in results for answer in result.outputs}
    reasons = {answer.finish_reason for result in results for answer in result.outputs}
    assert "stop" in reasons
    assert len(lengths) > 3


@pytest.mark.parametrize("width", [2, 4, 7])
def test_an_end_token_made_likely_equals_transformers(tiny, width):
    params = beams(width, 1.0, early=False, logit_bias={EOS: 3.0}, max_tokens=16)

    report(compare(tiny, params, sequence_bias=[[[EOS], 3.0]]))


@pytest.mark.parametrize(
    ("options", "processors"),
    [
        ({"repetition_penalty": 1.3}, {"repetition_penalty": 1.3}),
        ({"min_tokens": 4, "stops": 40}, {"min_new_tokens": 4}),
        ({"bad_words": ("he", "in")}, {"bad_words": ("he", "in")}),
        (
            {"bad_words": ("zq",), "logit_bias": {61: 5.0, 62: 5.0}},
            {"bad_words": ("zq",), "sequence_bias": [[[61], 5.0], [[62], 5.0]]},
        ),
        (
            {"repetition_penalty": 0.8, "min_tokens": 2, "bad_words": ("he",), "stops": 10},
            {"repetition_penalty": 0.8, "min_new_tokens": 2, "bad_words": ("he",)},
        ),
    ],
    ids=["repetition", "min_tokens", "bad_words", "longer_bad_words", "all"],
)
@pytest.mark.parametrize("width", [2, 4])
def test_options_act_on_beams_as_in_transformers(tiny, options, processors, width):
    encode = tiny[0].get_tokenizer().encode
    words = [encode(word) for word in processors.get("bad_words", ())]
    given = {name: value for name, value in processors.items() if name != "bad_words"}
    if words:
        given["bad_words_ids"] = words

    report(compare(tiny, beams(width, 1.0, early=False, **options), **given))


def test_one_beam_that_stops_at_the_first_end_is_greedy_search(tiny):
    llm, _ = tiny
    prompts = prompts_of(llm, 3)
    greedy = SamplingParams(temperature=0, max_tokens=12, logit_bias={EOS: 2.0})
    params = beams(1, 1.0, early=True, logit_bias={EOS: 2.0})

    expected = [result.outputs[0].token_ids for result in llm.generate(prompts, greedy)]

    assert [result.outputs[0].token_ids for result in llm.generate(prompts, params)] == expected


# ── the embedded model, on real text ──────────────────────────────────────────────────────


@pytest.mark.slow  # a minute; the small models above are searched in every way in seconds
@pytest.mark.weights
def test_real_text_in_one_hard_pressed_batch_equals_transformers(
    smollm2_path, smollm2_of_transformers
):
    model = smollm2_of_transformers
    with LLM(
        str(smollm2_path),
        backend="reference",
        max_num_batched_tokens=64,  # prompts are cut into chunks
        kv_cache_memory_bytes=48 * 16 * 46_080,  # a part of what all searches need at once
    ) as llm:
        encode = llm.get_tokenizer().encode
        # Half of the searches end their texts at a comma, a full stop or a new line.
        stops = tuple(encode(text)[0] for text in (",", ".", "\n"))
        params = [
            SamplingParams(
                use_beam_search=True,
                beam_width=4,
                length_penalty=(0.0, 1.0, 2.0)[number % 3],
                early_stopping=(True, False, "never")[number // 3 % 3],
                stop_token_ids=stops if number % 2 else (),
                max_tokens=24,
            )
            for number in range(len(TOPICS))
        ]
        results = llm.generate([PREFACE + topic for topic in TOPICS], params)
        ends = sorted(llm.get_tokenizer().eos_token_ids)
        report_ = llm.memory_report()

    assert report_.preemptions > 0
    assert report_.prefix_hit_tokens > 0
    report(
        [
            agrees(
                result,
                one,
                true_search(model, result.prompt_token_ids, one, [*ends, *one.stop_token_ids]),
            )
            for result, one in zip(results, params, strict=True)
        ]
    )
