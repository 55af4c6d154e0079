"""Reads what an engine has recorded (`LLM(record=…)`): hashes and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from octavo.contract.ids import BlockKey
from octavo.contract.recording import RecordedLine, RecordingHeader, unpack_hashes
from octavo.errors import ConfigError
from octavo.replay.files import TraceFile
from octavo.replay.trace import MOST_SECONDS, MOST_TOKENS, RecordedChoice, RecordedRequest, Trace

_Line = RecordingHeader | RecordedLine


def read_recording(file: TraceFile) -> Trace:
    """Read all recordings of a file, in the order of time. Raises ConfigError.

    A line that was cut off, as the last one of a process that was killed, is left out. The
    recordings of one file share no block: each has its own secret.
    """
    header: RecordingHeader | None = None
    parts = 0
    requests: list[RecordedRequest] = []
    for number, row in _rows(file):
        if isinstance(row, RecordedLine):
            if header is None:
                raise ConfigError(
                    f"{file}, line {number}: no header of a recording before it: the beginning of "
                    "the file is missing"
                )
            requests.append(_request(row, header, parts, f"{file}, line {number}"))
            continue
        if not 1 <= row.block_size <= MOST_TOKENS:
            raise ConfigError(
                f"{file}, line {number}: block_size must be from 1 to {MOST_TOKENS}, got "
                f"{row.block_size!r:.40}"
            )
        if header is not None and row.block_size != header.block_size:
            raise ConfigError(
                f"{file}, line {number}: a recording with blocks of {row.block_size} tokens after "
                f"one with {header.block_size}: give each a file of its own"
            )
        header, parts = row, parts + 1
    if header is None or not requests:
        raise ConfigError(f"{file} holds no recorded request: there is nothing to replay")
    requests.sort(key=lambda one: one.time_s)
    start = requests[0].time_s
    shifted = tuple(replace(one, time_s=one.time_s - start) for one in requests)
    return Trace(file.name, header.block_size, shifted, partial=False)


def _rows(file: TraceFile) -> Iterator[tuple[int, _Line]]:
    decoder = msgspec.json.Decoder(_Line)
    for number, line in file.numbered_lines():
        try:
            row = file.row(decoder, number, line, "line of a recording")
        except ConfigError:
            if line.endswith(b"}"):
                raise
            continue
        yield number, row


def _request(row: RecordedLine, header: RecordingHeader, part: int, where: str) -> RecordedRequest:
    size, time_s = header.block_size, header.started_s + row.time_s
    for name, value, most in (
        ("prompt", row.prompt, MOST_TOKENS),
        ("output", row.output, MOST_TOKENS),
        ("time_s", time_s, MOST_SECONDS),
        *(("outputs", count, MOST_TOKENS) for count in row.outputs),
    ):
        if not 0 <= value <= most:
            raise ConfigError(f"{where}: {name} must be from 0 to {most:.0e}, got {value!r:.40}")
    if row.others and len(row.others) != len(row.outputs) - 1:
        raise ConfigError(
            f"{where}: blocks of {1 + len(row.others)} choices, but {len(row.outputs)} lengths"
        )

    def keys(blocks: str, prompt: int, output: int) -> tuple[BlockKey, ...]:
        try:
            hashes = unpack_hashes(blocks)
        except ValueError as error:
            raise ConfigError(f"{where}: its blocks cannot be read: {error}") from None
        if not prompt // size <= len(hashes) <= (prompt + output) // size:
            raise ConfigError(
                f"{where}: {len(hashes)} blocks for {prompt} + {output} tokens in blocks of {size}"
            )
        # Recordings have different secrets: equal hashes of two are chance.
        return tuple(part.to_bytes(4, "little") + one for one in hashes)

    full, rest = divmod(row.prompt, size)
    first = keys(row.blocks, row.prompt, row.output)
    # Recordings of before tell of the first choice alone.
    others = zip(row.outputs[1:], row.others, strict=False)
    more = tuple(RecordedChoice(count, keys(blocks, rest, count)) for count, blocks in others)
    for text in (first, *(first[:full] + choice.keys for choice in more)):
        if len(set(text)) < len(text):
            raise ConfigError(
                f"{where}: two of its blocks have one hash, but a hash stands for all before its "
                "block too: this line was not written by a recorder"
            )
    return RecordedRequest(time_s, row.prompt, row.output, first[:full], first[full:], more)
