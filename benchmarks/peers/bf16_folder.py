"""Write a model's weights as a Hugging Face folder in bfloat16: bf16_folder.py MODEL FOLDER

For engines that read no GGUF file, so that they compute with the same weights. Needs torch,
transformers and octavo. A folder that is complete is left as it is.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoTokenizer, LlamaConfig

from octavo.models.checkpoint import Checkpoint, open_checkpoint
from octavo.models.families import FAMILIES, weight_names


def write_folder(model: Path, folder: Path) -> None:
    """Write next to the folder first, so that a folder with its name is complete."""
    checkpoint = open_checkpoint(model)
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    tokenizer = AutoTokenizer.from_pretrained(model.parent, gguf_file=model.name)
    tokenizer.save_pretrained(unfinished)
    config = llama_config(checkpoint, tokenizer.bos_token_id, tokenizer.eos_token_id)
    config.save_pretrained(unfinished)
    save_file(
        tensors_of(checkpoint), unfinished / "model.safetensors", metadata={"format": "pt"}
    )  # fmt: skip
    unfinished.rename(folder)


def llama_config(checkpoint: Checkpoint, bos: int | None, eos: int | None) -> LlamaConfig:
    spec = checkpoint.spec
    if spec.family != "llama":
        raise SystemExit(f"only llama models are written, but {checkpoint.path} is {spec.family}")
    return LlamaConfig(
        architectures=["LlamaForCausalLM"],
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.context,
        rms_norm_eps=round(spec.norm_eps, 9),  # GGUF holds it as float32
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
        tie_word_embeddings=spec.tied_embeddings,
        bos_token_id=bos,
        eos_token_id=eos,
        dtype="bfloat16",
    )


def tensors_of(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """Return all weights by the names that transformers has for them."""
    names = weight_names(FAMILIES["llama"].folder_weights, checkpoint.spec)
    return {
        stored: torch.from_numpy(checkpoint.tensor(ours)).to(torch.bfloat16)
        for ours, stored in names.items()
    }


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    if not target.is_dir():
        write_folder(source, target)
