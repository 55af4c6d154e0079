"""A model's weights by our names, whatever its files call them and how they order their rows.

That all are there is the business of `checkpoint`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.models.stored import StoredWeights
from octavo.models.weights import Numbers, float32_numbers

_Number = TypeVar("_Number", np.float32, np.uint8)

PLAIN_KINDS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
PLAIN_KINDS |= {name: name for name in PLAIN_KINDS.values()}
"""Our name of a number's format, by the words for it in files, where numbers lie one by one."""


class Weights(Protocol):
    """All weights of a model, by our names."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        ...

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return one weight as a writable array of its own."""
        ...

    def numbers(self, name: str) -> Numbers:
        """Return the numbers of one weight as they lie, without a copy where that can be."""
        ...

    def kind(self, name: str) -> str:
        """How a weight is stored, as a word."""
        ...

    def stored_rows(self, name: str) -> tuple[str, NDArray[np.uint8]]:
        """How a matrix is stored, as a word, and its bytes: [out, bytes of a row]."""
        ...

    def release(self, name: str) -> None:
        """Give back the memory that reading a weight took."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """Where one of our weights lies."""

    name: str
    """The file's name of the tensor."""
    part: int | None = None
    """Which entry of its first axis, if all experts lie in one tensor."""


@dataclass(frozen=True, slots=True)
class NamedWeights:
    """The weights of a model's files, known to be complete."""

    stored: StoredWeights
    places: dict[str, Place]
    head_dim: int
    paired_rows: frozenset[str] = frozenset()
    """See `Family.gguf_paired_rows`; empty for folders."""
    norms_less_one: bool = False
    """See `Family.folder_norms_less_one`."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self.places)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return one weight as a writable array of its own."""
        place = self.places[name]
        values = self.stored.tensor(place.name, place.part)
        if self._less_one(name):
            values += 1.0
        return _halves_from_pairs(values, self.head_dim) if self._paired(name) else values

    def numbers(self, name: str) -> Numbers:
        """Return a view of the file where numbers lie there one by one, in our order."""
        dtype = PLAIN_KINDS.get(self.kind(name))
        if dtype is None or self._less_one(name) or self._paired(name):
            return float32_numbers(self.tensor(name))
        place = self.places[name]
        shape = self.stored.shape(place.name)
        data = self.raw(name).view("<f4" if dtype == "float32" else "<u2")
        return Numbers(shape if place.part is None else shape[1:], dtype, data)

    def stored_rows(self, name: str) -> tuple[str, NDArray[np.uint8]]:
        """How a matrix is stored, as a word, and its bytes: [out, bytes of a row]."""
        place = self.places[name]
        shape = self.stored.shape(place.name)
        rows = self.raw(name).reshape(shape[-2] if len(shape) > 1 else 1, -1)
        if self._paired(name):
            rows = _halves_from_pairs(rows, self.head_dim)
        return self.kind(name), rows

    def kind(self, name: str) -> str:
        """How a weight is stored, as a word."""
        return self.stored.kind(self.places[name].name)

    def release(self, name: str) -> None:
        """Give back the memory that reading a weight took."""
        self.stored.release(self.places[name].name)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a weight as they lie in its file."""
        place = self.places[name]
        data = self.stored.raw(place.name)
        if place.part is None:
            return data
        return data.reshape(self.stored.shape(place.name)[0], -1)[place.part]

    def _paired(self, name: str) -> bool:
        return name.rpartition(".")[2] in self.paired_rows

    def _less_one(self, name: str) -> bool:
        return self.norms_less_one and name.endswith("norm")


def _halves_from_pairs(rows: NDArray[_Number], head_dim: int) -> NDArray[_Number]:
    """Undo the converter: within each head, rows 0, 2, 4, … come first, then 1, 3, 5, ….

    rows: [heads * head_dim, in]; returns the same shape.
    """
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
