"""What every model runner must keep of prompts that are embedded, whatever its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Batch, Pool, Sample, Slice, StepResult
from octavo.contract.ids import BlockId, SeqId, StepId
from octavo.contract.pooling import HowPooled
from octavo.contract.sampling import SamplingParams
from octavo.engine.loop import ModelRunner

GREEDY = SamplingParams(temperature=0, max_tokens=None)


def check_pooled_runner(
    make: Callable[[], ModelRunner], *, block_size: int = 4, close: float = 1e-5
) -> None:
    """Check a runner of one KV group with 16 blocks and a vocabulary of 8 tokens or more.

    make: returns a new runner, each time over the same model and a memory of its own. block_size:
    tokens of a block, a multiple of 4. close: by how much, of its largest number, a vector may
    differ in other pieces or other company; 0: in no bit.
    """
    check = _Check(make, block_size, close)
    check.the_last_slice_alone_tells_a_vector()
    check.a_mean_is_that_of_its_pieces_in_any_company()
    check.pieces_may_be_in_flight_together()
    check.a_hit_has_the_last_tokens_vector()
    check.who_begins_again_keeps_nothing()
    check.who_has_ended_leaves_nothing()


class _Check:
    def __init__(self, make: Callable[[], ModelRunner], block_size: int, close: float) -> None:
        self._make = make
        self._close = close
        self._block = block_size
        self._text = (*(5, 1, 3, 2) * (block_size // 2), 4, 1)
        """Two blocks and two tokens more."""
        runner = make()
        whole = self._slices(0, "mean", ()), self._slices(1, "last", (), blocks=(3, 4, 5))
        pooled = self._run(runner, 1, *whole[0], *whole[1]).pooled
        self._alone = {"mean": pooled[0], "last": pooled[1]}
        runner.close()

    def the_last_slice_alone_tells_a_vector(self) -> None:
        runner = self._make()
        for how in ("mean", "last"):
            first, second, third = self._slices(0, how, (3, 1))
            for step, piece in enumerate((first, second), 1):
                result = self._run(runner, step, piece)
                assert not result.pooled, f"a vector of {how} before its prompt's end"
            result = self._run(runner, 3, third)
            assert (set(result.pooled), result.sampled) == ({0}, {}), f"a vector alone: {result}"
            self._compare(result.pooled[0], how, "in three pieces")
            runner.submit(Batch(4, ended=(0,)))
            runner.collect()
        runner.close()

    def a_mean_is_that_of_its_pieces_in_any_company(self) -> None:
        runner = self._make()
        sampled = self._whole_text(9, (12, 13, 14))
        token = self._run(runner, 1, sampled).sampled[9].token
        runner.close()
        runner = self._make()
        one = self._slices(0, "mean", (self._block + 1,))
        other = self._slices(1, "mean", (1, 2), blocks=(3, 4, 5))
        third = self._slices(2, "last", (4,), blocks=(6, 7, 8))
        self._run(runner, 1, other[0], one[0], third[0])
        mixed = self._run(runner, 2, other[1], one[1], sampled)
        last = self._run(runner, 3, third[1], other[2])
        assert set(mixed.pooled) == {0}, f"the vector of sequence 0 alone is due: {mixed.pooled}"
        assert set(last.pooled) == {1, 2}, f"vectors of 1 and 2 are due: {set(last.pooled)}"
        assert mixed.sampled[9].token == token, "vectors change what a text beside them gets"
        self._compare(mixed.pooled[0], "mean", "in two pieces, beside others")
        self._compare(last.pooled[1], "mean", "in three pieces, beside others")
        self._compare(last.pooled[2], "last", "in two pieces, beside others")
        runner.close()

    def pieces_may_be_in_flight_together(self) -> None:
        runner = self._make()
        for step, piece in enumerate(self._slices(0, "mean", (self._block + 2,)), 1):
            runner.submit(Batch(step, (piece,)))
        first, second = runner.collect(), runner.collect()
        assert not first.pooled, "a vector came with the first of two pieces"
        self._compare(second.pooled[0], "mean", "with both pieces in flight")
        runner.close()

    def a_hit_has_the_last_tokens_vector(self) -> None:
        runner = self._make()
        self._run(runner, 1, self._whole_text(9, (0, 1, 2)))
        start = 2 * self._block
        hit = Slice(
            0, start, self._text[start:], (0,), ((0, 1, 3),), (), pool=Pool("last", last=True)
        )
        self._compare(self._run(runner, 2, hit).pooled[0], "last", "after blocks that were there")
        runner.close()

    def who_begins_again_keeps_nothing(self) -> None:
        runner = self._make()
        self._run(runner, 1, self._slices(0, "mean", (self._block,))[0])
        pieces = self._slices(0, "mean", (2,), blocks=(3, 4, 5))
        for step, piece in enumerate(pieces, 2):
            result = self._run(runner, step, piece)
        self._compare(result.pooled[0], "mean", "begun again")  # pyright: ignore[reportPossiblyUnboundVariable]
        runner.close()

    def who_has_ended_leaves_nothing(self) -> None:
        runner = self._make()
        self._run(runner, 1, self._slices(0, "mean", (self._block,))[0])
        pieces = self._slices(1, "mean", (2,))
        runner.submit(Batch(2, (pieces[0],), ended=(0,)))
        runner.collect()
        self._compare(self._run(runner, 3, pieces[1]).pooled[1], "mean", "after another's end")
        runner.close()

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _slices(
        self,
        seq: SeqId,
        how: HowPooled,
        cuts: tuple[int, ...],
        *,
        blocks: tuple[BlockId, ...] = (0, 1, 2),
    ) -> list[Slice]:
        """Cut the text: so many tokens each, then the rest."""
        ends = [*np.cumsum(cuts, dtype=int).tolist(), len(self._text)]
        found: list[Slice] = []
        start, kept = 0, 0
        for end in ends:
            last = end == len(self._text)
            need = -(-end // self._block)
            pool = Pool(how, last) if last or how == "mean" else None
            tokens = self._text[start:end]
            found.append(Slice(seq, start, tokens, (kept,), (blocks[kept:need],), (), pool=pool))
            start, kept = end, need
        return found

    def _whole_text(self, seq: SeqId, blocks: tuple[BlockId, ...]) -> Slice:
        return Slice(seq, 0, self._text, (0,), (blocks,), (Sample(seq, 0, GREEDY),))

    @staticmethod
    def _run(runner: ModelRunner, step: StepId, *slices: Slice) -> StepResult:
        runner.submit(Batch(step, slices))
        result = runner.collect()
        assert result.error is None, f"a sound step failed: {result.error}"
        return result

    def _compare(self, told: bytes, how: HowPooled, case: str) -> None:
        got, alone = _numbers(told), _numbers(self._alone[how])
        apart = float(np.abs(got - alone).max() / np.abs(alone).max())
        assert apart <= self._close, f"the vector of {how} {case} is {apart:.1e} from what it was"
        assert self._close or told == self._alone[how], f"the vector of {how} {case}: other bits"


def _numbers(told: bytes) -> NDArray[Any]:
    vector = np.frombuffer(told, dtype="<f4").astype(np.float64)
    assert np.isfinite(vector).all(), "a vector with numbers that are none"
    return vector
