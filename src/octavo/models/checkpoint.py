"""Open a model's files and hand out its spec and its weights, whatever the file format.

Checks everything that can be checked without reading the weights, so that a wrong file is
refused in milliseconds. Must not know torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.contract.model import ModelSpec
from octavo.errors import ModelError
from octavo.models.catalog import CATALOG
from octavo.models.families import (
    Family,
    find_family,
    find_gguf_family,
    text_part,
    weight_names,
)
from octavo.models.gguf import GGUFFile
from octavo.models.named import PLAIN_KINDS, NamedWeights, Place, Weights
from octavo.models.scaling import ROPE_FACTORS
from octavo.models.settings import Reading, spec_from_config, spec_from_gguf
from octavo.models.stored import FolderWeights, GGUFWeights, StoredWeights, read_json
from octavo.models.weights import EXPERT_MARK, Numbers, weight_shapes

_SAMPLES = 16
_EXPERT_SAMPLES = 2
_SAMPLE_BYTES = 256


_TEXT_ONLY = "only the text part of the model is read: it answers text, and sees no pictures"

_IGNORED_ENDINGS = ("rotary_emb.inv_freq",)
"""Old folders store the rotary frequencies, which follow from the config."""

_STATED_DTYPES = ("torch_dtype", "dtype")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that has been found complete; weights are read when asked for."""

    path: Path
    """Where it lies; of a shape, which lies nowhere, its name."""
    spec: ModelSpec
    dtype: str
    """Of the weights as stored: float32, float16 or bfloat16; float32 for GGUF."""
    identity: str
    """Content identity for `Namespace.model`; see `_identity`."""
    tokenizer_source: Mapping[str, Any] | Path | None
    """What the tokenizer is built from: GGUF metadata (plain values), or the folder. None: dummy
    weights, and no files with a tokenizer."""
    notes: tuple[str, ...]
    """What its user should be told; see `settings.Reading`."""
    weights: Weights
    """Read by the methods below."""

    @property
    def names(self) -> tuple[str, ...]:
        """Our names of all weights, the ones outside the layers included."""
        return self.weights.names

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return one weight, by our name, as a writable float32 array of its own.

        Matrices are [out, in], rows in Hugging Face order: rotary pairs are the two halves of
        a head. Raises `KeyError` for a name the model does not have, such as "output" if the
        embeddings are tied.
        """
        return self.weights.tensor(name)

    def numbers(self, name: str) -> Numbers:
        """Return the numbers of one weight, in the order of `tensor`, as they are stored.

        A view of the file where they lie there in this order, one by one; else a copy in float32.
        """
        return self.weights.numbers(name)

    def release(self, name: str) -> None:
        """Give back the memory that reading a weight took; it is read from the file again."""
        self.weights.release(name)

    def stored_kind(self, name: str) -> str:
        """Return how a weight is stored, as a word: see `stored_rows`."""
        return self.weights.kind(name)

    def stored_rows(self, name: str) -> tuple[str, NDArray[np.uint8]]:
        """Return how a matrix is stored, as a word, and its bytes: [out, bytes of a row].

        Rows are in Hugging Face order, as those of `tensor`; a view of the file where they lie
        there so. The words are those of the file's format: "Q4_1", "F32", "bfloat16", …
        """
        return self.weights.stored_rows(name)


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, or a Hugging Face folder with safetensors.

    Raises `ModelError` if the path does not exist, if the model is of a kind that is not
    supported, or if a weight is missing or of the wrong shape.
    """
    # os.path also answers for a name that no file system accepts.
    if not os.path.exists(path):
        raise ModelError(
            f"there is no model at {path}. Give a GGUF file, a folder with config.json and "
            f"safetensors, a Hugging Face id (organization/name), or a known model "
            f"({', '.join(CATALOG)}), which `octavo pull` fetches."
        )
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    stored = GGUFWeights(GGUFFile(path))
    metadata = stored.file.metadata
    pieces = metadata.get("split.count")
    if isinstance(pieces, int) and pieces > 1:
        raise ModelError(
            f"{path} is one of {pieces} files; a GGUF model is read from one. Join them with "
            "llama.cpp's `llama-gguf-split --merge`, or use the Hugging Face folder."
        )
    architecture = metadata.get("general.architecture")
    family = find_gguf_family(
        architecture,
        has_experts=bool(metadata.get(f"{architecture}.expert_count")),
        where=str(path),
    )
    embedding = family.gguf_weights["embedding"]
    if embedding not in stored.names():
        raise ModelError(
            f"{path}: tensor {embedding!r} is missing. The file is not complete: download it again."
        )
    vocab_size = stored.shape(embedding)[0]
    num_tokens = metadata.length("tokenizer.ggml.tokens")
    if num_tokens is not None and num_tokens > vocab_size:
        raise ModelError(
            f"{path}: the vocabulary has {num_tokens} tokens, the embedding only {vocab_size} "
            "rows. They do not belong together: convert the model again."
        )
    reading = spec_from_gguf(
        family,
        metadata,
        vocab_size=vocab_size,
        tied=family.gguf_weights["output"] not in stored.names(),
        rope_factors=_rope_factors(stored),
        where=str(path),
    )
    places = _checked_places(stored, family.gguf_weights, reading.spec, path)
    weights = NamedWeights(stored, places, reading.spec.head_dim, family.gguf_paired_rows)
    return _checkpoint(path, reading, "float32", metadata, weights)


