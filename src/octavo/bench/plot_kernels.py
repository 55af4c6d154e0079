"""Pictures of single kernels; they need matplotlib, the extra `octavo[plot]`."""

from __future__ import annotations

from pathlib import Path

from octavo.bench.kernels import LAYOUTS, AttentionRow, LinearRow
from octavo.bench.plot import new_figure, save_figure

_COLOURS = {"shuffled": "#2a6f97", "ascending": "#a9d6e5", "contiguous": "#e9c46a"}


def plot_kernels(linear: list[LinearRow], attention: list[AttentionRow], path: Path) -> None:
    """Draw how near formats come to their floors, and decoding to the read bandwidth."""
    figure = new_figure(10.5, 4.2)
    formats, decode = figure.subplots(1, 2)
    for name in dict.fromkeys(row.format for row in linear):
        own = [row for row in linear if row.format == name and row.part == "layers"]
        counts, shares = [row.rows for row in own], [100 * row.reached for row in own]
        formats.plot(counts, shares, marker="o", markersize=3, linewidth=1.2, label=name)
    formats.set_xscale("log", base=2)
    formats.set_xlabel("rows")
    formats.set_ylabel("linear layers: % of the larger floor")
    cases = [row for row in attention if row.kind == "decode"]
    names = list(dict.fromkeys((row.sequences, row.context) for row in cases))
    width = 0.8 / len(LAYOUTS)
    for number, layout in enumerate(LAYOUTS):
        own = {(r.sequences, r.context): r for r in cases if r.layout == layout}
        places = [place + (number - 1) * width for place in range(len(names))]
        shares = [100 * own[name].share_of_read for name in names]
        bars = decode.bar(places, shares, width=width, label=layout, color=_COLOURS[layout])
        decode.bar_label(bars, fmt="{:.0f}", fontsize=7)
    labels = [f"{sequences} of {context}" for sequences, context in names]
    decode.set_xticks(range(len(names)), labels, fontsize=8)
    decode.set_ylabel("decode attention: % of the read bandwidth")
    for axes in (formats, decode):
        axes.set_ylim(bottom=0)
        axes.grid(visible=True, axis="y", linewidth=0.3)
        axes.legend(frameon=False, fontsize=7)
    save_figure(figure, path)
