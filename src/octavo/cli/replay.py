"""The command `octavo replay`."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from octavo.cli import bench as options
from octavo.cli.capacities import Sizes
from octavo.cli.flags import Argument, Given, Option
from octavo.cli.output import note, print_json
from octavo.cli.recorded import Source, print_blocks
from octavo.errors import ConfigError
from octavo.machine import available_cores
from octavo.sizes import parse_counts

if TYPE_CHECKING:
    from octavo.memory.eviction import EvictionPolicy
    from octavo.replay.engine import EngineSettings
    from octavo.replay.oracle import About, Oracle
    from octavo.replay.sweep import Capacity, EngineSweep, Sweep
    from octavo.replay.trace import Trace

TraceFile = Annotated[
    Path,
    Argument(help="A recording, a Mooncake or Azure trace, lengths, or transcripts; - is stdin."),
]
Policies = Annotated[
    list[str] | None,
    Option(
        "--policy",
        metavar="NAME|{NAME, …}",
        help="As --eviction-policy of an engine; repeatable; default: lru.",
    ),
]
Shares = Annotated[
    str,
    Option("--capacity-share", help="Sizes of the cache, by commas: shares of all its blocks."),
]
Blocks = Annotated[str | None, Option("--capacity-blocks", help="Or in blocks, by commas.")]
BlockSizes = Annotated[
    str | None,
    Option(
        "--block-size",
        help="Tokens per block, a multiple of the trace's; default: as there. In mode blocks "
        "several, by commas.",
    ),
]
FileFormat = Annotated[
    str | None,
    Option(
        "--format",
        help="mooncake, recording, transcript, azure or lengths; default: as the file looks.",
    ),
]
TokenizerOf = Annotated[
    str | None,
    Option(
        "--tokenizer",
        help="For transcripts: a model whose tokenizer to take; default: the embedded one.",
    ),
]
Mode = Annotated[
    str,
    Option(
        help="index: the cache alone, one request at a time; engine: with a scheduler; blocks: "
        "what block sizes lose."
    ),
]
Warm = Annotated[
    bool,
    Option("--warm", help="Count the second half of the time only; the first fills the cache."),
]
Seed = Annotated[int, Option(help="index: of the errors of hints, which are drawn at random.")]
HintError = Annotated[
    float | None,
    Option(
        help="index: say what will be used again, wrong with this probability; default: no hints."
    ),
]
HintAbout = Annotated[
    str, Option(help="index: what a hint is about: request, its prefix, or each block by itself.")
]
Draws = Annotated[
    int,
    Option("--bootstrap", help="index: draws for intervals of what is gained on lru; 0: none."),
]
Rate = Annotated[float, Option(help="engine: requests come so many times as fast.")]
Cost = Annotated[
    str,
    Option(help="engine: time of a step, by name, or a record of `bench latency --json`."),
]
MaxSeqs = Annotated[int, Option(help="engine: sequences that run at once.")]
StepTokens = Annotated[int, Option(help="engine: tokens computed in one step.")]
Scheduling = Annotated[
    str,
    Option(metavar="NAME|{NAME, …}", help="engine: as --scheduling-policy of an engine."),
]
Jobs = Annotated[int | None, Option(help="Processes; default: one per core of this process.")]

_MOST_JOBS = 1024
_MODES = ("index", "engine", "blocks")
_MOST_DRAWS = 100_000
_MOST_RATE = 1e6
_OF_HINTS = ("hint_about", "seed")
_OF_INDEX = ("hint_error", "hint_about", "seed", "bootstrap")
_OF_ENGINES = ("rate", "cost", "max_num_seqs", "max_num_batched_tokens", "scheduling_policy")
_OF_CACHES = ("policy", "capacity_share", "capacity_blocks", "warm", "jobs", "plot")
DEFAULT_COST = "h200-llama-3.1-8b"
_BLOCK_SIZES = "1,16,32,64,128,512"


def replay(
    trace: TraceFile,
    policy: Policies = None,
    capacity_share: Shares = "0.05,0.1,0.2,0.5",
    capacity_blocks: Blocks = None,
    block_size: BlockSizes = None,
    format: FileFormat = None,
    tokenizer: TokenizerOf = None,
    mode: Mode = "index",
    warm: Warm = False,
    hint_error: HintError = None,
    hint_about: HintAbout = "request",
    seed: Seed = 0,
    bootstrap: Draws = 0,
    rate: Rate = 1.0,
    cost: Cost = DEFAULT_COST,
    max_num_seqs: MaxSeqs = 256,
    max_num_batched_tokens: StepTokens = 8192,
    scheduling_policy: Scheduling = "fcfs",
    jobs: Jobs = None,
    plot: options.Plot = None,
    json: options.Json = False,
    given: Given = frozenset(),
) -> None:
    """What share of recorded prompts a prefix cache finds, by eviction policy and capacity.

    Beside it the endless cache, and the best cache that knows the future. In mode engine also how
    long requests wait.
    """
    options.check_plot_file(plot)
    _check_mode(mode, given)
    source = Source(trace, format, tokenizer)
    if mode == "blocks":
        print_blocks(
            source, parse_counts(block_size or _BLOCK_SIZES, name="--block-size"), json=json
        )
        return
    engine = None
    if mode == "engine":
        engine = _engine(cost, max_num_seqs, max_num_batched_tokens, scheduling_policy, rate)
    policies = list(dict.fromkeys(policy or ["lru"]))
    aids = _Aids(_oracle(hint_error, hint_about, seed), _draws(bootstrap, policies))
    ask = _Asked(policies, engine, aids, warm=warm, jobs=_jobs(jobs))
    made = [_Named(name)() for name in ask.policies]  # an unknown name is told before the work
    if hint_error is not None:
        _check_heard(made, ask.policies)
    sizes = Sizes(capacity_share, capacity_blocks, given)
    recorded = source.read(_one_size(block_size)).at_rate(rate)
    found = _sweep(recorded, ask, sizes.of(recorded))
    _note_refused(found)
    if plot is not None:
        _draw(found, recorded, plot, warm=warm)
    if json:
        settings = source.keys() | {"mode": mode, "policy": ask.policies}
        settings |= sizes.keys() | {"block_size": recorded.block_size, "warm": warm}
        if engine is None:
            settings |= {"bootstrap": bootstrap, "hint_error": hint_error}
            hinted = {"seed": seed, "hint_about": hint_about}
            settings |= dict.fromkeys(hinted) if hint_error is None else hinted
        else:
            settings |= {"rate": rate, "cost": cost, "scheduling_policy": scheduling_policy}
            settings["max_num_seqs"] = max_num_seqs
            settings["max_num_batched_tokens"] = max_num_batched_tokens
        settings["python"] = platform.python_version()
        print_json("octavo.replay/1", settings, _payload(found, recorded))
    else:
        _print(found, recorded, warm=warm)


@dataclass(frozen=True, slots=True)
class _Named:
    """Makes the policy of a setting in whichever process it is needed."""

    setting: str

    def __call__(self) -> EvictionPolicy:
        from octavo.build import eviction_policy

        return eviction_policy(self.setting, "--policy")()


@dataclass(frozen=True, slots=True)
class _Aids:
    """What index mode may have besides."""

    oracle: Oracle | None
    draws: int


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be replayed."""

    policies: list[str]
    engine: EngineSettings | None
    """None: index mode."""
    aids: _Aids
    warm: bool
    jobs: int


