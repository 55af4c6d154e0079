"""What every attention backend promises, as a suite that out-of-tree backends can run too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from octavo.attention.backend import AttentionBackend, GroupInputs, StepInputs
from octavo.contract.formats import format_names
from octavo.contract.ids import NO_BLOCK, BlockId
from octavo.contract.layout import KVGroup, stored_layout
from octavo.contract.model import ModelSpec
from octavo.pages.arena import Arena
from octavo.pages.codecs import CODECS
from octavo.testing.tiny import GARBAGE, tiny_spec

MakeBackend: TypeAlias = Callable[[Arena, ModelSpec], AttentionBackend]
Text: TypeAlias = tuple[Tensor, Tensor, Tensor]
"""Queries, keys and values of a whole text: [tokens, heads, head_dim] each."""

TOLERANCE = {"float32": 2e-5, "bfloat16": 3e-2, "float16": 4e-3}
"""Largest difference to exact attention over the same stored numbers, all drawn from N(0, 1)."""


def step_inputs(
    starts: Iterable[int],
    lengths: Iterable[int],
    tables: list[list[list[BlockId]]],
    block_sizes: Iterable[int],
    device: str | torch.device = "cpu",
) -> StepInputs:
    """Make the inputs of a step without a batch. tables[group][slice] is a list of blocks."""
    starts, lengths = list(starts), list(lengths)
    positions = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    owner = np.repeat(np.arange(len(starts)), lengths)

    def put(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(device)

    groups: list[GroupInputs] = []
    for per_slice, size in zip(tables, block_sizes, strict=True):
        flat = np.concatenate([np.array(table) for table in per_slice])
        counts = np.array([len(table) for table in per_slice])
        begins = np.cumsum(counts) - counts
        groups.append(
            GroupInputs(
                tables=put(flat),
                table_starts=put(begins),
                blocks=put(flat[begins[owner] + positions // size]),
                offsets=put(positions % size),
            )
        )
    return StepInputs(
        starts=tuple(starts),
        lengths=tuple(lengths),
        tokens=put(np.zeros(len(positions))),
        positions=put(positions),
        groups=tuple(groups),
        sample_rows=put(np.zeros(0)),
    )


def exact_attention(text: Text, window: int | None = None) -> Tensor:
    """Causal grouped-head attention of a whole text in float64: the oracle.

    window: positions that a query sees, its own included.
    """
    q, k, v = (part.double() for part in text)
    tokens, heads, width = q.shape
    k, v = (part.repeat_interleave(heads // part.shape[1], dim=1) for part in (k, v))
    scores = torch.einsum("qhd,khd->hqk", q, k) / width**0.5
    hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    if window is not None:
        hidden |= torch.ones(tokens, tokens, dtype=torch.bool).tril(-window)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, v)


def check_attention_backend(
    make: MakeBackend, *, device: str = "cpu", dtypes: Iterable[str] = ("float32", "bfloat16")
) -> None:
    """Assert what `AttentionBackend` promises, over head shapes, block sizes and dtypes.

    Exact within a stated tolerance over what is stored, by lossy codecs too if it reads them;
    bit-equal whatever the placement of blocks; slots that were never written are not read, nor is
    what lies behind a window; slices of a step see each other's writes; groups use their own tables
    and windows; and if the backend says so, bits that do not depend on the batch.
    """
    for dtype in dtypes:
        for shape in ((4, 4, 8), (9, 3, 64), (8, 1, 16)):
            for block_size in (1, 4, 16):
                _Case(make, shape, block_size, (dtype, dtype), device).check()
        # Smaller than a block, as large as one, as tiles often are, larger than the text.
        for window in (1, 7, 16, 64, 500):
            for block_size in (1, 16) if window < 64 else (16,):
                _Case(make, (4, 2, 16), block_size, (dtype, dtype), device, window).check()
    for stored in ("int8", "float32/int8", "int8/bfloat16"):
        for shape in ((9, 3, 64), (4, 1, 6)):
            for block_size in (1, 16):
                _Case(make, shape, block_size, ("float32", stored), device).check_if_read()
    _check_groups(make, device)


class _Case:
    """One shape of heads, one block size, one dtype and how it is stored, one window."""

    def __init__(
        self,
        make: MakeBackend,
        shape: tuple[int, int, int],
        block_size: int,
        dtypes: tuple[str, str],
        device: str,
        window: int | None = None,
    ) -> None:
        self.make = make
        self.shape = shape
        self.block_size = block_size
        self.dtype, self.stored = dtypes
        self.device = device
        self.window = window
        self.lengths, self.cuts = (70, 1, 33), ((50, 1, 0), (19, 0, 32), (1, 0, 1))
        self.name = f"heads {shape}, block size {block_size}, {self.dtype} as {self.stored}"
        if window is not None:
            self.lengths, self.cuts = (150, 1, 33), ((50, 1, 0), (99, 0, 32), (1, 0, 1))
            self.name += f", window {window}"

    def check_if_read(self) -> None:
        reads = self._backend(1)[0].reads
        if reads is None or reads.issuperset(format_names(self.stored)):
            self.check()

    def check(self) -> None:
        texts = self._draw()
        blocks = sum(-(-n // self.block_size) for n in self.lengths)
        pool = blocks + 8
        in_order = self._run(texts, list(range(pool)), pool)
        shuffled = np.random.default_rng(1).permutation(pool).tolist()
        elsewhere = self._run(texts, shuffled, pool)
        for number, (rows, text) in enumerate(zip(in_order, texts, strict=True)):
            where = f"{self.name}, text {number}"
            assert torch.isfinite(rows).all(), (
                f"{where}: a slot was read that was never written, or lies behind the window"
            )
            truth = exact_attention(self._read_back(text), self.window)
            error = (rows.double().cpu() - truth).abs().max().item()
            assert error <= TOLERANCE[self.dtype], f"{where}: differs by {error} from exact"
            assert torch.equal(rows, elsewhere[number]), f"{where}: placement changes the result"
        self._check_company(texts, in_order, pool)
        self._check_shared_blocks(texts[0], in_order[0], pool)

    def _draw(self) -> list[Text]:
        heads, kv_heads, width = self.shape
        source = torch.Generator().manual_seed(0)
        kind = getattr(torch, self.dtype)

        def part(tokens: int, count: int) -> Tensor:
            return torch.randn(tokens, count, width, generator=source).to(kind)

        return [(part(n, heads), part(n, kv_heads), part(n, kv_heads)) for n in self.lengths]

    def _read_back(self, text: Text) -> Text:
        """Return a text as memory gives it back."""
        keys, values = (CODECS[name]() for name in format_names(self.stored))
        q, k, v = text
        width = self.shape[2]
        return (
            q,
            keys.decode(keys.encode(k), width),
            values.decode(values.encode(v), width),
        )

    def _backend(self, pool: int) -> tuple[AttentionBackend, Arena]:
        heads, kv_heads, width = self.shape
        group = KVGroup(
            name="full",
            layers=(0, 1),
            kv_heads=kv_heads,
            head_dim=width,
            block_size=self.block_size,
            window=self.window,
        )
        arena = Arena(stored_layout((group,), self.stored), pool, device=self.device)
        arena.raw.fill_(GARBAGE)
        spec = tiny_spec(num_heads=heads, num_kv_heads=kv_heads, head_dim=width)
        return self.make(arena, spec), arena

    def _run(
        self,
        texts: list[Text],
        order: list[BlockId],
        pool: int,
        cuts: Iterable[tuple[int, ...]] | None = None,
    ) -> list[Tensor]:
        """Feed texts step by step, all together; cuts[step][text] is how many tokens it gets."""
        backend, arena = self._backend(pool)
        free = iter(order)
        size = self.block_size
        tables = [[next(free) for _ in range(-(-len(q) // size))] for q, _, _ in texts]
        outputs: list[list[Tensor]] = [[] for _ in texts]
        done = [0] * len(texts)
        for cut in self.cuts if cuts is None else cuts:
            chosen = [i for i, count in enumerate(cut) if count]
            starts, lengths = [done[i] for i in chosen], [cut[i] for i in chosen]
            for i in chosen:
                self._lose_what_is_behind(tables[i], done[i], arena)
            backend.plan(
                step_inputs(starts, lengths, [[tables[i] for i in chosen]], [size], self.device)
            )
            q, k, v = (
                torch.cat([texts[i][part][done[i] : done[i] + cut[i]] for i in chosen])
                for part in range(3)
            )
            backend.write(1, k.to(self.device), v.to(self.device))
            rows = backend.run(1, q.to(self.device))
            for i, piece in zip(chosen, rows.split(lengths), strict=True):
                outputs[i].append(piece)
                done[i] += len(piece)
        return [torch.cat(rows) for rows in outputs]

    def _lose_what_is_behind(self, table: list[BlockId], start: int, arena: Arena) -> None:
        """Spoil the blocks behind the window of a query, and forget all but the last of them."""
        if self.window is None:
            return
        gone = max(0, start - self.window + 1) // self.block_size
        for index, block in enumerate(table[:gone]):
            if block != NO_BLOCK:
                arena.raw[block] = GARBAGE
            if index < gone - 1:
                table[index] = NO_BLOCK

    def _check_company(self, texts: list[Text], together: list[Tensor], pool: int) -> None:
        if not self._backend(pool)[0].batch_invariant:
            return
        for number, text in enumerate(texts):
            (alone,) = self._run([text], list(range(pool)), pool, [(len(text[0]),)])
            assert torch.equal(alone, together[number]), (
                f"{self.name}, text {number}: batch_invariant, but company or cuts change bits"
            )

    def _check_shared_blocks(self, text: Text, truth: Tensor, pool: int) -> None:
        """A slice reads what another slice of the same step writes into shared blocks."""
        (backend, _), size = self._backend(pool), self.block_size
        cut = 16
        shared = list(range(cut // size))
        own = list(range(cut // size, -(-(cut + 1) // size)))
        backend.plan(step_inputs([0, cut], [cut, 1], [[shared, shared + own]], [size], self.device))
        q, k, v = (part[: cut + 1].to(self.device) for part in text)
        backend.write(0, k, v)
        rows = backend.run(0, q)
        error = (rows - truth[: cut + 1]).abs().max().item()
        assert error <= TOLERANCE[self.dtype], (
            f"{self.name}: a slice does not see what its neighbour writes in the same step"
        )


def _check_groups(make: MakeBackend, device: str) -> None:
    """Layers of each KV group go through the table of their group, and see its window."""
    near = KVGroup(name="near", layers=(0, 2), kv_heads=2, head_dim=8, block_size=4, window=3)
    far = KVGroup(name="far", layers=(1,), kv_heads=2, head_dim=8, block_size=8)
    arena = Arena(stored_layout((near, far), "float32"), 20, device=device)
    arena.raw.fill_(GARBAGE)
    backend = make(arena, tiny_spec(num_layers=3, num_heads=4, num_kv_heads=2, head_dim=8))
    source = torch.Generator().manual_seed(0)
    texts: list[Text] = [
        (
            torch.randn(11, 4, 8, generator=source),
            torch.randn(11, 2, 8, generator=source),
            torch.randn(11, 2, 8, generator=source),
        )
        for _ in range(3)
    ]
    backend.plan(step_inputs([0], [11], [[[3, 0, 7]], [[9, 4]]], [4, 8], device))
    for layer, (_, k, v) in enumerate(texts):
        backend.write(layer, k.to(device), v.to(device))
    for layer, text in enumerate(texts):
        rows = backend.run(layer, text[0].to(device))
        window = far.window if layer in far.layers else near.window
        error = (rows.double().cpu() - exact_attention(text, window)).abs().max().item()
        assert error <= TOLERANCE["float32"], (
            f"layer {layer} does not use its group's table and window"
        )
