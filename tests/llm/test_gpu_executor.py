"""The GPU executor behind `LLM`, two steps in flight: the reference's answers for every option.

On a GPU if there is one, and in Triton's interpreter otherwise.
"""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install 'octavo[gpu]'")

from octavo import LLM, SamplingParams

SETTINGS = {
    "dtype": "float32",
    "max_num_batched_tokens": 24,
    "max_num_seqs": 8,
    "block_size": 4,
    "max_model_len": 128,
    "report": lambda message: None,
}
GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}
PROMPTS = [
    ("The quick brown fox", GREEDY),
    ("The quick brown fox jumps", GREEDY | {"repetition_penalty": 1.5, "presence_penalty": 0.5}),
    ("hello hello hello", GREEDY | {"frequency_penalty": 0.7, "logprobs": 3}),
    ("one two three", GREEDY | {"prompt_logprobs": 2}),
    ("a text", {"temperature": 0.8, "seed": 7, "max_tokens": 6, "n": 3, "ignore_eos": True}),
    ("another", {"temperature": 1.2, "seed": 8, "max_tokens": 6, "top_k": 20, "top_p": 0.9}),
    ("and one more", GREEDY | {"min_tokens": 3, "logit_bias": {65: 4.0}}),
    ("a beam", {"use_beam_search": True, "beam_width": 2, "max_tokens": 4}),
    ("words to avoid", GREEDY | {"bad_words": ["ab", "the"], "allowed_token_ids": None}),
]


def run(path, **settings):
    """Answer all prompts together; returns texts, log-probabilities, and what happened."""
    with LLM(str(path), **SETTINGS, **settings) as llm:
        params = [SamplingParams(**options) for _, options in PROMPTS]
        results = llm.generate([prompt for prompt, _ in PROMPTS], params, use_tqdm=False)
        stats = llm._engine.stats
    return results, stats


def likelihoods(places):
    """Flatten log-probabilities: each place's tokens in order of their ids."""
    return [place[token].logprob for place in places or () for token in sorted(place or ())]


@pytest.fixture(scope="module")
def expected(tiny_gguf):
    results, _ = run(tiny_gguf, backend="reference", device="cpu", kv_cache_memory_bytes=8 << 20)
    return results


@pytest.mark.parametrize("blocks", [None, 24], ids=["enough memory", "too little for all"])
def test_every_option_answers_as_the_reference_does(tiny_gguf, expected, blocks):
    with LLM(str(tiny_gguf), backend="reference", device="cpu", **SETTINGS) as llm:
        block = llm.built.layout.block_bytes
    memory = 8 << 20 if blocks is None else blocks * block

    got, stats = run(tiny_gguf, backend="triton", kv_cache_memory_bytes=memory)

    assert blocks is None or stats.preemptions > 0, "nothing was put back"
    for ours, theirs in zip(got, expected, strict=True):
        assert len(ours.outputs) == len(theirs.outputs)
        for one, other in zip(ours.outputs, theirs.outputs, strict=True):
            assert one.token_ids == other.token_ids, ours.prompt
            values = likelihoods(other.logprobs)
            assert likelihoods(one.logprobs) == pytest.approx(values, abs=1e-3)
        values = likelihoods(theirs.prompt_logprobs)
        assert likelihoods(ours.prompt_logprobs) == pytest.approx(values, abs=1e-3)


LONG = [f"text {i} that is long enough for several pieces" for i in range(4)]


def embed(path, how, **settings):
    """Embed prompts while texts are written; returns vectors, the texts' tokens, preemptions."""
    texts = [prompt for prompt, _ in PROMPTS[:3]]
    with LLM(str(path), pooling=how, **SETTINGS, **settings) as llm:
        stream = llm.stream(texts, SamplingParams(**GREEDY | {"max_tokens": 12}))
        pieces = [next(stream)]
        vectors = [one.embedding for one in llm.embed([*LONG, "a short one"])]
        pieces += stream
        preempted = llm._engine.stats.preemptions
    tokens = {}
    for piece in pieces:
        tokens.setdefault(piece.request_id, []).extend(piece.token_ids)
    return vectors, list(tokens.values()), preempted


@pytest.mark.slow  # the runner's own suite compares vectors, preempted ones among them
@pytest.mark.parametrize("how", ["mean", "last"])
def test_prompts_are_embedded_beside_texts_with_too_little_memory_for_all(tiny_gguf, how):
    enough = {"kv_cache_memory_bytes": 8 << 20}
    expected, texts, _ = embed(tiny_gguf, how, backend="reference", device="cpu", **enough)
    with LLM(str(tiny_gguf), backend="reference", device="cpu", **SETTINGS) as llm:
        block = llm.built.layout.block_bytes

    got, ours, preempted = embed(tiny_gguf, how, backend="triton", kv_cache_memory_bytes=24 * block)

    assert preempted > 0, "nothing was put back"
    assert ours == texts
    for one, other in zip(got, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_an_aborted_request_leaves_the_others_alone(tiny_gguf, expected):
    with LLM(str(tiny_gguf), backend="triton", kv_cache_memory_bytes=8 << 20, **SETTINGS) as llm:
        stream = llm.stream(["one that ends early", PROMPTS[0][0]], SamplingParams(**GREEDY))
        pieces = [next(stream)]
        llm.abort(pieces[0].request_id)
        pieces += stream
        busy = llm._engine.busy

    kept = [piece for piece in pieces if piece.request_id != pieces[0].request_id]
    tokens = [token for piece in kept for token in piece.token_ids]
    assert tokens == list(expected[0].outputs[0].token_ids)
    assert not busy
