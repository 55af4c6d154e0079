"""The arena: where bytes lie, and copies of whole blocks."""

from __future__ import annotations

import pytest
import torch

from octavo.contract.batch import Copy
from octavo.contract.layout import KVGroup, kv_layout, stored_layout
from octavo.pages.arena import Arena
from octavo.testing.tiny import tiny_spec


@pytest.fixture
def arena():
    made = Arena(kv_layout(tiny_spec(), block_size=4, dtype="float32"), 6)
    for block in range(6):
        made.blocks(0)[block] = float(block)
    return made


def content(arena):
    return [int(arena.blocks(0)[block].unique().item()) for block in range(arena.num_blocks)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_arena_takes_the_bytes_that_its_layout_says(dtype):
    layout = kv_layout(tiny_spec(), block_size=4, dtype=dtype)

    arena = Arena(layout, 5)

    assert arena.nbytes == 5 * layout.block_bytes
    assert arena.blocks(0).shape == (5, 2, 2, 4, 2, 16)


def test_all_layers_of_one_block_lie_together(arena):
    arena.pages(0, 1)[3] = -1.0

    flat = arena.blocks(0).flatten()
    per_block = flat.numel() // 6

    assert (flat == -1).nonzero().flatten().tolist() == list(
        range(3 * per_block + per_block // 2, 4 * per_block)
    )


def test_groups_of_other_shapes_see_the_same_blocks():
    wide = KVGroup(name="wide", layers=(0, 1), kv_heads=2, head_dim=8, block_size=4)
    long = KVGroup(name="long", layers=(2,), kv_heads=2, head_dim=8, block_size=8)
    arena = Arena(stored_layout((wide, long), "float32"), 3)

    arena.blocks(0)[:] = 0.0
    arena.pages(1, 0)[1] = 7.0

    assert arena.pages(1, 0).shape == (3, 2, 8, 2, 8)
    assert [int(block.unique().item()) for block in arena.blocks(0)] == [0, 7, 0]


def test_copies_move_whole_blocks(arena):
    arena.copy((Copy(0, 3), Copy(1, 4), Copy(1, 5)))

    assert content(arena) == [0, 1, 2, 0, 1, 1]


def test_copies_whose_source_was_just_written_run_in_order(arena):
    arena.copy((Copy(0, 1), Copy(1, 2)))

    assert content(arena) == [0, 0, 0, 3, 4, 5]


def test_the_last_of_two_copies_to_one_block_wins(arena):
    arena.copy((Copy(0, 5), Copy(1, 5)))

    assert content(arena)[5] == 1


def test_a_copy_outside_the_arena_is_refused_before_anything_is_copied(arena):
    with pytest.raises(AssertionError, match="block 6"):
        arena.copy((Copy(0, 1), Copy(2, 6)))

    assert content(arena) == [0, 1, 2, 3, 4, 5]


def test_offsets_beyond_two_gigabytes_are_reached_without_touching_the_rest():
    layout = kv_layout(tiny_spec(), block_size=16, dtype="float32")
    blocks = (5 << 29) // layout.block_bytes

    arena = Arena(layout, blocks)
    arena.pages(0, 1)[blocks - 1] = 1.0

    assert torch.equal(arena.pages(0, 1)[blocks - 1], torch.ones(2, 16, 2, 16))
