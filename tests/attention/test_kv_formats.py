"""How many bytes KV takes in each format, and where the bytes of a block lie."""

from __future__ import annotations

import pytest
import torch

from octavo.contract.batch import Copy
from octavo.contract.formats import KVFormat, find_formats
from octavo.contract.layout import KVGroup, KVLayout, kv_layout, plain_layout, stored_layout
from octavo.errors import ConfigError
from octavo.pages.arena import Arena
from octavo.testing.tiny import GARBAGE, tiny_spec


def llama_8b(dtype):
    return plain_layout(layers=32, kv_heads=8, head_dim=128, block_size=16, dtype=dtype)


@pytest.mark.parametrize(
    ("dtype", "bytes_per_token"),
    [
        ("float32", 2 * 32 * 8 * 128 * 4),
        ("bfloat16", 2 * 32 * 8 * 128 * 2),
        ("int8", 2 * 32 * 8 * (128 + 4)),
        ("float16/int8", 32 * 8 * (128 * 2 + 128 + 4)),
    ],
)
def test_a_token_takes_the_bytes_of_its_vectors(dtype, bytes_per_token):
    assert llama_8b(dtype).bytes_per_token == bytes_per_token


def test_a_layout_says_how_keys_and_values_are_stored():
    assert llama_8b("int8").dtype == "int8"
    assert llama_8b("float16/int8").dtype == "float16/int8"
    assert llama_8b("int8/int8").dtype == "int8"


def test_bits_that_fill_no_byte_are_rounded_up_for_each_vector():
    assert KVFormat("int4", 4).vector_bytes(7) == 4
    assert KVFormat("int3", 3, extra_bytes=2).vector_bytes(8) == 5


def test_planes_begin_at_multiples_of_16_bytes_and_the_rest_is_counted():
    layout = plain_layout(layers=3, kv_heads=1, head_dim=6, block_size=1, dtype="int8/float32")

    assert layout.block_bytes == 3 * (16 + 32)
    assert layout.bytes_per_token == 3 * (16 + 32)


@pytest.mark.parametrize("name", ["int3", "auto", "", "int8/", "/int8", "int8/int8/int8", "INT8"])
def test_an_unknown_format_is_refused_with_the_known_ones(name):
    with pytest.raises(ConfigError, match=r"is not one of float32, .*int8, or two of them as KEYS"):
        find_formats(name)


def test_groups_of_unequal_bytes_are_refused():
    shape = {"kv_heads": 1, "head_dim": 8, "block_size": 4}
    groups = (
        KVGroup(name="a", layers=(0, 1), **shape),
        KVGroup(name="b", layers=(2,), **shape),
    )

    with pytest.raises(ConfigError, match=r"equal bytes, got \{'a': 192, 'b': 96\}"):
        KVLayout(groups=groups, keys=KVFormat("int8", 8, 4), values=KVFormat("int8", 8, 4))


@pytest.mark.parametrize("dtype", ["float32", "int8", "int8/float32", "bfloat16/int8"])
@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_what_is_written_into_a_plane_is_read_back_and_nothing_else_changes(dtype, block_size):
    group = KVGroup(name="full", layers=(0, 1), kv_heads=3, head_dim=6, block_size=block_size)
    arena = Arena(stored_layout((group,), dtype), 5)
    arena.raw.fill_(GARBAGE)
    source = torch.Generator().manual_seed(0)
    k, v = (torch.randn(7, 3, 6, generator=source) for _ in range(2))
    slots = torch.randperm(5 * block_size, generator=source)[:7]
    k, v = k[: len(slots)], v[: len(slots)]
    blocks, offsets = slots // block_size, slots % block_size

    for plane, x in ((arena.keys(0, 1), k), (arena.values(0, 1), v)):
        plane.write(blocks, offsets, x)

    for plane, x in ((arena.keys(0, 1), k), (arena.values(0, 1), v)):
        kept = plane.codec.decode(plane.codec.encode(x), 6)
        begins = blocks * plane.steps[0] + offsets * plane.steps[1]
        begins = begins[:, None] + torch.arange(3) * plane.steps[2]
        assert torch.equal(plane.read(blocks, offsets), kept)
        assert torch.equal(plane.read_items(begins.flatten()).view(x.shape), kept)
    planes = (arena.keys(0, 1), k), (arena.values(0, 1), v)
    room = sum(plane.codec.encode(x).nbytes for plane, x in planes)
    assert (arena.raw != GARBAGE).sum().item() <= room
    assert (arena.keys(0, 0).slots.view(torch.uint8) == GARBAGE).all()


def test_copies_take_the_bytes_of_any_format_along():
    arena = Arena(kv_layout(tiny_spec(), block_size=4, dtype="int8/bfloat16"), 3)
    arena.raw.fill_(GARBAGE)
    here = torch.tensor([0]), torch.tensor([2])
    arena.values(0, 1).write(*here, torch.ones(1, 2, 16))

    arena.copy((Copy(0, 2),))

    assert torch.equal(arena.raw[2], arena.raw[0])
    there = torch.tensor([2]), torch.tensor([2])
    assert torch.equal(arena.values(0, 1).read(*there), torch.ones(1, 2, 16))


def test_an_arena_wants_the_codecs_of_its_layout():
    layout = stored_layout(
        kv_layout(tiny_spec(), block_size=4, dtype="int8").groups,
        (KVFormat("int8", 8), KVFormat("int8", 8)),
    )

    with pytest.raises(AssertionError, match="not of the layout"):
        Arena(layout, 3)
