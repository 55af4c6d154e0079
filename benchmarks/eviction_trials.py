"""What sets of parameters bring on the first half of traces, window by window."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import log
from pathlib import Path
from typing import TypeAlias

import numpy as np

from octavo.build import eviction_policy
from octavo.memory.eviction import EvictionPolicy
from octavo.memory.policies.lru import Lru
from octavo.replay.bounds import optimum
from octavo.replay.index import replay_index
from octavo.replay.sweep import capacities
from octavo.replay.tally import Tally
from octavo.replay.trace import Trace

WINDOWS = 16
"""Stretches of the judged requests, which count as a whole: what follows closely hangs together."""
Setting: TypeAlias = dict[str, float | str]
"""Parameters by name."""
_BASES = (2, 3, 5, 7, 11)


@dataclass(frozen=True)
class Axis:
    """One parameter, and between what values it is looked for."""

    name: str
    low: float
    high: float
    calm: bool
    """Does a small value leave `lru`, or what is learned from more texts? Else a large one."""
    by_octaves: bool = False

    def at(self, place: float) -> float:
        """Return the value at a place from 0 to 1, to two digits."""
        if self.by_octaves:
            value = self.low * (self.high / self.low) ** place
        else:
            value = self.low + (self.high - self.low) * place
        return float(f"{value:.2g}")

    def place(self, value: float) -> float:
        """Return where a value lies."""
        if self.by_octaves:
            return log(value / self.low) / log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


@dataclass(frozen=True)
class Box:
    """A policy, what is given, and what is looked for."""

    policy: str
    given: Setting
    axes: tuple[Axis, ...]
    sets: int
    """How many are tried; several for each term of the surface."""

    def setting(self, places: np.ndarray) -> Setting:
        """Return the parameters at a point."""
        found = {axis.name: axis.at(place) for axis, place in zip(self.axes, places, strict=True)}
        return {**self.given, **found}

    def places(self, setting: Setting) -> list[float]:
        """Return the point at which the parameters lie."""
        return [axis.place(float(setting[axis.name])) for axis in self.axes]

    def make(self, setting: Setting) -> EvictionPolicy:
        """Return the policy with these parameters."""
        return eviction_policy({"name": self.policy, **setting})()

    @property
    def calm(self) -> np.ndarray:
        """The corner where the parameters do least."""
        return np.array([0.0 if axis.calm else 1.0 for axis in self.axes])


BOXES = {
    "bonus": Box(
        "bonus",
        {},
        (
            Axis("uses", 0.0, 1.6, calm=True),
            Axis("turn", 0.0, 1.6, calm=True),
            Axis("once", 0.0, 0.8, calm=True),
            Axis("again", 0.0, 2.0, calm=True),
            Axis("horizon_tokens", 1.8e6, 2.88e7, calm=True, by_octaves=True),
        ),
        72,
    ),
    "gittins": Box(
        "gittins",
        {},
        (
            Axis("prior", 4.0, 128.0, calm=False, by_octaves=True),
            Axis("forget", 4.0, 256.0, calm=False, by_octaves=True),
            Axis("remember", 4.0, 32.0, calm=False, by_octaves=True),
        ),
        18,
    ),
    "cost-bonus": Box(
        "cost",
        {"policy": "bonus"},
        (Axis("equal_tokens", 4e3, 1e6, calm=False, by_octaves=True),),
        5,
    ),
    "cost-gittins": Box(
        "cost",
        {"policy": "gittins"},
        (Axis("equal_tokens", 4e3, 1e6, calm=False, by_octaves=True),),
        5,
    ),
}


def spread(axes: int, count: int) -> np.ndarray:
    """Return points that fill the unit cube evenly, one a row.

    Source: Halton 1960, "On the efficiency of certain quasi-random sequences of points".
    """
    points = np.zeros((count, axes))
    for column, base in zip(points.T, _BASES, strict=False):
        for row in range(count):
            number, part = row + 1, 1.0
            while number:
                part /= base
                column[row] += part * (number % base)
                number //= base
    return points


@dataclass
class Cell:
    """One trace at one capacity: blocks by window of the judged requests."""

    trace: int
    share: float
    asked: np.ndarray
    low: np.ndarray
    """Hits of lru."""
    high: np.ndarray
    """Hits of the optimum."""
    hits: np.ndarray
    """Of each set that was tried, one a row."""


class Half:
    """The first half of a trace's time, at capacities that are shares of the whole."""

    def __init__(self, trace: Trace, warm: float) -> None:
        """warm: share of the half that fills the cache and is not judged."""
        requests = tuple(one for one in trace.requests if one.time_s < trace.middle_s)
        self.trace = Trace(trace.name, trace.block_size, requests)
        self.begin = requests[0].time_s + warm * (trace.middle_s - requests[0].time_s)
        self._whole = trace

    def blocks(self, share: float) -> int:
        """Return a capacity. Raises ConfigError for less than a block."""
        return capacities(self._whole, [share])[0].blocks

    def replay(self, policy: EvictionPolicy, share: float) -> list[int]:
        """Return the hits by window."""
        blocks = self.blocks(share)
        return _hits(replay_index(self.trace, policy, blocks, judged_from_s=self.begin))

    def bounds(self, share: float) -> tuple[list[int], list[int]]:
        """Return the hits of lru and of the optimum by window."""
        best = optimum(self.trace, self.blocks(share), judged_from_s=self.begin)
        return self.replay(Lru(), share), _hits(best)

    @cached_property
    def asked(self) -> list[int]:
        """References by window."""
        endless = optimum(self.trace, self._whole.working_set, judged_from_s=self.begin)
        return _windows([one.references for one in endless.each])


class Trials:
    """Replays, each done once: those that a file holds are read from it."""

    def __init__(self, halves: list[Half], file: Path | None) -> None:
        """file: lines of JSON, added to."""
        self._halves = halves
        self._file = file
        self._done: dict[str, list[int]] = {}
        if file is not None and file.exists():
            for line in file.read_text().splitlines():
                self._done.update(json.loads(line))

    def cells(self, box: Box, settings: list[Setting], shares: list[float]) -> list[Cell]:
        """Replay all that is new, and return one `Cell` for each trace and share."""
        hits: dict[tuple[int, float], list[list[int]]] = {}
        places = [(number, share) for number in range(len(self._halves)) for share in shares]
        for setting in settings:
            for number, share in places:
                found = self._replay(box, setting, number, share)
                hits.setdefault((number, share), []).append(found)
        cells: list[Cell] = []
        for number, share in places:
            half = self._halves[number]
            low, high = half.bounds(share)
            own = np.array(hits[number, share], dtype=float)
            asked = np.array(half.asked, dtype=float)
            cells.append(Cell(number, share, asked, np.array(low), np.array(high), own))
        return cells

    def _replay(self, box: Box, setting: Setting, number: int, share: float) -> list[int]:
        half = self._halves[number]
        key = json.dumps([box.policy, setting, half.trace.name, half.begin, share])
        if key not in self._done:
            self._done[key] = half.replay(box.make(setting), share)
            if self._file is not None:
                with self._file.open("a") as file:
                    file.write(json.dumps({key: self._done[key]}) + "\n")
        return self._done[key]


def _hits(tally: Tally) -> list[int]:
    return _windows([one.hits for one in tally.each])


def _windows(values: list[int]) -> list[int]:
    edges = [len(values) * number // WINDOWS for number in range(WINDOWS + 1)]
    return [sum(values[start:end]) for start, end in pairwise(edges)]
