"""Reads the lengths of recorded requests: CSV or JSON lines, plain or gzip. Never their text."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

from octavo.bench.workload import Workload, clip
from octavo.errors import ConfigError

_COLUMNS = (
    ("ContextTokens", "GeneratedTokens"),
    ("num_prefill_tokens", "num_decode_tokens"),
    ("input_toks", "output_toks"),
    ("input_length", "output_length"),
    ("Prompt Length", "Output Length"),
    ("prompt_tokens", "output_tokens"),
    ("input_tokens", "output_tokens"),
)
"""Names of prompt and output length: Azure, Vidur, LLMServingSim, Mooncake, AIBrix; and plain."""
_SHOWN = 12
"""Names that an error lists at most, of those found."""


def read_trace(path: Path, *, requests: int | None, max_length: int) -> Workload:
    """Read the first `requests` lengths, all if None, each pair cut to `max_length` in all.

    A trace with fewer rows is repeated. Raises ConfigError if the file cannot be read, has no
    rows, or a row has no lengths.
    """
    text = _text(path)
    rows = _csv_rows(text, path) if ".csv" in path.suffixes else _json_rows(text, path)
    lengths: list[tuple[int, int]] = []
    for row in rows:
        lengths.append(row)
        if len(lengths) == requests:
            break
    if not lengths:
        raise ConfigError(f"{path} holds no request: a trace needs at least one row of lengths")
    wanted = requests or len(lengths)
    cut = [clip(prompt, output, max_length) for prompt, output in lengths]
    changed = sum(before != after for before, after in zip(lengths, cut, strict=True))
    words = f"{len(lengths)} rows of a trace, {changed} of them clipped to {max_length} in all"
    repeated = tuple(cut[number % len(cut)] for number in range(wanted))
    return Workload(path.name, words, repeated, None)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}") from None
    except (OSError, EOFError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {path}: {reason}") from None


def _csv_rows(text: str, path: Path) -> Iterator[tuple[int, int]]:
    reader = csv.DictReader(io.StringIO(text))
    if not reader.fieldnames:
        return
    try:
        for row in reader:
            yield _lengths(row, f"{path}, line {reader.line_num}")
    except csv.Error as error:
        raise ConfigError(f"{path} is not CSV: {error}") from None


def _json_rows(text: str, path: Path) -> Iterator[tuple[int, int]]:
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} is not JSON: {error}") from None
        # Some traces keep the requests that arrive together in one row.
        group = value.get("requests") if isinstance(value, dict) else None
        for row in group if isinstance(group, list) else [value]:
            yield _lengths(row, where)


def _lengths(row: object, where: str) -> tuple[int, int]:
    fields = cast("dict[object, object]", row) if isinstance(row, dict) else {}
    for pair in _COLUMNS:
        if fields.keys() >= set(pair):
            return _count(fields[pair[0]], pair[0], where), _count(fields[pair[1]], pair[1], where)
    names = [repr(name) for name in fields]
    found = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
    known = "; ".join(" and ".join(pair) for pair in _COLUMNS)
    raise ConfigError(
        f"{where} has no lengths: the names found are {found or 'none'}; rename two of them to "
        f"one of these pairs: {known}"
    )


def _count(value: object, name: str, where: str) -> int:
    try:
        count = int(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, OverflowError):  # infinity is none
        count = -1
    if count < 0:
        raise ConfigError(f"{where}: {name} must be a whole number of tokens, found {value!r}")
    return count
