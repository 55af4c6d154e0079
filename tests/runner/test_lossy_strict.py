"""Strict mode over lossy memory: what is read is what was stored, warm, cold or in company."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.testing.tiny import hand_for, tiny_decoder, tiny_spec

DECODER = tiny_decoder(tiny_spec(num_heads=6, num_kv_heads=2, head_dim=12), seed=1)
NEW = 6


def words(count, seed):
    return np.random.default_rng(seed).integers(0, DECODER.spec.vocab_size, count).tolist()


def strict(dtype):
    return hand_for(DECODER, block_size=4, num_blocks=200, deterministic=True, dtype=dtype)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float32/int8", "int8/float16"])
def test_a_text_has_the_same_logits_warm_chunked_and_in_company(dtype):
    prompt = words(75, seed=0)
    cold = strict(dtype)
    cold.start(0, prompt)
    cold.generate(0, NEW)

    hand = strict(dtype)
    hand.start(1, prompt[:50])
    hand.generate(1, 1)
    hand.start(2, words(30, seed=2))
    hand.start(9, prompt, like=1)
    hand.run(hand.slice(9, 11), hand.slice(2, 30))
    while len(hand.texts[9]) < len(prompt) + NEW:
        hand.run(hand.slice(2, 1), hand.slice(9, len(hand.texts[9]) - hand.written[9]))

    assert hand.texts[9] == cold.texts[0]
    assert torch.equal(torch.stack(hand.logits[9]), torch.stack(cold.logits[0]))
