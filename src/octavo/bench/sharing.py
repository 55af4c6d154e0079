"""How many blocks beams and parallel samples share, on a real engine."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from octavo.bench.texts import cut
from octavo.bench.watch import Moment, Tap, Watch
from octavo.bench.workload import Workload
from octavo.contract.namespace import Namespace
from octavo.contract.request import FinishReason, Request
from octavo.contract.sampling import SamplingParams
from octavo.engine.engine import Engine
from octavo.errors import ConfigError

METHODS = ("samples", "beams")


@dataclass(frozen=True, slots=True)
class Bench:
    """An engine to be measured, and what its texts are."""

    engine: Engine
    tap: Tap
    """Must have been given to the engine's runner."""
    namespace: Namespace
    tokens: list[int]
    """The text that prompts are cut from."""
    text_name: str


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to answer a prompt."""

    method: str
    """samples or beams."""
    count: int
    """Answers, or beams."""

    def params(self, max_tokens: int, seed: int) -> SamplingParams:
        """Return options for an answer of exactly so many tokens."""
        if self.method == "beams":
            return SamplingParams(
                use_beam_search=True,
                beam_width=self.count,
                max_tokens=max_tokens,
                ignore_eos=True,
                seed=seed,
                detokenize=False,
            )
        return SamplingParams(
            n=self.count, max_tokens=max_tokens, ignore_eos=True, seed=seed, detokenize=False
        )


class Spread(msgspec.Struct, frozen=True):
    """Shares saved by single requests."""

    lowest: float
    median: float
    highest: float


class PromptShare(msgspec.Struct, frozen=True):
    """One prompt of a row."""

    prompt_tokens: int
    output_tokens: int
    saved_share: float
    common_tokens: int
    """Leading tokens that all its answers have in common; all but a few if beams part late."""
    repeated_share: float
    """Runs of four tokens that stand earlier in the best answer too: near 1 in a loop."""


class SharingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One way to answer the prompts of one workload."""

    workload: str
    method: str
    n_or_width: int
    requests: int
    logical_blocks: float
    """Entries of all tables, averaged over steps: blocks that would be held without sharing."""
    physical_blocks: float
    """Distinct blocks held, averaged over the same steps."""
    blocks_saved_share: float
    """1 - physical / logical, of the averages; so a step counts as much as it holds."""
    blocks_saved_error: float | None
    """Standard error of the share, from leaving out one request at a time; None: one request."""
    mean_step_share: float
    """The same share worked out step by step, then averaged."""
    requests_saved_share: Spread
    prompts: list[PromptShare]
    steps: int
    step_s: float | None = None
    """Seconds; None where several settings share their steps."""
    resubmit_step_s: float | None = None
    """Seconds a token takes by submitting each beam again, with prefix cache."""


class Curve(msgspec.Struct, frozen=True):
    """Blocks over the steps of a run, all requests of a row together."""

    workload: str
    method: str
    n_or_width: int
    every: int
    """Steps between two points."""
    logical: list[int]
    physical: list[int]


class Run(msgspec.Struct, frozen=True):
    """What computing a workload took, all its rows together."""

    workload: str
    requests: int
    mean_input: float
    mean_output: float
    distribution: str
    seconds: float
    cpu_seconds: float
    """Of all threads; far below `seconds` times the threads: the machine had other work."""
    steps: int
    output_tokens: int
    copies: int
    preemptions: int


class Measured(msgspec.Struct, frozen=True):
    """Rows of one workload, and how they came about."""

    rows: list[SharingRow]
    curves: list[Curve]
    run: Run


def measure(bench: Bench, work: Workload, settings: list[Setting], *, seed: int = 0) -> Measured:
    """Answer all prompts in all settings, everything in one batch.

    Each setting has a namespace of its own, so that none shares with another. Raises ConfigError
    if the text is too short.
    """
    requests = _requests(bench, work, settings, seed)
    watch = bench.tap.watch = Watch()
    stats, before, cpu = bench.engine.stats, time.perf_counter(), time.process_time()
    steps, copies, preempted = stats.steps, stats.copies, stats.preemptions
    try:
        answers = list(answer(bench.engine, requests).values())
    finally:
        bench.tap.watch = None
    run = Run(
        workload=work.name,
        requests=len(work.lengths),
        mean_input=work.mean_input,
        mean_output=work.mean_output,
        distribution=work.distribution,
        seconds=time.perf_counter() - before,
        cpu_seconds=time.process_time() - cpu,
        steps=stats.steps - steps,
        output_tokens=sum(len(text) for texts in answers for text in texts),
        copies=stats.copies - copies,
        preemptions=stats.preemptions - preempted,
    )
    rows: list[SharingRow] = []
    curves: list[Curve] = []
    prompts, count = [prompt for prompt, _ in work.lengths], len(work.lengths)
    for place, setting in enumerate(settings):
        owners = range(place * count, (place + 1) * count)
        own = [watch.moments[owner] for owner in owners]
        rows.append(row_of(work.name, setting, own, [answers[o] for o in owners], prompts))
        curves.append(curve_of(work.name, setting, own))
    return Measured(rows, curves, run)


