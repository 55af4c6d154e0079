"""Answers as `/v1/embeddings` writes them."""

from __future__ import annotations

import base64

import numpy as np

from octavo.contract.pooling import Pooling
from octavo.server.answers import Usage
from octavo.server.ask import Ask
from octavo.server.choice import Choice, Piece
from octavo.server.failures import ApiError
from octavo.server.head import Head
from octavo.vectors import vector_of


class EmbeddingForm:
    """A `Form` of what is never streamed. head: what the reply begins with."""

    def __init__(self, head: Head, pooling: Pooling, *, as_base64: bool) -> None:
        self._head = head
        self._pooling = pooling
        self._as_base64 = as_base64

    def whole(self, asks: list[Ask], usage: Usage) -> object:
        """Return the vectors of all prompts. Raises RequestError for too many dimensions."""
        rows = [
            {"object": "embedding", "index": index, "embedding": self._vector(ask)}
            for index, ask in enumerate(asks)
        ]
        used = {"prompt_tokens": usage.prompt_tokens, "total_tokens": usage.prompt_tokens}
        return {**self._head.fields("list"), "data": rows, "usage": used}

    def chunk(self, ask: Ask, choice: Choice, piece: Piece, usage: Usage | None) -> bytes:
        """Return nothing: there is no stream."""
        return b""

    def end(self, usage: Usage | None) -> bytes:
        """Return nothing: there is no stream."""
        return b""

    def broken(self, error: ApiError) -> bytes:
        """Return nothing: there is no stream."""
        return b""

    def _vector(self, ask: Ask) -> list[float] | str:
        vector = vector_of(ask.embedding, self._pooling)
        if not self._as_base64:
            return vector
        return base64.b64encode(np.array(vector, dtype="<f4").tobytes()).decode()
