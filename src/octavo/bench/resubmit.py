"""Beam search in the engine against a loop outside that submits each beam again for each token."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from octavo.bench.sharing import Bench, Setting, answer
from octavo.contract.namespace import Namespace
from octavo.contract.request import FinishReason, Request
from octavo.contract.sampling import SamplingParams
from octavo.engine.answer import Logprob
from octavo.engine.engine import Engine
from octavo.errors import ConfigError

NATIVE, COLD, WARM = "native", "resubmit", "resubmit with prefix cache"


class WayRow(msgspec.Struct, frozen=True):
    """One way to search, run several times."""

    way: str
    """native; resubmit: each beam is a new prompt for every token; the same with prefix cache."""
    seconds: list[float]
    median_s: float
    spread: float
    """(slowest - fastest) / median."""
    cpu_seconds: float
    """Of all threads and runs; far below the time: the machine had other work."""
    token_s: float
    """Median seconds / output tokens of a beam."""
    steps: int
    """Of one run."""
    computed_tokens: int
    """Of one run, of prompts and of answers."""
    copies: int
    """Blocks copied on write, in one run."""


class Timing(msgspec.Struct, frozen=True):
    """The same search in three ways, alternating."""

    width: int
    prompt_tokens: int
    output_tokens: int
    ways: list[WayRow]
    native_over_resubmit: float
    """Of the medians."""
    native_over_prefix_cache: float
    same_beams: bool
    """Every run of every way found the same texts in the same order."""


class _Beam(NamedTuple):
    tokens: tuple[int, ...]
    logprob: float


def resubmit(
    engine: Engine,
    prompt: tuple[int, ...],
    *,
    width: int,
    tokens: int,
    namespace: Callable[[], Namespace],
) -> list[list[int]]:
    """Search with one request per beam and token; returns the texts, best first.

    namespace: asked for once per request; what it returns decides who may reuse what.
    """
    params = SamplingParams(
        max_tokens=1, temperature=0.0, logprobs=2 * width, ignore_eos=True, detokenize=False
    )
    beams = [_Beam((), 0.0)]
    for turn in range(tokens):
        requests = [
            Request(
                id=f"{turn} {place}",
                prompt=prompt + beam.tokens,
                sampling=params,
                seed=0,
                namespace=namespace(),
            )
            for place, beam in enumerate(beams)
        ]
        found = _next_tokens(engine, requests)
        every = [
            (beam.logprob + after.logprob, place, token)
            for place, (beam, likely) in enumerate(zip(beams, found, strict=True))
            for token, after in likely.items()
        ]
        every.sort(key=lambda one: (-one[0], *one[1:]))
        beams = [
            _Beam((*beams[place].tokens, token), logprob) for logprob, place, token in every[:width]
        ]
    return [list(beam.tokens) for beam in beams]


def _next_tokens(engine: Engine, requests: list[Request]) -> list[dict[int, Logprob]]:
    """Return, for each request, its likeliest next tokens."""
    found: dict[str, dict[int, Logprob]] = {}
    for request in requests:
        engine.add(request)
    while engine.busy:
        for news in engine.step():
            if news.finish is FinishReason.ERROR:
                raise ConfigError(f"the model could not answer: {news.error}")
            (found[news.request_id],) = news.logprobs
    return [found[request.id] for request in requests]


class _Stopwatch:
    """Collects the runs of one way."""

    def __init__(self, way: str, search: Callable[[], list[list[int]]]) -> None:
        self.way = way
        self.texts: list[list[list[int]]] = []
        self._search = search
        self._seconds: list[float] = []
        self._cpu_s = 0.0
        self._counts = (0, 0, 0)

    def run(self, bench: Bench) -> None:
        """Search once, beginning with nothing in memory."""
        bench.engine.reset_prefix_cache()
        counted, stats = bench.tap.computed, bench.engine.stats
        steps, copies = stats.steps, stats.copies
        before, cpu = time.perf_counter(), time.process_time()
        texts = self._search()
        self._seconds.append(time.perf_counter() - before)
        self._cpu_s += time.process_time() - cpu
        self.texts.append(texts)
        self._counts = stats.steps - steps, bench.tap.computed - counted, stats.copies - copies

    def row(self, tokens: int) -> WayRow:
        """Sum up. tokens: of one answer."""
        median = statistics.median(self._seconds)
        return WayRow(
            self.way,
            self._seconds,
            median,
            (max(self._seconds) - min(self._seconds)) / median,
            self._cpu_s,
            median / tokens,
            *self._counts,
        )


def compare(
    bench: Bench, prompt: tuple[int, ...], *, width: int, tokens: int, rounds: int
) -> Timing:
    """Search in all ways, one after the other, `rounds` times."""
    salted = _salts(bench.namespace)

    def native() -> list[list[int]]:
        request = Request(
            id="native",
            prompt=prompt,
            sampling=Setting("beams", width).params(tokens, 0),
            seed=0,
            namespace=bench.namespace,
        )
        return answer(bench.engine, [request])["native"]

    def again(namespace: Callable[[], Namespace]) -> list[list[int]]:
        return resubmit(bench.engine, prompt, width=width, tokens=tokens, namespace=namespace)

    ways = [
        _Stopwatch(NATIVE, native),
        _Stopwatch(COLD, lambda: again(salted)),
        _Stopwatch(WARM, lambda: again(lambda: bench.namespace)),
    ]
    for _ in range(rounds):
        for way in ways:
            way.run(bench)
    rows = [way.row(tokens) for way in ways]
    own, cold, warm = (row.median_s for row in rows)
    first = ways[0].texts[0]
    same = all(texts == first for way in ways for texts in way.texts)
    return Timing(width, len(prompt), tokens, rows, own / cold, own / warm, same)


def _salts(namespace: Namespace) -> Callable[[], Namespace]:
    """Return what makes namespaces that nobody has used."""
    used = 0

    def fresh() -> Namespace:
        nonlocal used
        used += 1
        return msgspec.structs.replace(namespace, salt=f"once {used}")

    return fresh
