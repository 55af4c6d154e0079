"""Tables of `octavo replay`, for people."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from octavo.replay.endings import BlockSizeRow
from octavo.replay.rows import EngineRow, HitRow, ReplayRow, Spread
from octavo.replay.sweep import EngineSweep, Sweep
from octavo.replay.trace import Trace

_NONE = "–"  # noqa: RUF001 (a dash)


def replay_table(found: Sweep, trace: Trace, *, judged: str) -> Table:
    """Lay out hit rates by policy and capacity, the bounds last. judged: which requests count."""
    intervals = any(row.gain_interval is not None for row in found.rows)
    gap = ("gap closed %", "from", "to") if intervals else ("gap closed %",)
    table = _table(trace, judged, ("share %", "capacity", *_RATES, *gap, "evictions"))
    rows = (*found.rows, *found.optimum, found.endless)
    _fill(table, [(row, _index_cells(row, intervals=intervals)) for row in rows])
    return table


def engine_table(found: EngineSweep, trace: Trace, *, judged: str) -> Table:
    """Lay out hit rates and times by policy and capacity, the bounds last.

    What was refused, since it is longer than the memory, has a column if there is any.
    """
    refused = any(row.refused for row in found.rows)
    counts = (*_COUNTS, "refused") if refused else _COUNTS
    table = _table(trace, judged, ("share %", "capacity", *_RATES, *_TIMES, *counts))
    rows: list[tuple[HitRow, list[str]]] = [
        (row, [*_engine_cells(row), *([f"{row.refused:,}"] if refused else [])])
        for row in found.rows
    ]
    rows += [(row, _rates(row)) for row in (*found.optimum, found.endless)]
    _fill(table, rows)
    return table


def block_size_table(rows: list[BlockSizeRow], name: str, requests: int) -> Table:
    """Lay out what an endless cache finds by block size."""
    table = Table(
        title=f"{name}: {requests:,} requests, {rows[0].prompt_tokens:,} prompt tokens; endless "
        "cache"
    )
    for title in ("tokens per block", "tokens hit %", "lost %"):
        table.add_column(title, justify="right")
    for title in ("with partial blocks: tokens hit %", "lost %"):
        table.add_column(title, justify="right")
    for row in rows:
        rates = (row.hit_rate, row.lost, row.partial_hit_rate, row.partial_lost)
        table.add_row(f"{row.block_size}", *(f"{100 * rate:.2f}" for rate in rates))
    return table


_RATES = ("blocks hit %", "full blocks %", "tokens hit %")
_TIMES = ("first token s", "queueing s", "answer s")
"""p50 / p90 / p99."""
_COUNTS = ("evictions", "preemptions", "reused GiB")


def _table(trace: Trace, judged: str, names: tuple[str, ...]) -> Table:
    table = Table(
        title=f"{trace.name}: {len(trace.requests):,} requests, {trace.working_set:,} distinct "
        f"blocks of {trace.block_size} tokens; {judged}"
    )
    table.add_column("policy")
    for name in names:
        table.add_column(name, justify="right")
    return table


def _fill(table: Table, rows: Iterable[tuple[HitRow, list[str]]]) -> None:
    before: str | None = None
    for row, cells in rows:
        if before is not None and row.policy != before:
            table.add_section()
        before = row.policy
        table.add_row(row.policy, *cells)


def _rates(row: HitRow) -> list[str]:
    rates = (row.hit_rate, row.full_hit_rate, row.token_hit_rate)
    return [
        f"{100 * row.capacity_share:.3g}",
        f"{row.capacity_blocks:,}",
        *(f"{100 * rate:.2f}" for rate in rates),
    ]


def _index_cells(row: ReplayRow, *, intervals: bool) -> list[str]:
    limits = [_NONE, _NONE]
    if row.gap_closed_interval is not None:
        limits = [f"{100 * limit:.1f}" for limit in row.gap_closed_interval]
    return [
        *_rates(row),
        _NONE if row.gap_closed is None else f"{100 * row.gap_closed:.1f}",
        *(limits if intervals else ()),
        _NONE if row.evictions is None else f"{row.evictions:,}",
    ]


def _engine_cells(row: EngineRow) -> list[str]:
    return [
        *_rates(row),
        *map(_spread, (row.first_token_s, row.queueing_s, row.answer_s)),
        f"{row.evictions:,}",
        f"{row.preemptions:,}",
        _NONE if row.reused_bytes is None else f"{row.reused_bytes / 2**30:,.0f}",
    ]


def _spread(times: Spread | None) -> str:
    if times is None:
        return _NONE
    return " / ".join(f"{value:.3g}" for value in (times.p50, times.p90, times.p99))
