"""Tables for people."""

from __future__ import annotations

from rich.table import Table

from octavo.bench.curve import CurveRow, Sustained
from octavo.bench.memory import MemoryRow
from octavo.bench.real import RealRow


def memory_table(rows: list[MemoryRow]) -> Table:
    """Lay out what the pool held, in per cent of it."""
    table = Table(title="what the KV pool holds while requests wait")
    table.add_column("reservation")
    for name in ("block", "n", "tokens %", "reserved %", "internal %", "external %"):
        table.add_column(name, justify="right")
    for name in ("of allocated %", "mean batch", "max", "saved %", "preempted", "completed"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.reservation,
            "–" if row.block_size is None else str(row.block_size),  # noqa: RUF001 (a dash)
            str(row.n),
            _percent(row.token_share),
            _percent(row.reserved_share),
            _percent(row.internal_share),
            _percent(row.external_share),
            _percent(row.token_share_of_allocated),
            f"{row.mean_batch:.2f}",
            str(row.max_batch),
            _percent(row.blocks_saved_share),
            str(row.preemptions),
            str(row.completed),
        )
    return table


def curve_table(rows: list[CurveRow]) -> Table:
    """Lay out latency against load."""
    table = Table(title="latency against load, simulated clock")
    table.add_column("reservation")
    for name in ("requests/s", "s per output token", "mean batch", "preempted", "completed"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.reservation,
            f"{row.rate_per_s:.3f}",
            f"{row.normalized_latency_s:.4f}",
            f"{row.mean_batch:.2f}",
            str(row.preemptions),
            str(row.completed),
        )
    return table


def sustained_table(sustained: list[Sustained], bound_s: float | None) -> Table:
    """Lay out the sustained rates, and each as a multiple of the lowest."""
    title = "sustained load" if bound_s is None else f"load sustained at {bound_s:g} s per token"
    table = Table(title=title)
    table.add_column("reservation")
    table.add_column("requests/s", justify="right")
    table.add_column("× lowest", justify="right")  # noqa: RUF001 (a multiplication sign)
    lowest = min((row.rate_per_s for row in sustained), default=0.0)
    for row in sustained:
        ratio = f"{row.rate_per_s / lowest:.2f}" if lowest else "–"  # noqa: RUF001
        table.add_row(row.reservation, f"{row.rate_per_s:.3f}", ratio)
    return table


def real_table(rows: list[RealRow]) -> Table:
    """Lay out what a real engine did."""
    table = Table(title="a real model with a full queue")
    table.add_column("reservation")
    for name in ("seconds", "output tokens/s", "s per output token", "mean batch", "preempted"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(
            row.reservation,
            f"{row.seconds:.1f}",
            f"{row.output_tokens_per_s:.1f}",
            f"{row.normalized_latency_s:.3f}",
            f"{row.mean_batch:.2f}",
            str(row.preemptions),
        )
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.2f}"
