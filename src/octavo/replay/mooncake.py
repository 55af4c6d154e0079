"""Mooncake's traces: hash ids for blocks of 512 tokens."""

from __future__ import annotations

from typing import Annotated

import msgspec

from octavo.contract.ids import BlockKey
from octavo.errors import ConfigError
from octavo.replay.files import TraceFile
from octavo.replay.trace import MOST_SECONDS, RecordedRequest, Tokens, Trace

MOONCAKE_BLOCK = 512
"""Tokens of one hash id in Mooncake's traces."""
_KEY_BYTES = 16
_MOST_MS = 1000 * MOST_SECONDS


class _MooncakeRow(msgspec.Struct):
    """One line of a trace as Mooncake publishes them."""

    timestamp: Annotated[float, msgspec.Meta(ge=-_MOST_MS, le=_MOST_MS)]
    """Milliseconds."""
    input_length: Tokens
    output_length: Tokens
    hash_ids: list[Annotated[int, msgspec.Meta(ge=0)]]
    """One for each begun block of the prompt, and of everything before it."""


def read_mooncake(file: TraceFile) -> Trace:
    """Read a trace of JSON lines whose hash ids stand for 512 tokens each.

    Requests are put in the order of time; those of one moment stay in the file's. Raises
    ConfigError for what cannot be read, and for ids that are no hashes of a whole prefix.

    Source: Qin et al., "Mooncake", FAST 2025, the traces released with it.
    """
    decoder = msgspec.json.Decoder(_MooncakeRow)
    prefixes = _Prefixes(file)
    requests: list[RecordedRequest] = []
    for number, line in file.numbered_lines():
        row = file.row(decoder, number, line, "request of a Mooncake trace")
        begun = -(-row.input_length // MOONCAKE_BLOCK)
        if len(row.hash_ids) != begun:
            raise ConfigError(
                f"{file}, line {number}: {len(row.hash_ids)} hash_ids for {row.input_length} "
                f"tokens, but {MOONCAKE_BLOCK} tokens have one each, which makes {begun}: this is "
                "another format, or another block size"
            )
        keys = prefixes.keys(row.hash_ids, number)
        time_s = row.timestamp / 1000
        requests.append(RecordedRequest(time_s, row.input_length, row.output_length, keys))
    if not any(one.keys for one in requests):
        raise ConfigError(f"{file} holds no request with a prompt: there is nothing to replay")
    requests.sort(key=lambda one: one.time_s)
    return Trace(file.name, MOONCAKE_BLOCK, tuple(requests))


class _Prefixes:
    """Makes keys of hash ids, each of them once, and checks that they name whole prefixes."""

    def __init__(self, file: TraceFile) -> None:
        self._file = file
        self._known: dict[int, tuple[BlockKey, int | None]] = {}
        """By id: its key, and the id before it."""

    def keys(self, ids: list[int], line: int) -> tuple[BlockKey, ...]:
        """Return the keys of one prompt. Raises ConfigError."""
        keys: list[BlockKey] = []
        before: int | None = None
        for one in ids:
            if one not in self._known:
                self._known[one] = self._key(one, line), before
            key, known_before = self._known[one]
            if known_before != before:
                raise ConfigError(
                    f"{self._file}, line {line}: hash id {one} comes after {_named(before)}, but "
                    f"earlier after {_named(known_before)}: an id must stand for everything before "
                    "its block too, or no prefix can be told by it"
                )
            keys.append(key)
            before = one
        return tuple(keys)

    def _key(self, hash_id: int, line: int) -> BlockKey:
        if hash_id >= 1 << 8 * _KEY_BYTES:
            raise ConfigError(
                f"{self._file}, line {line}: a hash id has {hash_id.bit_length()} bits, but at "
                f"most {8 * _KEY_BYTES} are told apart: number the ids, for example"
            )
        return hash_id.to_bytes(_KEY_BYTES, "little")


def _named(hash_id: int | None) -> str:
    return "nothing" if hash_id is None else str(hash_id)
