"""Traces of lengths alone: no prompt is known to begin like another, so nothing can hit."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path

from octavo.contract.ids import BlockKey
from octavo.errors import ConfigError
from octavo.replay.files import numbered_lines
from octavo.replay.trace import RecordedRequest, Trace

LENGTHS_BLOCK = 128
"""Tokens of a block if nobody says. Nothing is shared: smaller ones would only take longer."""
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
VIDUR_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
_TIME_CHARACTERS = 26
"""Of a time up to its microseconds; Azure writes a tenth of one more."""

_Row = Mapping[str, str | None]


def read_azure(path: Path, block_size: int | None) -> Trace:
    """Read CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Raises ConfigError.

    Source: Patel et al., "Splitwise", ISCA 2024, the traces released with it.
    """

    def time_s(row: _Row, number: int) -> float:
        text = row["TIMESTAMP"] or ""
        return datetime.fromisoformat(
            text[:_TIME_CHARACTERS].ljust(_TIME_CHARACTERS, "0")
        ).timestamp()

    return _read(path, AZURE_COLUMNS, time_s, block_size)


def read_vidur(path: Path, block_size: int | None) -> Trace:
    """Read CSV with num_prefill_tokens and num_decode_tokens; one comes each second.

    Raises ConfigError. Source: Agrawal et al., "Vidur", MLSys 2024, its processed traces.
    """
    columns = ("", *VIDUR_COLUMNS)
    return _read(path, columns, lambda row, number: float(number), block_size)


def _read(
    path: Path,
    columns: tuple[str, ...],
    time_s: Callable[[_Row, int], float],
    block_size: int | None,
) -> Trace:
    size = LENGTHS_BLOCK if block_size is None else block_size
    requests: list[RecordedRequest] = []
    _, prompt, output = columns
    for number, row in enumerate(_rows(path)):
        try:
            tokens, answer = int(row[prompt] or ""), int(row[output] or "")
            when = time_s(row, number)
        except (KeyError, ValueError) as error:
            raise ConfigError(
                f"{path}, row {number + 1}: {', '.join(filter(None, columns))} cannot be read: "
                f"{error}"
            ) from None
        if tokens < 0 or answer < 0:
            raise ConfigError(f"{path}, row {number + 1}: a length is negative: {tokens}, {answer}")
        keys = _own_keys(number, -(-tokens // size))
        requests.append(RecordedRequest(when, tokens, answer, keys))
    if not requests:
        raise ConfigError(f"{path} holds no request: there is nothing to replay")
    start = min(one.time_s for one in requests)
    requests = [
        RecordedRequest(one.time_s - start, one.prompt_tokens, one.output_tokens, one.keys)
        for one in sorted(requests, key=lambda one: one.time_s)
    ]
    return Trace(path.name, size, tuple(requests))


def _rows(path: Path) -> Iterable[_Row]:
    try:
        text = [line.decode("utf-8-sig") for _, line in numbered_lines(path)]
        yield from csv.DictReader(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}") from None
    except csv.Error as error:
        raise ConfigError(f"{path} is not CSV: {error}") from None


def _own_keys(number: int, count: int) -> tuple[BlockKey, ...]:
    """Return keys that no other request has."""
    head = number.to_bytes(8, "little")
    return tuple(head + index.to_bytes(8, "little") for index in range(count))
