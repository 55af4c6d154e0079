"""Traces of lengths alone: no prompt is known to begin like another, so nothing can hit."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from octavo.contract.ids import BlockKey
from octavo.errors import ConfigError
from octavo.replay.files import TraceFile
from octavo.replay.trace import MOST_TOKENS, RecordedRequest, Trace

LENGTHS_BLOCK = 128
"""Tokens of a block if nobody says. Nothing is shared: smaller ones would only take longer."""
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
VIDUR_COLUMNS = ("num_prefill_tokens", "num_decode_tokens")
_FRACTION = re.compile(r"\.\d+")
"""Of a second; Azure writes seven digits, one more than a time of Python has, or none at all."""
_DIGITS = 12
"""Of a length at most: longer ones are too large, and costly to read."""

_Row = Mapping[str, str | None]


def read_azure(file: TraceFile, block_size: int | None) -> Trace:
    """Read CSV with TIMESTAMP, ContextTokens, GeneratedTokens. Raises ConfigError.

    Source: Patel et al., "Splitwise", ISCA 2024, the traces released with it.
    """

    def time_s(row: _Row, number: int) -> float:
        text = (row["TIMESTAMP"] or "").strip()
        fraction = _FRACTION.search(text)
        when = datetime.fromisoformat(_FRACTION.sub("", text, count=1))
        # Without a zone it is that of the whole file: one without summer time keeps the distances.
        whole = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
        return whole + float(fraction[0]) if fraction else whole

    return _read(file, AZURE_COLUMNS, time_s, block_size)


def read_vidur(file: TraceFile, block_size: int | None) -> Trace:
    """Read CSV with num_prefill_tokens and num_decode_tokens; one comes each second.

    Raises ConfigError. Source: Agrawal et al., "Vidur", MLSys 2024, its processed traces.
    """
    columns = ("", *VIDUR_COLUMNS)
    return _read(file, columns, lambda row, number: float(number), block_size)


def _read(
    file: TraceFile,
    columns: tuple[str, ...],
    time_s: Callable[[_Row, int], float],
    block_size: int | None,
) -> Trace:
    size = LENGTHS_BLOCK if block_size is None else block_size
    requests: list[RecordedRequest] = []
    _, prompt, output = columns
    for number, row in enumerate(_rows(file)):
        lacking = [name for name in columns if name and name not in row]
        if lacking:
            raise ConfigError(
                f"{file} has no column {', '.join(lacking)}: its first line must name "
                f"{', '.join(filter(None, columns))}"
            )
        try:
            tokens, answer = _length(row[prompt]), _length(row[output])
            when = time_s(row, number)
        except (ValueError, OverflowError) as error:
            raise ConfigError(
                f"{file}, row {number + 1}: {', '.join(filter(None, columns))} cannot be read: "
                f"{error}"
            ) from None
        keys = _own_keys(number, -(-tokens // size))
        requests.append(RecordedRequest(when, tokens, answer, keys))
    if not requests:
        raise ConfigError(f"{file} holds no request: there is nothing to replay")
    start = min(one.time_s for one in requests)
    requests = [
        RecordedRequest(one.time_s - start, one.prompt_tokens, one.output_tokens, one.keys)
        for one in sorted(requests, key=lambda one: one.time_s)
    ]
    return Trace(file.name, size, tuple(requests))


def _rows(file: TraceFile) -> Iterable[_Row]:
    try:
        text = [line.decode() for _, line in file.numbered_lines()]
        yield from csv.DictReader(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 at byte {error.start}") from None
    except csv.Error as error:
        raise ConfigError(f"{file} is not CSV: {error}") from None


def _length(text: str | None) -> int:
    """Read a number of tokens. Raises ValueError."""
    stripped = (text or "").strip()
    count = int(stripped[:_DIGITS]) if stripped[:_DIGITS] else -1
    if len(stripped) > _DIGITS or not 0 <= count <= MOST_TOKENS:
        raise ValueError(f"a length must be from 0 to {MOST_TOKENS}, got {stripped!r:.40}")
    return count


def _own_keys(number: int, count: int) -> tuple[BlockKey, ...]:
    """Return keys that no other request has."""
    head = number.to_bytes(8, "little")
    return tuple(head + index.to_bytes(8, "little") for index in range(count))
