"""Pictures of `octavo replay`: hit rates, and times in an engine, against capacity."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from octavo.replay.rows import EngineRow, HitRow, ReplayRow
from octavo.replay.sweep import BASELINE, EngineSweep, Sweep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BOUND = "#333333"


def draw_hit_rates(figure: Figure, found: Sweep, title: str) -> None:
    """Draw one line per policy on an empty figure, and the endless cache and optimum above them."""
    axes = figure.subplots()
    colors = _draw_rates(axes, found)
    for policy, color in colors.items():
        sure = [row for row in _of(found.rows, policy) if row.gain_interval is not None]
        if sure:
            axes.errorbar(
                *_points(sure), yerr=_errors(sure, found.rows), fmt="none", capsize=2,
                linewidth=1, color=color,
            )  # fmt: skip
    axes.set_title(title, fontsize=10)
    axes.legend(frameon=False, fontsize=8)


def draw_engine(figure: Figure, found: EngineSweep, title: str) -> None:
    """Draw hit rates, and beside them the time to the first token: median and 90th percentile."""
    rates, times = figure.subplots(1, 2)
    _draw_rates(rates, found)
    for policy in _policies(found.rows):
        own = [row for row in _of(found.rows, policy) if row.first_token_s is not None]
        shares = [100 * row.capacity_share for row in own]
        (line,) = times.plot(
            shares, [_time(row, "p50") for row in own], marker="o", markersize=3, label=policy
        )
        times.plot(
            shares, [_time(row, "p90") for row in own], marker="^", markersize=3,
            linestyle="--", linewidth=1, color=line.get_color(),
        )  # fmt: skip
    _capacities(times, found.optimum)
    times.set_ylim(bottom=0)
    times.set_ylabel("seconds to the first token: median, dashed 90 %")
    figure.suptitle(title, fontsize=10)
    rates.legend(frameon=False, fontsize=8)


def _draw_rates(axes: Axes, found: Sweep | EngineSweep) -> dict[str, object]:
    """Draw hit rates and bounds; returns the color of each policy."""
    colors: dict[str, object] = {}
    for policy in _policies(found.rows):
        points = _points(_of(found.rows, policy))
        (line,) = axes.plot(*points, marker="o", markersize=3, linewidth=1.4, label=policy)
        colors[policy] = line.get_color()
    axes.plot(
        *_points(_ordered(found.optimum)), marker="s", markersize=3, linewidth=1,
        linestyle="--", color=_BOUND, label="optimum",
    )  # fmt: skip
    axes.axhline(
        100 * found.endless.hit_rate, linewidth=1, linestyle=":", color=_BOUND, label="endless"
    )
    _capacities(axes, found.optimum)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("% of block references that hit")
    return colors


def _capacities(axes: Axes, rows: Iterable[HitRow]) -> None:
    axes.set_xscale("log")
    ticks = [100 * row.capacity_share for row in _ordered(rows)]
    axes.set_xticks(ticks, [f"{tick:.3g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("capacity, % of the working set")
    axes.grid(visible=True, linewidth=0.3)


def _policies(rows: Iterable[HitRow]) -> list[str]:
    return list(dict.fromkeys(row.policy for row in rows))


_Row = TypeVar("_Row", bound=HitRow)


def _of(rows: Iterable[_Row], policy: str) -> list[_Row]:
    return _ordered([row for row in rows if row.policy == policy])


def _ordered(rows: Iterable[_Row]) -> list[_Row]:
    return sorted(rows, key=lambda row: row.capacity_share)


def _errors(rows: list[ReplayRow], all_rows: list[ReplayRow]) -> list[list[float]]:
    """Return how far below and above each point the limits of its gain on the baseline lie."""
    base = {row.capacity_blocks: row.hit_rate for row in all_rows if row.policy == BASELINE}
    below: list[float] = []
    above: list[float] = []
    for row in rows:
        assert row.gain_interval is not None, f"{row.policy} has no interval"
        low, high = (base[row.capacity_blocks] + limit for limit in row.gain_interval)
        below.append(max(0.0, 100 * (row.hit_rate - low)))
        above.append(max(0.0, 100 * (high - row.hit_rate)))
    return [below, above]


def _points(rows: Iterable[HitRow]) -> tuple[list[float], list[float]]:
    return [100 * row.capacity_share for row in rows], [100 * row.hit_rate for row in rows]


def _time(row: EngineRow, which: str) -> float:
    return getattr(row.first_token_s, which)
