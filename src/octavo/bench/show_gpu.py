"""The table of what an engine does with the works of a GPU."""

from __future__ import annotations

from rich.table import Table

from octavo.bench.gpu_goals import PEER, SOURCE, StartGoal
from octavo.bench.throughput import ThroughputRow

_NONE = "–"  # noqa: RUF001 (a dash)
_SHOWN = {
    "seconds": ("{:,.3f}", "s"),
    "output_tokens_per_s": ("{:,.0f}", "output tokens/s"),
    "total_tokens_per_s": ("{:,.0f}", "tokens/s"),
}
"""By measure, how its values are written, and what they are of."""


def gpu_table(rows: list[ThroughputRow]) -> Table:
    """Lay out seconds and speeds at each work, beside the other engine's and the goals."""
    judged = any(row.goal is not None for row in rows)
    caption = f"{PEER}: {SOURCE}" if judged else None
    table = Table(
        title="one engine, dummy weights, greedy answers of fixed length", caption=caption
    )
    table.add_column("work")
    names = ["seconds", "fastest to slowest", "output tokens/s", "with prompts, tokens/s"]
    for name in (*names, *((PEER, "goal", "met") if judged else ())):
        table.add_column(name, justify="right")
    for row in rows:
        cells = [
            f"{row.median_s:.3f}",
            f"{min(row.seconds):.3f} to {max(row.seconds):.3f}",
            f"{row.output_tokens_per_s:,.0f}",
            f"{row.total_tokens_per_s:,.0f}",
        ]
        table.add_row(row.work, *cells, *(_judgement(row) if judged else ()))
    return table


def start_line(start_s: float | None, goal: StartGoal | None) -> str:
    """Say how long the engine took to start, and what was wanted."""
    if start_s is None:
        return "engine started: nobody can tell when"
    found = f"engine started: {start_s:.1f} s after the process"
    if goal is None:
        return found
    return (
        f"{found} ({goal.engine}: {goal.peer_s:g} s after its imports; goal: {goal.warm_s:g} s, or "
        f"{goal.cold_s:g} s where kernels have to be compiled; met: {goal.met_by(start_s)})"
    )


def _judgement(row: ThroughputRow) -> tuple[str, str, str]:
    if row.peer is None or row.goal is None:
        return _NONE, _NONE, _NONE
    form, unit = _SHOWN[row.goal.measure]
    peer = form.format(getattr(row.peer, row.goal.measure))
    sign = "≤" if row.goal.is_met_below else "≥"
    goal = f"{sign} {form.format(row.goal.value)} {unit}"
    return f"{peer} {unit}", goal, "yes" if row.met else "no"
