"""What is planned for: a model's files, its config alone, or a bare shape."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from octavo.contract.formats import ITEM_BYTES
from octavo.contract.layout import KVLayout, kv_layout, plain_layout
from octavo.contract.model import ModelSpec
from octavo.errors import ConfigError
from octavo.models.checkpoint import open_checkpoint
from octavo.models.families import find_family, text_part
from octavo.models.settings import spec_from_config
from octavo.models.stored import read_json
from octavo.models.weights import weight_shapes

_STORED_DTYPES = ("torch_dtype", "dtype")
_FULL = "float32"
_MOST = 100_000
"""Far beyond any model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The part of a model that KV memory depends on. Raises ConfigError if it is no shape."""

    layers: int
    kv_heads: int
    head_dim: int
    heads: int | None = None
    """Query heads; None: nobody said."""

    def __post_init__(self) -> None:
        for flag, value in (
            ("--layers", self.layers),
            ("--kv-heads", self.kv_heads),
            ("--head-dim", self.head_dim),
            ("--heads", self.heads),
        ):
            if value is not None and not 0 < value <= _MOST:
                raise ConfigError(f"{flag} must be from 1 to {_MOST}, got {value}")
        if self.heads is not None and self.heads % self.kv_heads:
            raise ConfigError(
                f"--heads is {self.heads} and --kv-heads {self.kv_heads}, but each KV head serves "
                "the same number of query heads: give a multiple as --heads, or leave it out"
            )


@dataclass(frozen=True, slots=True)
class Subject:
    """A model as far as a plan needs it."""

    name: str
    source: ModelSpec | Shape
    dtype: str
    """KV dtype if nobody asks for another."""
    context: int | None
    """Longest text of the model; None: nobody said."""
    weights_bytes: int | None
    """None: only the shape is known."""

    def layout(self, *, block_size: int, dtype: str) -> KVLayout:
        """Return the layout that the engine would use."""
        if isinstance(self.source, ModelSpec):
            return kv_layout(self.source, block_size=block_size, dtype=dtype)
        shape = self.source
        return plain_layout(
            layers=shape.layers,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            block_size=block_size,
            dtype=dtype,
        )

    def workspace_bytes(self, *, step_tokens: int, max_num_seqs: int) -> int | None:
        """Estimate what one step needs beside weights and KV; None: only the shape is known.

        The rows of the largest step between two matrices, in float32: three times the hidden
        width, queries, keys and values, and three times the feed-forward width; and the logits
        of every sequence, twice.
        """
        if not isinstance(self.source, ModelSpec):
            return None
        spec = self.source
        heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
        inner = spec.intermediate_size
        if spec.experts is not None:
            inner = spec.experts.intermediate_size * spec.experts.per_token
        rows = step_tokens * (3 * spec.hidden_size + heads + 3 * inner)
        return ITEM_BYTES[_FULL] * (rows + 2 * max_num_seqs * spec.vocab_size)


def shape_subject(shape: Shape) -> Subject:
    """Plan for a bare shape: its weights and context are unknown."""
    name = f"{shape.layers} layers × {shape.kv_heads} KV heads × {shape.head_dim}"  # noqa: RUF001
    return Subject(name, shape, "bfloat16", None, None)


def is_config_alone(path: Path) -> bool:
    """Tell whether a path is a config.json, or its folder, without weights beside it."""
    config = path / "config.json" if path.is_dir() else path
    bare = config.is_file() and not any(config.parent.glob("*.safetensors*"))
    return config.name == "config.json" and bare


def model_subject(path: Path) -> Subject:
    """Plan for a model file or folder, or for a folder that holds nothing but config.json.

    Weights are counted as the reference backend holds them: in the dtype of the folder, and a
    GGUF file expanded to float32. Raises ModelError.
    """
    if is_config_alone(path):
        return _config_subject(path / "config.json" if path.is_dir() else path)
    checkpoint = open_checkpoint(path)
    return _subject(path.name, checkpoint.spec, checkpoint.dtype)


def _config_subject(path: Path) -> Subject:
    config, _ = text_part(read_json(path), str(path))
    family = find_family(config.get("model_type"), str(path))
    spec = spec_from_config(family, config, where=str(path)).spec
    stated = next((config[key] for key in _STORED_DTYPES if config.get(key)), _FULL)
    return _subject(path.parent.name, spec, stated if stated in ITEM_BYTES else _FULL)


def _subject(name: str, spec: ModelSpec, dtype: str) -> Subject:
    numbers = sum(math.prod(shape) for shape in weight_shapes(spec).values())
    return Subject(name, spec, dtype, spec.context, numbers * ITEM_BYTES[dtype])
