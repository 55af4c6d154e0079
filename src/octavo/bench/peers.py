"""This engine against others: the same works, in one run, one engine directly after the other."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from octavo.bench.process import EngineLost, EngineProcess
from octavo.bench.works import Work

OURS = "octavo"
PEERS = ("llamacpp", "openvino", "vllm")
ONE_STREAM = {"llamacpp": ("single", "prefill512")}
"""Works of engines that answer one prompt at a time; the others run all."""
BF16_MATCH = "batch32-bf16"
"""The work batch32 on a folder in bfloat16, for engines that read it."""
BF16_PEERS = ("vllm",)

GOALS = {
    "single": 2.6,
    "batch8": 4.7,
    "batch32": 3.4,
    "mixed64": 2.0,
    "chat200": 2.3,
    "prefix32": 3.5,
    "prefill512": 8.5,
    BF16_MATCH: 2.0,
}
"""Our speed over that of the best peer that we want to reach, by match."""


class Counted(msgspec.Struct, frozen=True):
    """One run that counts."""

    seconds: float
    read_bytes_per_s: tuple[float, float]
    """How fast this machine read memory before and after the run."""


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """One engine at one match."""

    engine: str
    tokens_per_s: float
    """Median of the rounds; tokens as `Work.counted_tokens` has them."""
    slowest: float
    fastest: float
    rounds: list[Counted]


class MatchRow(msgspec.Struct, frozen=True, kw_only=True):
    """One match: what every engine did, and how we compare with the best of the others."""

    match: str
    counts: str
    """output tokens or prompt tokens: what the speed is measured in."""
    goal: float
    best_peer: str | None
    """The one with the highest median; None: nobody else finished."""
    ratio: float | None
    """Our speed over that of the best peer: median of the ratios of the rounds."""
    ratio_range: tuple[float, float] | None
    met: bool | None
    speeds: list[Speed]


@dataclass(slots=True)
class Match:
    """A work, and the engines that run it."""

    name: str
    work: Work
    engines: list[EngineProcess]
    """Ours first."""


@dataclass(slots=True)
class Comparison:
    """Runs matches. An engine that is lost is left out from then on."""

    rounds: int
    bandwidth: Callable[[], float]
    """Bytes of memory read a second, measured when called."""
    advance: Callable[[float], None]
    """Told of each run."""
    lost: dict[str, str] = field(default_factory=dict[str, str])
    """What became of engines that were left out."""

    def run(self, match: Match) -> MatchRow:
        """Run a match: once for each engine uncounted, then `rounds` times counted.

        Raises EngineLost for our own engine.
        """
        for engine in match.engines:
            self._attempt(engine, match, None)
        runs: dict[str, list[Counted]] = {engine.name: [] for engine in match.engines}
        for number in range(self.rounds):
            first = number % len(match.engines)  # nobody always comes after the same one
            for engine in match.engines[first:] + match.engines[:first]:
                self._attempt(engine, match, runs[engine.name])
        complete = [e.name for e in match.engines if len(runs[e.name]) == self.rounds]
        return _row(match, {name: runs[name] for name in complete})

    def _attempt(self, engine: EngineProcess, match: Match, runs: list[Counted] | None) -> None:
        """Run an engine once, and leave it out from now on if that fails."""
        if engine.name not in self.lost:
            try:
                if runs is None:
                    engine.run(match.work)
                else:
                    before = self.bandwidth()
                    seconds = engine.run(match.work)
                    runs.append(Counted(seconds, (before, self.bandwidth())))
            except EngineLost as error:
                if engine is match.engines[0]:
                    raise
                self.lost[engine.name] = str(error)
                engine.close()  # it would go on beside the others
        self.advance(1)


def _row(match: Match, runs: dict[str, list[Counted]]) -> MatchRow:
    speeds = [_speed(name, counted, match.work) for name, counted in runs.items()]
    ours, *others = speeds
    best = max(others, key=lambda speed: speed.tokens_per_s, default=None)
    goal = GOALS[match.name]
    ratios = [
        theirs.seconds / own.seconds
        for own, theirs in zip(ours.rounds, best.rounds if best else (), strict=best is not None)
    ]
    ratio = statistics.median(ratios) if ratios else None
    return MatchRow(
        match=match.name,
        counts=match.work.counts,
        goal=goal,
        best_peer=best.engine if best else None,
        ratio=ratio,
        ratio_range=(min(ratios), max(ratios)) if ratios else None,
        met=None if ratio is None else ratio >= goal,
        speeds=speeds,
    )


def _speed(name: str, counted: list[Counted], work: Work) -> Speed:
    rates = [work.counted_tokens / run.seconds for run in counted]
    return Speed(
        engine=name,
        tokens_per_s=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        rounds=counted,
    )
