"""Texts of thousands of tokens on the native executor: the reference's numbers, the same bits."""

from __future__ import annotations

import pytest
import torch

from octavo import cpu
from octavo.contract.model import YarnRope
from octavo.testing.tiny import tiny_spec

if cpu.native() is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

from native_hand import StoredRandomWeights, answer, native_hand, torch_logits, words

LENGTH = 3000
SPECS = {
    "all see everything": {},
    "one sees 1,000 positions": {
        "num_heads": 5,
        "num_kv_heads": 1,
        "head_dim": 24,
        "window": 1000,
        "window_layers": (1,),
    },
    "stretched positions": {
        "qk_norm": True,
        "rope_scaling": YarnRope(factor=16.0, original_context=256, attention_factor=1.28),
    },
}
CHUNKS = {1: [LENGTH], 2: [512] * 5, 3: [700, 1, 1300, 37]}
"""Of the prompt, for each number of threads; what is left follows."""


@pytest.mark.parametrize("spec", SPECS)
def test_a_long_prompt_in_chunks_is_that_of_the_torch_decoder(spec):
    weights = StoredRandomWeights(tiny_spec(**SPECS[spec]))
    prompt = words(weights.spec, LENGTH)
    hand = native_hand(weights, threads=2, num_blocks=400)

    got = answer(hand, prompt, chunks=[700, 1300])

    expected = torch_logits(weights, hand.texts[1][:-1], len(prompt))
    assert expected.abs().max() > 0.5, "logits that say nothing"
    assert (got - expected).abs().max() < 2e-5 * expected.abs().max()


@pytest.mark.parametrize(
    ("arithmetic", "kind"), [("float32", "F32"), ("bf16", "BF16"), ("int8", "Q4_0")]
)
@pytest.mark.parametrize("spec", SPECS)
def test_a_long_text_has_the_same_bits_on_one_two_and_three_threads(spec, arithmetic, kind):
    weights = StoredRandomWeights(tiny_spec(**SPECS[spec]), kind=kind)
    prompt = words(weights.spec, LENGTH)
    how = {"arithmetic": arithmetic, "num_blocks": 400}

    one, two, three = (
        answer(native_hand(weights, threads=threads, **how), prompt, chunks=chunks)
        for threads, chunks in CHUNKS.items()
    )

    assert torch.equal(two, one)
    assert torch.equal(three, one)
