"""Tables of `octavo replay`, for people."""

from __future__ import annotations

from rich.table import Table

from octavo.replay.sweep import ReplayRow, Sweep
from octavo.replay.trace import Trace

_NONE = "–"  # noqa: RUF001 (a dash)


def replay_table(found: Sweep, trace: Trace, *, judged: str) -> Table:
    """Lay out hit rates by policy and capacity, the bounds last. judged: which requests count."""
    table = Table(
        title=f"{trace.name}: {len(trace.requests):,} requests, {trace.working_set:,} distinct "
        f"blocks of {trace.block_size} tokens; {judged}"
    )
    table.add_column("policy")
    for name in ("share %", "capacity", "blocks hit %", "full blocks %", "tokens hit %"):
        table.add_column(name, justify="right")
    intervals = any(row.gain_interval is not None for row in found.rows)
    names = (
        ("gap closed %", "from", "to", "evictions") if intervals else ("gap closed %", "evictions")
    )
    for name in names:
        table.add_column(name, justify="right")
    before: str | None = None
    for row in (*found.rows, *found.optimum, found.endless):
        if before is not None and row.policy != before:
            table.add_section()
        before = row.policy
        table.add_row(*_cells(row, intervals=intervals))
    return table


def _cells(row: ReplayRow, *, intervals: bool) -> list[str]:
    rates = (row.hit_rate, row.full_hit_rate, row.token_hit_rate)
    limits = [_NONE, _NONE]
    if row.gap_closed_interval is not None:
        limits = [f"{100 * limit:.1f}" for limit in row.gap_closed_interval]
    return [
        row.policy,
        f"{100 * row.capacity_share:g}",
        f"{row.capacity_blocks:,}",
        *(f"{100 * rate:.2f}" for rate in rates),
        _NONE if row.gap_closed is None else f"{100 * row.gap_closed:.1f}",
        *(limits if intervals else ()),
        _NONE if row.evictions is None else f"{row.evictions:,}",
    ]
