"""Every family against transformers in float32, on small random models written to a folder.

The folder is read back by us, so that a row's settings, names and shapes are tested with it.
"""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import product

import msgspec
import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from octavo import LLM, SamplingParams
from octavo.contract.model import ExpertSpec, ModelSpec, YarnRope
from octavo.errors import ModelError
from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.models.exact import exact_row_tiles
from octavo.models.frequencies import rope_frequencies
from octavo.testing.tiny import RandomWeights, hand_for, tiny_spec
from tiny_families import (
    FAMILIES,
    ROPES,
    TOLERANCE,
    assert_equals_transformers,
    change,
    make_model,
    reference_logits,
    served,
    words,
)
from tiny_model import TOKENS, write_tokenizer


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("chunks", [(), (40, 7)], ids=["one chunk", "three chunks"])
def test_logits_are_those_of_transformers(tmp_path, name, chunks):
    model = make_model(name, tmp_path)

    assert_equals_transformers(model, tmp_path, words(model, 75), chunks=chunks)


@pytest.mark.parametrize("name", FAMILIES)
def test_strict_mode_gives_the_logits_of_transformers_too(tmp_path, name):
    model = make_model(name, tmp_path)

    assert_equals_transformers(model, tmp_path, words(model, 50), chunks=(33,), deterministic=True)


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3_moe"])
@pytest.mark.parametrize("rope", ROPES)
def test_positions_beyond_the_original_context_are_stretched_as_in_transformers(
    tmp_path, family, rope
):
    model = make_model(family, tmp_path, rope_parameters=ROPES[rope], max_position_embeddings=128)
    assert model.config.rope_parameters["rope_type"] == ROPES[rope]["rope_type"]

    assert_equals_transformers(model, tmp_path, words(model, 300), chunks=(100, 90), new=3)


def test_dynamic_scaling_is_exact_up_to_the_original_context_and_ends_there(tmp_path):
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = make_model("llama", tmp_path, rope_parameters=rope, max_position_embeddings=64)
    checkpoint = open_checkpoint(tmp_path)

    assert checkpoint.spec.context == 64
    assert "texts are limited to 64 tokens" in checkpoint.notes[0]
    assert "dynamic" in checkpoint.notes[0]
    assert_equals_transformers(model, tmp_path, words(model, 60), chunks=(30,), new=4)


def test_transformers_turns_cached_keys_by_an_old_base_when_dynamic_text_grows(tmp_path):
    """Why `dynamic` ends at the original context: with a cache there is no one answer."""
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0}
    model = make_model("llama", tmp_path, rope_parameters=rope, max_position_embeddings=32)
    ids = words(model, 64)

    at_once = reference_logits(model, ids)[-1]
    # A new one: the first keeps the base of the longest text it has seen.
    model = make_model("llama", tmp_path, rope_parameters=rope, max_position_embeddings=32)
    with torch.inference_mode():
        first = model(torch.tensor([ids[:40]]), use_cache=True)
        second = model(torch.tensor([ids[40:]]), cache=first.past_key_values)

    assert (second.logits[0, -1] - at_once).abs().max() > 10 * TOLERANCE


def test_a_stretched_model_may_be_as_long_as_it_was_stretched_to(tmp_path):
    make_model("qwen2", tmp_path, rope_parameters=ROPES["yarn"], max_position_embeddings=128)

    assert open_checkpoint(tmp_path).spec.context == 512


@pytest.mark.parametrize(
    ("kind", "changes", "context"),
    [
        ("linear", {"factor": 3.0}, 2048),
        ("llama3", {"rope_theta": 5e5, "original_max_position_embeddings": 8192}, 131072),
        ("llama3", {"high_freq_factor": 8.0, "low_freq_factor": 2.0}, 4096),
        ("yarn", {"rope_theta": 1e6, "original_max_position_embeddings": 32768}, 131072),
        ("yarn", {"beta_fast": 8.0, "beta_slow": 2.0, "factor": 40.0}, 4096),
        ("yarn", {"attention_factor": 1.25, "truncate": False}, 4096),
    ],
)
def test_frequencies_are_those_of_transformers_up_to_the_last_bit(tmp_path, kind, changes, context):
    rope = ROPES[kind] | changes
    model = make_model(
        "qwen3", tmp_path, rope_parameters=rope, max_position_embeddings=context, head_dim=128
    )
    expected, scale = ROPE_INIT_FUNCTIONS[kind](model.config)

    spec = open_checkpoint(tmp_path).spec
    # torch does not round its powers correctly; ours are.
    np.testing.assert_array_max_ulp(rope_frequencies(spec)[0].values, expected.numpy(), maxulp=1)
    assert getattr(spec.rope_scaling, "attention_factor", 1.0) == scale


# --- what a row says


def test_a_spec_is_written_without_what_its_model_does_not_have():
    plain = msgspec.json.decode(msgspec.json.encode(tiny_spec()))

    assert not {"experts", "rope_scaling", "qkv_bias", "qk_norm"} & set(plain)
    for beyond in STRICT_SPECS.values():
        spec = tiny_spec(**beyond)
        assert msgspec.json.decode(msgspec.json.encode(spec), type=ModelSpec) == spec