def _rope_factors(stored: GGUFWeights) -> tuple[float, ...] | None:
    if ROPE_FACTORS not in stored.names():
        return None
    return tuple(stored.tensor(ROPE_FACTORS).ravel().tolist())


@dataclass(frozen=True, slots=True)
class FolderHeader:
    """What the config.json of a folder says."""

    family: Family
    reading: Reading
    prefix: str
    """How the names of the weights begin; see `families.text_part`."""
    stated_dtype: str | None
    """Of the weights; None: it does not say."""


def read_folder_header(path: Path) -> FolderHeader:
    """Read the config.json of a folder, which needs no weights. Raises `ModelError`."""
    config_path = path / "config.json"
    if not config_path.is_file():
        raise ModelError(
            f"{path} is a folder without config.json. Give a Hugging Face model folder, or name "
            "the GGUF file itself."
        )
    config, prefix = text_part(read_json(config_path), str(config_path))
    family = find_family(config.get("model_type"), str(config_path))
    reading = spec_from_config(family, config, where=str(config_path))
    if prefix:
        reading = replace(reading, notes=(*reading.notes, _TEXT_ONLY))
    stated = next((config[key] for key in _STATED_DTYPES if config.get(key)), None)
    known = isinstance(stated, str) and stated in PLAIN_KINDS
    return FolderHeader(family, reading, prefix, stated if known else None)


def _open_folder(path: Path) -> Checkpoint:
    header = read_folder_header(path)
    family, reading = header.family, header.reading
    stored = FolderWeights(path, header.prefix)
    places = _checked_places(stored, family.folder_weights, reading.spec, path)
    weights = NamedWeights(
        stored, places, reading.spec.head_dim, norms_less_one=family.folder_norms_less_one
    )
    return _checkpoint(path, reading, stored.kind(places["embedding"].name), path, weights)


def _checkpoint(
    path: Path,
    reading: Reading,
    dtype: str,
    tokenizer_source: Mapping[str, Any] | Path,
    weights: NamedWeights,
) -> Checkpoint:
    return Checkpoint(
        path=path,
        spec=reading.spec,
        dtype=dtype,
        identity=_identity(reading.spec, weights),
        tokenizer_source=tokenizer_source,
        notes=reading.notes,
        weights=weights,
    )


