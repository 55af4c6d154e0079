"""The command `octavo bench peers`."""

from __future__ import annotations

import contextlib
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli import bench as options
from octavo.cli.flags import Option
from octavo.cli.options import Arithmetic, Model
from octavo.cli.output import note, print_json
from octavo.cli.pull import model_path
from octavo.cli.throughput import LONGEST, Rounds, Works, check_rounds
from octavo.config import MOST_THREADS
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.peers import Match, MatchRow
    from octavo.bench.process import EngineProcess

Peers = Annotated[str, Option("--peers", help="Engines to compare with: llamacpp, openvino, vllm.")]
Threads = Annotated[int, Option(help="Of every engine.")]
Environments = Annotated[
    Path | None,
    Option(help="Folder with an environment for each engine; make bench-peers makes it."),
]
Limit = Annotated[float, Option(help="Seconds after which an engine counts as hung.")]

_CHECKOUT = Path(__file__).resolve().parents[3]
_WORKER = Path("benchmarks", "peers", "worker.py")
_BF16_OURS = "octavo on bf16"


@dataclass(frozen=True, slots=True)
class _Setting:
    """What is the same for all engines."""

    model: Path
    environments: Path
    threads: int
    cpu_arithmetic: str | None
    longest: int
    limit_s: float

    @property
    def bf16_folder(self) -> Path:
        """The same weights, for engines that read no GGUF file."""
        return self.environments / "bf16" / self.model.stem


def peers(
    work: Works = None,
    peers: Peers = "llamacpp,openvino,vllm",
    rounds: Rounds = 5,
    model: Model = None,
    threads: Threads = 2,
    cpu_arithmetic: Arithmetic = None,
    environments: Environments = None,
    limit: Limit = 900.0,
    plot: options.Plot = None,
    json: options.Json = False,
) -> None:
    """Compare with other engines: the same works, each run directly after the others'.

    All engines stay loaded, and sleep while another one runs. One that cannot be loaded, ends or
    hangs is reported and left out.
    """
    from octavo.bench.bandwidth import read_bytes_per_s
    from octavo.bench.peers import Comparison
    from octavo.bench.process import EngineLost, leaving_on_signals
    from octavo.progress import work_bar

    options.check_plot_file(plot)
    check_rounds(rounds)
    _check_numbers(threads, limit)
    names = _names(peers)
    path = model_path(model)
    matches = _matches(path, work)
    folder = environments or _CHECKOUT / ".peers"
    longest = min(LONGEST, _context(path))
    setting = _Setting(path, folder, threads, cpu_arithmetic, longest, limit)
    with leaving_on_signals(), contextlib.ExitStack() as stack:
        engines, lost = _start(names, setting, stack, matches)
        entered = _enter(matches, engines)
        for name in sorted({m.name for m in matches} - {m.name for m in entered}):
            note(f"octavo: {name} is left out: no other engine here runs it")
        if not entered:
            reasons = "; ".join(f"{name}: {why}" for name, why in lost.items())
            raise ConfigError(
                f"no other engine can run these works ({reasons or 'see --peers and --work'})"
            )
        with work_bar("runs", sum(len(m.engines) for m in entered) * (rounds + 1)) as advance:
            comparison = Comparison(rounds, read_bytes_per_s, advance, lost)
            try:
                rows = [comparison.run(match) for match in entered]
            except EngineLost as error:
                raise ConfigError(f"octavo itself could not go on: {error}") from None
        versions = {name: engine.label for name, engine in engines.items()}
    for name, why in comparison.lost.items():
        note(f"octavo: {name} was left out: {why}")
    if plot is not None:
        from octavo.bench.plot_speed import plot_peers

        plot_peers(rows, plot)
    if json:
        _print_json(rows, setting, versions, comparison.lost, rounds)
    else:
        _print_table(rows, versions)


def _check_numbers(threads: int, limit: float) -> None:
    if not 1 <= threads <= MOST_THREADS:
        raise ConfigError(f"--threads must be from 1 to {MOST_THREADS}, got {threads}")
    if not 0 < limit < float("inf"):
        raise ConfigError(f"--limit must be a positive number of seconds, got {limit}")


def _names(text: str) -> list[str]:
    from octavo.bench.peers import PEERS

    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in PEERS:
            raise ConfigError(f"--peers {name!r} is not one of {', '.join(PEERS)}")
    return [name for name in PEERS if name in names]


def _context(path: Path) -> int:
    from octavo.models.checkpoint import open_checkpoint

    return open_checkpoint(path).spec.context


