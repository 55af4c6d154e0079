"""The whole engine against transformers, on the embedded model, in float32."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import SamplingParams
from octavo.build import build_engine
from octavo.config import EngineConfig
from octavo.contract.batch import Batch
from octavo.contract.request import Request

pytestmark = pytest.mark.weights

LOGITS_TOLERANCE = 1e-3
GAP = 1e-3
"""Below this gap between the oracle's two best logits either token is right; if it is not the
oracle's, the texts part there."""

TOPICS = (
    "the tides", "bread", "Moby Dick", "prime numbers", "bees", "the moon", "glass", "rain",
    "a lighthouse", "clocks", "salt", "maps", "the violin", "ice", "honey", "ships", "tea",
    "paper", "thunder", "bridges",
)  # fmt: skip
PREFACE = "Here is what a patient teacher of young children would say, in plain words, about "


def oracle_logits(model, ids: list[int]) -> np.ndarray:
    """Logits after every token of a text: [tokens, vocabulary]."""
    import torch

    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0].float().numpy()


class Recorder:
    """Keeps the logits of every sampled position, by sequence and position."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, batch: Batch, logits) -> None:
        sampling = [piece for piece in batch.slices if piece.samples]
        rows = logits if isinstance(logits, np.ndarray) else logits.float().cpu().numpy()
        for piece, row in zip(sampling, rows, strict=True):
            self.rows[piece.seq, piece.start + len(piece.tokens) - 1] = row.copy()


@pytest.mark.parametrize(
    ("engine", "depth", "tokens", "blocks"),
    [
        ("cpu", 1, 128, 90),
        ("cpu", 2, 32, 90),
        # Slow, and the reference has its own logits compared in tests/models.
        pytest.param("reference", 1, 48, 44, marks=pytest.mark.slow),
        # Three times as long as the one before, and nothing else.
        pytest.param("reference", 1, 128, 90, marks=pytest.mark.slow),
        # Depth is the loop's own affair, and the native executor's case shows it.
        pytest.param("reference", 2, 32, 90, marks=pytest.mark.slow),
    ],
    indirect=["engine"],
)
def test_twenty_prompts_in_one_hard_pressed_batch_equal_transformers(
    smollm2_of_transformers, smollm2_path, engine, depth, tokens, blocks
):
    """The pool holds about half of what the prompts need at depth 1."""
    recorder = Recorder()
    config = EngineConfig(
        model=str(smollm2_path),
        **engine,
        max_num_batched_tokens=40,  # prompts are cut into chunks
        kv_cache_memory_bytes=blocks * 16 * 46_080,
    )
    built = build_engine(config, report=lambda _: None, on_logits=recorder, depth=depth)
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    prompts = [built.tokenizer.encode(PREFACE + topic) for topic in TOPICS]
    for number, prompt in enumerate(prompts):
        built.engine.add(
            Request(
                id=str(number),
                prompt=tuple(prompt),
                sampling=params,
                seed=0,
                namespace=built.namespace,
                eos_token_ids=built.tokenizer.eos_token_ids,
            )
        )
    answers: list[list[int]] = [[] for _ in prompts]
    while built.engine.busy:
        for news in built.engine.step():
            answers[int(news.request_id)] += news.token_ids

    stats = built.engine.stats
    assert stats.prefix_hit_tokens > 0
    if depth == 1:
        assert stats.preemptions > 0
    compared = near_ties = 0
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        assert len(answer) == tokens
        equal, ties = compare(smollm2_of_transformers, recorder, number, prompt, answer)
        compared += equal
        near_ties += ties
    print(f"{compared} tokens equal, {near_ties} of them at a gap below {GAP}")  # noqa: T201
    assert compared >= 0.95 * tokens * len(prompts)


def compare(
    oracle, recorder: Recorder, seq: int, prompt: list[int], answer: list[int]
) -> tuple[int, int]:
    """Check one answer token by token; returns (equal tokens, near ties among them)."""
    truth = oracle_logits(oracle, prompt + answer[:-1])[len(prompt) - 1 :]
    near_ties = 0
    for index, (token, row) in enumerate(zip(answer, truth, strict=True)):
        second, best = np.partition(row, -2)[-2:]
        near_tie = best - second < GAP
        ours = recorder.rows[seq, len(prompt) - 1 + index]
        worst = np.abs(ours - row).max()
        assert worst < LOGITS_TOLERANCE, f"prompt {seq}, token {index}: logits differ by {worst}"
        if near_tie and token != int(row.argmax()):
            return index, near_ties
        assert token == int(row.argmax()), f"prompt {seq}, token {index}"
        near_ties += int(near_tie)
    return len(answer), near_ties


def test_ignoring_the_end_token_emits_it_and_goes_on(smollm2_path):
    from octavo import LLM

    with LLM(str(smollm2_path), device="cpu", max_model_len=512) as llm:
        tokenizer = llm.get_tokenizer()
        text = tokenizer.apply_chat_template([{"role": "user", "content": "Say hello."}])
        prompt = {"prompt_token_ids": tokenizer.encode(text, add_special_tokens=False)}

        (stopped,) = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=60))
        (ignoring,) = llm.generate(
            prompt, SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        )

    ids = stopped.outputs[0].token_ids
    assert stopped.outputs[0].finish_reason == "stop"
    assert ids[-1] in tokenizer.eos_token_ids
    assert ignoring.outputs[0].token_ids[: len(ids)] == ids
    assert len(ignoring.outputs[0].token_ids) == 60


def test_a_new_prefix_shared_by_requests_that_arrive_together_is_computed_once(smollm2_path):
    from octavo import LLM

    with LLM(str(smollm2_path), backend="reference", max_model_len=2048) as llm:
        prefix = (llm.get_tokenizer().encode(PREFACE) * 100)[:1024]
        prompts = [{"prompt_token_ids": [*prefix, 100 + i, 200 + i]} for i in range(32)]

        results = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2))

        assert llm.built.engine.stats.computed_prompt_tokens == 1024 + 32 * 2
    assert [result.num_cached_tokens for result in results] == [0] + [1024] * 31
