"""Tables of `octavo bench sharing`, for people."""

from __future__ import annotations

from rich.table import Table

from octavo.bench.resubmit import Timing
from octavo.bench.sharing import Run, SharingRow

_NONE = "–"  # noqa: RUF001 (a dash)


def sharing_table(rows: list[SharingRow]) -> Table:
    """Lay out what was shared; blocks are means over steps."""
    table = Table(title="KV blocks held, averaged over steps")
    table.add_column("workload")
    table.add_column("method")
    for name in ("n or width", "prompts", "logical", "physical", "saved %", "±", "step by step %"):
        table.add_column(name, justify="right")
    for name in ("one prompt: least %", "median %", "most %", "ms per step"):
        table.add_column(name, justify="right")
    for row in rows:
        spread = row.requests_saved_share
        table.add_row(
            row.workload,
            row.method,
            str(row.n_or_width),
            str(row.requests),
            f"{row.logical_blocks:.1f}",
            f"{row.physical_blocks:.1f}",
            _percent(row.blocks_saved_share),
            _NONE if row.blocks_saved_error is None else _percent(row.blocks_saved_error),
            _percent(row.mean_step_share),
            *map(_percent, (spread.lowest, spread.median, spread.highest)),
            _NONE if row.step_s is None else f"{1000 * row.step_s:.1f}",
        )
    return table


def runs_table(runs: list[Run]) -> Table:
    """Lay out what computing it took."""
    table = Table(title="computed in one batch")
    table.add_column("workload")
    for name in ("mean prompt", "mean answer", "seconds", "CPU seconds", "steps", "output tokens"):
        table.add_column(name, justify="right")
    for name in ("copies", "preempted"):
        table.add_column(name, justify="right")
    for run in runs:
        table.add_row(
            run.workload,
            f"{run.mean_input:.2f}",
            f"{run.mean_output:.2f}",
            f"{run.seconds:.1f}",
            f"{run.cpu_seconds:.1f}",
            str(run.steps),
            str(run.output_tokens),
            str(run.copies),
            str(run.preemptions),
        )
    return table


def timing_table(timing: Timing) -> Table:
    """Lay out the ways to search, with the native one as a share of each."""
    same = "the same beams" if timing.same_beams else "NOT the same beams"
    table = Table(
        title=f"beam search, width {timing.width}, {timing.prompt_tokens} + "
        f"{timing.output_tokens} tokens: {same}"
    )
    table.add_column("way")
    for name in ("runs", "median s", "spread %", "ms per token", "steps", "computed tokens"):
        table.add_column(name, justify="right")
    for name in ("copies", "native / this"):
        table.add_column(name, justify="right")
    native = timing.ways[0].median_s
    for row in timing.ways:
        table.add_row(
            row.way,
            str(len(row.seconds)),
            f"{row.median_s:.2f}",
            _percent(row.spread),
            f"{1000 * row.token_s:.1f}",
            str(row.steps),
            str(row.computed_tokens),
            str(row.copies),
            f"{native / row.median_s:.3f}",
        )
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"
