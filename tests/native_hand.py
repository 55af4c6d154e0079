"""Random models for the native executor, and a hand that feeds batches to it."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from octavo.contract.batch import Batch, Slice
from octavo.contract.layout import KVLayout
from octavo.models.decoder import load_decoder
from octavo.runner.masks import Matchers
from octavo.runner.native import NativeExecutor, start_threads
from octavo.runner.native_padding import native_layout
from octavo.runner.native_sampler import NativeSampler
from octavo.runner.step_runner import StepRunner
from octavo.testing.tiny import Hand, RandomWeights, hand_for

KV_DTYPE = {"int8": "bfloat16", "bf16": "bfloat16", "float32": "float32"}
"""How KV is stored, by the arithmetic."""
BLOCK = 16
_POISONED = 1_000_000
"""A sequence of no test."""


@dataclass(frozen=True, slots=True)
class StoredRandomWeights(RandomWeights):
    """Random weights as a file would hold them: what a checkpoint is to an executor.

    kind: of matrices whose rows are whole groups of 32; others are F16, as llama.cpp has it. The
    embedding row of `poison` is not a number: a text of it writes NaN to all its slots.
    """

    kind: str = "F32"
    poison: int | None = None

    def stored_rows(self, name: str) -> tuple[str, NDArray[np.uint8]]:
        """Return a matrix's type and its bytes, row by row."""
        kind = self._kind(name)
        values = RandomWeights.tensor(self, name)
        if name == "embedding" and self.poison is not None:
            values[self.poison] = np.nan
        return kind, quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8)

    def release(self, name: str) -> None:
        """Keep the weights: they lie in no file."""

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Return the numbers that are stored."""
        if len(self.shapes()[name]) == 1:
            return RandomWeights.tensor(self, name)
        kind, rows = self.stored_rows(name)
        raw_type = gguf.GGMLQuantizationType[kind]
        plain = {"F32": np.float32, "F16": np.float16}
        return dequantize(rows.view(plain.get(kind, np.uint8)), raw_type).astype(np.float32)

    def _kind(self, name: str) -> str:
        if name == "embedding" and self.poison is not None:
            return "F32"
        kind, whole = self.kind_of(name), self.shapes()[name][1] % 32 == 0
        return kind if whole or kind == "F32" else "F16"

    def kind_of(self, name: str) -> str:
        """Return the type that one matrix is to have."""
        return self.kind


def native_hand(
    checkpoint,
    *,
    arithmetic: str = "float32",
    threads: int = 1,
    isa: str | None = None,
    num_blocks: int = 64,
    placement: list[int] | None = None,
    poison: int | None = None,
    matchers: Matchers | None = None,
) -> Hand:
    """Put a model behind the native runner, and a hand before it.

    poison: a token that writes NaN; memory is filled with it, as are blocks behind a window, which
    are then given out again.
    """
    layout = native_layout(checkpoint.spec, block_size=BLOCK, dtype=KV_DTYPE[arithmetic])
    executor = NativeExecutor(
        checkpoint, layout, num_blocks, arithmetic=arithmetic, pool=start_threads(threads), isa=isa
    )
    hand: Hand

    def observe(batch: Batch, logits: NDArray[np.float32]) -> None:
        hand.observe(batch, torch.from_numpy(logits))

    sampler = NativeSampler(executor)
    runner = StepRunner(executor, sampler=sampler, matchers=matchers, on_logits=observe)
    order = list(range(num_blocks)) if placement is None else placement
    hand = Hand(runner, layout, order)
    if poison is not None:
        hand.discard = lambda block: _spoil(runner, layout, block, poison)
        for block in range(num_blocks):
            hand.discard(block)
    return hand


def _spoil(runner: StepRunner, layout: KVLayout, block: int, token: int) -> None:
    """Fill all pages of a block with NaN."""
    groups = len(layout.groups)
    text = (token,) * BLOCK
    part = Slice(_POISONED, 0, text, (0,) * groups, ((block,),) * groups, ())
    runner.submit(Batch(step=0, slices=(part,)))
    assert runner.collect().error is None
    runner.submit(Batch(step=0, ended=(_POISONED,)))
    assert runner.collect().error is None


def words(spec, count: int, seed: int = 0) -> list[int]:
    """Draw token ids of a model, but for the last of its vocabulary."""
    return np.random.default_rng(seed).integers(0, spec.vocab_size - 1, count).tolist()


def answer(hand: Hand, prompt: list[int], *, new: int = 3, chunks=()) -> torch.Tensor:
    """Run one text; returns the logits of each new token: [new, vocab_size]."""
    hand.start(1, prompt)
    hand.generate(1, new, chunks=chunks)
    return torch.stack(hand.logits[1])


def torch_logits(checkpoint, text: list[int], first: int) -> torch.Tensor:
    """Score a given text with the torch decoder in float32: after `first` tokens, and each more."""
    hand = hand_for(load_decoder(checkpoint), num_blocks=8 * len(text), block_size=4)
    for end in range(first, len(text) + 1):
        # Registered anew as if it ended here, it shares what has been computed of it.
        hand.start(end, text[:end], like=end - 1 if end > first else None)
        hand.generate(end, 1)
    return torch.stack([hand.logits[end][0] for end in range(first, len(text) + 1)])


def mix(hand: Hand, prompts: list[list[int]], *, new: int, most: int, seed: int = 0) -> None:
    """Compute all texts together, in steps of random slices of at most `most` tokens each."""
    draw = np.random.default_rng(seed)
    for seq, prompt in enumerate(prompts):
        hand.start(seq, prompt)
    ends = [len(prompt) + new for prompt in prompts]
    while behind := [seq for seq, end in enumerate(ends) if len(hand.texts[seq]) < end]:
        missing = {seq: min(most, len(hand.texts[seq]) - hand.written[seq]) for seq in behind}
        hand.run(
            *(hand.slice(seq, int(draw.integers(1, left + 1))) for seq, left in missing.items())
        )
