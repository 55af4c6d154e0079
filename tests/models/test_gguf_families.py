"""Every GGUF architecture against the transformers model that was written as that file."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from gguf_families import ARCHITECTURES, SETTINGS, convert, llama3_factors
from octavo.contract.model import ExpertSpec, LinearRope, TabledRope
from octavo.errors import ModelError
from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.models.families import find_gguf_family
from octavo.models.settings import spec_from_gguf
from octavo.testing.tiny import hand_for
from tiny_families import ROPES, make_model
from tiny_model import write_tiny_gguf

TOLERANCE = 1e-4
QUANTIZED = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
"""Matrix types that gguf-py can write; rows must be multiples of 32."""


def last_logits(checkpoint, prompt):
    hand = hand_for(load_decoder(checkpoint), num_blocks=200, block_size=4)
    hand.start(1, prompt)
    hand.generate(1, 1, chunks=(len(prompt) // 2,))
    return hand.logits[1][0]


def reference(model, prompt):
    with torch.inference_mode():
        return model(torch.tensor([prompt])).logits[0, -1]


def words(count):
    return np.random.default_rng(1).integers(0, 96, count).tolist()


def assert_equal(model, checkpoint, count=50):
    prompt = words(count)
    torch.testing.assert_close(
        last_logits(checkpoint, prompt), reference(model, prompt), atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_those_of_the_model_that_was_converted(tmp_path, name):
    model = make_model(name, tmp_path / "folder", **SETTINGS.get(name, {}))
    path = convert(model, tmp_path / "m.gguf")

    checkpoint = open_checkpoint(path)

    assert_equal(model, checkpoint)
    folder = open_checkpoint(tmp_path / "folder")
    assert set(folder.names) == set(checkpoint.names)
    for weight in folder.names:
        np.testing.assert_array_equal(checkpoint.tensor(weight), folder.tensor(weight), weight)


def test_mixtures_are_told_from_dense_models_by_their_header(tmp_path):
    for name, family in (("mixtral", "mixtral"), ("mistral", "llama"), ("qwen3_moe", "qwen3_moe")):
        path = convert(make_model(name, tmp_path / name), tmp_path / f"{name}.gguf")
        assert open_checkpoint(path).spec.family == family
    assert open_checkpoint(tmp_path / "mixtral.gguf").spec.experts == ExpertSpec(
        number=4, per_token=2, intermediate_size=88, normalized=True
    )


@pytest.mark.parametrize("rope", ["linear", "yarn"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_stretched_positions_are_read_from_the_header(tmp_path, name, rope):
    settings = {"rope_parameters": ROPES[rope], "max_position_embeddings": 128}
    model = make_model(name, tmp_path / "folder", **settings)

    checkpoint = open_checkpoint(convert(model, tmp_path / "m.gguf"))

    assert checkpoint.spec.rope_scaling == open_checkpoint(tmp_path / "folder").spec.rope_scaling
    assert checkpoint.spec.context == 512
    assert_equal(model, checkpoint, 300)


def test_llama_3_is_stretched_by_its_table_of_factors(tmp_path):
    settings = {"rope_parameters": ROPES["llama3"], "max_position_embeddings": 512}
    model = make_model("llama", tmp_path / "folder", **settings)
    factors = llama3_factors(model.config)
    assert len(set(factors.tolist())) == 3, "some kept, one blended, some divided"

    checkpoint = open_checkpoint(
        convert(model, tmp_path / "m.gguf", extra={"rope_freqs.weight": factors})
    )

    assert checkpoint.spec.rope_scaling == TabledRope(factors=tuple(factors.tolist()))
    assert_equal(model, checkpoint, 300)


def test_a_table_of_factors_of_the_wrong_length_is_refused(tmp_path):
    factors = {"rope_freqs.weight": np.ones(7, np.float32)}
    path = convert(make_model("llama", tmp_path), tmp_path / "m.gguf", extra=factors)

    with pytest.raises(ModelError, match=r"'rope_freqs\.weight' has 7 .*not 8 positive"):
        open_checkpoint(path)


def test_a_factor_without_a_type_is_linear_as_in_old_files(tmp_path):
    path = convert(
        make_model("llama", tmp_path), tmp_path / "m.gguf", metadata={"rope.scale_linear": 4.0}
    )

    assert open_checkpoint(path).spec.rope_scaling == LinearRope(factor=4.0)


@pytest.mark.parametrize("kind", QUANTIZED)
def test_stacked_experts_of_every_type_are_what_gguf_py_makes_of_them(tmp_path, kind):
    # Widths of experts and model must be whole blocks.
    model = make_model("mixtral", tmp_path, intermediate_size=96)
    path = convert(model, tmp_path / "m.gguf", kind=kind)
    tensors = {one.name: one for one in gguf.GGUFReader(path).tensors}
    checkpoint = open_checkpoint(path)

    for part in ("gate", "up", "down"):
        stored = tensors[f"blk.1.ffn_{part}_exps.weight"]
        whole = gguf.quants.dequantize(np.array(stored.data), stored.tensor_type)
        for expert in range(4):
            np.testing.assert_array_equal(
                checkpoint.tensor(f"layers.1.experts.{expert}.{part}"), whole[expert]
            )
    assert torch.isfinite(last_logits(checkpoint, words(20))).all()


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3", "qwen3_moe"])
def test_transformers_reads_the_same_file_in_the_same_way(tmp_path, name):
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    model = make_model(name, tmp_path / "folder")
    path = convert(model, tmp_path / "m.gguf")

    spec, config = open_checkpoint(path).spec, load_gguf_checkpoint(path)["config"]
    assert spec.hidden_size == config["hidden_size"]
    assert spec.num_kv_heads == config["num_key_value_heads"]
    assert spec.context == config["max_position_embeddings"]
    assert spec.norm_eps == pytest.approx(config["rms_norm_eps"])
    if spec.experts is not None:
        assert spec.experts.per_token == config["num_experts_per_tok"]


# --- what is refused


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (
            {"expert_count": 5},
            r"5 experts are announced, but tensor 'blk\.0\.ffn_gate_inp\.weight'",
        ),
        ({"expert_used_count": 9}, "expert_used_count is 9, but there are only 4 experts"),
        ({"expert_shared_count": 1}, "expert_shared_count is 1"),
        ({"expert_gating_func": 2}, "expert_gating_func is 2"),
        ({"rope.scaling.type": "longrope"}, "'longrope'; supported: none, linear, yarn"),
        ({"attention.sliding_window": "wide"}, "sliding_window must be a positive whole number"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        (
            {"attention.sliding_window": 9, "attention.sliding_window_pattern": [True]},
            "sliding_window_pattern must say yes or no for each of 2 layers",
        ),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_named(tmp_path, metadata, message):
    path = convert(make_model("mixtral", tmp_path), tmp_path / "m.gguf", metadata=metadata)

    with pytest.raises(ModelError, match=message) as error:
        open_checkpoint(path)
    assert str(path) in str(error.value)


def test_one_of_several_files_is_refused_with_the_way_to_join_them(tmp_path):
    path = write_tiny_gguf(tmp_path / "m-00001-of-00003.gguf", metadata={"split.count": 3})

    with pytest.raises(ModelError, match=r"is one of 3 files.*llama-gguf-split --merge"):
        open_checkpoint(path)


@pytest.mark.parametrize("name", ["blk.1.ffn_up_exps.weight", "blk.0.ffn_gate_inp.weight"])
def test_a_missing_tensor_of_a_mixture_is_named(tmp_path, name):
    path = convert(make_model("qwen3_moe", tmp_path), tmp_path / "m.gguf", drop=name)

    with pytest.raises(ModelError, match=f"tensor '{name}' is missing"):
        open_checkpoint(path)


def test_a_missing_bias_is_named(tmp_path):
    path = convert(make_model("qwen2", tmp_path), tmp_path / "m.gguf", drop="blk.0.attn_k.bias")

    with pytest.raises(ModelError, match=r"tensor 'blk\.0\.attn_k\.bias' is missing"):
        open_checkpoint(path)


def test_an_architecture_of_mixtures_without_experts_is_refused(tmp_path):
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    with pytest.raises(ModelError, match=r"'qwen3moe', but the header states no experts"):
        open_checkpoint(path)


# --- windows


def test_a_window_in_the_header_is_one_of_all_layers(tmp_path):
    model = make_model("mistral", tmp_path, sliding_window=24)
    window = {"attention.sliding_window": 24}

    checkpoint = open_checkpoint(convert(model, tmp_path / "m.gguf", metadata=window))

    assert (checkpoint.spec.window, checkpoint.spec.window_layers) == (24, (0, 1))
    assert checkpoint.spec.context == 512
    assert_equal(model, checkpoint, 90)


@pytest.mark.parametrize("pattern", [3, [True, True, False, True]])
def test_a_header_may_say_which_layers_have_the_window(tmp_path, pattern):
    model = make_model("gemma3", tmp_path, query_pre_attn_scalar=24)
    stated = {"attention.sliding_window_pattern": pattern, "rope.freq_base_swa": 10000.0}

    checkpoint = open_checkpoint(convert(model, tmp_path / "m.gguf", metadata=stated))

    assert checkpoint.spec.window_layers == (0, 1, 3)
    assert_equal(model, checkpoint, 90)


def test_the_largest_gemma_divides_scores_by_another_number_than_others():
    """Its header does not say so, but no other has 62 layers."""
    names = "embedding_length feed_forward_length block_count attention.head_count"
    numbers = dict(zip(names.split(), (5376, 21504, 62, 32), strict=True))
    header = numbers | {
        "attention.key_length": 128,
        "attention.head_count_kv": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": 1024,
        "context_length": 131072,
        "rope.freq_base": 1e6,
        "rope.scaling.type": "linear",
        "rope.scaling.factor": 8.0,
    }
    metadata = {f"gemma3.{key}": value for key, value in header.items()}
    family = find_gguf_family("gemma3", has_experts=False, where="a header")

    spec = spec_from_gguf(family, metadata, vocab_size=262208, tied=True, where="a header").spec

    assert spec.query_scale == pytest.approx((128 / 168) ** 0.5)
    assert spec.context == 131072
    assert len(spec.window_layers) == 52
