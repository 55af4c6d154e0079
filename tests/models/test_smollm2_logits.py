"""SmolLM2 against Hugging Face's Llama in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.testing.tiny import hand_for

pytestmark = pytest.mark.weights

TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def decoder(smollm2_path):
    return load_decoder(open_checkpoint(smollm2_path))


@pytest.mark.parametrize("length", [1, 30, 100])
@pytest.mark.parametrize("deterministic", [False, True])
def test_logits_are_those_of_hugging_face(decoder, smollm2_of_transformers, length, deterministic):
    prompt = np.random.default_rng(length).integers(0, decoder.spec.vocab_size, length).tolist()
    hand = hand_for(decoder, deterministic=deterministic)
    hand.start(1, prompt)

    hand.generate(1, 3, chunks=(17, 40))

    with torch.inference_mode():
        expected = smollm2_of_transformers(torch.tensor([hand.texts[1]])).logits[0]
    got = torch.stack(hand.logits[1])
    torch.testing.assert_close(got, expected[length - 1 : -1], atol=TOLERANCE, rtol=0)
