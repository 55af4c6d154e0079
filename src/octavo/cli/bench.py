"""The command `octavo bench memory`, and what all measurements have in common."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli.flags import Group, Option
from octavo.cli.output import note, print_json
from octavo.errors import ConfigError
from octavo.sizes import parse_bytes, parse_counts

if TYPE_CHECKING:
    from rich.table import Table

    from octavo.bench.memory import MemoryRow
    from octavo.bench.pool import PoolShape, StepLimits
    from octavo.bench.workload import Workload
    from octavo.memory.reservation import Reservation

bench = Group("bench", "Measure what memory holds and what it sustains.")

Trace = Annotated[Path | None, Option(help="Lengths from a CSV or JSON-lines file, plain or .gz.")]
Distribution = Annotated[str | None, Option(help="A named distribution of lengths.")]
Requests = Annotated[int | None, Option(help="How many; default: 2000, or all of a trace.")]
Seed = Annotated[int, Option(help="Of lengths and arrivals.")]
Memory = Annotated[str, Option(help="Size of the KV pool, such as 12GiB.")]
Layers = Annotated[int, Option(help="Layers; the default shape is OPT-13B's.")]
KVHeads = Annotated[int, Option(help="KV heads of a layer.")]
HeadDim = Annotated[int, Option(help="Numbers in one head.")]
DType = Annotated[str, Option(help="Of KV: float32, float16, bfloat16 or int8.")]
MaxLength = Annotated[int, Option(help="Longest text, prompt and answer together.")]
MaxSeqs = Annotated[int, Option(help="Sequences that run at once.")]
StepTokens = Annotated[int, Option(help="Tokens computed in one step.")]
Rules = Annotated[str, Option("--reservation", help="Rules, by commas, or all.")]
BlockSizes = Annotated[str, Option("--block-size", help="Tokens per block, by commas.")]
Choices = Annotated[str, Option("--n", help="Answers per prompt, by commas.")]
Json = Annotated[bool, Option("--json", help="Print one JSON document.")]
Plot = Annotated[Path | None, Option(help="Write a picture: .png, .svg or .pdf.")]

LONGEST = 2048
"""Longest text if nobody says, in tokens."""
_REQUESTS = 2000
_MOST_ANSWERS = 64
"""Answers per prompt: beyond it a run takes long and says nothing new."""


@bench.command()
def memory(
    trace: Trace = None,
    distribution: Distribution = None,
    requests: Requests = None,
    seed: Seed = 0,
    memory: Memory = "12GiB",
    layers: Layers = 40,
    kv_heads: KVHeads = 40,
    head_dim: HeadDim = 128,
    dtype: DType = "float16",
    max_length: MaxLength = LONGEST,
    reservation: Rules = "all",
    block_size: BlockSizes = "8,16,32,64,128",
    n: Choices = "1",
    max_num_seqs: MaxSeqs = 512,
    max_num_batched_tokens: StepTokens = 2048,
    plot: Plot = None,
    json: Json = False,
) -> None:
    """Share of the KV pool that holds tokens, and what becomes of the rest, by reservation rule.

    Without options: the setting of the PagedAttention paper, n = 1.
    """
    from octavo.bench.plot import plot_memory
    from octavo.bench.pool import PoolShape
    from octavo.bench.show import memory_table

    check_plot_file(plot)
    size = parse_bytes(memory, name="--memory")
    pool = PoolShape(size, layers, kv_heads, head_dim, dtype, max_length)
    limits = step_limits(max_num_seqs, max_num_batched_tokens)
    rules = find_rules(reservation)
    sizes = parse_counts(block_size, name="--block-size")
    choices = parse_counts(n, name="--n", most=_MOST_ANSWERS)
    work = read_workload(trace, distribution, requests, seed, max_length)
    rows = _measure_all(rules, sizes, choices, pool, work, limits)
    few = sorted({row.reservation for row in rows if row.steps < _FEW_STEPS})
    if few:
        note(
            f"octavo: {', '.join(few)}: a request was waiting in fewer than {_FEW_STEPS} steps, so "
            "these shares say little; raise --requests or lower --memory"
        )
    if plot is not None:
        plot_memory(rows, plot)
    if not json:
        print_tables(memory_table(rows))
        return
    settings = shape_keys(pool, rules, limits) | {"block_size": sizes, "n": choices}
    payload = {"pool": pool.keys(), "workload": work.keys("all at once"), "rows": rows}
    print_json("octavo.bench.memory/1", settings, payload)


_FEW_STEPS = 500
"""With fewer steps under a full queue, the beginning and the end of a run weigh too much."""


def _measure_all(
    rules: list[Reservation],
    sizes: list[int],
    choices: list[int],
    pool: PoolShape,
    work: Workload,
    limits: StepLimits,
) -> list[MemoryRow]:
    from octavo.bench.memory import measure
    from octavo.progress import work_bar

    # The unit of a contiguous rule is a slot, whatever the block size.
    runs = [
        (rule, size, n)
        for n in choices
        for rule in rules
        for size in (sizes if rule.tokens is None else sizes[:1])
    ]
    with work_bar("requests", len(runs) * len(work.lengths)) as advance:
        return [
            measure(rule, pool, work, block_size=size, n=n, limits=limits, advance=advance)
            for rule, size, n in runs
        ]


# ── what all measurements have in common ──────────────────────────────────────────────────


def check_plot_file(plot: Path | None) -> None:
    """Raise ConfigError if a picture is wanted and could not be written."""
    if plot is not None:
        from octavo.bench.plot import check_plot

        check_plot(plot)


def step_limits(max_num_seqs: int, max_num_batched_tokens: int) -> StepLimits:
    """Return what bounds a step. Raises ConfigError."""
    from octavo.bench.pool import StepLimits

    for name, value in (
        ("--max-num-seqs", max_num_seqs),
        ("--max-num-batched-tokens", max_num_batched_tokens),
    ):
        if value < 1:
            raise ConfigError(f"{name} must be at least 1, got {value}")
    return StepLimits(max_num_seqs, max_num_batched_tokens)


def find_rules(names: str) -> list[Reservation]:
    """Return reservation rules by their names. Raises ConfigError for an unknown one."""
    from octavo.bench.pool import RESERVATIONS, find_rule

    if names == "all":
        baselines = [rule for rule in RESERVATIONS.values() if rule.tokens is not None]
        return [*baselines, RESERVATIONS["on_demand"]]
    return [find_rule(name.strip()) for name in names.split(",")]


def read_workload(
    trace: Path | None,
    distribution: str | None,
    requests: int | None,
    seed: int,
    max_length: int,
) -> Workload:
    """Return the lengths that the options ask for. Raises ConfigError."""
    from octavo.bench.trace import read_trace
    from octavo.bench.workload import DEFAULT_DISTRIBUTION, draw

    if requests is not None and requests < 1:
        raise ConfigError(f"--requests must be at least 1, got {requests}")
    if trace is not None and distribution is not None:
        raise ConfigError("give --trace or --distribution, not both")
    if trace is not None:
        return read_trace(trace, requests=requests, max_length=max_length)
    name = DEFAULT_DISTRIBUTION if distribution is None else distribution
    return draw(name, requests=requests or _REQUESTS, max_length=max_length, seed=seed)


def shape_keys(pool: PoolShape, rules: list[Reservation], limits: StepLimits) -> dict[str, object]:
    """Return the settings that every measurement has."""
    return {
        "python": platform.python_version(),
        "reservation": [rule.name for rule in rules],
        "layers": pool.layers,
        "kv_heads": pool.kv_heads,
        "head_dim": pool.head_dim,
        "dtype": pool.dtype,
        "max_num_seqs": limits.max_num_seqs,
        "max_num_batched_tokens": limits.max_num_batched_tokens,
    }


def print_tables(*tables: Table) -> None:
    """Print tables to stdout, as wide as they are where nobody watches."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    for table in tables:
        console.print(table)
