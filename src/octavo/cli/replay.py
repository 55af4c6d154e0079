"""The command `octavo replay`."""

from __future__ import annotations

import math
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from octavo.cli import bench as options
from octavo.cli.flags import Argument, Option
from octavo.cli.output import print_json
from octavo.errors import ConfigError
from octavo.machine import available_cores

if TYPE_CHECKING:
    from octavo.memory.eviction import EvictionPolicy
    from octavo.replay.oracle import About, Oracle
    from octavo.replay.sweep import Sweep
    from octavo.replay.trace import Trace

TraceFile = Annotated[
    Path, Argument(help="JSON lines with timestamp, input_length, output_length and hash_ids, …")
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
BlockSize = Annotated[
    int | None, Option(help="Tokens per block, a multiple of the trace's; default: as there.")
]
Mode = Annotated[str, Option(help="index: the cache alone, one request at a time.")]
Warm = Annotated[
    bool,
    Option("--warm", help="Count the second half of the time only; the first fills the cache."),
]
Seed = Annotated[int, Option(help="Of what is drawn at random.")]
HintError = Annotated[
    float | None,
    Option(help="Say what will be used again, wrong with this probability; default: no hints."),
]
HintAbout = Annotated[
    str, Option(help="What a hint is about: request, its prefix, or each block by itself.")
]
Draws = Annotated[
    int, Option("--bootstrap", help="Draws for intervals of what is gained on lru; 0: none.")
]
Jobs = Annotated[int | None, Option(help="Processes; default: one per core of this process.")]

_MOST_JOBS = 1024
_MOST_DRAWS = 100_000


def replay(
    trace: TraceFile,
    policy: Policies = None,
    capacity_share: Shares = "0.05,0.1,0.2,0.5",
    block_size: BlockSize = None,
    mode: Mode = "index",
    warm: Warm = False,
    hint_error: HintError = None,
    hint_about: HintAbout = "request",
    seed: Seed = 0,
    bootstrap: Draws = 0,
    jobs: Jobs = None,
    plot: options.Plot = None,
    json: options.Json = False,
) -> None:
    """What share of recorded prompts a prefix cache finds, by eviction policy and capacity.

    Beside it the endless cache, and the best cache that knows the future.
    """
    from octavo.replay.sweep import Candidate, capacities, sweep, work
    from octavo.replay.trace import in_blocks, read_mooncake

    options.check_plot_file(plot)
    _check_mode(mode)
    shares = _shares(capacity_share)
    processes = _jobs(jobs)
    oracle = _oracle(hint_error, hint_about, seed)
    names = list(dict.fromkeys(policy or ["lru"]))
    candidates = [Candidate(name, _Named(name)) for name in names]
    for one in candidates:
        one.make()  # an unknown name is told before the work
    recorded = read_mooncake(trace)
    if block_size is not None:
        recorded = in_blocks(recorded, block_size)
    sizes = capacities(recorded, shares)
    from octavo.progress import work_bar

    with work_bar("requests", work(recorded, len(names), len(sizes))) as advance:
        found = sweep(
            recorded,
            candidates,
            sizes,
            judged_from_s=recorded.middle_s if warm else -math.inf,
            oracle=oracle,
            bootstrap=_draws(bootstrap, names),
            jobs=processes,
            advance=advance,
        )
    if plot is not None:
        _draw(found, recorded, plot, warm=warm)
    if json:
        settings: dict[str, object] = {"mode": mode, "policy": names, "capacity_share": shares}
        settings |= {"block_size": recorded.block_size, "warm": warm}
        settings |= {"bootstrap": bootstrap}
        settings |= {"hint_error": hint_error, "hint_about": oracle and hint_about, "seed": seed}
        settings |= {"python": platform.python_version()}
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


# ── what is asked for ─────────────────────────────────────────────────────────────────────


def _check_mode(mode: str) -> None:
    if mode == "engine":
        raise ConfigError("--mode engine does not exist yet: leave it out, or give --mode index")
    if mode != "index":
        raise ConfigError(f"--mode {mode!r} is not one of index")


def _draws(count: int, policies: list[str]) -> int:
    if not 0 <= count <= _MOST_DRAWS:
        raise ConfigError(f"--bootstrap must be from 0 to {_MOST_DRAWS}, got {count}")
    if count and "lru" not in policies:
        raise ConfigError("--bootstrap compares with lru: give --policy lru too")
    return count


def _oracle(error: float | None, about: str, seed: int) -> Oracle | None:
    from octavo.replay.oracle import Oracle

    try:
        checked = Oracle(0.0 if error is None else error, cast("About", about), seed)
    except ConfigError as reason:
        raise ConfigError(f"--hint-error, --hint-about: {reason}") from None
    return None if error is None else checked


def _shares(text: str) -> list[float]:
    shares: list[float] = []
    for part in text.split(","):
        try:
            share = float(part)
        except ValueError:
            share = math.nan
        if not 0 < share <= 1:
            raise ConfigError(
                f"--capacity-share must be numbers above 0 and up to 1, by commas, got {part!r}"
            )
        shares.append(share)
    return list(dict.fromkeys(shares))


def _jobs(jobs: int | None) -> int:
    if jobs is None:
        return available_cores()
    if not 1 <= jobs <= _MOST_JOBS:
        raise ConfigError(f"--jobs must be from 1 to {_MOST_JOBS}, got {jobs}")
    return jobs


# ── what comes out ────────────────────────────────────────────────────────────────────────


def _payload(found: Sweep, trace: Trace) -> dict[str, object]:
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


def _print(found: Sweep, trace: Trace, *, warm: bool) -> None:
    from octavo.replay.show import replay_table

    options.print_tables(replay_table(found, trace, judged=_judged(warm=warm)))


def _draw(found: Sweep, trace: Trace, path: Path, *, warm: bool) -> None:
    from octavo.bench.plot import new_figure, save_figure
    from octavo.replay.plot import draw_hit_rates

    figure = new_figure(6.4, 4.2)
    draw_hit_rates(figure, found, f"{trace.name}, {_judged(warm=warm)}")
    save_figure(figure, path)


def _judged(*, warm: bool) -> str:
    return "second half of the time, cache warm" if warm else "all requests"
