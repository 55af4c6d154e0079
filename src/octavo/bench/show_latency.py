"""Tables of how long one waits, and of what a step costs."""

from __future__ import annotations

from rich.table import Table

from octavo.bench.latency import LatencyRow, Percentiles
from octavo.bench.show_speed import bandwidth
from octavo.bench.steps import Line, StepRow

_NONE = "–"  # noqa: RUF001 (a dash)


def latency_table(rows: list[LatencyRow]) -> Table:
    """Lay out the times of requests that arrive together."""
    table = Table(title="milliseconds of requests that arrive together: median, 90 %, 99 %")
    for name in ("requests", "prompt", "answer", "to the first token", "to the next", "GB/s read"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            str(row.batch),
            str(row.context),
            str(row.output_tokens),
            _three(row.first_token_s),
            _three(row.token_s),
            bandwidth(row.read_bytes_per_s),
        )
    return table


def steps_table(rows: list[StepRow], bandwidths: list[float]) -> Table:
    """Lay out the time of a step, against its floor and against half the rows."""
    title = f"one decoding step; memory read at {bandwidth(bandwidths)} GB/s"
    table = Table(title=title)
    names = ("rows", "context", "ms", "quartiles", "floor ms", "÷ floor", "÷ half the rows")
    for name in names:
        table.add_column(name, justify="right")
    times = {(row.rows, row.context): row.step_s for row in rows}
    for row in rows:
        half = times.get((row.rows // 2, row.context)) if row.rows % 2 == 0 else None
        low, high = row.quartiles
        table.add_row(
            str(row.rows),
            str(row.context),
            _ms(row.step_s),
            f"{_ms(low)} to {_ms(high)}",
            _ms(row.floor_s),
            f"{row.step_s / row.floor_s:.2f}",
            _NONE if half is None else f"{row.step_s / half:.2f}",
        )
    return table


def lines_table(lines: list[Line]) -> Table:
    """Lay out how well a straight line describes step time over context."""
    table = Table(title="step time over context, as a straight line")
    for name in ("rows", "fixed ms", "µs a token of context", "worst point off by %"):
        table.add_column(name, justify="right")
    for line in lines:
        table.add_row(
            str(line.rows),
            _ms(line.fixed_s),
            f"{1e6 * line.per_token_s:.4f}",
            f"{100 * line.worst:.1f}",
        )
    return table


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.2f}"


def _three(times: Percentiles) -> str:
    return ", ".join(f"{1e3 * value:.1f}" for value in (times.median, times.p90, times.p99))
