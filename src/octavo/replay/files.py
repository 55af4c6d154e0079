"""Reads the files of traces: JSON lines and CSV, plain or gzip, from a disk or a pipe."""

from __future__ import annotations

import gzip
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from octavo.errors import ConfigError

_MARK = b"\xef\xbb\xbf"
"""Some editors begin a file with it."""
_PACKED = b"\x1f\x8b"
"""A gzip file begins with it."""

_Row = TypeVar("_Row")


@dataclass(frozen=True, slots=True)
class TraceFile:
    """What a file holds. It is read once, for it may be a pipe."""

    name: str
    """Without its folder."""
    place: str
    """As it was asked for."""
    data: bytes

    def __str__(self) -> str:
        return self.place

    def numbered_lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield the lines that are not empty, with their numbers from 1."""
        for number, line in enumerate(self.data.split(b"\n"), 1):
            stripped = line.strip()
            if stripped:
                yield number, stripped

    def first_line(self) -> bytes:
        """Return the first line that is not empty; b"" if there is none."""
        return next((line for _, line in self.numbered_lines()), b"")

    def row(self, decoder: msgspec.json.Decoder[_Row], number: int, line: bytes, what: str) -> _Row:
        """Read a line of JSON. Raises ConfigError; `what` says of what it is no line."""
        try:
            return decoder.decode(line)
        except UnicodeDecodeError as error:
            reason = f"it is not UTF-8 at byte {error.start}"
        except msgspec.MsgspecError as error:
            reason = str(error)
        except RecursionError:
            reason = "it is nested too deeply"
        raise ConfigError(f"{self}, line {number} is no {what}: {reason}")


def open_trace(path: Path) -> TraceFile:
    """Read a file; - is stdin. Raises ConfigError if it cannot be read."""
    piped = str(path) == "-"
    name, place = ("stdin", "stdin") if piped else (path.name, str(path))
    try:
        data = _stdin_bytes() if piped else path.read_bytes()
        if path.suffix == ".gz" or data.startswith(_PACKED):
            data = gzip.decompress(data)
    except (OSError, ValueError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {place!r}: {reason}") from None
    return TraceFile(name, place, data.removeprefix(_MARK))


def _stdin_bytes() -> bytes:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise ValueError("stdin is closed, name a file")
    return sys.stdin.buffer.read()
