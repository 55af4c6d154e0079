"""Heads and rows of any size: the native executor fills them up with zeros that nobody sees."""

from __future__ import annotations

import pytest
import torch

from octavo import LLM, SamplingParams, cpu
from octavo.config import EngineConfig
from octavo.contract.model import ExpertSpec
from octavo.executors.native import choose_native
from octavo.models.checkpoint import open_checkpoint
from octavo.testing.tiny import tiny_spec
from tiny_families import FAMILIES, make_model, reference_logits
from tiny_model import TOKENS, write_tokenizer

if cpu.native() is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

from native_hand import (
    StoredRandomWeights,
    answer,
    mix,
    native_hand,
    torch_logits,
    words,
)

TOLERANCE = 2e-5
"""Of float32 logits, relative to the largest."""
NEAR = {"float32": TOLERANCE, "bf16": 0.1, "int8": 0.1}
NEW = 3

# The families' own tiny sizes are rows of 63 or 56 and heads of 8, 20 or 24.
SIZES = {
    "its own sizes": {},
    "heads of 8, rows of 48": {"head_dim": 8, "hidden_size": 48, "intermediate_size": 45},
    "heads of 100, rows of 80": {"head_dim": 100, "hidden_size": 80, "intermediate_size": 77},
    "heads of 80, rows of 48": {"head_dim": 80, "hidden_size": 48, "intermediate_size": 131},
}
NEEDED = {
    # One checks that its rows can be cut into heads, though the heads have a size of their own.
    "smollm": {"num_attention_heads": 8, "num_key_value_heads": 2},
    "qwen2": {"num_attention_heads": 8},
    # Its matrix product wants experts of whole fours.
    "mixtral": {"intermediate_size": 44},
    "qwen3_moe": {"moe_intermediate_size": 44},
    "mistral": {"sliding_window": 24},
}


def assert_near(got: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert expected.abs().max() > 0.5, "logits that say nothing"
    error = (got - expected).abs().max() / expected.abs().max()
    assert error < tolerance, f"off by {error:.2e} of the largest logit"


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_those_of_transformers_at_any_size(tmp_path, name, sizes):
    settings = SIZES[sizes] | NEEDED.get(name, {}) if SIZES[sizes] else {}
    model = make_model(name, tmp_path, **settings)
    checkpoint = open_checkpoint(tmp_path)
    prompts = [words(checkpoint.spec, length, length) for length in (75, 1, 30)]
    hand = native_hand(checkpoint, threads=2, num_blocks=120)

    mix(hand, prompts, new=NEW, most=40)

    for seq, prompt in enumerate(prompts):
        expected = reference_logits(model, hand.texts[seq][:-1])[len(prompt) - 1 :]
        assert_near(torch.stack(hand.logits[seq]), expected)


# ── every way to store weights ────────────────────────────────────────────────────────────

EXPERTS = ExpertSpec(number=5, per_token=2, intermediate_size=37, normalized=True)
SPECS = {
    # A file of 8 bits has whole groups in rows, not in heads.
    "heads of 24": {"head_dim": 24, "qkv_bias": True},
    "heads of 100, norms": {
        "head_dim": 100,
        "num_heads": 8,
        "qk_norm": True,
        "window": 24,
        "window_layers": (1,),
    },
    "heads of 2, rows of 48": {"head_dim": 2, "hidden_size": 48, "tied_embeddings": False},
    "heads of 40, rows of 80, experts": {
        "head_dim": 40,
        "hidden_size": 80,
        "experts": EXPERTS,
        "qkv_bias": True,
        "qk_norm": True,
        "post_norms": True,
        "scaled_embedding": True,
        "activation": "gelu_tanh",
    },
}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("spec", SPECS)
def test_logits_are_those_of_the_torch_decoder_at_any_size(spec, kind):
    weights = StoredRandomWeights(tiny_spec(**SPECS[spec]), kind=kind)
    prompt = words(weights.spec, 60)

    for arithmetic in NEAR:
        hand = native_hand(weights, arithmetic=arithmetic)
        got = answer(hand, prompt, new=NEW)

        expected = torch_logits(weights, hand.texts[1][:-1], len(prompt))
        if arithmetic == "float32" or "experts" not in SPECS[spec]:
            assert_near(got, expected, NEAR[arithmetic])
        else:
            # A row whose experts are nearly tied may choose others.
            assert (got - expected).abs().mean() < 0.1 * expected.abs().mean()


STRICT = [("float32", "F32"), ("bf16", "BF16"), ("int8", "Q4_0")]
POISON = 95


@pytest.mark.parametrize(("arithmetic", "kind"), STRICT)
@pytest.mark.parametrize("spec", SPECS)
def test_sizes_that_are_not_whole_keep_their_bits_in_company_and_beside_broken_memory(
    spec, arithmetic, kind
):
    beyond = SPECS[spec] | {"tied_embeddings": False}
    weights = StoredRandomWeights(tiny_spec(**beyond), kind=kind, poison=POISON)
    prompts = [words(weights.spec, length, length) for length in (70, 1, 33)]
    how = {"arithmetic": arithmetic, "num_blocks": 30}
    alone = [answer(native_hand(weights, **how), prompt, new=NEW) for prompt in prompts]

    hand = native_hand(weights, threads=2, poison=POISON, **how)
    mix(hand, prompts, new=NEW, most=40)

    for seq, expected in enumerate(alone):
        assert torch.equal(torch.stack(hand.logits[seq]), expected)


# ── the engine around it ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("head", "stored"), [(2, 16), (8, 16), (16, 16), (24, 32), (64, 64), (100, 112)]
)
def test_memory_is_planned_with_the_bytes_that_heads_take(tmp_path, head, stored):
    make_model("llama", tmp_path, head_dim=head)
    config = EngineConfig(model=str(tmp_path), backend="cpu", dtype="float32")

    layout = choose_native(config, open_checkpoint(tmp_path)).layout

    # 2 layers, 2 KV heads, keys and values of 4 bytes a number.
    assert layout.bytes_per_token == 2 * 2 * 2 * stored * 4


@pytest.mark.parametrize("name", ["smollm", "qwen2", "gemma3"])
def test_a_model_of_any_size_answers_as_with_the_reference_backend(tmp_path, name):
    make_model(name, tmp_path, vocab_size=len(TOKENS))
    write_tokenizer(tmp_path)
    prompts = [{"prompt_token_ids": [7, i, *range(3, 40)]} for i in range(3)]
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)

    def results(**options):
        with LLM(str(tmp_path), kv_cache_memory_bytes=1 << 20, dtype="float32", **options) as llm:
            return [one.outputs[0] for one in llm.generate(prompts, params)]

    got = results(backend="cpu", threads=2)
    expected = results(backend="reference")

    for one, other in zip(got, expected, strict=True):
        assert one.token_ids == other.token_ids
        assert one.cumulative_logprob == pytest.approx(other.cumulative_logprob, abs=1e-3)
