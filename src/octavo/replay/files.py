"""Reads the files of traces: JSON lines and CSV, plain or gzip."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path

from octavo.errors import ConfigError


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers from 1. Raises ConfigError."""
    for number, line in enumerate(_data(path).split(b"\n"), 1):
        stripped = line.strip()
        if stripped:
            yield number, stripped


def first_line(path: Path) -> bytes:
    """Return the first line that is not empty; b"" if there is none. Raises ConfigError."""
    return next((line for _, line in numbered_lines(path)), b"")


def _data(path: Path) -> bytes:
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if path.suffix == ".gz" else data
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {path}: {reason}") from None