def _sweep(recorded: Trace, ask: _Asked, sizes: list[Capacity]) -> Sweep | EngineSweep:
    from octavo.progress import work_bar
    from octavo.replay.sweep import Candidate, sweep, sweep_engine, work

    candidates = [Candidate(name, _Named(name)) for name in ask.policies]
    since = recorded.middle_s if ask.warm else -math.inf
    with work_bar("requests", work(recorded, len(candidates), len(sizes))) as advance:
        if ask.engine is None:
            return sweep(
                recorded, candidates, sizes,
                judged_from_s=since, oracle=ask.aids.oracle, bootstrap=ask.aids.draws,
                jobs=ask.jobs, advance=advance,
            )  # fmt: skip
        return sweep_engine(
            recorded, candidates, sizes, ask.engine,
            judged_from_s=since, jobs=ask.jobs, advance=advance,
        )  # fmt: skip


# ── what is asked for ─────────────────────────────────────────────────────────────────────


def _check_mode(mode: str, given: frozenset[str]) -> None:
    if mode not in _MODES:
        raise ConfigError(f"--mode {mode!r} is not one of {', '.join(_MODES)}")
    if mode != "engine":
        _refuse(given, _OF_ENGINES, "engine")
    if mode != "index":
        _refuse(given, _OF_INDEX, "index")
    if mode == "blocks":
        _refuse(given, _OF_CACHES, "index or --mode engine")
    if "hint_error" not in given:
        for flag in _flags(given, _OF_HINTS):
            raise ConfigError(
                f"{flag} is about hints, but there are none: give --hint-error too, or leave it out"
            )


def _refuse(given: frozenset[str], names: tuple[str, ...], mode: str) -> None:
    for flag in _flags(given, names):
        raise ConfigError(f"{flag} belongs to --mode {mode}: give that too, or leave it out")


def _flags(given: frozenset[str], names: tuple[str, ...]) -> list[str]:
    return ["--" + name.replace("_", "-") for name in names if name in given]


