"""Pictures of the tables; needs matplotlib, the extra `octavo[plot]`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.bench.curve import CurveRow
from octavo.bench.memory import MemoryRow
from octavo.bench.sharing import Curve, SharingRow
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_KINDS = (".png", ".svg", ".pdf")
_DPI = 110
_SHARES = (
    ("token_share", "tokens", "#2a6f97"),
    ("reserved_share", "reserved, used later", "#a9d6e5"),
    ("internal_share", "reserved, never used", "#e9c46a"),
    ("external_share", "nobody's", "#d9d9d9"),
)
_NEVER_MEASURED = 1e-9


def check_plot(path: Path) -> None:
    """Raise ConfigError if a picture could not be written there; to be called before the work."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError(
            "--plot needs matplotlib, which is not installed: pip install 'octavo[plot]'"
        )
    if path.suffix not in _KINDS:
        raise ConfigError(f"--plot must name a file that ends in {', '.join(_KINDS)}, got {path}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot: there is no folder {path.parent}")


def plot_memory(rows: list[MemoryRow], path: Path) -> None:
    """Draw one stacked bar per row."""
    several_n = len({row.n for row in rows}) > 1
    labels = [_label(row, several_n=several_n) for row in rows]
    figure = new_figure(max(6.0, 0.85 * len(rows) + 2.5), 4.2)
    axes = figure.subplots()
    floor = [0.0] * len(rows)
    for field, name, colour in _SHARES:
        heights = [100 * getattr(row, field) for row in rows]
        axes.bar(labels, heights, bottom=floor, label=name, color=colour, width=0.7)
        floor = [low + height for low, height in zip(floor, heights, strict=True)]
    for place, row in enumerate(rows):
        axes.text(
            place, 100 * row.token_share / 2, f"{100 * row.token_share:.1f}",
            ha="center", va="center", color="white", fontsize=9,
        )  # fmt: skip
    axes.set_ylabel("% of the KV pool")
    axes.set_ylim(0, 100)
    axes.tick_params(axis="x", labelsize=8)
    figure.legend(loc="outside upper center", ncols=4, fontsize=8, frameon=False)
    save_figure(figure, path)


def plot_curve(rows: list[CurveRow], path: Path, *, bound_s: float) -> None:
    """Draw one line per rule, latency up to four times the bound."""
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    for name in dict.fromkeys(row.reservation for row in rows):
        own = sorted((r for r in rows if r.reservation == name), key=lambda row: row.rate_per_s)
        axes.plot(
            [row.rate_per_s for row in own],
            [row.normalized_latency_s for row in own],
            marker="o", markersize=3, linewidth=1.4, label=name,
        )  # fmt: skip
    axes.axhline(bound_s, color="#888888", linewidth=0.8, linestyle="--")
    axes.set_ylim(0, 4 * bound_s)
    fast = [row.rate_per_s for row in rows if row.normalized_latency_s <= 4 * bound_s]
    axes.set_xlim(0, 1.15 * max(fast, default=_NEVER_MEASURED))
    axes.set_xlabel("requests a second")
    axes.set_ylabel("seconds per output token")
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(frameon=False)
    save_figure(figure, path)


def plot_rates(rates: Iterable[tuple[str, float]], path: Path) -> None:
    """Draw one bar per rule: output tokens a second of a real engine."""
    figure = new_figure(4.8, 3.6)
    axes = figure.subplots()
    for name, rate in rates:
        bars = axes.bar([name], [rate], width=0.6, color="#2a6f97")
        axes.bar_label(bars, fmt="%.1f")
    axes.set_ylabel("output tokens a second")
    save_figure(figure, path)


_METHODS = {"samples": "#2a6f97", "beams": "#e76f51"}


def plot_sharing(rows: list[SharingRow], curves: list[Curve], path: Path) -> None:
    """Draw the blocks over the steps, widest setting of each method, and the shares as bars."""
    workloads = list(dict.fromkeys(row.workload for row in rows))
    figure = new_figure(4.2 * (len(workloads) + 1) + 1, 4.0)
    *panels, bars = figure.subplots(1, len(workloads) + 1, squeeze=False)[0]
    for axes, workload in zip(panels, workloads, strict=True):
        widest = {c.method: c for c in curves if c.workload == workload}
        for method, curve in widest.items():
            steps = [curve.every * place for place in range(len(curve.logical))]
            label, colour = f"{method}, {curve.n_or_width}", _METHODS[method]
            axes.plot(steps, curve.logical, color=colour, linestyle="--", linewidth=1)
            axes.plot(steps, curve.physical, color=colour, label=label, linewidth=1.6)
        axes.set_title(workload, fontsize=10)
        axes.set_xlabel("step")
        axes.set_ylabel("blocks: logical (dashed), physical")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, fontsize=8)
    labels = [f"{row.workload.partition('-')[0]}\n{row.method} {row.n_or_width}" for row in rows]
    shares = [100 * row.blocks_saved_share for row in rows]
    errors = [100 * (row.blocks_saved_error or 0.0) for row in rows]
    colours = [_METHODS[row.method] for row in rows]
    places = list(range(len(rows)))
    bars.barh(places, shares, xerr=errors, color=colours, height=0.7)
    bars.set_yticks(places, labels, fontsize=7)
    bars.invert_yaxis()
    bars.set_xlim(0, 100)
    bars.set_xlabel("blocks saved, % of logical")
    save_figure(figure, path)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty picture of so many inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def _label(row: MemoryRow, *, several_n: bool) -> str:
    label = row.reservation.replace("on_demand", "on demand")
    if row.block_size is not None:
        label += f"\nblock {row.block_size}"
    return f"{label}\nn = {row.n}" if several_n else label


def save_figure(figure: Figure, path: Path) -> None:
    """Write a picture. Raises ConfigError if it cannot be written."""
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from None
