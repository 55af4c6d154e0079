"""What each user gets against what all get, as more of them ask at once."""

from __future__ import annotations

import msgspec
from rich.table import Table

_NONE = "–"  # noqa: RUF001 (a dash)


class UserRow(msgspec.Struct, frozen=True):
    """One number of users."""

    max_concurrency: int
    output_throughput: float
    """Tokens a second of all together."""
    tokens_per_second_per_user: float | None
    """Of one of them, while it gets any: one by the median time for a token."""
    median_ttft_ms: float
    p99_ttft_ms: float
    median_tpot_ms: float
    request_goodput: float | None
    cached_prompt_share: float | None
    failed: int


def user_row(figures: dict[str, object]) -> UserRow:
    """Return the row of a run."""
    names = UserRow.__struct_fields__
    return msgspec.convert({name: figures[name] for name in names}, UserRow)


def user_table(rows: list[UserRow]) -> Table:
    """Lay the curve out."""
    table = Table(title="tokens a second of one user, and of all")
    for name in ("users", "one user", "all", "first token ms", "p99", "cached %", "failed"):
        table.add_column(name, justify="right")
    for row in rows:
        one, share = row.tokens_per_second_per_user, row.cached_prompt_share
        table.add_row(
            str(row.max_concurrency),
            _NONE if one is None else f"{one:.1f}",
            f"{row.output_throughput:.1f}",
            f"{row.median_ttft_ms:.1f}",
            f"{row.p99_ttft_ms:.1f}",
            _NONE if share is None else f"{100 * share:.1f}",
            str(row.failed),
        )
    return table
