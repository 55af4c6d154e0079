"""SmolLM2 against Hugging Face's Llama in float32."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.testing.tiny import hand_for

pytestmark = pytest.mark.weights

TOLERANCE = 1e-3


@pytest.fixture(scope="module")
def decoder(smollm2_path):
    return load_decoder(open_checkpoint(smollm2_path))


@pytest.fixture(scope="module")
def hugging_face(smollm2_path):
    with warnings.catch_warnings():
        # Reading GGUF there warns about its own dependencies.
        warnings.simplefilter("ignore")
        return LlamaForCausalLM.from_pretrained(
            smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
        ).eval()


@pytest.mark.parametrize("length", [1, 30, 100])
@pytest.mark.parametrize("deterministic", [False, True])
def test_logits_are_those_of_hugging_face(decoder, hugging_face, length, deterministic):
    prompt = np.random.default_rng(length).integers(0, decoder.spec.vocab_size, length).tolist()
    hand = hand_for(decoder, deterministic=deterministic)
    hand.start(1, prompt)

    hand.generate(1, 3, chunks=(17, 40))

    with torch.inference_mode():
        expected = hugging_face(torch.tensor([hand.texts[1]])).logits[0]
    got = torch.stack(hand.logits[1])
    torch.testing.assert_close(got, expected[length - 1 : -1], atol=TOLERANCE, rtol=0)
