"""The native executor: a whole step in one call of the extension, without torch."""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.background import InBackground
from octavo.contract.batch import Copy
from octavo.contract.layout import KVLayout
from octavo.cpu import require_native
from octavo.errors import ConfigError
from octavo.models.checkpoint import Checkpoint
from octavo.runner.inputs import StepArrays
from octavo.runner.masks import Mask, mask_words
from octavo.runner.native_model import NativeWeights, ThreadPool
from octavo.runner.native_padding import whole
from octavo.runner.pooling import States
from octavo.runner.step_runner import Logits

_PAGES = {"bfloat16": "bf16", "float32": "f32"}


def start_threads(count: int, give_way_ms: int = 0) -> ThreadPool:
    """Start what computes.

    give_way_ms: for so long after a step begins, others may have its cores. Raises ConfigError.
    """
    try:
        return require_native().ThreadPool(count, give_way_s=give_way_ms / 1000)
    except RuntimeError as error:
        raise ConfigError(f"{count} threads cannot be started ({error}): lower threads") from None


class NativeExecutor:
    """Computes steps on the CPU, with a pool of threads that nobody else uses meanwhile.

    The bits of a row depend on its own text alone: not on the batch, on how a prompt is cut, on
    shared prefixes or on the number of threads. touch_ahead_mb: of KV memory,
    made ready behind the blocks in use. Raises ConfigError or ModelError.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        layout: KVLayout,
        num_blocks: int,
        *,
        arithmetic: str,
        pool: ThreadPool,
        isa: str | None = None,
        touch_ahead_mb: int = 0,
    ) -> None:
        """Reserve the memory and begin to pack the weights; the first step waits for that.

        arithmetic: int8, bf16 or float32. isa: an instruction set instead of the fastest.
        """
        native = require_native()
        weights = NativeWeights(checkpoint, arithmetic=arithmetic, pool=pool)
        model = weights.model(layout)
        groups = [(g.block_size, g.window or 0, g.pages_per_block) for g in layout.groups]
        self._engine = native.Engine(
            model,
            groups=groups,
            blocks=num_blocks,
            page_format=_PAGES[layout.dtype],
            pool=pool,
            isa=isa,
        )
        if touch_ahead_mb:
            self._engine.touch_ahead(touch_ahead_mb << 20)
        assert self._engine.block_bytes == layout.block_bytes, (
            f"blocks of {self._engine.block_bytes} bytes, the layout says {layout.block_bytes}"
        )
        self._sampler = native.Sampler(checkpoint.spec.vocab_size, pool=pool, isa=isa)
        self._layout = layout
        self._num_blocks = num_blocks
        self._vocab_size = checkpoint.spec.vocab_size
        self._norm = checkpoint.tensor("norm")
        self._norm_eps = checkpoint.spec.norm_eps
        self._weights = weights
        # Takes no GIL: what else a process does before its first token gets on meanwhile.
        self._packing: InBackground[None] | None = InBackground(weights.pack)

    @property
    def layout(self) -> KVLayout:
        """How the KV memory is laid out."""
        return self._layout

    @property
    def num_blocks(self) -> int:
        """Blocks of KV memory."""
        return self._num_blocks

    @property
    def vocab_size(self) -> int:
        """Tokens that are scored."""
        return self._vocab_size

    def close(self) -> None:
        """Stop what goes on in the background."""
        if self._packing is not None:
            self._weights.stop()
            self._packing.wait()

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Copy whole blocks, in order."""
        if copies:
            self._engine.copy(
                np.array([copy.src for copy in copies], dtype=np.int32),
                np.array([copy.dst for copy in copies], dtype=np.int32),
            )

    def compute(self, step: StepArrays) -> None:
        """Write the KV of all rows, and keep the last states of the sampled ones."""
        if self._packing is not None:
            self._packing.result()
            self._packing = None
        self._engine.run(
            _narrow(step.tokens),
            _narrow(step.positions),
            np.array(step.starts, dtype=np.int32),
            np.array(step.lengths, dtype=np.int32),
            [
                (_narrow(g.tables), _narrow(g.table_starts), _narrow(g.blocks), _narrow(g.offsets))
                for g in step.groups
            ],
            _narrow(step.sample_rows),
        )

    def logits(self, first: int, count: int) -> Logits:
        """Score the vocabulary after some of the sampled rows of the last step."""
        scores = np.empty((count, self._vocab_size), dtype=np.float32)
        self.write_logits(first, scores)
        return scores

    def write_logits(self, first: int, rows: Logits) -> None:
        """Score the vocabulary after sampled rows from `first` on, into rows [count, vocab]."""
        if len(rows):
            self._engine.score(first, rows)

    def states(self, first: int, count: int) -> States:
        """Return the last states of some of the sampled rows of the last step."""
        rows = np.empty((count, whole(len(self._norm))), dtype=np.float32)
        self._engine.write_states(first, rows)
        wide = rows[:, : len(self._norm)].astype(np.float64)
        scale = 1 / np.sqrt(np.square(wide).mean(axis=1, keepdims=True) + self._norm_eps)
        return (wide * scale * self._norm).astype(np.float32)

    def find_likeliest(
        self, masks: list[Mask | None]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]:
        """Find the likeliest token after each of the first sampled rows of the last step.

        masks: what may come after each row; None: all. Returns the tokens, -1 where none may come;
        their log-probabilities, before any mask; how many logits of each row are not finite.
        """
        given = [mask for mask in masks if mask is not None]
        numbers = count()
        of_row = [-1 if mask is None else next(numbers) for mask in masks]
        return self._engine.find_likeliest(
            0,
            len(masks),
            np.array(of_row, dtype=np.int32),
            np.array(given, dtype=np.int32).reshape(-1, mask_words(self._vocab_size)),
        )

    def choose(self, logits: Logits, *options: NDArray[Any]) -> tuple[NDArray[Any], ...]:
        """Choose tokens by logits, as `Sampler.sample` of the extension says."""
        return self._sampler.sample(logits, *options)


def _narrow(values: NDArray[np.int64]) -> NDArray[np.int32]:
    return values.astype(np.int32)