@pytest.mark.parametrize("name", FAMILIES)
def test_a_config_gives_the_spec(tmp_path, name):
    model = make_model(name, tmp_path)
    spec, config = open_checkpoint(tmp_path).spec, model.config

    assert spec.family == config.model_type
    assert spec.num_heads == config.num_attention_heads
    assert spec.num_kv_heads == config.num_key_value_heads
    assert spec.head_dim == model.model.layers[0].self_attn.head_dim
    assert spec.norm_eps == config.rms_norm_eps
    rope = config.rope_parameters
    assert spec.rope_theta == rope.get("full_attention", rope)["rope_theta"]
    assert spec.tied_embeddings == config.tie_word_embeddings
    assert spec.qkv_bias == (model.model.layers[0].self_attn.q_proj.bias is not None)
    assert spec.qk_norm == hasattr(model.model.layers[0].self_attn, "q_norm")
    assert (spec.experts is not None) == hasattr(model.model.layers[0].mlp, "experts")


def test_routing_weights_are_normalized_only_where_the_config_says_so(tmp_path):
    for number, normalized in enumerate((False, True)):
        folder = tmp_path / str(number)
        model = make_model("qwen3_moe", folder, norm_topk_prob=normalized)
        experts = open_checkpoint(folder).spec.experts
        assert experts == ExpertSpec(
            number=6, per_token=3, intermediate_size=40, normalized=normalized
        )
        assert_equals_transformers(model, folder, words(model, 30))


