"""Tables of what an engine does in a second."""

from __future__ import annotations

from rich.table import Table

from octavo.bench.peers import MatchRow, Speed
from octavo.bench.throughput import ThroughputRow

_NONE = "–"  # noqa: RUF001 (a dash)


def throughput_table(rows: list[ThroughputRow]) -> Table:
    """Lay out the speed at each work."""
    table = Table(title="one engine, the works of the comparison with others")
    table.add_column("work")
    for name in (
        "counted",
        "tokens/s",
        "slowest to fastest",
        "with prompts, tokens/s",
        "GB/s read",
    ):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.work,
            row.counts,
            f"{row.tokens_per_s:,.0f}",
            _range(row.slowest, row.fastest),
            f"{row.total_tokens_per_s:,.0f}",
            bandwidth(row.read_bytes_per_s),
        )
    return table


def peers_table(rows: list[MatchRow]) -> Table:
    """Lay out every engine's speed at each match, and our ratio to the best of the others."""
    table = Table(title="tokens a second: median (slowest to fastest); prefill512: prompt tokens")
    table.add_column("work")
    engines = list(dict.fromkeys(speed.engine for row in rows for speed in row.speeds))
    for name in (*engines, "÷ best peer", "goal", "met", "GB/s read"):
        table.add_column(name, justify="right")
    for row in rows:
        speeds = {speed.engine: speed for speed in row.speeds}
        seen = [value for s in row.speeds for run in s.rounds for value in run.read_bytes_per_s]
        table.add_row(
            row.match,
            *(_cell(speeds[name]) if name in speeds else _NONE for name in engines),
            _ratio(row),
            f"{row.goal:.1f}",
            {True: "yes", False: "no", None: _NONE}[row.met],
            bandwidth(seen),
        )
    return table


def bandwidth(values: list[float]) -> str:
    """Show how fast memory was read over a run: lowest to highest, in GB/s."""
    low, high = (f"{value / 1e9:.0f}" for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high}"


def _cell(speed: Speed) -> str:
    return f"{speed.tokens_per_s:,.0f} ({_range(speed.slowest, speed.fastest)})"


def _ratio(row: MatchRow) -> str:
    if row.ratio is None or row.ratio_range is None:
        return _NONE
    low, high = row.ratio_range
    return f"{row.ratio:.2f} ({low:.2f} to {high:.2f}) {row.best_peer}"


def _range(low: float, high: float) -> str:
    return f"{low:,.0f} to {high:,.0f}"
