"""A real Qwen2.5 against transformers, for development: runs only if somebody has put it there.

The file is Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf in octavo's cache folder. It is no alias of
ours, is never fetched, and its packaging states no licence: see docs/models.md.
"""

from __future__ import annotations

import hashlib
import warnings

import pytest
import torch

from octavo.models.catalog import cache_folder
from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.models.gguf import GGUFFile
from octavo.testing.tiny import hand_for
from octavo.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.weights, pytest.mark.slow]

FILE_NAME = "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf"
SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
TOLERANCE = 2e-3
"""Of float32 logits of about 20; the key bias of its first layer is as large as 145."""

PROMPT = "def fibonacci(n):\n    # café, 2024: 数字\n    if n < 2:"


@pytest.fixture(scope="module")
def path():
    path = cache_folder() / FILE_NAME
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == SHA256
    return path


@pytest.fixture(scope="module")
def hugging_face(path):
    from transformers import Qwen2ForCausalLM

    with warnings.catch_warnings():
        # Reading GGUF there warns about its own dependencies.
        warnings.simplefilter("ignore")
        return Qwen2ForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()


def test_ids_and_chat_are_those_of_transformers(path):
    from transformers import AutoTokenizer

    ours = Tokenizer.from_gguf(GGUFFile(path).metadata, str(path))
    expected = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    chat = [{"role": "user", "content": PROMPT}]

    assert ours.encode(PROMPT) == expected.encode(PROMPT)
    assert ours.apply_chat_template(chat) == expected.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    assert 151645 in ours.eos_token_ids


def test_logits_are_those_of_transformers(path, hugging_face):
    checkpoint = open_checkpoint(path)
    assert checkpoint.spec.qkv_bias
    assert not checkpoint.spec.tied_embeddings
    prompt = Tokenizer.from_gguf(GGUFFile(path).metadata).encode(PROMPT)
    hand = hand_for(load_decoder(checkpoint))
    hand.start(1, prompt)

    hand.generate(1, 8, chunks=(9,))

    with torch.inference_mode():
        expected = hugging_face(torch.tensor([hand.texts[1]])).logits[0]
    got = torch.stack(hand.logits[1])
    torch.testing.assert_close(got, expected[len(prompt) - 1 : -1], atol=TOLERANCE, rtol=0)
    assert hand.texts[1][len(prompt) :] == expected[len(prompt) - 1 : -1].argmax(-1).tolist()
