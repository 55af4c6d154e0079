"""The table of `octavo bench prefixes`."""

from __future__ import annotations

from rich.table import Table

from octavo.bench.prefixes import PrefixFigures, SharedPrefix
from octavo.bench.show_speed import bandwidth


def prefix_table(figures: PrefixFigures, work: SharedPrefix) -> Table:
    """Lay out requests a second without and with the cache."""
    same = "the same answers" if figures.same_answers else "ANSWERS DIFFER"
    table = Table(
        title=f"{work.requests} requests, {work.shared:,} tokens in common and {work.own} own, "
        f"{work.output} out: {figures.times_as_many:.1f} times as many served, {same}; memory "
        f"read at {bandwidth(figures.read_bytes_per_s)} GB/s"
    )
    table.add_column("prefix cache")
    for name in ("requests/s", "slowest to fastest", "prompt tokens computed"):
        table.add_column(name, justify="right")
    for row in figures.rows:
        table.add_row(
            "on" if row.cache else "off",
            f"{row.requests_per_s:.2f}",
            f"{row.slowest:.2f} to {row.fastest:.2f}",
            f"{row.computed_prompt_tokens:,}",
        )
    return table
