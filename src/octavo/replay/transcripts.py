"""Recorded conversations as text: sessions of an agent, tokenized here."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from octavo.contract.ids import BlockKey
from octavo.errors import ConfigError
from octavo.memory.keys import chain, token_bytes
from octavo.replay.files import TraceFile
from octavo.replay.trace import MOST_SECONDS, RecordedRequest, Trace

_MOST_US = 1e6 * MOST_SECONDS

TEXT_BLOCK = 16
"""Tokens of a block if nobody says: an engine's default."""

Encode = Callable[[str], list[int]]
"""Returns the token ids of a text."""


@dataclass(frozen=True, slots=True)
class TokenizedRequest:
    """One call of a transcript."""

    time_s: float
    prompt: array[int]
    answer: array[int]


@dataclass(frozen=True, slots=True)
class Transcript:
    """Calls with all their tokens, in the order of time."""

    name: str
    requests: tuple[TokenizedRequest, ...]

    def in_blocks(self, block_size: int) -> Trace:
        """Return the calls by the keys of their full blocks, prompts and answers."""
        requests = [_by_keys(one, block_size) for one in self.requests]
        return Trace(self.name, block_size, tuple(requests), partial=False)


class _Row(msgspec.Struct):
    """One call as LMCache publishes them."""

    timestamp: Annotated[float, msgspec.Meta(ge=-_MOST_US, le=_MOST_US)]
    """Microseconds."""
    input: str
    output: str


def read_transcript(file: TraceFile, encode: Encode) -> Transcript:
    """Read JSON lines with timestamp (microseconds), input and output.

    Calls are put in the order of time, whatever their session; those without an input are left
    out. Raises ConfigError. Source: LMCache's agent traces.
    """
    decoder = msgspec.json.Decoder(_Row)
    rows: list[_Row] = []
    for number, line in file.numbered_lines():
        row = file.row(decoder, number, line, "call of a transcript")
        if row.input:
            rows.append(row)
    if not rows:
        raise ConfigError(f"{file} holds no call with an input: there is nothing to replay")
    rows.sort(key=lambda row: row.timestamp)
    start = rows[0].timestamp
    requests = [
        TokenizedRequest(
            (row.timestamp - start) / 1e6,
            array("i", encode(row.input)),
            array("i", encode(row.output)),
        )
        for row in rows
    ]
    return Transcript(file.name, tuple(requests))


def _by_keys(one: TokenizedRequest, block_size: int) -> RecordedRequest:
    # The last token of an answer is not written.
    text = one.prompt + one.answer[:-1]
    keys: list[BlockKey] = []
    key = b""
    for start in range(0, len(text) - block_size + 1, block_size):
        key = chain(key, token_bytes(text[start : start + block_size]))
        keys.append(key)
    full = len(one.prompt) // block_size
    prompt, answer = tuple(keys[:full]), tuple(keys[full:])
    return RecordedRequest(one.time_s, len(one.prompt), max(1, len(one.answer)), prompt, answer)