def _one_size(text: str | None) -> int | None:
    if text is None:
        return None
    sizes = parse_counts(text, name="--block-size")
    if len(sizes) > 1:
        raise ConfigError(f"--block-size {text}: several sizes are for --mode blocks: give one")
    return sizes[0]


def _engine(
    cost: str, max_num_seqs: int, max_num_batched_tokens: int, scheduling_policy: str, rate: float
) -> EngineSettings:
    from octavo.build import scheduling_policy as make_order
    from octavo.replay.cost import find_cost
    from octavo.replay.engine import EngineSettings

    options.step_limits(max_num_seqs, max_num_batched_tokens)
    if not 1 / _MOST_RATE <= rate <= _MOST_RATE:
        raise ConfigError(
            f"--rate must be from {1 / _MOST_RATE:f} to {_MOST_RATE:.0f}, 1 being as recorded, got "
            f"{rate}"
        )
    order = make_order(scheduling_policy, "--scheduling-policy")
    return EngineSettings(find_cost(cost), max_num_seqs, max_num_batched_tokens, order)


def _draws(count: int, policies: list[str]) -> int:
    if not 0 <= count <= _MOST_DRAWS:
        raise ConfigError(f"--bootstrap must be from 0 to {_MOST_DRAWS}, got {count}")
    if count and "lru" not in policies:
        raise ConfigError("--bootstrap compares with lru: give --policy lru too")
    if count and len(policies) == 1:
        raise ConfigError("--bootstrap compares with lru: give another --policy too")
    return count


def _check_heard(policies: list[EvictionPolicy], names: list[str]) -> None:
    from octavo.memory.eviction import hears_hints

    if not any(map(hears_hints, policies)):
        raise ConfigError(
            f"--hint-error changes nothing, for no policy here heeds hints ({', '.join(names)}): "
            "give --policy bonus, gittins or cost too, or leave --hint-error out"
        )


def _oracle(error: float | None, about: str, seed: int) -> Oracle | None:
    from octavo.replay.oracle import Oracle

    try:
        checked = Oracle(0.0 if error is None else error, cast("About", about), seed)
    except ConfigError as reason:
        raise ConfigError(f"--hint-error, --hint-about: {reason}") from None
    return None if error is None else checked


def _jobs(jobs: int | None) -> int:
    if jobs is None:
        return available_cores()
    if not 1 <= jobs <= _MOST_JOBS:
        raise ConfigError(f"--jobs must be from 1 to {_MOST_JOBS}, got {jobs}")
    return jobs


# ── what comes out ────────────────────────────────────────────────────────────────────────


def _payload(found: Sweep | EngineSweep, trace: Trace) -> dict[str, object]:
    facts = {
        "name": trace.name,
        "requests": len(trace.requests),
        "references": trace.references,
        "working_set_blocks": trace.working_set,
        "block_size": trace.block_size,
        "seconds": trace.requests[-1].time_s - trace.requests[0].time_s,
    }
    return {
        "trace": facts,
        "rows": found.rows,
        "optimum": found.optimum,
        "endless": found.endless,
    }


def _note_refused(found: Sweep | EngineSweep) -> None:
    """Say that rates of few requests stand beside bounds of all."""
    from octavo.replay.sweep import Sweep

    if isinstance(found, Sweep):
        return
    most = max(found.rows, key=lambda row: row.refused)
    if most.refused:
        note(
            f"octavo: {most.refused} requests are refused at {most.capacity_blocks} blocks, being "
            "longer or without a prompt: rates leave them out, optimum and endless do not"
        )


def _print(found: Sweep | EngineSweep, trace: Trace, *, warm: bool) -> None:
    from octavo.replay.show import engine_table, replay_table
    from octavo.replay.sweep import Sweep

    judged = _judged(warm=warm)
    if isinstance(found, Sweep):
        options.print_tables(replay_table(found, trace, judged=judged))
    else:
        options.print_tables(engine_table(found, trace, judged=judged))


def _draw(found: Sweep | EngineSweep, trace: Trace, path: Path, *, warm: bool) -> None:
    from octavo.bench.plot import new_figure, save_figure
    from octavo.replay.plot import draw_engine, draw_hit_rates
    from octavo.replay.sweep import Sweep

    title = f"{trace.name}, {_judged(warm=warm)}"
    if isinstance(found, Sweep):
        figure = new_figure(6.4, 4.2)
        draw_hit_rates(figure, found, title)
    else:
        figure = new_figure(10.4, 4.2)
        draw_engine(figure, found, title)
    save_figure(figure, path)


def _judged(*, warm: bool) -> str:
    return "second half of the time, cache warm" if warm else "all requests"
