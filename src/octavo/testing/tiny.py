"""Tiny random models, and a hand that feeds batches to a torch runner without a scheduler."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from octavo.attention.backend import AttentionBackend
from octavo.attention.reference import ReferenceAttention
from octavo.contract.batch import Batch, Copy, Sample, Slice, StepResult
from octavo.contract.ids import PENDING, BlockId, SeqId
from octavo.contract.layout import KVLayout, kv_layout
from octavo.contract.model import ModelSpec
from octavo.contract.sampling import SamplingParams
from octavo.engine.loop import ModelRunner
from octavo.models.decoder import Decoder, load_decoder
from octavo.models.weights import Numbers, float32_numbers, weight_shapes
from octavo.pages.arena import Arena
from octavo.runner.masks import Matchers
from octavo.runner.torch_runner import TorchRunner

GREEDY = SamplingParams(temperature=0.0, max_tokens=None)

GARBAGE = 0xFF
"""A byte that, repeated, reads as NaN in every float format."""

MakeBackend = Callable[[Arena, ModelSpec], AttentionBackend]


def reference_backend(arena: Arena, spec: ModelSpec) -> AttentionBackend:
    """Make the reference backend for a model."""
    return ReferenceAttention(arena, num_heads=spec.num_heads)


def tiny_spec(
    *,
    vocab_size: int = 96,
    hidden_size: int = 64,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    tied_embeddings: bool = True,
    **beyond: Any,  # a field of any type
) -> ModelSpec:
    """Describe a decoder that computes a step in about a millisecond: a Llama.

    beyond: fields of `ModelSpec` that make it something else, such as experts.
    """
    return ModelSpec(
        family="llama",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size + 12,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        context=512,
        norm_eps=1e-5,
        rope_theta=10000.0,
        tied_embeddings=tied_embeddings,
        **beyond,
    )


@dataclass(frozen=True, slots=True)
class RandomWeights:
    """Weights drawn from a seed: a `WeightSource` that needs no file."""

    spec: ModelSpec
    seed: int = 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Name every tensor of the model with its shape."""
        return weight_shapes(self.spec)

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Draw one tensor; the same name gives the same numbers."""
        shape = self.shapes()[name]
        draw = np.random.default_rng([self.seed, *name.encode()])
        values = draw.standard_normal(shape, dtype=np.float32)
        if name.endswith("_bias"):
            return values
        if len(shape) == 1:
            return 1.0 + 0.1 * values
        # Not smaller: attention and sampling should have something to choose between.
        spread = 0.3 if name in ("embedding", "output") else 1.5 / shape[1] ** 0.5
        return values * np.float32(spread)

    def numbers(self, name: str) -> Numbers:
        """Draw one tensor, for a decoder."""
        return float32_numbers(self.tensor(name))


@dataclass
class Hand:
    """Feeds a runner by hand: tables without sharing, one block after the other.

    Written by its own methods. `placement` is the order in which blocks are given out. Blocks that
    fall behind a window are given to `discard` and then given out again.
    """

    runner: ModelRunner
    layout: KVLayout
    placement: list[BlockId]
    discard: Callable[[BlockId], object] | None = None
    """Spoils a block; None: blocks are kept to the end, so that texts may share them."""
    logits: dict[SeqId, list[Tensor]] = field(default_factory=dict)
    """Per sequence, the logits of each step that sampled for it: [vocab_size] each."""
    texts: dict[SeqId, list[int]] = field(default_factory=dict)
    tables: dict[SeqId, tuple[list[BlockId], ...]] = field(default_factory=dict)
    written: dict[SeqId, int] = field(default_factory=dict)
    _sent: dict[SeqId, list[int]] = field(default_factory=dict)
    _gone: dict[SeqId, list[int]] = field(default_factory=dict)
    """Per sequence and group, how many blocks at the front of the table are somebody else's."""
    _copies: list[Copy] = field(default_factory=list)
    """To be made by the next step."""
    _step: int = 0

    def observe(self, batch: Batch, logits: Tensor) -> None:
        """Keep the logits of a step by sequence."""
        sampling = [part for part in batch.slices if part.samples]
        for part, row in zip(sampling, logits, strict=True):
            self.logits.setdefault(part.seq, []).append(row.clone())

    def start(self, seq: SeqId, prompt: Iterable[int], *, like: SeqId | None = None) -> None:
        """Register a text. like: reuse what another has written of it, parts of blocks copied."""
        self.texts[seq] = list(prompt)
        self.tables[seq] = tuple([] for _ in self.layout.groups)
        self.written[seq] = 0
        self._sent[seq] = [0 for _ in self.layout.groups]
        self._gone[seq] = [0 for _ in self.layout.groups]
        if like is not None:
            shared = min(self.written[like], len(self.texts[seq]) - 1)
            pairs = enumerate(zip(self.texts[seq], self.texts[like], strict=False))
            shared = next(
                (at for at, (one, other) in pairs if one != other or at == shared), shared
            )
            assert shared, "no common prefix"
            for table, other, size in zip(
                self.tables[seq], self.tables[like], self.layout.block_sizes, strict=True
            ):
                table.extend(other[: shared // size])
                if shared % size:
                    table.append(self.placement.pop(0))
                    self._copies.append(Copy(other[shared // size], table[-1]))
            self.written[seq] = shared

    def slice(
        self, seq: SeqId, tokens: int, *, params: SamplingParams = GREEDY, seed: int = 0
    ) -> Slice:
        """Make the slice of the next `tokens` tokens; it samples if none remain after it."""
        text, start = self.texts[seq], self.written[seq]
        end = start + tokens
        ids = tuple(text[start:end]) + (PENDING,) * (end - len(text))
        kept: list[int] = []
        new: list[tuple[BlockId, ...]] = []
        for number, size in enumerate(self.layout.block_sizes):
            table = self.tables[seq][number]
            while len(table) * size < end:
                table.append(self.placement.pop(0))
            kept.append(self._sent[seq][number])
            new.append(tuple(table[kept[-1] :]))
            self._sent[seq][number] = len(table)
        self.written[seq] = end
        samples = (Sample(seq, seed, params),) if end >= len(text) else ()
        return Slice(seq, start, ids, tuple(kept), tuple(new), samples)

    def run(self, *slices: Slice) -> StepResult:
        """Run one step and append what it sampled to the texts."""
        self._step += 1
        self.runner.submit(Batch(step=self._step, slices=slices, copies=tuple(self._copies)))
        self._copies.clear()
        result = self.runner.collect()
        assert result.error is None, result.error
        for seq, one in result.sampled.items():
            self.texts[seq].append(one.token)
        if self.discard is not None:
            for part in slices:
                self._give_back(part.seq, self.discard)
        return result

    def _give_back(self, seq: SeqId, discard: Callable[[BlockId], object]) -> None:
        """Free the blocks that no later query of a text sees; its table keeps their ids."""
        for number, group in enumerate(self.layout.groups):
            if group.window is None:
                continue
            first = max(0, self.written[seq] - group.window + 1) // group.block_size
            for block in self.tables[seq][number][self._gone[seq][number] : first]:
                discard(block)
                self.placement.append(block)
            self._gone[seq][number] = max(first, self._gone[seq][number])

    def generate(self, seq: SeqId, new_tokens: int, *, chunks: Iterable[int] = ()) -> list[int]:
        """Compute what is missing of a text, in chunks, then decode; returns the new tokens."""
        before = len(self.texts[seq])
        for chunk in chunks:
            left = before - self.written[seq]
            if left > 0:
                self.run(self.slice(seq, min(chunk, left)))
        if self.written[seq] < before:
            self.run(self.slice(seq, before - self.written[seq]))
        while len(self.texts[seq]) < before + new_tokens:
            self.run(self.slice(seq, 1))
        return self.texts[seq][before:]


def hand_for(
    decoder: Decoder,
    *,
    num_blocks: int = 64,
    block_size: int = 16,
    dtype: str = "float32",
    deterministic: bool = False,
    placement: list[BlockId] | None = None,
    backend: MakeBackend = reference_backend,
    reuse: bool = False,
    matchers: Matchers | None = None,
) -> Hand:
    """Put a decoder behind a runner, and a hand before it; untouched memory reads as NaN.

    dtype: of KV, such as float32 or int8. reuse: blocks that fall behind a window are filled with
    NaN and given out again.
    """
    layout = kv_layout(decoder.spec, block_size=block_size, dtype=dtype)
    arena = Arena(layout, num_blocks, device=decoder.device)
    # Garbage must never matter: fill memory with what would spread if it were read.
    arena.raw.fill_(GARBAGE)
    hand: Hand

    def observe(batch: Batch, logits: Tensor) -> None:
        hand.observe(batch, logits)

    runner = TorchRunner(
        decoder,
        arena,
        backend(arena, decoder.spec),
        deterministic=deterministic,
        matchers=matchers,
        on_logits=observe,
    )
    hand = Hand(
        runner,
        layout,
        list(range(num_blocks)) if placement is None else placement,
        discard=(lambda block: arena.raw[block].fill_(GARBAGE)) if reuse else None,
    )
    return hand


def tiny_decoder(
    spec: ModelSpec | None = None,
    *,
    seed: int = 0,
    dtype: str = "float32",
    device: str = "cpu",
) -> Decoder:
    """Build a tiny random decoder."""
    return load_decoder(RandomWeights(spec or tiny_spec(), seed), dtype=dtype, device=device)