def test_yarn_takes_its_attention_factor_from_mscale_if_that_is_stated(tmp_path):
    rope = ROPES["yarn"] | {"mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}
    model = make_model("llama", tmp_path, rope_parameters=rope, max_position_embeddings=128)

    scaling = open_checkpoint(tmp_path).spec.rope_scaling
    assert isinstance(scaling, YarnRope)
    assert 1.0 < scaling.attention_factor < 1.1
    assert_equals_transformers(model, tmp_path, words(model, 200), new=2)


# --- dtypes


LOW_PRECISION = {"bfloat16": 0.25, "float16": 0.03}
"""Tolerances of logits."""
# Gemma 3's numbers overflow float16.
IN_LOW_PRECISION = sorted({*product(FAMILIES, LOW_PRECISION)} - {("gemma3", "float16")})


@pytest.mark.parametrize(("name", "dtype"), IN_LOW_PRECISION)
def test_low_precision_stays_near_float32(tmp_path, name, dtype):
    tolerance = LOW_PRECISION[dtype]
    model = make_model(name, tmp_path)
    checkpoint, prompt = open_checkpoint(tmp_path), words(model, 30)

    exact = served(load_decoder(checkpoint), prompt, new=1)[1]
    near = served(load_decoder(checkpoint, dtype=dtype), prompt, new=1, dtype=dtype)[1]

    # A row whose experts are nearly tied may choose others: of the vocabulary, not of one score.
    assert (near - exact).abs().mean() < tolerance / 4
    if open_checkpoint(tmp_path).spec.experts is None:
        torch.testing.assert_close(near, exact, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_sharded_folder_in_bfloat16_opens_as_what_it_is(tmp_path, name):
    model = make_model(name, tmp_path, dtype="bfloat16", max_shard_size="60KB")
    # Read back: the one in memory has its rotary frequencies in bfloat16 too.
    model = type(model).from_pretrained(tmp_path, dtype=torch.float32).eval()
    checkpoint = open_checkpoint(tmp_path)

    assert checkpoint.dtype == "bfloat16"
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    prompt = words(model, 20)
    text, got = served(load_decoder(checkpoint), prompt, new=1)
    expected = reference_logits(model, text[:-1])[len(prompt) - 1 :]
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("name", "dtype"), [*IN_LOW_PRECISION, *product(FAMILIES, ("auto", "float32"))]
)
def test_the_engine_serves_every_family_in_every_dtype(tmp_path, name, dtype):
    model = make_model(name, tmp_path, vocab_size=len(TOKENS))
    write_tokenizer(tmp_path)
    prompt = words(model, 20)

    llm = LLM(
        str(tmp_path),
        backend="reference",
        dtype=dtype,
        kv_cache_memory_bytes=1 << 20,
        report=lambda _: None,
    )
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    (answer,) = llm.generate([{"prompt_token_ids": prompt}], params)

    got = answer.outputs[0].token_ids
    scores = reference_logits(model, [*prompt, *got[:-1]])[len(prompt) - 1 :]
    if dtype in ("auto", "float32"):
        assert list(got) == scores.argmax(-1).tolist()
    # Rounding may choose between tokens that are nearly level, and no others.
    chosen = scores.gather(1, torch.tensor(got)[:, None])[:, 0]
    gaps = scores.amax(-1) - chosen
    assert gaps.mean() < 0.15
    assert gaps.max() < 1.0
    assert llm.built.layout.dtype == ("float32" if dtype == "auto" else dtype)


# --- strict mode


EXPERTS = ExpertSpec(number=5, per_token=2, intermediate_size=40, normalized=True)
STRICT_SPECS = {
    "biases": {"qkv_bias": True},
    "norms on q and k": {"qk_norm": True},
    "experts": {"experts": EXPERTS},
    "all of them, stretched": {
        "qkv_bias": True,
        "qk_norm": True,
        "experts": EXPERTS,
        "rope_scaling": YarnRope(factor=4.0, original_context=32, attention_factor=1.14),
    },
}


@pytest.mark.parametrize("beyond", STRICT_SPECS.values(), ids=STRICT_SPECS)
def test_a_row_has_the_same_bits_in_any_company(beyond):
    decoder = load_decoder(RandomWeights(tiny_spec(**beyond), seed=3))
    prompts = [
        np.random.default_rng(seed).integers(0, 96, length).tolist()
        for seed, length in enumerate((70, 1, 33, 90))
    ]
    alone = [served(decoder, prompt, new=3, deterministic=True)[1] for prompt in prompts]
    hand = hand_for(decoder, num_blocks=200, block_size=4, deterministic=True)
    for seq, prompt in enumerate(prompts):
        hand.start(seq, prompt)
    draw = np.random.default_rng(9)

    while behind := [s for s, p in enumerate(prompts) if len(hand.texts[s]) < len(p) + 3]:
        missing = {seq: len(hand.texts[seq]) - hand.written[seq] for seq in behind}
        hand.run(
            *(hand.slice(seq, int(draw.integers(1, left + 1))) for seq, left in missing.items())
        )

    for seq, expected in enumerate(alone):
        assert torch.equal(torch.stack(hand.logits[seq]), expected)


def test_the_rows_of_an_expert_do_not_depend_on_who_else_chose_it():
    decoder = load_decoder(RandomWeights(tiny_spec(experts=EXPERTS), seed=3))
    tiles = exact_row_tiles(decoder)
    mixture = decoder.layers[0].feed_forward
    rows = torch.randn(64, decoder.spec.hidden_size, generator=torch.Generator().manual_seed(0))

    # At the sizes in which the decoder computes; only the company of each row differs.
    size = tiles.sizes[-1]
    rows = rows[:size]
    together = mixture(rows, tiles)
    for shift in (1, size // 2, size - 1):
        other = torch.cat((rows[:1].expand(shift, -1), rows[: size - shift]))
        assert torch.equal(mixture(other, tiles)[shift:], together[: size - shift])


# --- what is refused


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "'longrope'; supported: default"),
        ("llama", {"rope_parameters": {"rope_type": "linear"}}, "factor must be a positive number"),
        ("llama", {"rope_scaling": {"type": "linear", "factor": 0.5}}, "at least 1, found 0.5"),
        ("llama", {"rope_scaling": {"type": "dynamic", "factor": 1e9}}, "at most 100000, found"),
        (
            "llama",
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0}},
            "rope_theta must be at least 2, found 1.0",
        ),
        (
            "llama",
            {"rope_scaling": {"type": "llama3", "factor": 8.0, "low_freq_factor": 4.0}},
            "high_freq_factor must be a positive number",
        ),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ("mixtral", {"num_local_experts": 7}, r"7 experts are announced.*chooses from 4"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok is 5, but there are only 4"),
        ("qwen3_moe", {"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ("qwen3", {"attention_bias": True}, "attention_bias is True"),
        (
            "qwen2",
            {"use_sliding_window": True, "sliding_window": "wide", "layer_types": ["x"]},
            "sliding_window must be",
        ),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_named(tmp_path, name, values, message):
    make_model(name, tmp_path)
    change(tmp_path, **values)

    with pytest.raises(ModelError, match=message) as error:
        open_checkpoint(tmp_path)
    assert str(tmp_path) in str(error.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)
ROPE_KEYS = ["rope_type", "factor", "rope_theta", "original_max_position_embeddings", "beta_fast"]


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_value_of_a_config_crashes(tmp_path, data):
    path = tmp_path / "config.json"
    if not path.exists():
        make_model("qwen3_moe", tmp_path, rope_parameters=ROPES["yarn"])
        (tmp_path / "original").write_text(path.read_text())
    config = json.loads((tmp_path / "original").read_text())
    beyond = ["num_experts", "layer_types", "max_window_layers", "rope_scaling"]
    key = data.draw(st.sampled_from([*sorted(config), *beyond, *ROPE_KEYS]))
    value = data.draw(VALUES)
    config["use_sliding_window"] = data.draw(st.booleans())
    (config["rope_parameters"] if key in ROPE_KEYS else config)[key] = value
    path.write_text(json.dumps(config))

    with suppress(ModelError):
        checkpoint = open_checkpoint(tmp_path)
        assert np.isfinite(rope_frequencies(checkpoint.spec)[0].values).all()


def test_a_missing_expert_is_named(tmp_path):
    from safetensors.numpy import load_file, save_file

    make_model("mixtral", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.1.block_sparse_moe.experts.3.w2.weight"
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors")

    with pytest.raises(ModelError, match=f"tensor '{name}' is missing"):
        open_checkpoint(tmp_path)


def test_the_oracle_is_the_real_transformers():
    assert transformers.MixtralForCausalLM.__module__.startswith("transformers.models")