def _requests(bench: Bench, work: Workload, settings: list[Setting], seed: int) -> list[Request]:
    """Return the requests, setting by setting; each has its place as seed of its options."""
    prompts = cut(bench.tokens, (prompt for prompt, _ in work.lengths), bench.text_name)
    requests: list[Request] = []
    for place, setting in enumerate(settings):
        space = msgspec.structs.replace(bench.namespace, salt=f"{work.name} {place}")
        for number, (_, output) in enumerate(work.lengths):
            requests.append(
                Request(
                    id=f"{work.name} {len(requests)}",
                    prompt=prompts[number],
                    sampling=setting.params(output, len(requests)),
                    seed=seed + number,
                    namespace=space,
                )
            )
    return requests


def answer(engine: Engine, requests: Iterable[Request]) -> dict[str, list[list[int]]]:
    """Run requests to their end; returns the tokens of their answers. Raises ConfigError."""
    texts: dict[str, list[list[int]]] = {}
    for request in requests:
        engine.add(request)
        texts[request.id] = [[] for _ in range(request.sampling.choices)]
    while engine.busy:
        for news in engine.step():
            if news.finish is FinishReason.ERROR:
                raise ConfigError(f"the model could not answer: {news.error}")
            texts[news.request_id][news.index] += news.token_ids
    return texts


def row_of(
    workload: str,
    setting: Setting,
    requests: list[list[Moment]],
    answers: list[list[list[int]]],
    prompt_tokens: list[int],
) -> SharingRow:
    """Sum up what the requests of a setting held, and look at what they wrote."""
    sums = [(sum(m.logical for m in own), sum(m.physical for m in own)) for own in requests]
    steps = _by_step(requests)
    logical, physical = (sum(side) for side in zip(*sums, strict=True))
    shares = [_saved(*one) for one in sums]
    return SharingRow(
        workload=workload,
        method=setting.method,
        n_or_width=setting.count,
        requests=len(requests),
        logical_blocks=logical / len(steps),
        physical_blocks=physical / len(steps),
        blocks_saved_share=_saved(logical, physical),
        blocks_saved_error=_jackknife(sums),
        mean_step_share=statistics.fmean(_saved(*one) for one in steps),
        requests_saved_share=Spread(min(shares), statistics.median(shares), max(shares)),
        prompts=[
            PromptShare(length, len(texts[0]), share, common_tokens(texts), repeated(texts[0]))
            for length, texts, share in zip(prompt_tokens, answers, shares, strict=True)
        ],
        steps=len(steps),
    )


def common_tokens(texts: list[list[int]]) -> int:
    """Count the leading tokens that all texts have in common."""
    columns = zip(*texts, strict=False)
    return len(list(itertools.takewhile(lambda column: len(set(column)) == 1, columns)))


_RUN = 4


def repeated(text: list[int]) -> float:
    """Return the share of a text's runs of four tokens that stand earlier in it too."""
    runs = [tuple(text[place : place + _RUN]) for place in range(len(text) - _RUN + 1)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


_POINTS = 60
"""Of a curve, at most."""


def curve_of(workload: str, setting: Setting, requests: list[list[Moment]]) -> Curve:
    """Return the blocks over the steps, thinned out."""
    steps = _by_step(requests)
    every = -(-len(steps) // _POINTS)
    logical, physical = (list(side) for side in zip(*steps[::every], strict=True))
    return Curve(workload, setting.method, setting.count, every, logical, physical)


def _by_step(requests: list[list[Moment]]) -> list[tuple[int, int]]:
    """Return logical and physical blocks of all requests together, step by step."""
    steps: dict[int, tuple[int, int]] = {}
    for own in requests:
        for moment in own:
            logical, physical = steps.get(moment.step, (0, 0))
            steps[moment.step] = (logical + moment.logical, physical + moment.physical)
    return [steps[number] for number in sorted(steps)]


def _saved(logical: int, physical: int) -> float:
    return 1 - physical / logical


def _jackknife(sums: list[tuple[int, int]]) -> float | None:
    """Return the standard error of the share of all, from the shares without each one."""
    count = len(sums)
    if count < 2:
        return None
    logical, physical = (sum(side) for side in zip(*sums, strict=True))
    shares = [_saved(logical - one, physical - other) for one, other in sums]
    mean = statistics.fmean(shares)
    return math.sqrt((count - 1) / count * sum((share - mean) ** 2 for share in shares))
