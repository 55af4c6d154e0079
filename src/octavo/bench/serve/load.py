"""When requests are sent: at a rate, so many at once, or one after the other."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from random import Random

from octavo.bench.serve.stream import Ask, Outcome
from octavo.errors import ConfigError

Chain = tuple[Ask, ...]
"""Requests of which each waits for the end of the one before: the turns of a conversation."""

Send = Callable[[Ask], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast requests come. Raises ConfigError for what is no pace."""

    rate_per_s: float = math.inf
    """Chains that begin in a second; inf: all at once."""
    burstiness: float = 1.0
    """1: at random (Poisson); lower: in bursts; higher: more evenly. The shape of a gamma
    distribution."""
    max_concurrency: int | None = None
    """Requests that are on their way at once."""
    recorded: bool = False
    """They come when the trace says so."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.rate_per_s > 0:
            raise ConfigError(f"--request-rate must be above 0, got {self.rate_per_s}")
        if not 0 < self.burstiness < math.inf:
            raise ConfigError(f"--burstiness must be above 0, got {self.burstiness}")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ConfigError(f"--max-concurrency must be at least 1, got {self.max_concurrency}")

    def starts(self, chains: list[Chain]) -> list[float]:
        """Return when each begins, in seconds from the beginning."""
        if self.recorded:
            return [chain[0].arrival_s for chain in chains]
        if math.isinf(self.rate_per_s):
            return [0.0] * len(chains)
        random = Random(f"arrivals {self.seed}")
        scale = 1 / (self.rate_per_s * self.burstiness)
        starts = [0.0]
        for _ in chains[1:]:
            starts.append(starts[-1] + random.gammavariate(self.burstiness, scale))
        return starts


@dataclass(frozen=True, slots=True)
class Run:
    """All requests of a load, as they ended."""

    outcomes: list[Outcome]
    """In the order of the chains."""
    start_s: float
    duration_s: float


async def run_load(
    chains: Iterable[Chain],
    send: Send,
    pace: Pace,
    *,
    ended: Callable[[Outcome], None] | None = None,
) -> Run:
    """Send all requests, and return what became of them. ended: hears of each.

    A chain whose request fails goes no further: its next one would be another's text.
    """
    every = list(chains)
    places = asyncio.Semaphore(pace.max_concurrency) if pace.max_concurrency else None
    found: list[list[Outcome]] = [[] for _ in every]
    start_s = time.monotonic()

    async def follow(number: int, chain: Chain, begins_s: float) -> None:
        await asyncio.sleep(max(0.0, start_s + begins_s - time.monotonic()))
        for ask in chain:
            async with _place(places):
                outcome = await send(ask)
            found[number].append(outcome)
            if ended is not None:
                ended(outcome)
            if outcome.error:
                return

    async with asyncio.TaskGroup() as group:
        for number, (chain, begins_s) in enumerate(zip(every, pace.starts(every), strict=True)):
            group.create_task(follow(number, chain, begins_s))
    outcomes = [outcome for own in found for outcome in own]
    end_s = max((outcome.end_s for outcome in outcomes), default=start_s)
    return Run(outcomes, start_s, end_s - start_s)


def _place(places: asyncio.Semaphore | None) -> AbstractAsyncContextManager[None]:
    return places if places is not None else nullcontext()
