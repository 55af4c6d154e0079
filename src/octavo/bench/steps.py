"""Time of one decoding step, by the number of its sequences and by their length.

Batches go to the runner directly, below the scheduler: what is timed is input tables, the model and
sampling. Every sequence has blocks of its own, which hold keys and values of real tokens.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

import msgspec
import numpy as np

from octavo.contract.batch import Batch, Copy, Sample, Slice, StepResult
from octavo.contract.layout import KVLayout
from octavo.contract.sampling import SamplingParams
from octavo.engine.loop import ModelRunner
from octavo.errors import ConfigError

STEPS = 5
"""Timed in each round for each point, after one that is not."""
_PREFILL_ROWS = 2048
_COPIES = 4096
"""Blocks copied in one step while memory is filled."""
_GREEDY = SamplingParams(temperature=0.0, max_tokens=None)


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step that decodes `rows` sequences, each with `context` tokens in memory."""

    rows: int
    context: int
    step_s: float
    """Median of all rounds."""
    quartiles: tuple[float, float]
    floor_s: float
    """Bytes that the step must read, weights once and all KV, over the read bandwidth."""
    steps: int
    """Timed."""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Step time over context, as a straight line."""

    rows: int
    fixed_s: float
    per_token_s: float
    """For each token of context, of all rows together."""
    worst: float
    """Largest distance of a point from the line, as a share of the point."""


@dataclass(frozen=True, slots=True)
class StepBench:
    """A runner whose whole KV memory is free to be used, and what it computes."""

    runner: ModelRunner
    layout: KVLayout
    num_blocks: int
    vocab_size: int
    weight_bytes: int
    """That every step reads."""

    def blocks(self, context: int) -> int:
        """Blocks of a sequence that has `context` tokens and writes one more."""
        (size,) = self.layout.block_sizes
        return context // size + 1

    def fits(self, rows: int, context: int) -> bool:
        """Return whether memory holds so many sequences."""
        return rows * self.blocks(context) <= self.num_blocks


def measure_steps(
    bench: StepBench,
    points: list[tuple[int, int]],
    *,
    rounds: int,
    clock: Callable[[], float],
    bandwidth: Callable[[], float],
    advance: Callable[[float], None],
) -> tuple[list[StepRow], list[float]]:
    """Time steps at points (rows, context); returns them, and the read bandwidths of the run.

    All points are visited in each round, so that a slow minute of the machine meets them alike.
    Raises ConfigError for a point that does not fit into memory, or a step that fails.
    """
    for rows, context in points:
        if not bench.fits(rows, context):
            raise ConfigError(
                f"{rows} sequences of {context} tokens need {rows * bench.blocks(context)} blocks "
                f"of KV memory, but there are {bench.num_blocks}: raise --kv-cache-memory-bytes"
            )
    _fill(bench, points)
    times: dict[tuple[int, int], list[float]] = {point: [] for point in points}
    speeds = [bandwidth()]
    for _ in range(rounds):
        for point in points:
            times[point] += _time_point(bench, *point, clock)
            advance(1)
        speeds.append(bandwidth())
    speed = statistics.median(speeds)
    return [_row(bench, *point, times[point], speed) for point in points], speeds


def fit_lines(rows: list[StepRow]) -> list[Line]:
    """Fit step time over context, for each number of rows with three contexts or more."""
    lines: list[Line] = []
    for count in dict.fromkeys(row.rows for row in rows):
        own = [row for row in rows if row.rows == count]
        if len(own) < 3:
            continue
        contexts = np.array([row.context for row in own], dtype=np.float64)
        times = np.array([row.step_s for row in own])
        # Each distance counts as a share of its point, as `worst` does.
        slope, fixed = np.polyfit(contexts, times, 1, w=1 / times)
        worst = np.abs((fixed + slope * contexts) / times - 1).max()
        lines.append(
            Line(
                rows=count,
                fixed_s=float(fixed),
                per_token_s=float(slope) / count,
                worst=float(worst),
            )
        )
    return lines


def _fill(bench: StepBench, points: list[tuple[int, int]]) -> None:
    """Compute the KV of one long text, and copy it to all blocks that will be read."""
    longest = max(context for _, context in points)
    used = max(rows * bench.blocks(context) for rows, context in points)
    source = bench.blocks(longest)
    random = Random("steps")
    text = [random.randrange(bench.vocab_size) for _ in range(longest)]
    for start in range(0, longest, _PREFILL_ROWS):
        tokens = tuple(text[start : start + _PREFILL_ROWS])
        table = tuple(range(source)) if start == 0 else ()
        kept = source if start else 0
        part = Slice(0, start, tokens, (kept,), (table,), ())
        _step(bench, Batch(step=0, slices=(part,)))
    _step(bench, Batch(step=0, ended=(0,)))
    targets = range(source, used)
    for first in targets[::_COPIES]:
        copies = tuple(
            Copy(block % source, block) for block in targets if first <= block < first + _COPIES
        )
        # Copies come with a step: it computes the text's first token once more.
        part = Slice(0, 0, (text[0],), (0,), ((0,),), ())
        _step(bench, Batch(step=0, slices=(part,), copies=copies, ended=(0,)))


def _time_point(
    bench: StepBench, rows: int, context: int, clock: Callable[[], float]
) -> Iterator[float]:
    """Yield the seconds of some steps at one point."""
    size = bench.blocks(context)
    tables = [tuple(range(row * size, (row + 1) * size)) for row in range(rows)]
    for number in range(STEPS + 1):
        # Tables are sent once; every step writes the same position anew.
        kept = 0 if number == 0 else size
        slices = tuple(
            Slice(
                row,
                context,
                ((row * 31 + number) % bench.vocab_size,),
                (kept,),
                (() if kept else tables[row],),
                (Sample(row, row, _GREEDY),),
            )
            for row in range(rows)
        )
        before = clock()
        _step(bench, Batch(step=0, slices=slices))
        passed = clock() - before
        if number:
            yield passed
    _step(bench, Batch(step=0, ended=tuple(range(rows))))


def _step(bench: StepBench, batch: Batch) -> StepResult:
    bench.runner.submit(batch)
    result = bench.runner.collect()
    if result.error is not None:
        raise ConfigError(f"a step with {len(batch.slices)} slices failed: {result.error}")
    return result


def _row(bench: StepBench, rows: int, context: int, times: list[float], speed: float) -> StepRow:
    low, median, high = (float(value) for value in np.percentile(times, (25, 50, 75)))
    kv_bytes = rows * (context + 1) * bench.layout.bytes_per_token
    return StepRow(
        rows=rows,
        context=context,
        step_s=median,
        quartiles=(low, high),
        floor_s=(bench.weight_bytes + kv_bytes) / speed,
        steps=len(times),
    )
