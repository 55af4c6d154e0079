"""Tables of single kernels, against what memory and arithmetic allow."""

from __future__ import annotations

from rich.table import Table

from octavo.bench.kernels import AttentionRow, LinearRow
from octavo.bench.show_speed import bandwidth

_NONE = "–"  # noqa: RUF001 (a dash)


def machine_table(read_bytes_per_s: list[float], peaks: dict[str, float], isa: str) -> Table:
    """Lay out what no kernel can beat; reads are those before and after."""
    table = Table(title="what memory and arithmetic allow")
    table.add_column("instructions")
    names = ("GB/s read", *(f"{name}, Gop/s" for name in peaks))
    for name in names:
        table.add_column(name, justify="right")
    table.add_row(isa, bandwidth(read_bytes_per_s), *(f"{x / 1e9:,.0f}" for x in peaks.values()))
    return table


def linear_table(rows: list[LinearRow]) -> Table:
    """Lay out the linear layers of each format: all layers, and the head."""
    table = Table(title="linear layers of one step: milliseconds, floor, share of it reached")
    table.add_column("format")
    names = ("rows", "layers", "floor", "of", "%", "head", "floor", "of", "%")
    for name in names:
        table.add_column(name, justify="right")
    found = {(row.format, row.part, row.rows): row for row in rows}
    for name in dict.fromkeys(row.format for row in rows):
        for count in dict.fromkeys(row.rows for row in rows):
            cells = (_linear_cells(found[name, part, count]) for part in ("layers", "head"))
            table.add_row(name, str(count), *(cell for part in cells for cell in part))
        table.add_section()
    return table


def decode_table(rows: list[AttentionRow]) -> Table:
    """Lay out decoding from blocks, and without them."""
    table = Table(title="decode attention, one layer")
    for name in ("sequences", "context", "KV", "µs", "GB/s", "% of read", "goal", "met", "price %"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.kind != "decode":
            continue
        table.add_row(
            str(row.sequences),
            str(row.context),
            row.layout,
            f"{1e6 * row.seconds:,.0f}",
            f"{row.bytes_per_s / 1e9:.1f}",
            f"{100 * row.share_of_read:.0f}",
            _NONE if row.goal is None else f"{100 * row.goal:.0f}",
            {True: "yes", False: "no", None: _NONE}[row.met],
            _price(row),
        )
    return table


def prefill_table(rows: list[AttentionRow]) -> Table:
    """Lay out the attention of prompts from blocks, and without them."""
    table = Table(title="attention of a prompt, one layer")
    for name in ("tokens", "KV", "ms", "GFLOP/s", "% of peak", "price %"):
        table.add_column(name, justify="right")
    for row in rows:
        if row.kind == "prefill":
            table.add_row(
                str(row.context),
                row.layout,
                f"{1e3 * row.seconds:.2f}",
                f"{row.operations_per_s / 1e9:,.0f}",
                f"{100 * row.reached:.0f}",
                _price(row),
            )
    return table


def prefix_table(rows: list[AttentionRow]) -> Table:
    """Lay out decoding with a prefix that all sequences share, and without."""
    table = Table(title="decode attention, one layer, of sequences with one prefix")
    for name in ("sequences", "context", "blocks", "KV MB", "µs", "% of floor", "× faster"):  # noqa: RUF001
        table.add_column(name, justify="right")
    for row in rows:
        if row.kind == "prefix":
            table.add_row(
                str(row.sequences),
                str(row.context),
                row.layout,
                f"{row.kv_bytes / 1e6:.1f}",
                f"{1e6 * row.seconds:,.0f}",
                f"{100 * row.reached:.0f}",
                f"{1 / row.times_baseline:.2f}",
            )
    return table


def _linear_cells(row: LinearRow) -> tuple[str, str, str, str]:
    floor = max(row.byte_floor_s, row.arithmetic_floor_s)
    bound = "bytes" if row.byte_floor_s >= row.arithmetic_floor_s else "arithmetic"
    return f"{1e3 * row.seconds:.2f}", f"{1e3 * floor:.2f}", bound, f"{100 * row.reached:.0f}"


def _price(row: AttentionRow) -> str:
    """Show how much longer it takes than without blocks."""
    return _NONE if row.layout == "contiguous" else f"{100 * (row.times_baseline - 1):+.1f}"
