"""Reads recorded requests as block keys: whose prompt begins like whose. Never their text."""

from __future__ import annotations

import gzip
import zlib
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec

from octavo.contract.ids import BlockKey
from octavo.errors import ConfigError

MOONCAKE_BLOCK = 512
"""Tokens of one hash id in Mooncake's traces."""
_KEY_BYTES = 16

_Count = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a trace."""

    time_s: float
    """Since the trace's own beginning."""
    prompt_tokens: int
    output_tokens: int
    keys: tuple[BlockKey, ...]
    """Of the prompt's blocks; the last one may be partial."""


@dataclass(frozen=True)
class Trace:
    """Recorded requests in the order of their arrival."""

    name: str
    block_size: int
    """Tokens of a full block."""
    requests: tuple[RecordedRequest, ...]

    @cached_property
    def working_set(self) -> int:
        """Distinct blocks."""
        return len(set(chain.from_iterable(one.keys for one in self.requests)))

    @property
    def references(self) -> int:
        """Blocks of all prompts, each as often as it occurs."""
        return sum(len(one.keys) for one in self.requests)

    def at_rate(self, factor: float) -> Trace:
        """Return the same requests, coming `factor` times as fast."""
        if factor == 1:
            return self
        requests = tuple(replace(one, time_s=one.time_s / factor) for one in self.requests)
        return Trace(self.name, self.block_size, requests)

    @property
    def middle_s(self) -> float:
        """Half of the time between the first request and the last."""
        return (self.requests[0].time_s + self.requests[-1].time_s) / 2


def in_blocks(trace: Trace, block_size: int) -> Trace:
    """Return the same requests in larger blocks, each known by the last of those it is made of.

    Raises ConfigError unless `block_size` is a multiple of the trace's.
    """
    factor, rest = divmod(block_size, trace.block_size)
    if rest or factor < 1:
        raise ConfigError(
            f"block size {block_size} is no multiple of {trace.block_size}, the tokens of a block "
            f"of {trace.name}: give one, for nothing finer is known of its prompts"
        )
    requests = tuple(replace(one, keys=_every(factor, one.keys)) for one in trace.requests)
    return Trace(trace.name, block_size, requests)


def _every(factor: int, keys: tuple[BlockKey, ...]) -> tuple[BlockKey, ...]:
    """Return the last key of each `factor` keys; of a rest, the last."""
    rest = keys[-1:] if len(keys) % factor else ()
    return keys[factor - 1 :: factor] + rest


class _MooncakeRow(msgspec.Struct):
    """One line of a trace as Mooncake publishes them."""

    timestamp: float
    """Milliseconds."""
    input_length: _Count
    output_length: _Count
    hash_ids: list[_Count]
    """One for each begun block of the prompt, and of everything before it."""


def read_mooncake(path: Path) -> Trace:
    """Read a trace of JSON lines, plain or gzip, whose hash ids stand for 512 tokens each.

    Requests are put in the order of time; those of one moment stay in the file's. Raises
    ConfigError for what cannot be read, and for ids that are no hashes of a whole prefix.

    Source: Qin et al., "Mooncake", FAST 2025, the traces released with it.
    """
    decoder = msgspec.json.Decoder(_MooncakeRow)
    prefixes = _Prefixes(path)
    requests: list[RecordedRequest] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            row = decoder.decode(line)
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{path}, line {number} is no request of a Mooncake trace: {error}"
            ) from None
        begun = -(-row.input_length // MOONCAKE_BLOCK)
        if len(row.hash_ids) != begun:
            raise ConfigError(
                f"{path}, line {number}: {len(row.hash_ids)} hash_ids for {row.input_length} "
                f"tokens, but {MOONCAKE_BLOCK} tokens have one each, which makes {begun}: this is "
                "another format, or another block size"
            )
        keys = prefixes.keys(row.hash_ids, number)
        time_s = row.timestamp / 1000
        requests.append(RecordedRequest(time_s, row.input_length, row.output_length, keys))
    if not any(one.keys for one in requests):
        raise ConfigError(f"{path} holds no request with a prompt: there is nothing to replay")
    requests.sort(key=lambda one: one.time_s)
    return Trace(path.name, MOONCAKE_BLOCK, tuple(requests))


class _Prefixes:
    """Makes keys of hash ids, each of them once, and checks that they name whole prefixes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[int, tuple[BlockKey, int | None]] = {}
        """By id: its key, and the id before it."""

    def keys(self, ids: list[int], line: int) -> tuple[BlockKey, ...]:
        """Return the keys of one prompt. Raises ConfigError."""
        keys: list[BlockKey] = []
        before: int | None = None
        for one in ids:
            if one not in self._known:
                self._known[one] = one.to_bytes(_KEY_BYTES, "little"), before
            key, known_before = self._known[one]
            if known_before != before:
                raise ConfigError(
                    f"{self._path}, line {line}: hash id {one} comes after {_named(before)}, but "
                    f"earlier after {_named(known_before)}: an id must stand for everything before "
                    "its block too, or no prefix can be told by it"
                )
            keys.append(key)
            before = one
        return tuple(keys)


def _named(hash_id: int | None) -> str:
    return "nothing" if hash_id is None else str(hash_id)


def _lines(path: Path) -> list[bytes]:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).split(b"\n")
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {path}: {reason}") from None
