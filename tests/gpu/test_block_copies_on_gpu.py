"""Copies of blocks between a GPU and the host's memory, beside the computing."""

from __future__ import annotations

import random

import pytest
import torch

from octavo.contract.layout import plain_layout
from octavo.pages.arena import Arena
from octavo.pages.transfer import BlockCopies

pytestmark = pytest.mark.gpu

CYCLES = 200_000_000
"""Of the device's clock: about 0.1 s."""


@pytest.fixture(params=[1, 8, 128], ids=lambda heads: f"{16 * heads} KiB")
def arena(request, cuda):
    """Blocks of 16 KiB, 128 KiB and 2 MiB."""
    layout = plain_layout(
        layers=2, kv_heads=request.param, head_dim=128, block_size=16, dtype="bfloat16"
    )
    made = Arena(layout, 300, device=cuda)
    made.raw.random_()
    return made


@pytest.fixture
def copies(arena):
    made = BlockCopies(arena, 300)
    made.host.zero_()
    yield made
    made.close()


def pairs_of(seed):
    """A long run, and scattered blocks on both sides."""
    draw = random.Random(seed)
    run = [(100 + number, 50 + number) for number in range(140)]
    sources = [*range(100), *range(240, 300)]
    targets = [*range(50), *range(190, 300)]
    pairs = run + list(zip(draw.sample(sources, 120), draw.sample(targets, 120), strict=True))
    draw.shuffle(pairs)
    return pairs


def warm(arena, copies):
    """Let torch reserve what copies need and load its kernels: both may wait for the device."""
    arena.raw.fill_(7)
    assert (torch.zeros(1, device=arena.device) + 1).item() == 1
    for _ in range(2):
        copies.store([(number, number) for number in range(0, 300, 2)]).join()
        copies.store([(number, number) for number in range(300)]).join()
    torch.cuda.synchronize()


def test_the_hosts_memory_is_pinned(copies):
    assert copies.host.is_pinned()


@pytest.mark.parametrize("seed", range(3))
def test_a_stored_block_lies_in_its_host_block(arena, copies, seed):
    pairs = pairs_of(seed)

    copies.store(pairs).join()

    here = arena.raw.cpu()
    for device, host in pairs:
        assert torch.equal(copies.host[host], here[device])
    untouched = set(range(300)) - {host for _, host in pairs}
    assert not copies.host[sorted(untouched)].any()


@pytest.mark.parametrize("seed", range(3))
def test_a_loaded_block_lies_in_its_device_block(arena, copies, seed):
    copies.host.random_()
    before, pairs = arena.raw.cpu(), pairs_of(seed)

    copies.load(pairs).wait()
    after = arena.raw.cpu()

    for host, device in pairs:
        assert torch.equal(after[device], copies.host[host])
    untouched = sorted(set(range(300)) - {device for _, device in pairs})
    assert torch.equal(after[untouched], before[untouched])


def test_a_store_takes_what_was_computed_before_it(arena, copies):
    warm(arena, copies)
    arena.raw.zero_()
    torch.cuda._sleep(CYCLES)
    arena.raw.fill_(7)

    ticket = copies.store([(number, number) for number in range(0, 300, 2)])

    assert not ticket.done()
    ticket.join()
    assert ticket.done()
    assert (copies.host[::2] == 7).all()


def test_computing_goes_on_while_blocks_are_copied(arena, copies):
    warm(arena, copies)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(CYCLES)
        ticket = copies.store([(number, number) for number in range(300)])
    done = torch.zeros(1, device=arena.device) + 1

    assert done.item() == 1
    assert not ticket.done()
    ticket.join()


def test_a_stream_that_waits_reads_what_was_loaded(arena, copies):
    copies.host.fill_(9)
    arena.raw.zero_()

    ticket = copies.load([(number, 299 - number) for number in range(300)])
    ticket.wait()

    assert (arena.raw == 9).all().item()


def test_calls_take_effect_in_their_order(arena, copies):
    expected = arena.raw.cpu()
    there = [(number, number) for number in range(300)]
    turned = [(number, 299 - number) for number in range(300)]

    for _ in range(10):
        copies.store(turned)
        copies.load(there)
    copies.store(there).join()

    assert torch.equal(copies.host, expected)
