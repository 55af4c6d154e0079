"""Scores every position of a text on the native executor: for measuring, not for serving."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from octavo.config import EngineConfig
from octavo.contract.batch import Batch, Score, Slice
from octavo.executors.native import choose_native
from octavo.machine import available_cores
from octavo.models.checkpoint import Checkpoint


class TextScorer:
    """One native executor with room for one text.

    Raises ConfigError or ModelError if the executor cannot run the model.
    """

    def __init__(
        self, config: EngineConfig, checkpoint: Checkpoint, *, arithmetic: str, longest: int
    ) -> None:
        """Pack the weights.

        arithmetic: int8, bf16 or float32. longest: tokens of a text.
        """
        from octavo.runner.inputs import InputBuilder
        from octavo.runner.native import NativeExecutor, start_threads

        choice = choose_native(replace(config, cpu_arithmetic=arithmetic), checkpoint)
        self.name = arithmetic
        self._counts = [-(-longest // group.block_size) for group in choice.layout.groups]
        self._executor = NativeExecutor(
            checkpoint,
            choice.layout,
            sum(self._counts),
            arithmetic=choice.arithmetic,
            pool=start_threads(config.threads or available_cores()),
        )
        self._inputs = InputBuilder(
            choice.layout, num_blocks=sum(self._counts), vocab_size=self._executor.vocab_size
        )

    @property
    def vocab_size(self) -> int:
        """Tokens that are scored."""
        return self._executor.vocab_size

    def compute(self, tokens: tuple[int, ...]) -> None:
        """Take in a text in one step; all its positions but the last can then be scored."""
        blocks: list[tuple[int, ...]] = []
        first = 0
        for count in self._counts:
            blocks.append(tuple(range(first, first + count)))
            first += count
        part = Slice(
            seq=0,
            start=0,
            tokens=tokens,
            kept=(0,) * len(blocks),
            blocks=tuple(blocks),
            samples=(),
            score=Score(first=0, targets=tokens[1:], top=0),
        )
        batch = Batch(step=0, slices=(part,), ended=(0,))
        self._inputs.check(batch)
        self._inputs.advance(batch)
        work = self._inputs.build(batch)
        assert work is not None
        self._executor.compute(work.inputs)

    def logits(self, first: int, count: int) -> NDArray[np.float32]:
        """Score the vocabulary after some tokens of the text: [count, vocab_size]."""
        return self._executor.logits(first, count)
