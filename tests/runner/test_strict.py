"""Strict mode, bit for bit: warm equals cold, alone equals batched, chunks equal one chunk."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.models.exact import exact_row_tiles
from octavo.models.rows import ALL_AT_ONCE, RowTiles
from octavo.testing.tiny import hand_for, tiny_decoder, tiny_spec

DECODER = tiny_decoder(tiny_spec(num_heads=6, num_kv_heads=2, head_dim=16), seed=1)
NEW = 5


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    return load_decoder(open_checkpoint(smollm2_path))


def words(decoder, count, seed):
    return np.random.default_rng(seed).integers(0, decoder.spec.vocab_size, count).tolist()


def strict(decoder, block_size=4):
    return hand_for(decoder, block_size=block_size, num_blocks=400, deterministic=True)


def alone(decoder, prompt, new=NEW):
    """Compute in one chunk, then decode, with nobody else; returns the logits of every step."""
    hand = strict(decoder)
    hand.start(0, prompt)
    hand.generate(0, new)
    return hand.texts[0], torch.stack(hand.logits[0])


@settings(max_examples=20, deadline=None)
@given(chunks=st.lists(st.integers(1, 40), max_size=8), length=st.integers(2, 120))
def test_any_chunking_gives_the_logits_of_one_chunk(chunks, length):
    prompt = words(DECODER, length, seed=length)
    text, expected = alone(DECODER, prompt)
    hand = strict(DECODER)
    hand.start(1, prompt)

    hand.generate(1, NEW, chunks=chunks)

    assert hand.texts[1] == text
    assert torch.equal(torch.stack(hand.logits[1]), expected)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_text_has_the_same_logits_in_any_company(data):
    lengths = data.draw(st.lists(st.integers(1, 90), min_size=2, max_size=5))
    prompts = [words(DECODER, length, seed=n) for n, length in enumerate(lengths)]
    hand = strict(DECODER)
    for seq, prompt in enumerate(prompts):
        hand.start(seq, prompt)

    while unfinished := [seq for seq in hand.texts if len(hand.texts[seq]) < lengths[seq] + NEW]:
        chosen = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique=True))
        missing = {seq: len(hand.texts[seq]) - hand.written[seq] for seq in chosen}
        hand.run(*(hand.slice(seq, data.draw(st.integers(1, n))) for seq, n in missing.items()))

    for seq, prompt in enumerate(prompts):
        text, expected = alone(DECODER, prompt)
        assert hand.texts[seq] == text
        assert torch.equal(torch.stack(hand.logits[seq]), expected)


@settings(max_examples=15, deadline=None)
@given(prefix=st.integers(1, 90), rest=st.integers(1, 40), block_size=st.sampled_from([1, 4, 16]))
def test_a_reused_prefix_gives_the_logits_of_a_computed_one(prefix, rest, block_size):
    prompt = words(DECODER, prefix + rest, seed=prefix)
    text, expected = alone(DECODER, prompt)
    hand = strict(DECODER, block_size)
    hand.start(1, prompt[:prefix])
    hand.generate(1, 1)
    hand.start(2, prompt, like=1)

    hand.generate(2, NEW)

    assert hand.written[1] >= prefix
    assert hand.texts[2] == text
    assert torch.equal(torch.stack(hand.logits[2]), expected)


@pytest.mark.weights
def test_smollm2_has_the_same_logits_warm_chunked_and_in_company(smollm2):
    prompt = words(smollm2, 75, seed=0)
    text, expected = alone(smollm2, prompt)
    hand = strict(smollm2)
    hand.start(1, prompt[:50])
    hand.generate(1, 1)
    for seq in range(2, 6):
        hand.start(seq, words(smollm2, 10 * seq, seed=seq))
    hand.start(9, prompt, like=1)
    hand.run(hand.slice(9, 11), *(hand.slice(seq, 3) for seq in range(2, 6)))

    while len(hand.texts[9]) < len(text):
        parts = [hand.slice(seq, len(hand.texts[seq]) - hand.written[seq]) for seq in (2, 3, 9, 4)]
        hand.run(*parts)

    assert hand.texts[9] == text
    assert torch.equal(torch.stack(hand.logits[9]), expected)


def test_the_tiles_of_strict_mode_agree_bit_for_bit():
    tiles = exact_row_tiles(DECODER)

    assert list(tiles.sizes) == sorted(set(tiles.sizes))
    assert hand_for(DECODER, deterministic=True).runner.row_tiles == tiles
    assert hand_for(DECODER).runner.row_tiles == ALL_AT_ONCE


@pytest.mark.parametrize(
    ("sizes", "rows", "pieces"),
    [
        ((4, 8, 32), 0, ()),
        ((4, 8, 32), 1, (4,)),
        ((4, 8, 32), 32, (32,)),
        ((4, 8, 32), 70, (32, 32, 8)),
        ((4, 8, 32), 41, (32, 32)),
        ((1,), 3, (1, 1, 1)),
        ((), 70, (70,)),
        ((), 0, ()),
    ],
)
def test_a_step_is_padded_to_the_smallest_tile_that_holds_the_rest(sizes, rows, pieces):
    assert RowTiles(sizes).split(rows) == pieces
