"""Copies of blocks to the host's memory and back."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from octavo.contract.layout import kv_layout
from octavo.pages import transfer
from octavo.pages.arena import Arena
from octavo.pages.transfer import BlockCopies, cut
from octavo.testing.tiny import tiny_spec

BLOCKS = 40


@pytest.fixture
def arena():
    made = Arena(kv_layout(tiny_spec(), block_size=4, dtype="float32"), BLOCKS)
    made.raw.random_(generator=torch.Generator().manual_seed(0))
    return made


@pytest.fixture(params=["as they lie", "in pieces", "one by one"])
def copies(request, arena, monkeypatch):
    """Copies that take runs of four blocks as they lie, or none, and three blocks in a piece."""
    size = arena.layout.block_bytes
    direct = {"as they lie": 1, "in pieces": 4, "one by one": BLOCKS + 1}[request.param]
    monkeypatch.setattr(transfer, "DIRECT_BYTES", direct * size)
    monkeypatch.setattr(transfer, "PIECE_BYTES", (1 if request.param == "one by one" else 3) * size)
    made = BlockCopies(arena, BLOCKS)
    made.host.zero_()
    yield made
    made.close()


def pairs_of(seed):
    """A run of blocks, blocks that are in order on the target's side alone, and scattered ones."""
    draw = random.Random(seed)
    pairs = [(3 + number, 20 + number) for number in range(8)] + [(39, 30), (12, 31), (25, 32)]
    sources = sorted(set(range(BLOCKS)) - {source for source, _ in pairs})
    targets = sorted(set(range(BLOCKS)) - {target for _, target in pairs})
    pairs += zip(draw.sample(sources, 9), draw.sample(targets, 9), strict=True)
    draw.shuffle(pairs)
    return pairs


@pytest.mark.parametrize("seed", range(5))
def test_a_stored_block_lies_in_its_host_block(arena, copies, seed):
    pairs = pairs_of(seed)

    ticket = copies.store(pairs)

    ticket.join()
    assert ticket.done()
    for device, host in pairs:
        assert torch.equal(copies.host[host], arena.raw[device])
    untouched = set(range(BLOCKS)) - {host for _, host in pairs}
    assert not copies.host[sorted(untouched)].any()


@pytest.mark.parametrize("seed", range(5))
def test_a_loaded_block_lies_in_its_device_block(arena, copies, seed):
    copies.host.random_(generator=torch.Generator().manual_seed(1))
    before, pairs = arena.raw.clone(), pairs_of(seed)

    ticket = copies.load(pairs)

    ticket.wait()
    for host, device in pairs:
        assert torch.equal(arena.raw[device], copies.host[host])
    untouched = sorted(set(range(BLOCKS)) - {device for _, device in pairs})
    assert torch.equal(arena.raw[untouched], before[untouched])


def test_calls_take_effect_in_their_order(arena, copies):
    first, second = arena.raw[3].clone(), arena.raw[4].clone()

    copies.store([(3, 0), (4, 1)])
    copies.load([(0, 4), (1, 3)])
    copies.store([(3, 7), (4, 8)]).join()

    assert torch.equal(copies.host[7], second)
    assert torch.equal(copies.host[8], first)


def test_nothing_to_copy_is_done_at_once(copies):
    assert copies.store([]).done()
    assert copies.load([]).done()


@pytest.mark.parametrize(
    ("verb", "pairs", "message"),
    [
        ("store", [(BLOCKS, 0)], f"device block {BLOCKS}, but there are {BLOCKS} blocks"),
        ("store", [(0, BLOCKS)], f"host block {BLOCKS}, but there are {BLOCKS} blocks"),
        ("load", [(-1, 0)], "host block -1"),
        ("load", [(0, 5), (1, 5)], "a device block is written twice in one call"),
        ("store", [(0, 5), (1, 5)], "a host block is written twice in one call"),
    ],
)
def test_a_wrong_block_fails_and_changes_nothing(arena, copies, verb, pairs, message):
    before = arena.raw.clone()

    with pytest.raises(AssertionError, match=message):
        getattr(copies, verb)(pairs)

    assert torch.equal(arena.raw, before)
    assert not copies.host.any()


def test_one_block_may_be_stored_in_two_places(arena, copies):
    copies.store([(2, 0), (2, 9)]).join()

    assert torch.equal(copies.host[0], copies.host[9])
    assert torch.equal(copies.host[0], arena.raw[2])


def test_after_close_nothing_is_copied(copies):
    copies.close()
    copies.close()

    with pytest.raises(AssertionError, match="a copy after close"):
        copies.store([(0, 0)])


def test_runs_of_enough_blocks_are_copied_as_they_lie():
    hosts = [0, 1, 2, 5, 6, 7, 8, 10]
    devices = [4, 5, 6, 1, 9, 10, 11, 12]

    runs, rest = cut(np.array([hosts, devices]), 3)

    assert runs == [(slice(0, 3), slice(4, 7)), (slice(6, 9), slice(9, 12))]
    assert rest.tolist() == [[5, 10], [1, 12]]
