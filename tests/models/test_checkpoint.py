"""A model opens the same from every format, and a wrong one is refused when it is opened."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import ModelError
from octavo.models.checkpoint import Checkpoint, open_checkpoint
from octavo.models.families import FAMILIES, weight_names
from tiny_model import SPEC, tiny_spec, tiny_weights, write_tiny_folder, write_tiny_gguf

FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture
def folder(tmp_path: Path, tiny_folder: Path) -> Path:
    """A copy of the tiny folder that a test may damage."""
    for file in tiny_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change_config(folder: Path, **values: object) -> None:
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(json.dumps(config))


def assert_equal_weights(checkpoint: Checkpoint, weights: dict[str, np.ndarray]) -> None:
    assert set(checkpoint.names) == set(weights)
    for name, values in weights.items():
        np.testing.assert_array_equal(checkpoint.tensor(name), values, err_msg=name)


# --- the same model from every format


def test_a_gguf_file_gives_the_spec_and_the_weights(tiny_gguf):
    checkpoint = open_checkpoint(tiny_gguf)

    # GGUF keeps real numbers in float32.
    assert msgspec.structs.replace(checkpoint.spec, norm_eps=SPEC.norm_eps) == SPEC
    assert checkpoint.spec.norm_eps == np.float32(SPEC.norm_eps)
    assert checkpoint.dtype == "float32"
    assert_equal_weights(checkpoint, tiny_weights())


def test_a_folder_gives_the_spec_and_the_weights(tiny_folder):
    checkpoint = open_checkpoint(tiny_folder)

    assert checkpoint.spec == SPEC
    assert checkpoint.dtype == "float32"
    assert_equal_weights(checkpoint, tiny_weights())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_folder_of_half_precision_gives_the_same_weights_and_its_own_dtype(tmp_path, dtype):
    checkpoint = open_checkpoint(write_tiny_folder(tmp_path, dtype=dtype))

    assert checkpoint.dtype == dtype
    expected = {
        name: values.astype(np.float16).astype(np.float32) if dtype == "float16" else values
        for name, values in tiny_weights().items()
    }
    assert_equal_weights(checkpoint, expected)


def test_a_sharded_folder_gives_the_same_weights(tmp_path):
    checkpoint = open_checkpoint(write_tiny_folder(tmp_path, max_shard_size="100KB"))

    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    assert_equal_weights(checkpoint, tiny_weights())


def test_a_tied_model_has_no_output_matrix(tmp_path):
    weights = tiny_weights(tiny_spec(tied=True))
    (tmp_path / "folder").mkdir()
    for checkpoint in (
        open_checkpoint(write_tiny_gguf(tmp_path / "tied.gguf", tied=True)),
        open_checkpoint(write_tiny_folder(tmp_path / "folder", tied=True)),
    ):
        assert checkpoint.spec.tied_embeddings
        assert_equal_weights(checkpoint, weights)


def test_a_folder_holds_what_transformers_loads(tiny_folder):
    from transformers import LlamaForCausalLM

    checkpoint = open_checkpoint(tiny_folder)
    state = LlamaForCausalLM.from_pretrained(tiny_folder).state_dict()

    for ours, stored in weight_names(FAMILIES["llama"].folder_weights, SPEC).items():
        np.testing.assert_array_equal(checkpoint.tensor(ours), state[stored].numpy(), ours)


@pytest.mark.slow
@pytest.mark.weights
def test_the_embedded_model_holds_what_transformers_loads(smollm2_path):
    from transformers import LlamaForCausalLM

    checkpoint = open_checkpoint(smollm2_path)
    model = LlamaForCausalLM.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    state = model.state_dict()

    assert checkpoint.spec.tied_embeddings
    for ours, stored in weight_names(FAMILIES["llama"].folder_weights, checkpoint.spec).items():
        np.testing.assert_array_equal(checkpoint.tensor(ours), state[stored].float().numpy(), ours)
    config = model.config
    assert checkpoint.spec.norm_eps == config.rms_norm_eps
    assert checkpoint.spec.rope_theta == config.rope_parameters["rope_theta"]
    assert checkpoint.spec.context == config.max_position_embeddings


def test_the_tokenizer_source_is_the_metadata_or_the_folder(tiny_gguf, tiny_folder):
    assert open_checkpoint(tiny_folder).tokenizer_source == tiny_folder
    source = open_checkpoint(tiny_gguf).tokenizer_source
    assert isinstance(source, Mapping)
    assert source["tokenizer.ggml.model"] == "gpt2"


# --- identity


def test_identity_does_not_depend_on_the_path(tmp_path, tiny_gguf):
    copy = tmp_path / "another name.gguf"
    copy.write_bytes(tiny_gguf.read_bytes())

    assert open_checkpoint(copy).identity == open_checkpoint(tiny_gguf).identity


def test_identity_is_the_same_in_another_process(tiny_gguf):
    program = (
        "import sys; from pathlib import Path; from octavo.models.checkpoint import "
        "open_checkpoint; print(open_checkpoint(Path(sys.argv[1])).identity)"
    )
    other = subprocess.check_output([sys.executable, "-c", program, tiny_gguf], text=True).strip()

    assert other == open_checkpoint(tiny_gguf).identity


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"matrix_type": "F16"},
        {"tied": True},
        {"metadata": {"llama.rope.freq_base": 5000.0}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_identity_changes_with_weights_storage_type_and_arithmetic(tmp_path, tiny_gguf, change):
    other = write_tiny_gguf(tmp_path / "other.gguf", **change)

    assert open_checkpoint(other).identity != open_checkpoint(tiny_gguf).identity


# --- what is refused


def test_a_path_that_does_not_exist_names_pull_as_the_way_out(tmp_path):
    with pytest.raises(ModelError, match=r"no model at .*nothing\.gguf.*octavo pull"):
        open_checkpoint(tmp_path / "nothing.gguf")


def test_an_unknown_architecture_is_named(tmp_path):
    path = write_tiny_gguf(tmp_path / "m.gguf", architecture="mamba")

    with pytest.raises(ModelError, match=r"architecture is 'mamba'; supported: llama"):
        open_checkpoint(path)


def test_an_unknown_model_type_is_named(folder):
    change_config(folder, model_type="gpt_neox")

    with pytest.raises(ModelError, match=r"config\.json: the architecture is 'gpt_neox'"):
        open_checkpoint(folder)


@pytest.mark.parametrize("name", ["token_embd.weight", "blk.1.attn_v.weight", "output_norm.weight"])
def test_a_missing_tensor_is_found_on_opening(tmp_path, name):
    path = write_tiny_gguf(tmp_path / "m.gguf", drop=name)

    with pytest.raises(ModelError, match=f"'{name}' is missing"):
        open_checkpoint(path)


def test_an_untied_folder_without_output_matrix_is_refused(tmp_path):
    write_tiny_folder(tmp_path, tied=True)
    change_config(tmp_path, tie_word_embeddings=False)

    with pytest.raises(ModelError, match=r"'lm_head\.weight' is missing"):
        open_checkpoint(tmp_path)


def test_a_tensor_of_the_wrong_shape_is_refused(tmp_path):
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata={"llama.feed_forward_length": 95})

    with pytest.raises(ModelError, match=r"'blk\.0\.ffn_gate\.weight' has shape \[96,.*\[95,"):
        open_checkpoint(path)


def test_a_vocabulary_larger_than_the_embedding_is_refused(tmp_path):
    tokens = [f"t{index}" for index in range(SPEC.vocab_size + 1)]
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.tokens": tokens})

    with pytest.raises(ModelError, match=r"vocabulary has 273 tokens, the embedding only 272"):
        open_checkpoint(path)


def test_a_bias_is_refused_rather_than_ignored(tmp_path):
    bias = {"blk.0.attn_q.bias": np.zeros(64, np.float32)}
    path = write_tiny_gguf(tmp_path / "m.gguf", extra=bias)

    with pytest.raises(ModelError, match=r"'blk\.0\.attn_q\.bias' is not part of a llama decoder"):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"llama.rope.scaling.type": "longrope"}, "rope.scaling.type is 'longrope'"),
        ({"llama.rope.scaling.factor": 0.25}, "rope.scaling.factor must be at least 1, found 0.25"),
        ({"llama.rope.scaling.attn_factor": 2.0}, "rope.scaling.attn_factor is 2.0"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8"),
        ({"llama.expert_count": 8}, "expert_used_count must be a positive whole number"),
        ({"llama.block_count": None}, "block_count must be a positive whole number, found None"),
        ({"llama.block_count": 10**9}, "layers are announced"),
        ({"llama.embedding_length": "64"}, "embedding_length must be .* found '64'"),
        ({"llama.attention.head_count_kv": 3}, "4 query heads cannot share 3 KV heads"),
        ({"llama.attention.layer_norm_rms_epsilon": 0.0}, "epsilon must be a positive number"),
    ],
)
def test_a_gguf_setting_that_cannot_be_honoured_is_named(tmp_path, metadata, message):
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata=metadata)

    with pytest.raises(ModelError, match=message):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: 'silu'"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"mlp_bias": True}, "mlp_bias is True"),
        ({"rope_scaling": {"type": "su", "factor": 2.0}}, "rope_type is 'su'; supported: default"),
        ({"rope_parameters": {"rope_type": ["yarn"]}}, r"rope_type is \['yarn'\]"),
        ({"rope_parameters": "all of them"}, "not a table"),
        ({"quantization_config": {"quant_method": "gptq"}}, "weights are quantized"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers must be"),
    ],
)
def test_a_config_setting_that_cannot_be_honoured_is_named(folder, settings, message):
    change_config(folder, **settings)

    with pytest.raises(ModelError, match=message):
        open_checkpoint(folder)


def test_the_rope_base_is_read_under_its_old_name_too(folder):
    change_config(folder, rope_parameters=None, rope_theta=5000.0)

    assert open_checkpoint(folder).spec.rope_theta == 5000.0


def test_a_folder_without_config_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"without config\.json"):
        open_checkpoint(tmp_path)


def test_a_folder_without_safetensors_is_refused(folder):
    (folder / "model.safetensors").unlink()

    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        open_checkpoint(folder)


def test_a_missing_shard_is_named(tmp_path):
    write_tiny_folder(tmp_path, max_shard_size="100KB")
    shard = min(tmp_path.glob("*.safetensors"))
    shard.unlink()

    with pytest.raises(ModelError, match=shard.name):
        open_checkpoint(tmp_path)


def test_broken_json_is_refused(folder):
    (folder / "config.json").write_text("{")

    with pytest.raises(ModelError, match=r"config\.json is not JSON"):
        open_checkpoint(folder)


@pytest.mark.parametrize("keep", [4, 100, 5000, -1])
def test_safetensors_cut_short_are_refused(folder, keep):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])

    with pytest.raises(ModelError, match=r"model\.safetensors.*download it again"):
        open_checkpoint(folder)


def test_safetensors_of_another_dtype_are_refused_by_name(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"', 1))

    with pytest.raises(ModelError, match=r"has dtype I32.*F32, F16, BF16"):
        open_checkpoint(folder)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=3)
    | st.just(10**400),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=3,
)


@FUZZ
@given(data=st.data(), value=JSON)
def test_no_value_of_a_config_crashes(folder, data, value):
    original = (folder / "config.json").read_text()
    key = data.draw(st.sampled_from([*sorted(json.loads(original)), "rope_scaling", "head_dim"]))
    change_config(folder, **{key: value})

    with suppress(ModelError):
        open_checkpoint(folder)
    (folder / "config.json").write_text(original)


@FUZZ
@given(data=st.data())
def test_flipped_bytes_in_a_safetensors_header_never_crash(folder, data):
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    places = st.tuples(st.integers(0, header - 1), st.integers(0, 255))
    broken = bytearray(whole)
    for place, value in data.draw(st.lists(places, min_size=1, max_size=4)):
        broken[place] = value
    path.write_bytes(broken)

    with suppress(ModelError):
        checkpoint = open_checkpoint(folder)
        for name in checkpoint.names:
            checkpoint.tensor(name)
    path.write_bytes(whole)


def test_opening_a_model_does_not_load_torch(tiny_gguf):
    program = (
        "import sys; from pathlib import Path; from octavo.models.checkpoint import "
        "open_checkpoint; open_checkpoint(Path(sys.argv[1])).tensor('norm'); "
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, tiny_gguf], check=True)
