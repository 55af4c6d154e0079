"""Pictures of a load; they need matplotlib, the extra `octavo[plot]`."""

from __future__ import annotations

from pathlib import Path

from octavo.bench.plot import new_figure, save_figure
from octavo.bench.serve.curve import UserRow
from octavo.bench.serve.load import Run

_BLUE, _RED = "#2a6f97", "#e76f51"


def plot_users(rows: list[UserRow], path: Path) -> None:
    """Draw tokens a second of one user against those of all."""
    figure = new_figure(6.0, 4.2)
    axes = figure.subplots()
    known = [row for row in rows if row.tokens_per_second_per_user]
    ones = [row.tokens_per_second_per_user or 0.0 for row in known]
    every = [row.output_throughput for row in known]
    axes.plot(ones, every, marker="o", markersize=4, linewidth=1.4, color=_BLUE)
    for one, all_, row in zip(ones, every, known, strict=True):
        axes.annotate(
            str(row.max_concurrency), (one, all_), fontsize=8,
            textcoords="offset points", xytext=(5, 4),
        )  # fmt: skip
    axes.set_xlabel("tokens a second of one user")
    axes.set_ylabel("tokens a second of all")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, linewidth=0.3)
    save_figure(figure, path)


def plot_run(run: Run, path: Path) -> None:
    """Draw how the times to the first and to the next token spread, and the first over time."""
    good = [one for one in run.outcomes if not one.error and one.first_s is not None]
    first = [1000 * one.ttft_s for one in good]
    following = [1000 * gap for one in good for gap in one.gaps_s]
    figure = new_figure(10.0, 3.8)
    spread, over_time = figure.subplots(1, 2)
    for values, label, colour in (
        (first, "to the first token", _BLUE),
        (following, "to the next", _RED),
    ):
        ordered = sorted(values)
        shares = [100 * (place + 1) / len(ordered) for place in range(len(ordered))]
        spread.plot(ordered, shares, label=label, color=colour, linewidth=1.4)
    spread.set_xscale("log")
    spread.set_xlabel("milliseconds")
    spread.set_ylabel("% that wait no longer")
    spread.grid(visible=True, linewidth=0.3)
    spread.legend(frameon=False, fontsize=8)
    starts = [one.start_s - run.start_s for one in good]
    over_time.scatter(starts, first, s=9, color=_BLUE)
    over_time.set_xlabel("sent after so many seconds")
    over_time.set_ylabel("milliseconds to the first token")
    over_time.set_ylim(bottom=0)
    over_time.grid(visible=True, linewidth=0.3)
    save_figure(figure, path)
