"""`octavo bench curve --real`: the comparison on a model that really runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from octavo import cli_bench as options

if TYPE_CHECKING:
    from octavo.bench.pool import PoolShape
    from octavo.bench.real import RealRow
    from octavo.bench.workload import Workload
    from octavo.memory.reservation import Reservation

LONGEST = 2048
"""Longest text, in tokens."""
_TEXTS = 7
"""The pool has room for so many longest texts."""
_BLOCK_SIZE = 16
_MAX_SEQS = 128


def curve_real(
    rules: list[Reservation],
    work: Workload,
    model: str | None,
    seconds: float,
    plot: Path | None,
    *,
    json: bool,
) -> None:
    """Run a model under each rule for some time, with a full queue, and print what it did."""
    from octavo.bench.curve import Sustained
    from octavo.bench.plot import plot_rates
    from octavo.bench.show import real_table, sustained_table
    from octavo.build import resolve_model
    from octavo.progress import work_bar

    path = resolve_model(model, offline=False, report=lambda text: typer.echo(text, err=True))
    pool = _pool(path)
    with work_bar("seconds", 2 * len(rules) * seconds) as advance:
        rows = [_run(rule, path, pool, work, seconds, advance) for rule in rules]
    sustained = [Sustained(row.reservation, row.rate_per_s) for row in rows]
    if plot is not None:
        plot_rates([(row.reservation, row.output_tokens_per_s) for row in rows], plot)
    if not json:
        options.print_tables(real_table(rows), sustained_table(sustained, None))
        return
    settings = options.shape_keys(pool, rules, options.step_limits(_MAX_SEQS, LONGEST))
    settings |= {"real": True, "model": path.name, "block_size": _BLOCK_SIZE, "seconds": seconds}
    settings |= {"torch": version("torch")}
    payload: dict[str, object] = {
        "pool": pool.keys(),
        "workload": work.keys("a full queue"),
        "cost_model": None,
        "rows": rows,
        "sustained": sustained,
    }
    options.print_json("octavo.bench.curve/1", settings, payload)


def _pool(path: Path) -> PoolShape:
    from octavo.bench.pool import PoolShape
    from octavo.contract.layout import kv_layout
    from octavo.models.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    layout = kv_layout(checkpoint.spec, block_size=_BLOCK_SIZE, dtype=checkpoint.dtype)
    group = layout.groups[0]
    return PoolShape(
        num_bytes=_TEXTS * LONGEST * layout.bytes_per_token,
        layers=len(group.layers),
        kv_heads=group.kv_heads,
        head_dim=group.head_dim,
        dtype=layout.dtype,
        max_length=LONGEST,
    )


def _run(
    rule: Reservation,
    path: Path,
    pool: PoolShape,
    work: Workload,
    seconds: float,
    advance: Callable[[float], None],
) -> RealRow:
    from octavo.bench.memory import measure
    from octavo.bench.real import run_real
    from octavo.build import build_engine
    from octavo.config import EngineConfig

    limits = options.step_limits(_MAX_SEQS, LONGEST)
    config = EngineConfig(
        model=str(path),
        block_size=_BLOCK_SIZE,
        kv_cache_memory_bytes=pool.num_bytes,
        max_num_seqs=_MAX_SEQS,
        max_num_batched_tokens=LONGEST,
        max_model_len=LONGEST,
        reservation=rule.name,
    )
    expected = measure(rule, pool, work, block_size=_BLOCK_SIZE, limits=limits)
    built = build_engine(config, report=lambda text: typer.echo(text, err=True))
    try:
        return run_real(
            rule.name,
            built.engine,
            work,
            in_the_middle=round(expected.mean_batch),
            vocab_size=built.spec.vocab_size,
            seconds=seconds,
            clock=time.monotonic,
            advance=advance,
        )
    finally:
        built.engine.close()
