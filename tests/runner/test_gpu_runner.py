"""The GPU runner keeps what every runner must keep, and scores as the reference does.

On a GPU if there is one, and in Triton's interpreter otherwise.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install 'octavo[gpu]'")

from octavo.contract.batch import Batch, Pool
from octavo.contract.model import ExpertSpec
from octavo.runner.gpu_step import Frame, HostStep
from octavo.runner.inputs import StepArrays
from octavo.testing.bound_suite import check_bound_runner
from octavo.testing.conformance import check_runner
from octavo.testing.gpu import gpu_hand
from octavo.testing.pooled_suite import check_pooled_runner
from octavo.testing.tiny import hand_for, tiny_decoder, tiny_spec

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ON_GPU = pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU, or takes long without")
GRAPHS = [False, pytest.param(True, marks=ON_GPU)]
KINDS = {
    "llama": {"tied_embeddings": False, "qkv_bias": True},
    "gemma": {
        "qk_norm": True,
        "query_scale": 0.5,
        "post_norms": True,
        "scaled_embedding": True,
        "activation": "gelu_tanh",
        "window": 12,
        "window_layers": (0,),
        "local_rope_theta": 500.0,
    },
    "experts in odd groups": {
        "experts": ExpertSpec(number=4, per_token=2, intermediate_size=40, normalized=True),
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 24,
    },
}
LENGTH = 70 if DEVICE == "cuda" else 36


def words(count, seed=0):
    return torch.randint(0, 96, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def play(hand):
    """Prompts in chunks, one text in company, one that goes on from another's blocks."""
    prompt = words(LENGTH)
    hand.start(0, prompt)
    hand.run(hand.slice(0, 17))
    hand.start(1, words(5, seed=1))
    hand.run(hand.slice(0, LENGTH - 17), hand.slice(1, 5))
    for _ in range(3):
        hand.run(hand.slice(0, 1), hand.slice(1, 1))
    hand.start(2, [*prompt[:30], *words(6, seed=2)], like=0)
    hand.run(hand.slice(0, 1), hand.slice(2, 6), hand.slice(1, 1))
    for _ in range(2):
        hand.run(*(hand.slice(seq, 1) for seq in range(3)))


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_logits_are_those_of_the_reference(kind, graphs):
    decoder = tiny_decoder(tiny_spec(**kind), seed=1, device=DEVICE)
    expected, got = hand_for(decoder, block_size=8), gpu_hand(decoder, block_size=8, graphs=graphs)

    play(expected)
    play(got)

    assert got.texts == expected.texts
    for seq, rows in expected.logits.items():
        ours, theirs = torch.stack(got.logits[seq]), torch.stack(rows)
        torch.testing.assert_close(ours.cpu(), theirs.cpu(), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("graphs", GRAPHS)
def test_the_runner_suite_passes(graphs):
    # Layers are compared above, and an interpreter is slow.
    decoder = tiny_decoder(tiny_spec(num_layers=1), device=DEVICE)

    check_runner(lambda: gpu_hand(decoder, num_blocks=16, block_size=4, graphs=graphs).runner)


@pytest.mark.parametrize("graphs", GRAPHS)
def test_texts_that_a_grammar_binds_keep_their_form(graphs):
    # Masks know nothing of layers, and an interpreter is slow.
    decoder = tiny_decoder(tiny_spec(num_layers=1), device=DEVICE)

    def make(matchers):
        hand = gpu_hand(decoder, num_blocks=16, block_size=4, graphs=graphs, matchers=matchers)
        return hand.runner

    check_bound_runner(make, vocab_size=decoder.spec.vocab_size)


def vectors(hand):
    """Prompts to be embedded, in chunks and beside a text that is being written."""
    hand.start(9, words(5, seed=9))
    hand.run(hand.slice(9, 5))
    for seq, how in enumerate(("mean", "last", "mean")):
        hand.start(seq, words(LENGTH, seed=seq))
        ends = [11, 1, LENGTH - 12] if seq < 2 else [LENGTH]
        for number, count in enumerate(ends, 1):
            last = number == len(ends)
            pool = Pool(how, last) if last or how == "mean" else None
            piece = msgspec.structs.replace(hand.slice(seq, count), samples=(), pool=pool)
            result = hand.run(piece, hand.slice(9, 1))
            assert set(result.pooled) == ({seq} if last else set())
        yield np.frombuffer(result.pooled[seq], dtype="<f4")


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize(
    "kind",
    [pytest.param(KINDS["llama"], marks=pytest.mark.slow), KINDS["gemma"]],
    ids=["llama", "gemma"],
)
def test_vectors_are_those_of_the_reference(kind, graphs):
    decoder = tiny_decoder(tiny_spec(**kind), seed=1, device=DEVICE)
    expected, got = hand_for(decoder, block_size=8), gpu_hand(decoder, block_size=8, graphs=graphs)

    for ours, theirs in zip(vectors(got), vectors(expected), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-4, rtol=2e-4)
    assert got.texts == expected.texts


@pytest.mark.parametrize(
    ("wanted", "fits"), [([0, 1, 2], True), ([1, 2, 0], False), ([0, 1], False)]
)
def test_a_step_of_decoding_wants_the_logits_of_every_row_in_order(wanted, fits):
    some = np.arange(3)
    arrays = StepArrays((4, 5, 6), (1, 1, 1), some, some + 4, (), np.array(wanted))

    assert HostStep(arrays, ()).fits(Frame(rows=4, entries=4, samples=4)) is fits


@pytest.mark.parametrize("graphs", GRAPHS)
@pytest.mark.parametrize("exact", [pytest.param(False, marks=ON_GPU), True])
def test_prompts_that_are_embedded(graphs, exact):
    decoder = tiny_decoder(tiny_spec(num_layers=1), device=DEVICE)
    options = {"num_blocks": 16, "block_size": 4, "graphs": graphs, "exact": exact}

    check_pooled_runner(lambda: gpu_hand(decoder, **options).runner, close=0 if exact else 1e-5)


def test_a_step_that_fails_is_reported_and_leaves_the_runner_usable():
    hand = gpu_hand(tiny_decoder(device=DEVICE), block_size=4)
    hand.start(0, words(6))
    cut = hand.runner._cutter.cut

    def burning(arrays):
        raise RuntimeError("the device caught fire")

    hand.runner._cutter.cut = burning
    hand.runner.submit(Batch(1, (hand.slice(0, 6),)))
    assert "caught fire" in hand.runner.collect().error

    hand.runner._cutter.cut = cut
    hand.runner.submit(Batch(2, ended=(0,)))
    assert hand.runner.collect().error is None


@pytest.mark.parametrize("graphs", GRAPHS)
def test_in_exact_mode_warm_equals_cold_equals_batched_bit_for_bit(graphs):
    decoder = tiny_decoder(
        tiny_spec(num_heads=6, num_kv_heads=2, num_layers=1), seed=1, device=DEVICE
    )
    prompt = words(2 * LENGTH)
    cold = gpu_hand(decoder, block_size=4, num_blocks=200, exact=True, graphs=graphs)
    cold.start(0, prompt)
    cold.generate(0, 5)

    hand = gpu_hand(decoder, block_size=4, num_blocks=200, exact=True, graphs=graphs)
    hand.start(1, prompt[:LENGTH])
    hand.generate(1, 1)
    for seq in range(2, 5):
        hand.start(seq, words(5 * seq, seed=seq))
    hand.start(9, prompt, like=1)
    hand.run(hand.slice(9, 11), *(hand.slice(seq, 5 * seq) for seq in range(2, 5)))
    while len(hand.texts[9]) < len(prompt) + 5:
        others = [hand.slice(seq, 1) for seq in range(2, 5)]
        hand.run(*others, hand.slice(9, len(hand.texts[9]) - hand.written[9]))

    assert hand.texts[9] == cold.texts[0]
    assert torch.equal(torch.stack(hand.logits[9]), torch.stack(cold.logits[0]))
