"""The reference backend: many slices through tables, with the bits of the plain kernel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.attention import reference
from octavo.attention.reference import ReferenceAttention
from octavo.contract.ids import NO_BLOCK
from octavo.contract.layout import KVGroup, stored_layout
from octavo.kernels.reference import attend
from octavo.kernels.tiled import attend_pass
from octavo.pages.arena import Arena
from octavo.testing.attention import step_inputs

SHAPES = [(4, 4, 8), (9, 3, 64), (8, 1, 16), (6, 2, 12), (7, 1, 8)]


def one_group(heads, kv_heads, head_dim, block_size, *, blocks=400, dtype="float32", window=None):
    group = KVGroup(
        name="one",
        layers=(0, 1),
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        window=window,
    )
    arena = Arena(stored_layout((group,), dtype), blocks)
    arena.blocks(0).fill_(torch.nan)
    return ReferenceAttention(arena, num_heads=heads)


def texts(lengths, heads, kv_heads, head_dim, seed=0):
    """Draw queries, keys and values of whole texts."""
    source = torch.Generator().manual_seed(seed)
    return [
        [torch.randn(n, h, head_dim, generator=source) for h in (heads, kv_heads, kv_heads)]
        for n in lengths
    ]


def run_steps(backend, whole, cuts, block_size, *, layer=1, seed=0, window=None):
    """Feed texts in steps, all together; cuts[step][text] is how many tokens it gets.

    window: blocks wholly behind it leave the tables.
    """
    order = iter(np.random.default_rng(seed).permutation(400).tolist())
    tables = [[next(order) for _ in range(-(-len(q) // block_size))] for q, _, _ in whole]
    outputs = [[] for _ in whole]
    done = [0] * len(whole)
    for cut in cuts:
        chosen = [i for i, n in enumerate(cut) if n]
        starts, lengths = [done[i] for i in chosen], [cut[i] for i in chosen]
        if window is not None:
            for i in chosen:
                gone = max(0, done[i] - window + 1) // block_size
                tables[i][:gone] = [NO_BLOCK] * gone
        backend.plan(step_inputs(starts, lengths, [[tables[i] for i in chosen]], [block_size]))
        parts = [
            torch.cat([whole[i][part][done[i] : done[i] + cut[i]] for i in chosen])
            for part in range(3)
        ]
        backend.write(layer, parts[1], parts[2])
        for i, rows in zip(chosen, backend.run(layer, parts[0]).split(lengths), strict=True):
            outputs[i].append(rows)
            done[i] += len(rows)
    return [torch.cat(rows) for rows in outputs]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_many_slices_have_the_bits_of_the_plain_kernel(shape, block_size):
    backend = one_group(*shape, block_size)
    whole = texts((70, 1, 33, 130), *shape)
    cuts = [(50, 1, 0, 64), (19, 0, 33, 1), (1, 0, 0, 65)]

    got = run_steps(backend, whole, cuts, block_size)

    assert backend.batch_invariant
    for rows, (q, k, v) in zip(got, whole, strict=True):
        assert torch.equal(rows, attend(q, k, v, start=0))


@pytest.mark.parametrize("shape", SHAPES[1:4])
@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("window", [1, 3, 16, 64, 90, 1000])
def test_a_window_has_the_bits_of_the_plain_kernel_too(shape, block_size, window):
    backend = one_group(*shape, block_size, window=window)
    whole = texts((70, 1, 33, 200), *shape)
    cuts = [(50, 1, 0, 64), (19, 0, 33, 1), (1, 0, 0, 134), (0, 0, 0, 1)]

    got = run_steps(backend, whole, cuts, block_size, window=window)

    for rows, (q, k, v) in zip(got, whole, strict=True):
        assert torch.equal(rows, attend(q, k, v, start=0, window=window))


def test_key_tiles_behind_the_window_are_not_computed(monkeypatch):
    computed = []

    def spy(q, keys, values, tiles, *rest, **named):
        computed.append(tiles.rounds)
        return attend_pass(q, keys, values, tiles, *rest, **named)

    monkeypatch.setattr(reference, "attend_pass", spy)
    shape = (4, 2, 8)
    run_steps(one_group(*shape, 16, window=65), texts((1024,), *shape), [(1023,), (1,)], 16)

    assert computed[-1] == (1, 1)
    assert max(map(len, computed)) == 2


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_a_text_has_the_same_bits_in_any_company(data):
    shape = data.draw(st.sampled_from(SHAPES))
    window = data.draw(st.none() | st.integers(1, 160))
    lengths = data.draw(st.lists(st.integers(1, 150), min_size=1, max_size=4))
    whole = texts(lengths, *shape)
    cuts, left = [], list(lengths)
    while any(left):
        cut = [data.draw(st.integers(0, n)) for n in left]
        if not any(cut):
            cut = left
        cuts.append(cut)
        left = [n - c for n, c in zip(left, cut, strict=True)]

    got = run_steps(one_group(*shape, 4, window=window), whole, cuts, 4, window=window)

    for rows, (q, k, v) in zip(got, whole, strict=True):
        assert torch.equal(rows, attend(q, k, v, start=0, window=window))


def test_a_long_step_is_cut_into_passes_without_changing_a_bit():
    shape = (4, 2, 8)
    whole = texts((700, 300), *shape)

    got = run_steps(one_group(*shape, 16), whole, [(700, 299), (0, 1)], 16)

    for rows, (q, k, v) in zip(got, whole, strict=True):
        assert torch.equal(rows, attend(q, k, v, start=0))


def test_slices_that_share_blocks_read_the_same_memory():
    shape = (4, 2, 16)
    backend = one_group(*shape, 4)
    ((q, k, v),) = texts((9,), *shape)
    backend.plan(step_inputs([0, 8], [8, 1], [[[5, 9], [5, 9, 2]]], [4]))
    backend.write(0, k, v)

    got = backend.run(0, q)

    assert torch.equal(got, attend(q, k, v, start=0))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_low_precision_memory_is_read_as_what_was_written(dtype):
    shape = (4, 2, 16)
    backend = one_group(*shape, 4, dtype=dtype)
    kind = {"bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    whole = [[x.to(kind) for x in text] for text in texts((20,), *shape)]

    (got,) = run_steps(backend, whole, [(15,), (5,)], 4)

    assert got.dtype is kind
    assert torch.equal(got, attend(*whole[0], start=0))
