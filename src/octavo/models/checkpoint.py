"""Open a model's files and hand out its spec and its weights, whatever the file format.

Checks everything that can be checked without reading the weights, so that a wrong file is
refused in milliseconds. Must not know torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.contract.model import ModelSpec
from octavo.errors import ModelError
from octavo.models.catalog import CATALOG
from octavo.models.families import (
    find_family,
    spec_from_config,
    spec_from_gguf,
    weight_names,
    weight_shape,
)
from octavo.models.gguf import GGUFFile
from octavo.models.safetensors import SafetensorsFile

_SAMPLES = 16
_SAMPLE_BYTES = 256

_IGNORED_ENDINGS = ("rotary_emb.inv_freq",)
"""Old folders store the rotary frequencies, which follow from the config."""


class _Weights(Protocol):
    """Tensors by the names that the files use."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def kind(self, name: str) -> str:
        """How the numbers are stored, as a word."""
        ...

    def raw(self, name: str) -> NDArray[np.uint8]: ...

    def tensor(self, name: str) -> NDArray[np.float32]: ...


@dataclass(frozen=True, slots=True)
class _NamedWeights:
    """Tensors by our names, known to be complete."""

    stored: _Weights
    names: dict[str, str]
    """The files' names by ours."""
    head_dim: int
    paired_rows: frozenset[str] = frozenset()
    """See `Family.gguf_paired_rows`; empty for folders."""

    def tensor(self, name: str) -> NDArray[np.float32]:
        values = self.stored.tensor(self.names[name])
        paired = name.rpartition(".")[2] in self.paired_rows
        return _halves_from_pairs(values, self.head_dim) if paired else values


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that has been found complete; weights are read when asked for."""

    path: Path
    spec: ModelSpec
    dtype: str
    """Of the weights as stored: float32, float16 or bfloat16; float32 for GGUF."""
    identity: str
    """Content identity for `Namespace.model`; see `_identity`."""
    tokenizer_source: dict[str, Any] | Path
    """What the tokenizer is built from: GGUF metadata (plain values), or the folder."""
    _weights: _NamedWeights

    @property
    def names(self) -> tuple[str, ...]:
        """Our names of all weights, the ones outside the layers included."""
        return tuple(self._weights.names)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return one weight, by our name, as a writable float32 array of its own.

        Matrices are [out, in], rows in Hugging Face order: rotary pairs are the two halves of
        a head. Raises `KeyError` for a name the model does not have, such as "output" if the
        embeddings are tied.
        """
        return self._weights.tensor(name)


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a GGUF file, or a Hugging Face folder with safetensors.

    Raises `ModelError` if the path does not exist, if the model is of a kind that is not
    supported, or if a weight is missing or of the wrong shape.
    """
    # os.path also answers for a name that no file system accepts.
    if not os.path.exists(path):
        raise ModelError(
            f"there is no model at {path}. Give a GGUF file or a folder with config.json and "
            f"safetensors, or a known model: {', '.join(CATALOG)}."
        )
    return _open_folder(path) if path.is_dir() else _open_gguf(path)


def _open_gguf(path: Path) -> Checkpoint:
    stored = _GGUFWeights(GGUFFile(path))
    metadata = stored.file.metadata
    family = find_family(metadata.get("general.architecture"), str(path))
    embedding = family.gguf_weights["embedding"]
    if embedding not in stored.names():
        raise ModelError(
            f"{path}: tensor {embedding!r} is missing. The file is not complete: download it again."
        )
    vocab_size = stored.shape(embedding)[0]
    tokens = metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, list) and len(tokens) > vocab_size:
        raise ModelError(
            f"{path}: the vocabulary has {len(tokens)} tokens, the embedding only {vocab_size} "
            "rows. They do not belong together: convert the model again."
        )
    spec = spec_from_gguf(
        family,
        metadata,
        vocab_size=vocab_size,
        tied=family.gguf_weights["output"] not in stored.names(),
        where=str(path),
    )
    names = _checked_names(stored, family.gguf_weights, spec, path)
    identity = _identity(spec, stored, names)
    weights = _NamedWeights(stored, names, spec.head_dim, family.gguf_paired_rows)
    return Checkpoint(path, spec, "float32", identity, metadata, weights)


def _open_folder(path: Path) -> Checkpoint:
    config_path = path / "config.json"
    if not config_path.is_file():
        raise ModelError(
            f"{path} is a folder without config.json. Give a Hugging Face model folder, or name "
            "the GGUF file itself."
        )
    config = _read_json(config_path)
    family = find_family(config.get("model_type"), str(config_path))
    spec = spec_from_config(family, config, where=str(config_path))
    stored = _FolderWeights(path)
    names = _checked_names(stored, family.folder_weights, spec, path)
    dtype = stored.kind(names["embedding"])
    identity = _identity(spec, stored, names)
    weights = _NamedWeights(stored, names, spec.head_dim)
    return Checkpoint(path, spec, dtype, identity, path, weights)


def _checked_names(
    stored: _Weights, patterns: Mapping[str, str], spec: ModelSpec, path: Path
) -> dict[str, str]:
    """Return stored names by ours, once every weight is there and nothing else is."""
    present = set(stored.names())
    if spec.num_layers > len(present):
        raise ModelError(
            f"{path}: {spec.num_layers} layers are announced, but the model has only "
            f"{len(present)} tensors. It is not complete: download it again."
        )
    names = weight_names(patterns, spec)
    missing = [name for name in names.values() if name not in present]
    if missing:
        raise ModelError(
            f"{path}: {_several(missing)} missing, which a {spec.family} model of "
            f"{spec.num_layers} layers has. The model is not complete: download it again."
        )
    for ours, name in names.items():
        wanted, found = weight_shape(ours, spec), stored.shape(name)
        if found != wanted:
            raise ModelError(
                f"{path}: tensor {name!r} has shape {list(found)}; a {spec.family} model of this "
                f"size has {list(wanted)}. Header and weights do not belong together."
            )
    # A tied model may still store its output matrix; it is the embedding again.
    known = {*names.values(), patterns["output"]}
    unknown = sorted(name for name in present - known if not name.endswith(_IGNORED_ENDINGS))
    if unknown:
        raise ModelError(
            f"{path}: {_several(unknown)} not part of a {spec.family} decoder as it is supported: "
            "biases, adapters, experts and tables of rope factors are not. Running the model "
            "without them would give wrong text."
        )
    return names


def _several(names: list[str]) -> str:
    if len(names) == 1:
        return f"tensor {names[0]!r} is"
    return f"{len(names)} tensors ({names[0]!r} first) are"


def _identity(spec: ModelSpec, stored: _Weights, names: Mapping[str, str]) -> str:
    """Name the weights by their content, the same in every process and on every machine.

    The digest covers the spec, each tensor's name, shape and storage type, and 16 samples of
    256 bytes spread evenly over each tensor. Training or quantizing again changes every
    tensor nearly everywhere, so samples see it; an edit by hand of a few rows may be missed.
    The path, the file format's padding and the tokenizer do not count.
    """
    digest = blake2b(b"octavo.weights/1", digest_size=16)
    digest.update(msgspec.json.encode(spec))
    for ours in sorted(names):
        raw = stored.raw(names[ours])
        row = (ours, stored.shape(names[ours]), stored.kind(names[ours]), len(raw))
        digest.update(msgspec.json.encode(row))
        last = max(len(raw) - _SAMPLE_BYTES, 0)
        for start in sorted({last * index // (_SAMPLES - 1) for index in range(_SAMPLES)}):
            digest.update(raw[start : start + _SAMPLE_BYTES].tobytes())
    return f"{spec.family}-{digest.hexdigest()}"


def _halves_from_pairs(rows: NDArray[np.float32], head_dim: int) -> NDArray[np.float32]:
    """Undo the converter: within each head, rows 0, 2, 4, … come first, then 1, 3, 5, ….

    rows: [heads * head_dim, in]; returns the same shape.
    """
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


class _GGUFWeights:
    """The tensors of a GGUF file."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.raw = file.raw
        self.tensor = file.tensor

    def names(self) -> list[str]:
        return list(self.file.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.file.tensors[name].shape

    def kind(self, name: str) -> str:
        return self.file.tensors[name].kind.name


class _FolderWeights:
    """The tensors of a folder, from one safetensors file or several with an index."""

    def __init__(self, folder: Path) -> None:
        self._file_of: dict[str, SafetensorsFile] = {}
        for path in _weight_files(folder):
            file = SafetensorsFile(path)
            self._file_of |= dict.fromkeys(file.tensors, file)

    def names(self) -> list[str]:
        return list(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file_of[name].tensors[name].shape

    def kind(self, name: str) -> str:
        return self._file_of[name].tensors[name].dtype

    def raw(self, name: str) -> NDArray[np.uint8]:
        return self._file_of[name].raw(name)

    def tensor(self, name: str) -> NDArray[np.float32]:
        return self._file_of[name].tensor(name)


def _weight_files(folder: Path) -> list[Path]:
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    index_path = folder / "model.safetensors.index.json"
    if not index_path.is_file():
        raise ModelError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json. Other "
            "formats (.bin, .pt) are not read: get the safetensors version, or a GGUF file."
        )
    table = _read_json(index_path).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise ModelError(
            f"{index_path} has no weight_map from tensors to files. Download it again."
        )
    # Only plain names: an index must not lead out of its folder.
    files = sorted({Path(name).name for name in table.values()})
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise ModelError(
            f"{folder}: {len(absent)} of {len(files)} weight files are missing ({absent[0]} "
            "first). Download the folder again."
        )
    return [folder / name for name in files]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}. Download it again.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object. Download it again.")
    return value
