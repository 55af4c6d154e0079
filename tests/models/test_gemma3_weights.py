"""The real Gemma 3 270M against transformers, on a text longer than its window of 512 tokens.

Runs only if somebody has fetched it: octavo pull gemma3-270m.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from octavo.models import catalog
from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.models.gguf import GGUFFile
from octavo.testing.tiny import hand_for
from octavo.text.tokenizer import Tokenizer

pytestmark = [pytest.mark.weights, pytest.mark.slow]

ALIAS = "gemma3-270m"
TOLERANCE = 2e-3
"""Of float32 logits as large as 30."""

PROMPT = "def fibonacci(n):\n    # café, 2024: 数字\n    if n < 2:\n\n\n\treturn  n"
STORY = "The quick brown fox jumps over the lazy dog, and then it rests a while by the river. "


@pytest.fixture(scope="module")
def path():
    found = catalog.find(ALIAS)
    if found is None:
        pytest.skip(f"{ALIAS} is not in {catalog.cache_folder()}: octavo pull {ALIAS}")
    return found


@pytest.fixture(scope="module")
def hugging_face(path):
    from transformers import Gemma3ForCausalLM

    with warnings.catch_warnings():
        # Reading GGUF there warns about its own dependencies.
        warnings.simplefilter("ignore")
        return Gemma3ForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, dtype=torch.float32
        ).eval()


@pytest.fixture(scope="module")
def tokenizer(path):
    return Tokenizer.from_gguf(GGUFFile(path).metadata, str(path))


def test_the_header_gives_the_published_model(path):
    spec = open_checkpoint(path).spec

    assert spec.window == 512
    assert [i for i in range(18) if i not in spec.window_layers] == [5, 11, 17]
    assert (spec.rope_theta, spec.local_rope_theta) == (1e6, 1e4)
    assert spec.context == 32768


def test_a_text_has_the_ids_of_transformers(path, tokenizer):
    from transformers import AutoTokenizer

    expected = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)

    ids = tokenizer.encode(PROMPT)

    assert ids == expected.encode(PROMPT)
    assert ids[0] == tokenizer.bos_token_id == 2
    assert tokenizer.decode(ids) == PROMPT


@pytest.mark.parametrize("reuse", [False, True])
def test_logits_are_those_of_transformers_beyond_the_window(path, tokenizer, hugging_face, reuse):
    prompt = tokenizer.encode(PROMPT + STORY * 40)[:700]
    assert len(prompt) == 700
    hand = hand_for(load_decoder(open_checkpoint(path)), num_blocks=300, reuse=reuse)
    hand.start(1, prompt)

    hand.generate(1, 8, chunks=(300, 290))

    with torch.inference_mode():
        expected = hugging_face(torch.tensor([hand.texts[1]])).logits[0]
    got = torch.stack(hand.logits[1])
    torch.testing.assert_close(got, expected[len(prompt) - 1 : -1], atol=TOLERANCE, rtol=0)
    assert hand.texts[1][len(prompt) :] == expected[len(prompt) - 1 : -1].argmax(-1).tolist()