def _matches(path: Path, names: str | None) -> list[Match]:
    """Return the matches that --work names, without engines. Raises ConfigError."""
    from octavo.bench.peers import BF16_MATCH, Match
    from octavo.bench.works import WORKS, find_works
    from octavo.models.checkpoint import open_checkpoint

    if not path.is_file():
        raise ConfigError(
            f"{path} is a folder, but the other engines read a GGUF file: give one as --model"
        )
    spec = open_checkpoint(path).spec
    size, context = spec.vocab_size, min(LONGEST, spec.context)
    asked = [*WORKS, BF16_MATCH] if names is None else [n.strip() for n in names.split(",")]
    plain = ",".join(name for name in asked if name != BF16_MATCH)
    works = find_works(plain, vocab_size=size, context=context) if plain else []
    matches = [Match(work.name, work, []) for work in works]
    if BF16_MATCH in asked:
        (work,) = find_works("batch32", vocab_size=size, context=context)
        matches.append(Match(BF16_MATCH, work, []))
    return matches


# ── engines ───────────────────────────────────────────────────────────────────────────────


def _start(
    names: list[str], setting: _Setting, stack: contextlib.ExitStack, matches: list[Match]
) -> tuple[dict[str, EngineProcess], dict[str, str]]:
    """Load all engines that the matches need; returns them, and why others are left out."""
    from octavo.bench.peers import BF16_MATCH, BF16_PEERS, OURS
    from octavo.bench.process import EngineLost

    engines: dict[str, EngineProcess] = {}
    lost: dict[str, str] = {}
    wanted = [name for name in names if any(_runs(name, match.name) for match in matches)]
    if {match.name for match in matches} != {BF16_MATCH}:
        wanted.insert(0, OURS)
    if BF16_MATCH in (match.name for match in matches) and set(wanted) & set(BF16_PEERS):
        wanted.append(_BF16_OURS)
    for name in wanted:
        note(f"octavo: loading {name}")
        try:
            engines[name] = stack.enter_context(contextlib.closing(_load(name, setting)))
        except EngineLost as error:
            lost[name] = str(error)
    if OURS in lost:
        raise ConfigError(f"octavo itself could not be loaded: {lost[OURS]}")
    return engines, lost


def _load(name: str, setting: _Setting) -> EngineProcess:
    from octavo.bench.peers import BF16_PEERS, OURS
    from octavo.bench.process import EngineLost, EngineProcess

    ours = name in (OURS, _BF16_OURS)
    worker = _CHECKOUT / _WORKER
    if not worker.is_file():
        raise ConfigError(f"octavo bench peers needs a checkout of octavo: there is no {worker}")
    python = Path(sys.executable) if ours else setting.environments / name / "bin" / "python"
    folder = setting.bf16_folder if name in (*BF16_PEERS, _BF16_OURS) else None
    for needed in (python, folder):
        if needed is not None and not needed.exists():
            raise EngineLost(f"there is no {needed}, which `make bench-peers` makes")
    settings: dict[str, object] = {
        "model": str(folder or setting.model),
        "threads": setting.threads,
        "longest": setting.longest,
    }
    if name == OURS:
        settings["cpu_arithmetic"] = setting.cpu_arithmetic
    command = [str(python), str(worker), OURS if ours else name]
    return EngineProcess(OURS if ours else name, command, settings, limit_s=setting.limit_s)


def _runs(name: str, match: str) -> bool:
    """Return whether a peer takes part in a match."""
    from octavo.bench.peers import BF16_MATCH, BF16_PEERS, ONE_STREAM

    if match == BF16_MATCH:
        return name in BF16_PEERS
    return match in ONE_STREAM.get(name, (match,))


def _enter(matches: list[Match], engines: dict[str, EngineProcess]) -> list[Match]:
    """Return the matches with their engines, ours first; without ours there is no match."""
    from octavo.bench.peers import BF16_MATCH, OURS, Match

    entered: list[Match] = []
    for match in matches:
        ours = engines.get(_BF16_OURS if match.name == BF16_MATCH else OURS)
        others = [
            engine
            for name, engine in engines.items()
            if name not in (OURS, _BF16_OURS) and _runs(name, match.name)
        ]
        if ours is not None and others:
            entered.append(Match(match.name, match.work, [ours, *others]))
    return entered


# ── what comes out ────────────────────────────────────────────────────────────────────────


def _print_table(rows: list[MatchRow], versions: dict[str, str]) -> None:
    from octavo.bench.show_speed import peers_table
    from octavo.cli.output import say

    options.print_tables(peers_table(rows))
    say(", ".join(dict.fromkeys(versions.values())))


def _print_json(
    rows: list[MatchRow],
    setting: _Setting,
    versions: dict[str, str],
    lost: dict[str, str],
    rounds: int,
) -> None:
    settings: dict[str, object] = {
        "model": setting.model.name,
        "bf16_folder": setting.bf16_folder.name,
        "threads": setting.threads,
        "cpu_arithmetic": setting.cpu_arithmetic,
        "rounds": rounds,
        "limit_s": setting.limit_s,
        "python": platform.python_version(),
    }
    payload: dict[str, object] = {"versions": versions, "rows": rows, "left_out": lost}
    print_json("octavo.bench.peers/1", settings, payload)
