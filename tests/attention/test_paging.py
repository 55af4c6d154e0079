"""Paging changes nothing, bit for bit: contiguous memory and any placement give equal logits.

Every backend of the table in `octavo.build` takes part.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.executors.torch import attention_backends
from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.testing.contiguous import ContiguousAttention
from octavo.testing.tiny import hand_for, reference_backend, tiny_decoder, tiny_spec

BACKENDS = attention_backends()
BLOCKS = 48


@pytest.fixture(scope="module", params=["grouped", "plain", "narrow", "windows"])
def decoder(request):
    shapes = {
        "grouped": tiny_spec(num_heads=4, num_kv_heads=2),
        "plain": tiny_spec(num_heads=3, num_kv_heads=3, head_dim=8, tied_embeddings=False),
        "narrow": tiny_spec(num_heads=8, num_kv_heads=1, head_dim=12),
        "windows": tiny_spec(num_layers=3, window=37, window_layers=(0, 2)),
    }
    return tiny_decoder(shapes[request.param], seed=3)


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return load_decoder(open_checkpoint(smollm2_path))


def generation(
    decoder, backend, *, placement=None, block_size=16, prompt=90, new=30, seed=0, reuse=False
):
    """Compute a prompt in chunks and decode; returns the text and the logits of every step."""
    hand = hand_for(
        decoder,
        num_blocks=BLOCKS if placement is None else len(placement),
        block_size=block_size,
        backend=backend,
        placement=placement,
        deterministic=True,
        reuse=reuse,
    )
    tokens = np.random.default_rng(seed).integers(0, decoder.spec.vocab_size, prompt)
    hand.start(1, tokens.tolist())
    hand.generate(1, new, chunks=(33, 1, 40))
    return hand.texts[1], torch.stack(hand.logits[1])


def contiguous(arena, spec):
    return ContiguousAttention(spec)


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_paged_memory_gives_the_logits_of_contiguous_memory(decoder, block_size):
    blocks = list(range(400)) if block_size < 16 else None
    text, plain = generation(decoder, contiguous, block_size=block_size, placement=blocks)

    paged_text, paged = generation(
        decoder, reference_backend, block_size=block_size, placement=blocks and list(range(400))
    )

    assert paged_text == text
    assert torch.equal(paged, plain)


@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_blocks_behind_a_window_may_be_given_away_at_once(block_size):
    spec = tiny_spec(num_layers=3, window=37, window_layers=(0, 2))
    decoder = tiny_decoder(spec, seed=3)
    text, plain = generation(decoder, contiguous, block_size=block_size, placement=[*range(400)])
    # As many as its groups hold at a time: 120 tokens in one, two windows and a step in the others.
    few = -(-120 // block_size) + 2 * ((37 + 40) // block_size + 2)

    paged_text, paged = generation(
        decoder, reference_backend, block_size=block_size, placement=[*range(few)], reuse=True
    )

    assert paged_text == text
    assert torch.equal(paged, plain)


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
@pytest.mark.parametrize("shuffle", [0, 1])
def test_the_placement_of_blocks_does_not_matter(decoder, backend, shuffle):
    placement = np.random.default_rng(shuffle).permutation(BLOCKS).tolist()
    text, plain = generation(decoder, backend)

    shuffled_text, shuffled = generation(decoder, backend, placement=placement)

    assert shuffled_text == text
    assert torch.equal(shuffled, plain)


@pytest.mark.weights
def test_paged_memory_gives_the_logits_of_contiguous_memory_on_smollm2(smollm2):
    text, plain = generation(smollm2, contiguous, new=6)

    paged_text, paged = generation(smollm2, reference_backend, new=6)

    assert paged_text == text
    assert torch.equal(paged, plain)


@pytest.mark.weights
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_the_placement_of_blocks_does_not_matter_on_smollm2(smollm2, backend):
    placement = np.random.default_rng(0).permutation(BLOCKS).tolist()
    text, plain = generation(smollm2, backend, new=6)

    shuffled_text, shuffled = generation(smollm2, backend, placement=placement, new=6)

    assert shuffled_text == text
    assert torch.equal(shuffled, plain)
