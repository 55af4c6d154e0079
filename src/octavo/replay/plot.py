"""The picture of `octavo replay`: hit rate against capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.replay.sweep import BASELINE, ReplayRow, Sweep

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BOUND = "#333333"


def draw_hit_rates(figure: Figure, found: Sweep, title: str) -> None:
    """Draw one line per policy on an empty figure, and the endless cache and optimum above them."""
    axes = figure.subplots()
    for policy in dict.fromkeys(row.policy for row in found.rows):
        own = _ordered([row for row in found.rows if row.policy == policy])
        (line,) = axes.plot(*_points(own), marker="o", markersize=3, linewidth=1.4, label=policy)
        sure = [row for row in own if row.gain_interval is not None]
        if sure:
            axes.errorbar(
                *_points(sure), yerr=_errors(sure, found.rows), fmt="none", capsize=2,
                linewidth=1, color=line.get_color(),
            )  # fmt: skip
    best = _ordered(found.optimum)
    axes.plot(
        *_points(best), marker="s", markersize=3, linewidth=1, linestyle="--", color=_BOUND,
        label="optimum",
    )  # fmt: skip
    axes.axhline(
        100 * found.endless.hit_rate, linewidth=1, linestyle=":", color=_BOUND, label="endless"
    )
    axes.set_xscale("log")
    ticks = [100 * row.capacity_share for row in best]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel("capacity, % of the working set")
    axes.set_ylabel("% of block references that hit")
    axes.set_title(title, fontsize=10)
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(frameon=False, fontsize=8)


def _ordered(rows: list[ReplayRow]) -> list[ReplayRow]:
    return sorted(rows, key=lambda row: row.capacity_share)


def _errors(rows: list[ReplayRow], all_rows: list[ReplayRow]) -> list[list[float]]:
    """Return how far below and above each point the limits of its gain on the baseline lie."""
    base = {row.capacity_blocks: row.hit_rate for row in all_rows if row.policy == BASELINE}
    below: list[float] = []
    above: list[float] = []
    for row in rows:
        assert row.gain_interval is not None
        low, high = (base[row.capacity_blocks] + limit for limit in row.gain_interval)
        below.append(max(0.0, 100 * (row.hit_rate - low)))
        above.append(max(0.0, 100 * (high - row.hit_rate)))
    return [below, above]


def _points(rows: list[ReplayRow]) -> tuple[list[float], list[float]]:
    return [100 * row.capacity_share for row in rows], [100 * row.hit_rate for row in rows]
