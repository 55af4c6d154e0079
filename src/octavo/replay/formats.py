"""The kinds of files that can be replayed: one row of a table for each."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from octavo.errors import ConfigError
from octavo.replay.files import TraceFile
from octavo.replay.lengths import AZURE_COLUMNS, VIDUR_COLUMNS, read_azure, read_vidur
from octavo.replay.mooncake import read_mooncake
from octavo.replay.recording import read_recording
from octavo.replay.trace import Trace, in_blocks
from octavo.replay.transcripts import TEXT_BLOCK, Encode, read_transcript

MakeEncode = Callable[[], Encode]
"""Builds a tokenizer; called only for a trace of texts."""


@dataclass(frozen=True, slots=True)
class Format:
    """One kind of file."""

    name: str
    names: frozenset[str]
    """Of columns or keys that its first line has."""
    read: Callable[[TraceFile, int | None, MakeEncode], Trace]
    """From file, tokens per block (None: as in the file, or its kind's) and tokenizer."""
    shares: bool = True
    """It tells whose prompt begins like whose."""


def _mooncake(file: TraceFile, block_size: int | None, encode: MakeEncode) -> Trace:
    return _blocks(read_mooncake(file), block_size)


def _recording(file: TraceFile, block_size: int | None, encode: MakeEncode) -> Trace:
    return _blocks(read_recording(file), block_size)


def _transcript(file: TraceFile, block_size: int | None, encode: MakeEncode) -> Trace:
    return read_transcript(file, encode()).in_blocks(block_size or TEXT_BLOCK)


def _azure(file: TraceFile, block_size: int | None, encode: MakeEncode) -> Trace:
    return read_azure(file, block_size)


def _vidur(file: TraceFile, block_size: int | None, encode: MakeEncode) -> Trace:
    return read_vidur(file, block_size)


TRANSCRIPT = "transcript"

FORMATS = {
    one.name: one
    for one in (
        Format("mooncake", frozenset({"timestamp", "hash_ids"}), _mooncake),
        Format("recording", frozenset({"schema", "block_size", "started_s"}), _recording),
        Format(TRANSCRIPT, frozenset({"timestamp", "input", "output"}), _transcript),
        Format("azure", frozenset(AZURE_COLUMNS), _azure, shares=False),
        Format("lengths", frozenset(VIDUR_COLUMNS), _vidur, shares=False),
    )
}


def find_format(file: TraceFile, name: str | None = None) -> Format:
    """Return the format of that name; None: the one that the first line has. Raises ConfigError."""
    if name is not None:
        if name not in FORMATS:
            raise ConfigError(f"--format {name!r} is not one of {', '.join(FORMATS)}")
        return FORMATS[name]
    if not file.first_line():
        raise ConfigError(f"{file} is empty: there is nothing to replay")
    found = _names(file)
    for one in FORMATS.values():
        if one.names <= found:
            return one
    known = "; ".join(
        f"{one.name}: {', '.join(sorted(one.names))}" for one in FORMATS.values()
    )  # fmt: skip
    raise ConfigError(
        f"{file} begins with none of the known formats, by the names in the first line ({known}): "
        "give --format"
    )


def _blocks(trace: Trace, block_size: int | None) -> Trace:
    return trace if block_size is None else in_blocks(trace, block_size)


def _names(file: TraceFile) -> frozenset[str]:
    """Return the keys of the JSON object, or the columns of CSV, in the first line."""
    try:
        text = file.first_line().decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file} is not UTF-8 at byte {error.start} of its first line: save it as UTF-8"
        ) from None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return frozenset(name.strip() for name in text.split(","))
    return frozenset(cast("dict[str, object]", value)) if isinstance(value, dict) else frozenset()