def _checked_places(
    stored: StoredWeights, patterns: Mapping[str, str], spec: ModelSpec, path: Path
) -> dict[str, Place]:
    """Return where our weights lie, once every weight is there and nothing else is."""
    present = set(stored.names())
    if spec.num_layers > len(present):
        raise ModelError(
            f"{path}: {spec.num_layers} layers are announced, but the model has only "
            f"{len(present)} tensors. It is not complete: download it again."
        )
    _check_experts(stored, patterns, spec, path)
    names = weight_names(patterns, spec)
    missing = [name for name in dict.fromkeys(names.values()) if name not in present]
    if missing:
        raise ModelError(
            f"{path}: {_several(missing)} missing, which a {spec.family} model of "
            f"{spec.num_layers} layers has. The model is not complete: download it again."
        )
    stacked = {ours for ours in names if _is_stacked(patterns, ours)}
    for ours, wanted in weight_shapes(spec).items():
        found = stored.shape(names[ours])
        if ours in stacked and spec.experts is not None:
            wanted = (spec.experts.number, *wanted)
        if found != wanted:
            raise ModelError(
                f"{path}: tensor {names[ours]!r} has shape {list(found)}; a {spec.family} model of "
                f"this size has {list(wanted)}. Header and weights do not belong together."
            )
    # A tied model may still store its output matrix; it is the embedding again.
    known = {*names.values(), patterns["output"], ROPE_FACTORS}
    unknown = sorted(name for name in present - known if not name.endswith(_IGNORED_ENDINGS))
    if unknown:
        raise ModelError(
            f"{path}: {_several(unknown)} not part of a {spec.family} decoder as it is supported: "
            "other biases, adapters and shared experts are not. Running the model without them "
            "would give wrong text."
        )
    return {
        ours: Place(name, int(ours.split(".")[3]) if ours in stacked else None)
        for ours, name in names.items()
    }


def _check_experts(
    stored: StoredWeights, patterns: Mapping[str, str], spec: ModelSpec, path: Path
) -> None:
    """Compare the announced number of experts with what the first router chooses from."""
    if spec.experts is None:
        return
    router = patterns["layers.{i}.router"].format(i=0)
    if router not in stored.names():
        raise ModelError(
            f"{path}: tensor {router!r} is missing, which chooses between the experts. Files from "
            "old converters lay out experts in another way: download or convert the model again."
        )
    shape = stored.shape(router)
    if shape[0] != spec.experts.number:
        raise ModelError(
            f"{path}: {spec.experts.number} experts are announced, but tensor {router!r} of shape "
            f"{list(shape)} chooses from {shape[0]}. Header and weights do not belong together: "
            "download the model again."
        )


def _is_stacked(patterns: Mapping[str, str], ours: str) -> bool:
    """True if a weight is one expert's and lies in one tensor with all others'."""
    part = ours.rpartition(".")[2]
    return EXPERT_MARK in ours and "{j}" not in patterns[f"layers.{{i}}.experts.{{j}}.{part}"]


def _several(names: list[str]) -> str:
    if len(names) == 1:
        return f"tensor {names[0]!r} is"
    return f"{len(names)} tensors ({names[0]!r} first) are"


def _identity(spec: ModelSpec, weights: NamedWeights) -> str:
    """Name the weights by their content, the same in every process and on every machine.

    The digest covers the spec, each tensor's name, shape and storage type, and 16 samples of
    256 bytes spread evenly over each tensor (two for each of an expert's, which are many).
    Training or quantizing again changes every tensor nearly everywhere, so samples see it; an
    edit by hand of a few rows may be missed. The path, the file format's padding and the
    tokenizer do not count.
    """
    digest = blake2b(b"octavo.weights/1", digest_size=16)
    digest.update(msgspec.json.encode(spec))
    stored = weights.stored
    for ours in sorted(weights.places):
        raw, name = weights.raw(ours), weights.places[ours].name
        row = (ours, stored.shape(name), stored.kind(name), len(raw))
        digest.update(msgspec.json.encode(row))
        samples = _EXPERT_SAMPLES if EXPERT_MARK in ours else _SAMPLES
        last = max(len(raw) - _SAMPLE_BYTES, 0)
        for start in sorted({last * index // (samples - 1) for index in range(samples)}):
            digest.update(raw[start : start + _SAMPLE_BYTES].tobytes())
        stored.release(name)  # each sample has brought many pages with it
    return f"{spec.family}-{digest.hexdigest()}"
