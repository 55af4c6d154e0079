"""The command `octavo bench curve`."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli import bench as options
from octavo.cli.bench import bench
from octavo.cli.flags import Given, Option
from octavo.cli.options import BACKEND_HELP, DEVICE_HELP
from octavo.cli.output import note, print_json
from octavo.cli.pull import model_path
from octavo.errors import ConfigError
from octavo.sizes import parse_bytes, parse_counts

if TYPE_CHECKING:
    from octavo.bench.curve import CurveRow, Setting, Sustained
    from octavo.memory.reservation import Reservation

BlockSize = Annotated[int, Option(help="Tokens per block.")]
Rates = Annotated[
    str | None, Option(help="Further rates to measure, requests a second, by commas.")
]
Bound = Annotated[float, Option(help="A load is sustained up to so many seconds per output token.")]
Duration = Annotated[float, Option(help="Simulated seconds in which requests arrive.")]
MaxLength = Annotated[
    int | None,
    Option(help="Longest text; default: 2048, with --real at most the model's context."),
]
Real = Annotated[
    bool, Option("--real", help="Run a model whose pool has room for 7 longest texts.")
]
Model = Annotated[
    str | None, Option(help="For --real: a path or a known name; default: the embedded one.")
]
Device = Annotated[str, Option(help="For --real: " + DEVICE_HELP)]
Backend = Annotated[str, Option(help="For --real: " + BACKEND_HELP)]
Seconds = Annotated[float, Option(help="For --real: measured for each rule, after a warm-up.")]

_REAL_ONLY = ("model", "device", "backend", "seconds")
_SIMULATED_ONLY = (
    *("memory", "layers", "kv_heads", "head_dim", "dtype", "block_size"),
    *("max_num_seqs", "max_num_batched_tokens", "rates", "bound", "duration"),
)
_SHORTEST_S = 300.0
_REAL_RULES = "max,on_demand"
_RULES = "max,pow2,oracle,on_demand"


@bench.command()
def curve(
    given: Given = frozenset(),
    trace: options.Trace = None,
    distribution: options.Distribution = None,
    requests: options.Requests = None,
    seed: options.Seed = 0,
    memory: options.Memory = "12GiB",
    layers: options.Layers = 40,
    kv_heads: options.KVHeads = 40,
    head_dim: options.HeadDim = 128,
    dtype: options.DType = "float16",
    max_length: MaxLength = None,
    reservation: Annotated[str | None, Option(help=f"Rules, by commas; default: {_RULES}.")] = None,
    block_size: BlockSize = 16,
    max_num_seqs: options.MaxSeqs = 512,
    max_num_batched_tokens: options.StepTokens = 2048,
    rates: Rates = None,
    bound: Bound = 0.1,
    duration: Duration = 1200.0,
    real: Real = False,
    model: Model = None,
    device: Device = "auto",
    backend: Backend = "auto",
    seconds: Seconds = 120.0,
    plot: options.Plot = None,
    json: options.Json = False,
) -> None:
    """Latency against load by reservation rule, and the load that each sustains.

    Simulated with a fixed cost of a step of OPT-13B; with --real, a model whose queue is full.
    """
    from octavo.bench.curve import Setting
    from octavo.bench.pool import PoolShape

    options.check_plot_file(plot)
    _check_times(bound=bound, duration=duration, seconds=seconds)
    _check_given(given, real=real)
    rules = options.find_rules(reservation or (_REAL_RULES if real else _RULES))
    if real:
        from octavo.cli.real import RealSetting, choose_length, curve_real

        path = model_path(model)
        longest = choose_length(path, max_length)
        work = options.read_workload(trace, distribution, requests, seed, longest)
        setting = RealSetting(path, longest, device, backend, seconds)
        curve_real(rules, work, setting, plot, json=json)
        return
    parse_counts(str(block_size), name="--block-size")
    size = parse_bytes(memory, name="--memory")
    longest = options.LONGEST if max_length is None else max_length
    setting = Setting(
        pool=PoolShape(size, layers, kv_heads, head_dim, dtype, longest),
        workload=options.read_workload(trace, distribution, requests, seed, longest),
        block_size=block_size,
        limits=options.step_limits(max_num_seqs, max_num_batched_tokens),
        duration_s=duration,
        seed=seed,
    )
    _curve_simulated(rules, setting, _rates(rates), bound, plot, json=json)


def _check_times(**times: float) -> None:
    for name, value in times.items():
        if not 0 < value < math.inf:
            raise ConfigError(f"--{name} must be a positive number of seconds, got {value}")


def _check_given(given: frozenset[str], *, real: bool) -> None:
    """Raise ConfigError for an option that the chosen way of measuring would ignore."""
    for name in _SIMULATED_ONLY if real else _REAL_ONLY:
        if name not in given:
            continue
        flag = "--" + name.replace("_", "-")
        if real:
            raise ConfigError(
                f"{flag} is for the simulation, and with --real a model runs: leave one of them out"
            )
        raise ConfigError(
            f"{flag} is for --real, and without it nothing but a shape is simulated: add --real, "
            f"or leave {flag} out"
        )


def _curve_simulated(
    rules: list[Reservation],
    setting: Setting,
    rates: list[float],
    bound: float,
    plot: Path | None,
    *,
    json: bool,
) -> None:
    import msgspec

    from octavo.bench.curve import find_sustained, simulate
    from octavo.bench.plot import plot_curve
    from octavo.bench.show import curve_table, sustained_table
    from octavo.progress import work_bar

    if setting.duration_s < _SHORTEST_S:
        note(
            f"octavo: in {setting.duration_s:g} s too few requests arrive for a queue to form, so "
            f"the rates come out too high; give --duration at least {_SHORTEST_S:.0f}"
        )
    rows: list[CurveRow] = []
    sustained: list[Sustained] = []
    # How many points bisection takes is not known before: a guess that is right within a few.
    with work_bar("points", len(rules) * (12 + len(rates))) as advance:
        for rule in rules:
            best, own = find_sustained(
                rule, setting, bound_s=bound, show=lambda row: advance(1)
            )  # fmt: skip
            for rate in rates:
                own.append(simulate(rule, rate, setting))
                advance(1)
            rows += sorted(own, key=lambda row: row.rate_per_s)
            sustained.append(best)
    if plot is not None:
        plot_curve(rows, plot, bound_s=bound)
    if not json:
        options.print_tables(curve_table(rows), sustained_table(sustained, bound))
        return
    settings = options.shape_keys(setting.pool, rules, setting.limits)
    settings |= {"block_size": setting.block_size, "bound_s": bound, "rates": rates}
    settings |= {"duration_s": setting.duration_s}
    payload: dict[str, object] = {
        "pool": setting.pool.keys(),
        "workload": setting.workload.keys("poisson") | {"arrival_seed": setting.seed},
        "cost_model": msgspec.to_builtins(setting.cost),
        "rows": rows,
        "sustained": sustained,
    }
    print_json("octavo.bench.curve/1", settings, payload)


def _rates(text: str | None) -> list[float]:
    rates: list[float] = []
    for part in (text or "").split(",") if text is not None else ():
        try:
            rate = float(part)
        except ValueError:
            rate = math.nan
        if not 0 < rate < math.inf:
            raise ConfigError(f"--rates must be positive numbers by commas, got {part!r}")
        rates.append(rate)
    return rates
