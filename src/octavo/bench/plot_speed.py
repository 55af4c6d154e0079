"""Pictures of speed; they need matplotlib, the extra `octavo[plot]`."""

from __future__ import annotations

from pathlib import Path

from octavo.bench.peers import MatchRow
from octavo.bench.plot import new_figure, save_figure
from octavo.bench.steps import Line, StepRow
from octavo.bench.throughput import ThroughputRow

_COLOURS = {"octavo": "#2a6f97", "llamacpp": "#e9c46a", "openvino": "#e76f51", "vllm": "#8d99ae"}


def plot_throughput(rows: list[ThroughputRow], path: Path) -> None:
    """Draw one bar per work, with the range of its rounds."""
    figure = new_figure(max(5.0, 1.0 * len(rows) + 1.5), 3.8)
    axes = figure.subplots()
    heights = [row.tokens_per_s for row in rows]
    low = [row.tokens_per_s - row.slowest for row in rows]
    high = [row.fastest - row.tokens_per_s for row in rows]
    names = [f"{row.work}\n{row.counts}" for row in rows]
    bars = axes.bar(names, heights, yerr=(low, high), width=0.6, color=_COLOURS["octavo"])
    axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_ylabel("tokens a second")
    save_figure(figure, path)


def plot_peers(rows: list[MatchRow], path: Path) -> None:
    """Draw each engine's speed as a multiple of the best peer's, one group of bars per match."""
    figure = new_figure(max(6.0, 1.3 * len(rows) + 1.5), 4.0)
    axes = figure.subplots()
    engines = list(dict.fromkeys(speed.engine for row in rows for speed in row.speeds))
    width = 0.8 / len(engines)
    for number, engine in enumerate(engines):
        places, heights = list[float](), list[float]()
        for place, row in enumerate(rows):
            speeds = {speed.engine: speed.tokens_per_s for speed in row.speeds}
            if engine in speeds and row.best_peer is not None:
                places.append(place + (number - (len(engines) - 1) / 2) * width)
                heights.append(speeds[engine] / speeds[row.best_peer])
        colour = _COLOURS.get(engine)
        bars = axes.bar(places, heights, width=width, label=engine, color=colour)
        axes.bar_label(bars, fmt="{:.1f}", fontsize=7)
    for place, row in enumerate(rows):
        axes.hlines(row.goal, place - 0.42, place + 0.42, color="#333333", linestyle="--")
    axes.set_xticks(range(len(rows)), [row.match for row in rows], fontsize=8)
    axes.set_ylabel("speed ÷ that of the best other engine (dashed: goal)")
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


def plot_steps(rows: list[StepRow], lines: list[Line], path: Path) -> None:
    """Draw step time over rows, one line per context, and over context, one line per rows."""
    figure = new_figure(10.0, 4.2)
    by_rows, by_context = figure.subplots(1, 2)
    for context in dict.fromkeys(row.context for row in rows):
        own = [row for row in rows if row.context == context]
        counts, times = [row.rows for row in own], [1e3 * row.step_s for row in own]
        by_rows.plot(counts, times, marker="o", markersize=3, label=f"{context} tokens")
    by_rows.set_xscale("log", base=2)
    by_rows.set_yscale("log", base=2)
    by_rows.set_xlabel("sequences")
    fitted = {line.rows: line for line in lines}
    for count in dict.fromkeys(row.rows for row in rows):
        own = [row for row in rows if row.rows == count]
        contexts, times = [row.context for row in own], [1e3 * row.step_s for row in own]
        (drawn,) = by_context.plot(
            contexts, times, marker="o", markersize=3, linewidth=0, label=f"{count} rows"
        )  # fmt: skip
        if count in fitted:
            line = fitted[count]
            ends = [0, contexts[-1]]
            heights = [1e3 * (line.fixed_s + count * line.per_token_s * end) for end in ends]
            by_context.plot(ends, heights, linewidth=1, color=drawn.get_color())
    by_context.set_yscale("log")
    by_context.set_xlabel("tokens of context; lines: fitted")
    for axes in (by_rows, by_context):
        axes.set_ylabel("milliseconds a step")
        axes.grid(visible=True, linewidth=0.3)
        axes.legend(frameon=False, fontsize=7)
    save_figure(figure, path)
