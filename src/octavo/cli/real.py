"""`octavo bench curve --real`: the comparison on a model that really runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from octavo.cli import bench as options
from octavo.cli.output import note, print_json
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.pool import PoolShape
    from octavo.bench.real import RealRow
    from octavo.bench.workload import Workload
    from octavo.executors.choice import Choice
    from octavo.memory.reservation import Reservation

_TEXTS = 7
"""The pool has room for so many longest texts."""
_BLOCK_SIZE = 16
_MAX_SEQS = 128
_STEP_TOKENS = 2048


@dataclass(frozen=True, slots=True)
class RealSetting:
    """What is the same for every rule."""

    path: Path
    longest: int
    """Longest text, in tokens."""
    device: str
    backend: str
    seconds: float
    """Measured for each rule."""


def choose_length(path: Path, wanted: int | None) -> int:
    """Return the longest text to run; None: the usual one, or the model's context if smaller.

    Raises ConfigError if the model's context is shorter than what is wanted.
    """
    from octavo.models.checkpoint import open_checkpoint

    context = open_checkpoint(path).spec.context
    if wanted is None:
        if context < options.LONGEST:
            note(
                f"octavo: texts are up to {context} tokens, the context of {path.name}; "
                "--max-length chooses another length"
            )
        return min(options.LONGEST, context)
    if not 2 <= wanted <= context:
        raise ConfigError(
            f"--max-length must be from 2 to {context}, the context of {path.name}, got {wanted}"
        )
    return wanted


def curve_real(
    rules: list[Reservation],
    work: Workload,
    setting: RealSetting,
    plot: Path | None,
    *,
    json: bool,
) -> None:
    """Run a model under each rule for some time, with a full queue, and print what it did."""
    from octavo.bench.curve import Sustained
    from octavo.bench.plot import plot_rates
    from octavo.bench.show import real_table, sustained_table
    from octavo.build import choose_executor
    from octavo.config import EngineConfig
    from octavo.progress import work_bar

    config = EngineConfig(
        model=str(setting.path),
        device=setting.device,
        backend=setting.backend,
        block_size=_BLOCK_SIZE,
    )
    choice = choose_executor(config)
    pool = _pool(setting, choice)
    with work_bar("seconds", 2 * len(rules) * setting.seconds) as advance:
        rows = [_run(rule, setting, pool, work, advance) for rule in rules]
    sustained = [Sustained(row.reservation, row.rate_per_s) for row in rows]
    if plot is not None:
        plot_rates([(row.reservation, row.output_tokens_per_s) for row in rows], plot)
    if not json:
        options.print_tables(real_table(rows), sustained_table(sustained, None))
        return
    settings = options.shape_keys(pool, rules, options.step_limits(_MAX_SEQS, _STEP_TOKENS))
    settings |= {"real": True, "model": setting.path.name, "block_size": _BLOCK_SIZE}
    settings |= {"seconds": setting.seconds, "device": setting.device, "backend": choice.backend}
    payload: dict[str, object] = {
        "pool": pool.keys(),
        "workload": work.keys("a full queue"),
        "cost_model": None,
        "rows": rows,
        "sustained": sustained,
    }
    print_json("octavo.bench.curve/1", settings, payload)


def _pool(setting: RealSetting, choice: Choice) -> PoolShape:
    from octavo.bench.pool import PoolShape

    layout = choice.layout
    group, *others = layout.groups
    if others:
        raise ConfigError(
            f"{setting.path.name} has layers with a window, and the rules to compare know one kind "
            "of layer: give --model one without windows"
        )
    text_blocks = layout.peak_blocks(setting.longest, _STEP_TOKENS)
    return PoolShape(
        num_bytes=_TEXTS * text_blocks * layout.block_bytes,
        layers=len(group.layers),
        kv_heads=group.kv_heads,
        head_dim=group.head_dim,
        dtype=layout.dtype,
        max_length=setting.longest,
    )


def _run(
    rule: Reservation,
    setting: RealSetting,
    pool: PoolShape,
    work: Workload,
    advance: Callable[[float], None],
) -> RealRow:
    from octavo.bench.memory import measure
    from octavo.bench.real import run_real
    from octavo.build import build_engine
    from octavo.config import EngineConfig

    limits = options.step_limits(_MAX_SEQS, _STEP_TOKENS)
    config = EngineConfig(
        model=str(setting.path),
        device=setting.device,
        backend=setting.backend,
        block_size=_BLOCK_SIZE,
        kv_cache_memory_bytes=pool.num_bytes,
        max_num_seqs=_MAX_SEQS,
        max_num_batched_tokens=_STEP_TOKENS,
        max_model_len=setting.longest,
        reservation=rule.name,
    )
    expected = measure(rule, pool, work, block_size=_BLOCK_SIZE, limits=limits)
    built = build_engine(config, report=note)
    try:
        return run_real(
            rule.name,
            built.engine,
            work,
            in_the_middle=round(expected.mean_batch),
            vocab_size=built.spec.vocab_size,
            seconds=setting.seconds,
            clock=time.monotonic,
            advance=advance,
        )
    finally:
        built.engine.close()
