"""Golden continuation of a real trained model of 1 MB (llama2.c's stories260K)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from octavo import cpu
from octavo.contract.model import ModelSpec
from octavo.models.decoder import load_decoder
from octavo.models.weights import float32_numbers
from octavo.testing.tiny import hand_for

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data" / "models"


@dataclass(frozen=True)
class Llama2c:
    """A llama2.c file of version 0, as a source of weights."""

    spec: ModelSpec
    tensors: dict[str, np.ndarray]

    def tensor(self, name):
        return self.tensors[name]

    def numbers(self, name):
        return float32_numbers(self.tensors[name])

    def stored_rows(self, name):
        return "F32", np.ascontiguousarray(self.tensors[name]).view(np.uint8)

    def release(self, name):
        """Keep it: others read the same arrays."""


def read_llama2c(path):
    """Read seven int32 of shape, then float32 weights, each kind for all layers at once."""
    data = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, context = np.frombuffer(data, "<i4", 7).tolist()
    numbers = np.frombuffer(data, "<f4", offset=28)
    head_dim = dim // heads
    kv = kv_heads * head_dim
    place = 0

    def take(*shape):
        nonlocal place
        size = int(np.prod(shape))
        place += size
        return numbers[place - size : place].reshape(shape)

    tensors = {"embedding": take(vocab, dim)}
    shapes = {
        "attn_norm": (dim,),
        "q": (dim, dim),
        "k": (kv, dim),
        "v": (kv, dim),
        "o": (dim, dim),
        "ffn_norm": (dim,),
        "gate": (hidden, dim),
        "down": (dim, hidden),
        "up": (hidden, dim),
    }
    for name, shape in shapes.items():
        for layer, values in enumerate(take(layers, *shape)):
            tensors[f"layers.{layer}.{name}"] = (
                halves_from_neighbours(values, head_dim) if name in ("q", "k") else values
            )
    tensors["norm"] = take(dim)
    spec = ModelSpec(
        family="llama",
        vocab_size=vocab,
        hidden_size=dim,
        intermediate_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        context=context,
        norm_eps=1e-5,
        rope_theta=10000.0,
        tied_embeddings=True,
    )
    return Llama2c(spec, tensors)


def halves_from_neighbours(rows, head_dim):
    """Reorder rows so that rotary pairs are the two halves of a head, not neighbours."""
    pairs = rows.reshape(-1, head_dim // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


@pytest.fixture(scope="module")
def golden():
    path = FOLDER / "stories260K_golden.json"
    if not path.exists() or not (FOLDER / "stories260K.bin").exists():
        pytest.skip("stories260K is not in ../shared/data/models")
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_greedy_continuation_is_the_golden_one(golden, deterministic):
    decoder = load_decoder(read_llama2c(FOLDER / "stories260K.bin"))
    hand = hand_for(decoder, deterministic=deterministic)
    hand.start(1, [golden["start_token_id"]])

    assert hand.generate(1, 256) == golden["generated_token_ids"]


@pytest.mark.skipif(cpu.native() is None, reason="the native extension octavo._cpu was not built")
@pytest.mark.parametrize("threads", [1, 2])
def test_the_native_executor_continues_with_the_golden_text_too(golden, threads):
    from native_hand import native_hand

    hand = native_hand(read_llama2c(FOLDER / "stories260K.bin"), threads=threads)
    hand.start(1, [golden["start_token_id"]])

    assert hand.generate(1, 256) == golden["generated_token_ids"]
