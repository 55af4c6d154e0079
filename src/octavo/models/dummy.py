"""Weights that are made up: for measuring a model's cost where nobody has its files.

Knows no torch: a decoder fills its matrices on their own device from a short period of numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.contract.model import ModelSpec
from octavo.models.checkpoint import Checkpoint, open_checkpoint, read_folder_header
from octavo.models.shapes import find_shape
from octavo.models.weights import Numbers, weight_shapes

DTYPE = "bfloat16"
"""What the numbers are stored as; other formats hold them exactly, but for the smallest in
float16."""

_SEED = 0
_PERIOD = 262_139
"""Numbers until they repeat: a prime, so that hardly two rows of a matrix are equal."""
_SPREAD = 0.02
"""Largest number: as wide as models begin to learn with, so that logits differ and stay small."""
_ONE = 0x3F80
"""1 in bfloat16."""


class DummyWeights:
    """Small uniform numbers for every weight of a spec, and ones for its norms.

    They follow from the seed and the weight's name alone, on every machine and device.
    """

    def __init__(self, spec: ModelSpec, seed: int = _SEED) -> None:
        self.spec = spec
        self._shapes = weight_shapes(spec)
        self._seed = seed

    @property
    def identity(self) -> str:
        """All that the numbers follow from: the spec and the seed, as a digest."""
        digest = blake2b(b"octavo.dummy/1", digest_size=16)
        digest.update(msgspec.json.encode((self.spec, self._seed)))
        return f"dummy-{digest.hexdigest()}"

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return tuple(self._shapes)

    def numbers(self, name: str) -> Numbers:
        """Return a period of a weight, or all of it if it is shorter."""
        shape = self._shapes[name]
        if name.endswith("norm"):
            return Numbers(shape, DTYPE, np.array([_ONE], dtype=np.uint16))
        digest = blake2b(name.encode(), digest_size=8).digest()
        start = int.from_bytes(digest, "little") % _PERIOD
        turned = np.roll(self._period, -start)
        return Numbers(shape, DTYPE, turned[: math.prod(shape)])

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return one weight as a writable array of its own."""
        bits = self._bits(name)
        # bfloat16 is the upper half of a float32.
        return (bits.astype(np.uint32) << 16).view(np.float32)

    def kind(self, name: str) -> str:
        """How a weight is stored, as a word."""
        return DTYPE

    def stored_rows(self, name: str) -> tuple[str, NDArray[np.uint8]]:
        """How a matrix is stored, as a word, and its bytes: [out, bytes of a row]."""
        return DTYPE, self._bits(name).view(np.uint8)

    def release(self, name: str) -> None:
        """Nothing is kept."""

    def _bits(self, name: str) -> NDArray[np.uint16]:
        return np.resize(self.numbers(name).data, self._shapes[name])

    @cached_property
    def _period(self) -> NDArray[np.uint16]:
        # This generator's numbers are promised never to change.
        drawn = np.random.RandomState(self._seed).uniform(-_SPREAD, _SPREAD, _PERIOD)
        return (drawn.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def dummy_shape(name: str) -> Checkpoint:
    """Make up weights for a shape of the table. Raises ConfigError for an unknown one."""
    spec = find_shape(name)
    weights = DummyWeights(spec)
    return Checkpoint(
        path=Path(name),
        spec=spec,
        dtype=DTYPE,
        identity=weights.identity,
        tokenizer_source=None,
        notes=(),
        weights=weights,
    )


def dummy_model(path: Path) -> Checkpoint:
    """Make up weights for a model: a GGUF file, a folder, or a config.json alone.

    Its tokenizer is used if it is there. Raises ModelError.
    """
    folder = path.absolute().parent if path.name == "config.json" else path
    if not folder.is_dir():
        real = open_checkpoint(path)
        weights = DummyWeights(real.spec)
        return replace(real, dtype=DTYPE, identity=weights.identity, weights=weights)
    header = read_folder_header(folder)
    weights = DummyWeights(header.reading.spec)
    return Checkpoint(
        path=folder,
        spec=header.reading.spec,
        dtype=header.stated_dtype or DTYPE,
        identity=weights.identity,
        tokenizer_source=folder if (folder / "tokenizer.json").is_file() else None,
        notes=header.reading.notes,
        weights=weights,
    )
