"""Real prompts of a wanted length, cut from one text."""

from __future__ import annotations

import gzip
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path

from octavo.errors import ConfigError

PACKAGED = "the text that comes with octavo"


def read_text(path: Path | None) -> str:
    """Return a UTF-8 file, plain or .gz; None: our own text. Raises ConfigError."""
    if path is None:
        return (files("octavo.bench") / "sample_text.txt").read_text("utf-8")
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}") from None
    except (OSError, EOFError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {path}: {reason}") from None


def cut(tokens: list[int], lengths: Iterable[int], where: str) -> list[tuple[int, ...]]:
    """Return a prompt of each length, the starts spread over the whole text, no two the same.

    where: what to call the text in an error. Raises ConfigError if it is too short.
    """
    wanted = list(lengths)
    longest, count = max(wanted), len(wanted)
    need = longest + count - 1
    if len(tokens) < need:
        raise ConfigError(
            f"{where} has {len(tokens)} tokens, but {count} prompts of up to {longest} need "
            f"{need}: give a longer --texts, fewer --requests, or another --part"
        )
    starts = [number * (len(tokens) - longest + 1) // count for number in range(count)]
    return [tuple(tokens[s : s + length]) for s, length in zip(starts, wanted, strict=True)]
