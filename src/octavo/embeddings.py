"""Prompts as vectors, offline."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from octavo.contract.pooling import Pooling
from octavo.contract.request import Request
from octavo.errors import OctavoError
from octavo.results import RequestOutput
from octavo.vectors import vector_of


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """The vector of one prompt."""

    request_id: str
    prompt_token_ids: list[int]
    embedding: list[float]
    num_cached_tokens: int = 0
    """Prompt tokens that were in memory already; of a mean, none can be used."""


def embed(
    requests: list[tuple[Request, RequestOutput]],
    pooling: Pooling,
    run: Callable[[list[tuple[Request, RequestOutput]]], Iterable[object]],
) -> list[EmbeddingOutput]:
    """Embed the prompts of some requests. run: answers requests, to their end."""
    asked = [
        (msgspec.structs.replace(request, pooling=pooling), output) for request, output in requests
    ]
    for _ in run(asked):
        pass
    found: list[EmbeddingOutput] = []
    for _, output in asked:
        if not output.embedding:
            raise OctavoError(f"prompt {output.request_id} has no vector: its steps have failed")
        found.append(
            EmbeddingOutput(
                output.request_id,
                output.prompt_token_ids,
                vector_of(output.embedding, pooling),
                output.num_cached_tokens,
            )
        )
    return found
