"""The vector that a request asks for, of what the engine tells of its prompt."""

from __future__ import annotations

import numpy as np

from octavo.contract.pooling import Pooling
from octavo.errors import RequestError


def vector_of(told: bytes, pooling: Pooling) -> list[float]:
    """Return the vector that a request asks for. told: as in `Update.embedding`.

    Raises RequestError for more dimensions than there are.
    """
    vector = np.frombuffer(told, dtype="<f4").astype(np.float64)
    most = len(vector)
    if pooling.dimensions is not None:
        if pooling.dimensions > most:
            raise RequestError(
                f"dimensions: this model's embeddings have {most}, got {pooling.dimensions}"
            )
        vector = vector[: pooling.dimensions]
    if pooling.normalize:
        # Of nothing but zeros, nothing is to be divided.
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    return vector.astype(np.float32).tolist()


def pooling_for(how: str | None, *, normalize: bool, dimensions: int | None) -> Pooling:
    """Return what is asked of a model's embeddings. Raises RequestError: it has none."""
    if how not in ("mean", "last"):
        raise RequestError(
            "this model has no embeddings: its files name no pooling; load one that has, or set "
            "pooling to mean or last"
        )
    return Pooling(how, normalize, dimensions)
