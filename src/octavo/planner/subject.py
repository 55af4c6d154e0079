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
from octavo.models.shapes import find_shape
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OnGpu:
    """What a GPU holds beside weights and KV, and how much of its memory may be used."""

    utilization: float
    taken_bytes: int
    """In use before anything is loaded."""
    workspace_bytes: int
    graph_bytes: int

    def usable_bytes(self, memory_bytes: int) -> int:
        """Bytes for weights, workspace, graphs and KV on a GPU of so many bytes."""
        return max(0, int(self.utilization * memory_bytes) - self.taken_bytes)

    def memory_for(self, usable_bytes: int) -> int:
        """Bytes that a GPU must have to leave so many: the inverse of `usable_bytes`."""
        memory = math.ceil((usable_bytes + self.taken_bytes) / self.utilization)
        while self.usable_bytes(memory) < usable_bytes:  # rounding
            memory += 1
        return memory


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
    gpu: OnGpu | None = None
    """None: it lies in the machine's memory."""

    @property
    def graph_bytes(self) -> int:
        """Bytes of captured graphs."""
        return 0 if self.gpu is None else self.gpu.graph_bytes

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

        On a GPU as it was counted for that. Else the rows of the largest step between two
        matrices, in float32: three times the hidden width, queries, keys and values, and three
        times the feed-forward width; and the logits of every sequence, twice.
        """
        if self.gpu is not None:
            return self.gpu.workspace_bytes
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


def published_subject(name: str) -> Subject:
    """Plan for a published shape, with weights in bfloat16. Raises ConfigError."""
    return _subject(name, find_shape(name), "bfloat16")


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
