"""Where commands write: text for people, one JSON document for machines."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from octavo.config import EngineConfig


class ReaderGone(Exception):
    """Whoever read our output has seen enough; that is no error."""


class OutputError(Exception):
    """Output cannot be written."""


def say(text: str) -> None:
    """Write a line for people; what the terminal cannot show is replaced."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    write_bytes((text + "\n").encode(encoding, errors="replace"))


def note(text: str) -> None:
    """Tell people something on stderr, beside the output."""
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
        sys.stderr.write((text + "\n").encode(encoding, "backslashreplace").decode(encoding))


def print_json(
    schema: str,
    settings: dict[str, object],
    payload: dict[str, object],
    *,
    config: EngineConfig | None = None,
) -> None:
    """Write one JSON document, always in UTF-8: the envelope, then the payload."""
    from octavo.envelope import envelope

    document = envelope(schema, config, **settings) | payload
    write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def write_bytes(data: bytes) -> None:
    """Write to stdout at once.

    Raises ReaderGone if the reader has closed its end, OutputError if nothing can be written.
    """
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise OutputError("stdout is closed: there is nowhere to write the answer")
    try:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError as error:
        # Python flushes stdout once more when it ends; let that go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise ReaderGone from error
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"cannot write to stdout: {error.strerror}") from error
