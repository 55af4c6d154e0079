"""Times to tokens, and times of steps."""

from __future__ import annotations

import itertools

import pytest

from octavo.bench.latency import even_work, measure_latency
from octavo.bench.runner import CountingRunner
from octavo.bench.steps import STEPS, StepBench, StepRow, fit_lines, measure_steps
from octavo.contract.layout import plain_layout
from octavo.errors import ConfigError

LAYOUT = plain_layout(layers=1, kv_heads=1, head_dim=16, block_size=4, dtype="float32")


class Recorder(CountingRunner):
    """Keeps what it is given, and what has been written to each block."""

    def __init__(self):
        super().__init__(vocab_size=50)
        self.batches = []

    def submit(self, batch):
        self.batches.append(batch)
        super().submit(batch)


def steps(points, *, num_blocks=1000, rounds=2):
    runner = Recorder()
    bench = StepBench(runner, LAYOUT, num_blocks, vocab_size=50, weight_bytes=1000)
    clock = itertools.count()
    rows, speeds = measure_steps(
        bench, points, rounds=rounds, clock=lambda: float(next(clock)), bandwidth=lambda: 1e3,
        advance=lambda amount: None,
    )  # fmt: skip
    return runner, rows, speeds


def decoding(runner):
    """The steps that sample, and the table of each of their sequences."""
    tables = {}
    for batch in runner.batches:
        for seq in batch.ended:
            tables.pop(seq, None)
        for part in batch.slices:
            table = tables.setdefault(part.seq, [])
            table[part.kept[0] :] = part.blocks[0]
        if batch.slices and batch.slices[0].samples:
            yield batch, [tuple(tables[part.seq]) for part in batch.slices]


def test_the_first_token_is_timed_from_the_call_and_each_other_from_the_one_before():
    work = even_work(2, 5, 4, vocab_size=50)
    now = [0.0]

    def stream(given):
        for seconds, request, count in ((2, 0, 1), (1, 1, 1), (3, 0, 1), (1, 1, 0), (1, 1, 2)):
            now[0] += seconds
            yield request, count

    row = measure_latency(
        work, stream, rounds=1, clock=lambda: now[0], bandwidth=lambda: 1.0,
        advance=lambda amount: None,
    )  # fmt: skip

    assert (row.batch, row.context, row.output_tokens) == (2, 5, 4)
    assert (row.first_token_s.median, row.first_token_s.count) == (2.5, 2)
    assert (row.token_s.count, row.token_s.median) == (3, 2.5)  # 4, and twice 5 / 2


def test_each_sequence_of_a_step_has_blocks_of_its_own():
    runner, rows, speeds = steps([(1, 4), (3, 9)])

    found = list(decoding(runner))
    assert len(found) == 2 * 2 * (STEPS + 1)
    for batch, tables in found:
        blocks = [block for table in tables for block in table]
        assert len(set(blocks)) == len(blocks)
        assert all(len(table) == part.start // 4 + 1 for table, part in zip(
            tables, batch.slices, strict=True
        ))  # fmt: skip
    assert [(row.rows, row.context, row.step_s, row.steps) for row in rows] == [
        (1, 4, 1.0, 2 * STEPS),
        (3, 9, 1.0, 2 * STEPS),
    ]
    assert speeds == [1e3] * 3


def test_every_block_that_a_step_reads_has_been_filled():
    runner, _, _ = steps([(1, 17), (6, 9)])

    filled = set()
    for batch in runner.batches:
        assert {copy.src for copy in batch.copies} <= filled
        filled |= {copy.dst for copy in batch.copies}
        for part in batch.slices:
            if part.blocks[0] and not part.samples:
                last = part.start + len(part.tokens) - 1
                filled |= set(part.blocks[0][: last // 4 + 1])
    for batch, tables in decoding(runner):
        for part, table in zip(batch.slices, tables, strict=True):
            assert set(table[: (part.start - 1) // 4 + 1]) <= filled


def test_the_floor_counts_weights_once_and_the_kv_of_every_row():
    _, rows, _ = steps([(3, 9)])

    assert rows[0].floor_s == (1000 + 3 * 10 * LAYOUT.bytes_per_token) / 1e3


def test_a_point_beyond_memory_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="3 sequences of 9 tokens need 9 blocks"):
        steps([(3, 9)], num_blocks=8)


def test_a_line_is_fitted_over_the_contexts_of_each_number_of_rows():
    rows = [
        StepRow(
            rows=count, context=c, step_s=0.01 + 2e-6 * count * c, quartiles=(0, 1), floor_s=0.0,
            steps=1,
        )
        for count in (1, 8)
        for c in (100, 1000, 8000)
    ]  # fmt: skip

    one, eight = fit_lines([*rows, rows[0]])
    assert fit_lines(rows[:2]) == []

    assert (one.rows, eight.rows) == (1, 8)
    assert eight.fixed_s == pytest.approx(0.01)
    assert eight.per_token_s == pytest.approx(2e-6)
    assert eight.worst == pytest.approx(0, abs=1e-9)
