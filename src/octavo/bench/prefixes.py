"""What the prefix cache makes of requests that begin alike: speed, and the same answers."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from random import Random

import msgspec

from octavo.contract.namespace import Namespace
from octavo.contract.request import Request
from octavo.contract.sampling import SamplingParams
from octavo.engine.engine import Engine

GOAL = 5.0
"""How many times as many requests are to be served, at the default lengths."""


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that are all there at the start and begin alike."""

    requests: int = 64
    shared: int = 1024
    """Leading tokens that all prompts have in common."""
    own: int = 32
    """Tokens of each prompt behind them."""
    output: int = 16
    """Tokens of each answer."""


class PrefixRow(msgspec.Struct, frozen=True, kw_only=True):
    """The work, with the cache or without."""

    cache: bool
    requests_per_s: float
    """Median of the rounds."""
    slowest: float
    fastest: float
    seconds: list[float]
    """Of each round."""
    computed_prompt_tokens: int
    """In one round."""


class PrefixFigures(msgspec.Struct, frozen=True, kw_only=True):
    """The work both ways."""

    rows: list[PrefixRow]
    """Without the cache, then with it."""
    times_as_many: float
    """Requests a second with the cache, over those without it; medians."""
    goal: float
    met: bool
    same_answers: bool
    """Each request was answered with the same tokens in every round of both."""
    read_bytes_per_s: list[float]
    """How fast this machine read memory: before the first round and after each pair."""


def measure_prefixes(
    engine: Engine,
    work: SharedPrefix,
    namespace: Namespace,
    *,
    vocab_size: int,
    rounds: int,
    bandwidth: Callable[[], float],
    advance: Callable[[float], None],
) -> PrefixFigures:
    """Run a work once uncounted, then `rounds` times without and with the cache in turn.

    Every run begins with an empty cache: with it, the first request computes what is shared.
    Without it each request has a namespace of its own, so that nothing is found. Half of the
    answers are greedy, half drawn at temperature 1. bandwidth: returns bytes read a second.
    """
    prompts = _prompts(work, vocab_size)
    seconds: dict[bool, list[float]] = {False: [], True: []}
    computed: dict[bool, int] = {}
    answers: list[list[tuple[int, ...]]] = []
    speeds = [bandwidth()]
    for number in range(rounds + 1):
        for cache in (False, True):
            before = engine.stats.computed_prompt_tokens
            passed, said = _run(engine, _requests(work, prompts, namespace, shared=cache))
            computed[cache] = engine.stats.computed_prompt_tokens - before
            answers.append(said)
            if number:
                seconds[cache].append(passed)
            advance(1)
        speeds.append(bandwidth())
    rows = [_row(work, seconds[cache], computed[cache], cache=cache) for cache in (False, True)]
    ratio = rows[1].requests_per_s / rows[0].requests_per_s
    return PrefixFigures(
        rows=rows,
        times_as_many=ratio,
        goal=GOAL,
        met=ratio >= GOAL,
        same_answers=all(said == answers[0] for said in answers),
        read_bytes_per_s=speeds,
    )


def _prompts(work: SharedPrefix, vocab_size: int) -> list[tuple[int, ...]]:
    draw = Random("prefixes")

    def ids(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(vocab_size) for _ in range(count))

    head = ids(work.shared)
    return [head + ids(work.own) for _ in range(work.requests)]


def _requests(
    work: SharedPrefix, prompts: list[tuple[int, ...]], namespace: Namespace, *, shared: bool
) -> list[Request]:
    return [
        Request(
            id=str(number),
            prompt=prompt,
            sampling=SamplingParams(
                temperature=float(number % 2), max_tokens=work.output, ignore_eos=True
            ),
            seed=number,
            namespace=namespace
            if shared
            else msgspec.structs.replace(namespace, salt=f"{number} shares nothing"),
        )
        for number, prompt in enumerate(prompts)
    ]


def _run(engine: Engine, requests: list[Request]) -> tuple[float, list[tuple[int, ...]]]:
    """Return the seconds, and the tokens of each answer."""
    engine.reset_prefix_cache()
    said: dict[str, tuple[int, ...]] = {request.id: () for request in requests}
    before = time.perf_counter()
    for request in requests:
        engine.add(request)
    while engine.busy:
        for news in engine.step():
            said[news.request_id] += news.token_ids
    return time.perf_counter() - before, list(said.values())


def _row(work: SharedPrefix, seconds: list[float], computed: int, *, cache: bool) -> PrefixRow:
    rates = [work.requests / passed for passed in seconds]
    return PrefixRow(
        cache=cache,
        requests_per_s=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        seconds=seconds,
        computed_prompt_tokens=computed,
    )
