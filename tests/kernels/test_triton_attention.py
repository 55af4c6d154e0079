"""Triton's paged attention against the reference: memory full of garbage, tables in disorder."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install 'octavo[gpu]'")

from octavo.attention.schedule import (
    Cut,
    Runs,
    schedule_entries,
    schedule_exact,
    schedule_tiles,
)
from octavo.kernels.reference import attend, gather_kv
from octavo.kernels.triton.decode import (
    Entries,
    Parts,
    Shape,
    attend_decode,
    count_programs,
)
from octavo.kernels.triton.exact import (
    CHUNK,
    ExactTiles,
    attend_exact,
    exact_queries,
)
from octavo.kernels.triton.prefill import (
    QueryTiles,
    attend_prefill,
    queries_per_tile,
)

ON_GPU = torch.cuda.is_available()
CLOSE = {torch.float32: 2e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}
SHAPES = [(4, 2, 16), (9, 3, 64), (6, 1, 80), (8, 8, 32), (32, 8, 128)]
HALF = torch.bfloat16 if ON_GPU else torch.float16  # the interpreter multiplies no bfloat16
if ON_GPU:
    KINDS = [(shape, dtype) for shape in SHAPES for dtype in (torch.float32, torch.bfloat16)]
else:
    KINDS = [*((shape, torch.float32) for shape in SHAPES[:4]), (SHAPES[0], torch.float16)]


class Texts:
    """Keys and values of texts in shuffled pages; what no text has written is NaN."""

    def __init__(self, lengths, shape, *, block_size, dtype, device, shared=0, seed=0):
        heads, kv_heads, head_dim = shape
        draw = np.random.default_rng(seed)
        counts = [-(-length // block_size) for length in lengths]
        num_blocks = sum(counts) + 3
        order = draw.permutation(num_blocks)
        source = torch.Generator().manual_seed(seed)
        memory = torch.full((num_blocks, 2, 2, block_size, kv_heads, head_dim), float("nan"))
        self.tables, used = [], 0
        for count in counts:
            self.tables.append(order[used : used + count].copy())
            used += count
        for table in self.tables[1:]:
            table[:shared] = self.tables[0][:shared]
        for table, length in zip(self.tables, lengths, strict=True):
            for position in range(length):
                where = table[position // block_size], 1, slice(None), position % block_size
                if memory[where].isnan().any():
                    memory[where] = torch.randn(2, kv_heads, head_dim, generator=source)
        self.pages = memory.to(device=device, dtype=dtype)[:, 1]
        self.lengths, self.block_size = lengths, block_size
        self.flat = np.concatenate(self.tables)
        self.starts = np.cumsum([len(table) for table in self.tables])
        self.starts = self.starts - [len(table) for table in self.tables]
        self.device, self.dtype, self.heads, self.head_dim = device, dtype, heads, head_dim
        self.source = source

    def queries(self, rows):
        q = torch.randn(rows, self.heads, self.head_dim, generator=self.source)
        return q.to(device=self.device, dtype=self.dtype)

    def expected(self, number, q, start, window):
        table = torch.from_numpy(self.tables[number]).to(self.device)
        k, v = gather_kv(self.pages, table, start + len(q))
        first = 0 if window is None else max(0, start - window + 1)
        k[:first], v[:first] = 0, 0
        return attend(q.float(), k.float(), v.float(), start=start, window=window)


def shape_of(shape, block_size, window, device):
    heads, kv_heads, head_dim = shape
    programs = count_programs(torch.device(device))
    return Shape(heads, kv_heads, head_dim, block_size, window, programs)


def decode(texts, shape, *, window=None, chunk=None, share=True):
    rows = np.random.default_rng(1).permutation(len(texts.lengths))
    kinds = shape_of(shape, texts.block_size, window, texts.device)
    cut = Cut(
        block_size=texts.block_size,
        window=window,
        kv_heads=shape[1],
        programs=kinds.programs,
        most_parts=4096,
        members=kinds.shared_members,
        chunk=chunk,
        share=share,
    )
    plan = schedule_entries(rows, texts.starts, np.array(texts.lengths), texts.flat, cut)

    def put(values):
        return torch.from_numpy(np.ascontiguousarray(values)).to(texts.device, torch.int32)

    entries = Entries(
        put(plan.rows),
        put(texts.flat),
        put(plan.table_starts),
        put(plan.lengths),
        put(plan.first_part),
        put(plan.items),
        put(plan.shared),
        put(plan.members),
        put(plan.merged),
        put(np.array([len(plan.items), len(plan.shared), plan.chunk, len(plan.merged)])),
    )
    room = torch.full((4096, shape[0], shape[2]), float("nan"), device=texts.device)
    ended = torch.zeros(len(rows), shape[1], dtype=torch.int32, device=texts.device)
    lse = torch.full((4096, shape[0]), float("nan"), device=texts.device)
    parts = Parts(room, lse, ended)
    q = texts.queries(len(rows) + 1)
    out = torch.full_like(q, 7.0)
    shared = len(plan.shared) > 0
    attend_decode(q, texts.pages, entries, parts, kinds, out, shared=shared, parted=plan.parted)
    assert (out[-1] == 7.0).all(), "a row of nobody was written"
    for number, row in enumerate(rows):
        want = texts.expected(number, q[row : row + 1], texts.lengths[number] - 1, window)
        close = CLOSE[texts.dtype]
        torch.testing.assert_close(out[row : row + 1].float(), want, atol=close, rtol=close)
    return plan, out


@pytest.mark.parametrize(("shape", "dtype"), KINDS, ids=str)
def test_single_queries_attend_to_their_texts(device, shape, dtype):
    texts = Texts(
        [1, 17, 64, 65, 300 if ON_GPU else 150], shape, block_size=16, dtype=dtype, device=device
    )

    decode(texts, shape)


@pytest.mark.parametrize("block_size", [1, 4, 32])
def test_blocks_have_any_size(device, block_size):
    texts = Texts([5, 130], (4, 2, 16), block_size=block_size, dtype=torch.float32, device=device)

    decode(texts, (4, 2, 16))


@pytest.mark.parametrize("window", [1, 50, 64, 200])
def test_single_queries_look_back_no_further_than_the_window(device, window):
    texts = Texts([1, 60, 129, 400], (4, 2, 16), block_size=4, dtype=torch.float32, device=device)

    decode(texts, (4, 2, 16), window=window)


@pytest.mark.parametrize("members", [4, 40 if ON_GPU else 18])
def test_what_texts_share_is_read_once(device, members):
    lengths = [300 + 7 * i for i in range(members)]
    texts = Texts(lengths, (8, 2, 16), block_size=16, dtype=torch.float32, device=device, shared=17)

    plan, shared = decode(texts, (8, 2, 16), chunk=128)

    assert set(plan.shared[:, 3].tolist()) == {0, 1}
    assert plan.shared[:, 1].sum() == 2 * members
    texts.source.manual_seed(9)
    _, first = decode(texts, (8, 2, 16), chunk=128)
    texts.source.manual_seed(9)
    _, alone = decode(texts, (8, 2, 16), chunk=128, share=False)
    torch.testing.assert_close(first, alone, atol=2e-5, rtol=2e-5)
    assert shared.shape == first.shape


def test_a_query_has_the_same_bits_in_company_when_chunks_are_fixed(device):
    shape, lengths = (8, 2, 64), [700, 33, 129, 260]
    texts = Texts(lengths, shape, block_size=16, dtype=HALF, device=device)
    texts.source.manual_seed(5)
    plan, together = decode(texts, shape, chunk=128, share=False)
    number = int(np.flatnonzero(plan.rows == 0)[0])

    texts.tables, texts.lengths = [texts.tables[number]], [lengths[number]]
    texts.flat, texts.starts = texts.tables[0], np.array([0])
    texts.source.manual_seed(5)
    _, alone = decode(texts, shape, chunk=128, share=False)

    assert torch.equal(alone[0], together[0])


@pytest.mark.parametrize(("shape", "dtype"), KINDS, ids=str)
def test_runs_of_queries_attend_to_what_is_before_them(device, shape, dtype):
    prefill(
        device, shape, dtype, [(0, 5), (0, 70), (63, 2), (64, 64), (250 if ON_GPU else 100, 40)]
    )


@pytest.mark.parametrize("window", [1, 30, 64, 150])
def test_runs_look_back_no_further_than_the_window(device, window):
    runs = [(0, 90), (100, 3), (200, 140)]
    prefill(device, (4, 2, 16), torch.float32, runs, window=window, block_size=4)


def prefill(device, shape, dtype, runs, *, window=None, block_size=16):
    lengths = [start + count for start, count in runs]
    texts = Texts(lengths, shape, block_size=block_size, dtype=dtype, device=device)
    kinds = shape_of(shape, block_size, window, device)
    counts = np.array([count for _, count in runs])
    starts = np.array([start for start, _ in runs])
    rows = np.cumsum(counts) - counts + 1
    tiles = schedule_tiles(Runs(rows, counts, starts, texts.starts), queries_per_tile(kinds))
    if window is not None:
        for table, start in zip(texts.tables, starts, strict=True):
            table[: max(0, start - window + 1) // block_size] = -1
        flat = np.concatenate(texts.tables)
    else:
        flat = texts.flat

    def put(values):
        return torch.from_numpy(np.ascontiguousarray(values)).to(texts.device, torch.int32)

    q = texts.queries(int(counts.sum()) + 2)
    out = torch.full_like(q, 7.0)
    attend_prefill(q, texts.pages, QueryTiles(put(flat), put(tiles)), kinds, out)

    assert (out[[0, -1]] == 7.0).all(), "a row of nobody was written"
    for number, (row, count, start) in enumerate(zip(rows, counts, starts, strict=True)):
        texts.tables[number] = np.maximum(texts.tables[number], 0)
        want = texts.expected(number, q[row : row + count], int(start), window)
        close = CLOSE[dtype]
        torch.testing.assert_close(out[row : row + count].float(), want, atol=close, rtol=close)


# ── bits that depend on the text alone ────────────────────────────────────────────────────


def exact(texts, shape, slices, q, *, window=None, most_parts=512):
    """Attend with slices (text, start, queries); returns the rows of the output."""
    kinds = shape_of(shape, texts.block_size, window, texts.device)
    counts = np.array([count for _, _, count in slices])
    plan = schedule_exact(
        Runs(
            np.cumsum(counts) - counts,
            counts,
            np.array([start for _, start, _ in slices]),
            np.array([texts.starts[number] for number, _, _ in slices]),
        ),
        per_tile=exact_queries(kinds),
        chunk=CHUNK,
        window=window,
        most_parts=most_parts,
    )

    def put(values):
        return torch.from_numpy(np.ascontiguousarray(values)).to(texts.device, torch.int32)

    tiles = ExactTiles(
        put(texts.flat), put(plan.tiles), put(plan.items), put(np.array([len(plan.items)]))
    )
    ended = torch.zeros(len(slices), shape[1], dtype=torch.int32, device=texts.device)
    parts = Parts(
        torch.full((512, *q.shape[1:]), float("nan"), device=texts.device),
        torch.full((512, shape[0]), float("nan"), device=texts.device),
        ended,
    )
    out = torch.full_like(q, 7.0)
    attend_exact(q, texts.pages, tiles, parts, kinds, out)
    assert not ended.any(), "what counts the items that have ended is not zero again"
    return out


@pytest.mark.parametrize("window", [None, 100, 700])
@pytest.mark.parametrize(("shape", "dtype"), KINDS if ON_GPU else KINDS[::2], ids=str)
def test_exact_attention_is_the_references(device, shape, dtype, window):
    slices = [(0, 0, 40), (1, 699, 1), (2, 500, 30), (3, 0, 1), (4, 1099, 1)]
    lengths = [start + count for _, start, count in slices]
    texts = Texts(lengths, shape, block_size=16, dtype=dtype, device=device)
    q = texts.queries(sum(count for _, _, count in slices))

    out = exact(texts, shape, slices, q, window=window)

    row = 0
    for number, start, count in slices:
        rows = slice(row, row + count)
        want = texts.expected(number, q[rows], start, window)
        close = CLOSE[dtype]
        torch.testing.assert_close(out[rows].float(), want, atol=close, rtol=close)
        row += count


@pytest.mark.parametrize("window", [None, 520])
def test_exact_attention_gives_the_same_bits_however_a_text_is_cut(device, window):
    shape, length = (8, 2, 64), 1100 if ON_GPU else 560
    texts = Texts([length, 60], shape, block_size=16, dtype=HALF, device=device)
    q = texts.queries(length)
    whole = exact(texts, shape, [(0, 0, length)], q, window=window)

    pieces = [(0, 0, 33), (0, 33, 1), (0, 34, 500), (0, 534, length - 534)]
    company = [(1, 0, 60), *pieces]
    cut = exact(texts, shape, company, torch.cat((q[:60], q)), window=window)
    singles = [0, 511, 512, 530, length - 1]
    alone = exact(texts, shape, [(0, at, 1) for at in singles], q[singles], window=window)
    uncut = exact(
        texts, shape, [(0, at, 1) for at in singles], q[singles], window=window, most_parts=0
    )

    assert torch.equal(cut[60:], whole)
    assert torch.equal(alone, whole[singles])
    assert torch.equal(uncut, whole[singles])
