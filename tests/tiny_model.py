"""A decoder small enough to be made in a test, written in every format that we read.

The weights follow from the seed alone, so a file and a folder hold the same model.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import tokenizers
from gguf.quants import quantize

from octavo.contract.model import ModelSpec
from octavo.models.families import FAMILIES, weight_names
from octavo.models.weights import weight_shapes
from octavo.text.gguf_vocabulary import byte_alphabet

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = [
    "h e",
    "Ġ t",
    "Ġt he",
    "i n",
    "a n",
    "Ġ a",
    "Ġ Ġ",
    "r e",
    "o n",
    "in g",
    "l l",
    "he ll",
    "hell o",
]
TOKENS = [*SPECIAL_TOKENS, *byte_alphabet().values(), *(merge.replace(" ", "") for merge in MERGES)]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SPEC = ModelSpec(
    family="llama",
    vocab_size=len(TOKENS),
    hidden_size=64,
    intermediate_size=96,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    context=512,
    norm_eps=1e-5,
    rope_theta=10000.0,
    tied_embeddings=False,
)


def tiny_spec(*, tied: bool = False) -> ModelSpec:
    return ModelSpec(
        **{**{f: getattr(SPEC, f) for f in SPEC.__struct_fields__}, "tied_embeddings": tied}
    )


def tiny_weights(spec: ModelSpec = SPEC, *, seed: int = 0) -> dict[str, np.ndarray]:
    """Weights by our names, float32 values that bfloat16 holds exactly."""
    random = np.random.default_rng(seed)
    weights = {}
    for name in weight_names(FAMILIES["llama"].folder_weights, spec):
        values = random.normal(0.0, 0.2, weight_shapes(spec)[name]).astype(np.float32)
        if values.ndim == 1:
            values += 1.0
        weights[name] = (values.view(np.uint32) & 0xFFFF0000).view(np.float32)
    return weights


def write_tiny_gguf(
    path: Path,
    *,
    tied: bool = False,
    seed: int = 0,
    matrix_type: str = "F32",
    architecture: str = "llama",
    metadata: dict[str, object] | None = None,
    drop: str | None = None,
    extra: dict[str, np.ndarray] | None = None,
) -> Path:
    """Write the model as GGUF.

    metadata: keys to add or replace; None leaves a key out. drop: a tensor, by GGUF's name, to
    leave out. extra: tensors to add.
    """
    spec = tiny_spec(tied=tied)
    tensors = {}
    for ours, stored in weight_names(FAMILIES["llama"].gguf_weights, spec).items():
        values = tiny_weights(spec, seed=seed)[ours]
        if ours.endswith((".q", ".k")):
            values = _neighbour_pairs(values, spec.head_dim)
        tensors[stored] = values
    tensors.pop(drop, None)
    tensors |= extra or {}

    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (_gguf_metadata(spec) | (metadata or {})).items():
        _add(writer, key, value)
    kind = gguf.GGMLQuantizationType[matrix_type]
    for name, values in tensors.items():
        if values.ndim == 1:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_tiny_folder(
    folder: Path,
    *,
    tied: bool = False,
    seed: int = 0,
    dtype: str = "float32",
    max_shard_size: str = "1GB",
) -> Path:
    """Write the model as a Hugging Face folder, with transformers itself."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    spec = tiny_spec(tied=tied)
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.context,
        rms_norm_eps=spec.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
        tie_word_embeddings=tied,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
    )
    model = LlamaForCausalLM(config)
    names = weight_names(FAMILIES["llama"].folder_weights, spec)
    weights = tiny_weights(spec, seed=seed)
    state = {stored: torch.from_numpy(weights[ours]) for ours, stored in names.items()}
    model.load_state_dict(state, strict=not tied)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
    write_tokenizer(folder)
    return folder


def _gguf_metadata(spec: ModelSpec) -> dict[str, object]:
    return {
        "llama.block_count": spec.num_layers,
        "llama.context_length": spec.context,
        "llama.embedding_length": spec.hidden_size,
        "llama.feed_forward_length": spec.intermediate_size,
        "llama.attention.head_count": spec.num_heads,
        "llama.attention.head_count_kv": spec.num_kv_heads,
        "llama.attention.layer_norm_rms_epsilon": spec.norm_eps,
        "llama.rope.freq_base": spec.rope_theta,
        "llama.rope.dimension_count": spec.head_dim,
        "llama.vocab_size": spec.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL_TOKENS else 1 for token in TOKENS],
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }


def _add(writer: gguf.GGUFWriter, key: str, value: object) -> None:
    match value:
        case None:
            return
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


def _neighbour_pairs(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """What the GGUF converter does to q and k: row j and row j + head_dim/2 become neighbours."""
    halves = rows.reshape(-1, 2, head_dim // 2, rows.shape[1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def write_tokenizer(folder: Path) -> None:
    """Write the tokenizer of the tiny model, in the files of a Hugging Face folder."""
    vocabulary = {token: index for index, token in enumerate(TOKENS)}
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(vocab=vocabulary, merges=[tuple(m.split(" ")) for m in MERGES])
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    backend.add_special_tokens(SPECIAL_TOKENS)
    backend.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|im_end|>",
        "clean_up_tokenization_spaces": False,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
