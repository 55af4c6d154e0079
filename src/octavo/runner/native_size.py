"""Counts what the native executor's weights take, before anything is read."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.contract.model import ModelSpec
from octavo.cpu import require_native
from octavo.models.checkpoint import Checkpoint
from octavo.models.weights import weight_shapes
from octavo.runner.native_model import packed_form, source_type
from octavo.runner.native_padding import TILE, whole

_TOGETHER = {"q": ("q", "k", "v"), "gate": ("gate", "up")}
"""Matrices that are packed as one, by the first of them."""
_FOLLOWERS = ("k", "v", "up")


def packed_bytes(checkpoint: Checkpoint, *, arithmetic: str) -> int:
    """Count the bytes of all packed matrices, and of the vectors beside them in float32."""
    native, spec = require_native(), checkpoint.spec
    shapes = weight_shapes(spec)
    total = 0
    for names in _matrices(spec):
        kinds = [source_type(checkpoint.stored_kind(name), name) for name in names]
        outputs = sum(_outputs(spec, name, shapes[name][0]) for name in names)
        width = whole(shapes[names[0]][1])
        form = "f32" if names[0].endswith(".router") else packed_form(arithmetic, kinds)
        total += native.packed_bytes(kinds, outputs, width, format=form)
    return total + 4 * sum(shape[0] for shape in shapes.values() if len(shape) == 1)


def _matrices(spec: ModelSpec) -> Iterator[list[str]]:
    """Yield the names of what is packed as one matrix."""
    for name, shape in weight_shapes(spec).items():
        head, dot, last = name.rpartition(".")
        if len(shape) > 1 and last not in _FOLLOWERS:
            yield [head + dot + one for one in _TOGETHER.get(last, (last,))]


def _outputs(spec: ModelSpec, name: str, count: int) -> int:
    match name.rpartition(".")[2]:
        case "q" | "k" | "v":
            return count // spec.head_dim * whole(spec.head_dim, TILE)
        case "gate" | "up" | "o" | "down":
            return whole(count)
        case _:
            return count
