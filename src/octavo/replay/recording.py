"""Reads what an engine has recorded (`LLM(record=…)`): hashes and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec

from octavo.contract.recording import RecordedLine, RecordingHeader, unpack_hashes
from octavo.errors import ConfigError
from octavo.replay.files import numbered_lines
from octavo.replay.trace import RecordedRequest, Trace

_Line = RecordingHeader | RecordedLine


def read_recording(path: Path) -> Trace:
    """Read all recordings of a file, in the order of time. Raises ConfigError.

    A line that was cut off, as the last one of a process that was killed, is left out. The
    recordings of one file share no block: each has its own secret.
    """
    header: RecordingHeader | None = None
    parts = 0
    requests: list[RecordedRequest] = []
    for number, row in _rows(path):
        if isinstance(row, RecordedLine):
            if header is None:
                raise ConfigError(f"{path}, line {number}: no header of a recording before it")
            requests.append(_request(row, header, parts, f"{path}, line {number}"))
            continue
        if header is not None and row.block_size != header.block_size:
            raise ConfigError(
                f"{path}, line {number}: a recording with blocks of {row.block_size} tokens after "
                f"one with {header.block_size}: give each a file of its own"
            )
        header, parts = row, parts + 1
    if header is None or not requests:
        raise ConfigError(f"{path} holds no recorded request: there is nothing to replay")
    requests.sort(key=lambda one: one.time_s)
    start = requests[0].time_s
    shifted = tuple(replace(one, time_s=one.time_s - start) for one in requests)
    return Trace(path.name, header.block_size, shifted, partial=False)


def _rows(path: Path) -> Iterator[tuple[int, _Line]]:
    decoder = msgspec.json.Decoder(_Line)
    for number, line in numbered_lines(path):
        try:
            yield number, decoder.decode(line)
        except msgspec.MsgspecError as error:
            if line.endswith(b"}"):
                raise ConfigError(
                    f"{path}, line {number} is no line of a recording: {error}"
                ) from None


def _request(row: RecordedLine, header: RecordingHeader, part: int, where: str) -> RecordedRequest:
    size = header.block_size
    try:
        hashes = unpack_hashes(row.blocks)
    except ValueError as error:
        raise ConfigError(f"{where}: its blocks cannot be read: {error}") from None
    full = row.prompt // size
    if not full <= len(hashes) <= (row.prompt + row.output) // size:
        raise ConfigError(
            f"{where}: {len(hashes)} blocks for {row.prompt} + {row.output} tokens in blocks of "
            f"{size}"
        )
    # Recordings have different secrets: equal hashes of two are chance.
    keys = tuple(part.to_bytes(4, "little") + one for one in hashes)
    time_s = header.started_s + row.time_s
    return RecordedRequest(time_s, row.prompt, row.output, keys[:full], keys[full:])
