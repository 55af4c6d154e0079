"""The decoder against Hugging Face's Llama in float32, on small random models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from octavo.errors import ModelError
from octavo.models.decoder import load_decoder
from octavo.testing.tiny import RandomWeights, hand_for, tiny_spec

SPECS = {
    "tied": tiny_spec(),
    "separate output": tiny_spec(tied_embeddings=False),
    "no grouping": tiny_spec(num_heads=4, num_kv_heads=4),
    "one KV head": tiny_spec(num_heads=8, num_kv_heads=1),
    "unusual head size": tiny_spec(hidden_size=60, num_heads=5, num_kv_heads=1, head_dim=12),
    "heads wider than the model": tiny_spec(num_heads=4, num_kv_heads=4, head_dim=34),
}
TOLERANCE = 1e-4

HF_NAMES = {
    "attn_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def hugging_face(source):
    """Build Hugging Face's model with the same weights."""
    spec = source.spec
    config = LlamaConfig(
        vocab_size=spec.vocab_size,
        hidden_size=spec.hidden_size,
        intermediate_size=spec.intermediate_size,
        num_hidden_layers=spec.num_layers,
        num_attention_heads=spec.num_heads,
        num_key_value_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        max_position_embeddings=spec.context,
        rms_norm_eps=spec.norm_eps,
        rope_theta=spec.rope_theta,
        tie_word_embeddings=spec.tied_embeddings,
    )
    model = LlamaForCausalLM(config).eval()
    state = {}
    for name in source.shapes():
        whole = {"embedding": "model.embed_tokens", "norm": "model.norm", "output": "lm_head"}
        if name in whole:
            other = whole[name]
        else:
            _, layer, part = name.split(".")
            other = f"model.layers.{layer}.{HF_NAMES[part]}"
        state[other + ".weight"] = torch.from_numpy(source.tensor(name))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected
    assert set(missing) <= {"lm_head.weight"}
    model.tie_weights()
    return model


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("deterministic", [False, True])
def test_logits_are_those_of_hugging_face(spec, deterministic):
    source = RandomWeights(spec, seed=5)
    prompt = np.random.default_rng(0).integers(0, spec.vocab_size, 75).tolist()
    hand = hand_for(load_decoder(source), block_size=4, deterministic=deterministic)
    hand.start(1, prompt)

    hand.generate(1, 4, chunks=(40,))

    with torch.inference_mode():
        expected = hugging_face(source)(torch.tensor([hand.texts[1]])).logits[0]
    got = torch.stack(hand.logits[1])
    torch.testing.assert_close(got, expected[len(prompt) - 1 : -1], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 0.25), ("float16", 0.03)])
def test_low_precision_weights_stay_near_float32(dtype, tolerance):
    source = RandomWeights(tiny_spec(), seed=5)
    prompt = list(range(40))
    logits = []
    for kind in ("float32", dtype):
        hand = hand_for(load_decoder(source, dtype=kind), dtype=kind, deterministic=True)
        hand.start(1, prompt)
        hand.generate(1, 1)
        logits.append(hand.logits[1][0])

    assert logits[1].dtype is torch.float32
    torch.testing.assert_close(logits[1], logits[0], atol=tolerance, rtol=0)


def test_a_tensor_of_another_shape_is_named():
    class Crooked(RandomWeights):
        def tensor(self, name):
            values = super().tensor(name)
            return values.T if name == "layers.1.down" else values

    with pytest.raises(ModelError, match=r"layers\.1\.down has shape \(140, 64\)"):
        load_decoder(Crooked(tiny_spec()))
