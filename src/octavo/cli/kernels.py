"""The command `octavo bench kernels`."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli import bench as options
from octavo.cli.flags import Option
from octavo.cli.output import print_json
from octavo.config import MOST_THREADS
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.kernels import AttentionRow, LinearRow

Threads = Annotated[int | None, Option(help="Default: one for each core.")]
Seconds = Annotated[float, Option(help="Spent on each time that is measured.")]

_MOST_SECONDS = 60.0


def kernels(
    threads: Threads = None,
    seconds: Seconds = 0.3,
    plot: options.Plot = None,
    json: options.Json = False,
) -> None:
    """Single native kernels against what memory and arithmetic allow, and what blocks cost.

    Linear layers in every format, attention from blocks and without, on the shape of the default
    model. Read bandwidth and arithmetic are measured in each round, beside the kernels.
    """
    from octavo.bench import kernels as bench
    from octavo.bench.floors import Gauge
    from octavo.cpu import require_native
    from octavo.executors.native import native_isa
    from octavo.machine import available_cores, free_memory_bytes
    from octavo.progress import work_bar

    options.check_plot_file(plot)
    _check(threads, seconds)
    isa = native_isa()
    plan = bench.KernelPlan()
    bench.check_memory(plan, free_memory_bytes())
    gauge = Gauge(
        require_native(),
        threads=threads or available_cores(),
        num_bytes=plan.least_bytes,
        seconds=seconds,
    )
    found = _Found(isa)
    found.read_bytes_per_s.append(gauge.best_read_bytes_per_s())
    found.peaks = gauge.peaks()
    with work_bar("kernels", bench.count_steps(gauge, plan)) as advance:
        found.linear = bench.measure_linear(gauge, plan, advance=advance)
        found.attention = bench.measure_attention(gauge, plan, advance=advance)
    found.read_bytes_per_s.append(gauge.best_read_bytes_per_s())
    _show(found, plot, threads=gauge.pool.size, seconds=seconds, json=json)


class _Found:
    """What was measured."""

    def __init__(self, isa: str) -> None:
        self.isa = isa
        self.read_bytes_per_s: list[float] = []
        self.peaks: dict[str, float] = {}
        self.linear: list[LinearRow] = []
        self.attention: list[AttentionRow] = []


def _check(threads: int | None, seconds: float) -> None:
    if threads is not None and not 1 <= threads <= MOST_THREADS:
        raise ConfigError(f"--threads must be from 1 to {MOST_THREADS}, got {threads}")
    if not 0 < seconds <= _MOST_SECONDS:
        raise ConfigError(
            f"--seconds must be above 0 and at most {_MOST_SECONDS:g}, got {seconds:g}"
        )


def _show(found: _Found, plot: Path | None, *, threads: int, seconds: float, json: bool) -> None:
    from octavo.bench import show_kernels

    if plot is not None:
        from octavo.bench.plot_kernels import plot_kernels

        plot_kernels(found.linear, found.attention, plot)
    if not json:
        options.print_tables(
            show_kernels.machine_table(found.read_bytes_per_s, found.peaks, found.isa),
            show_kernels.linear_table(found.linear),
            show_kernels.decode_table(found.attention),
            show_kernels.prefill_table(found.attention),
            show_kernels.prefix_table(found.attention),
        )
        return
    settings: dict[str, object] = {
        "threads": threads,
        "seconds": seconds,
        "python": platform.python_version(),
    }
    payload: dict[str, object] = {
        "isa": found.isa,
        "read_bytes_per_s": found.read_bytes_per_s,
        "operations_per_s": found.peaks,
        "linear": found.linear,
        "attention": found.attention,
    }
    print_json("octavo.bench.kernels/1", settings, payload)
