"""Prompts go through FlashInfer once its kernels are compiled, and through ours until then.

A stand-in for the library shows what it is asked for; on a GPU, tests/gpu has the real one.
"""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install 'octavo[gpu]'")

from octavo.attention.flashinfer import FlashInferAttention
from octavo.kernels.reference import attend
from octavo.testing.gpu import gpu_hand
from octavo.testing.tiny import hand_for, tiny_decoder, tiny_spec

WAIT_S = 30.0


class Library:
    """Does what FlashInfer does for a prompt, with the reference's arithmetic."""

    def __init__(self):
        self.compiled = threading.Event()
        self.failure = None
        self.runs = 0
        library = self

        class Wrapper:
            def __init__(self, workspace, order, *, backend):
                assert (order, backend) == ("NHD", "auto")

            def plan(self, queries, blocks, indices, last, heads, kv_heads, size, slots, **how):
                assert library.compiled.wait(WAIT_S)
                if library.failure is not None:
                    raise library.failure
                assert how["causal"], "a prompt does not see what comes after"
                self.plan_of_step = queries, blocks, indices, last, slots, how["window_left"]

            def run(self, q, pages, out=None):
                library.runs += 1
                queries, blocks, indices, last, slots, left = self.plan_of_step
                out = torch.empty_like(q) if out is None else out
                for number in range(len(last)):
                    rows = slice(queries[number], queries[number + 1])
                    own = indices[blocks[number] : blocks[number + 1]].long()
                    length = (len(own) - 1) * slots + int(last[number])
                    k, v = (pages[own, part].flatten(0, 1)[:length] for part in (0, 1))
                    start = length - (rows.stop - rows.start)
                    window = None if left < 0 else left + 1
                    out[rows] = attend(q[rows], k, v, start=int(start), window=window)
                return out

        self.BatchPrefillWithPagedKVCacheWrapper = Wrapper


@pytest.fixture
def library(monkeypatch):
    found = Library()
    monkeypatch.setitem(sys.modules, "flashinfer", found)
    yield found
    found.compiled.set()


def make(said, kept):
    def attend_with(single):
        kept.attention = FlashInferAttention(
            single,
            dtype=torch.float32,
            device=torch.device("cpu"),
            workspace_bytes=1 << 10,
            report=said.append,
        )
        return kept.attention

    return attend_with


def play(hand):
    for seq in range(3):
        hand.start(seq, list(range(5 + 9 * seq)))
    hand.run(hand.slice(0, 5), hand.slice(1, 8))
    hand.run(hand.slice(0, 1), hand.slice(1, 6), hand.slice(2, 23))
    return hand.logits


def assert_alike(got, expected):
    for seq, rows in expected.items():
        torch.testing.assert_close(torch.stack(got[seq]), torch.stack(rows), atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("spec", [{}, {"window": 7, "window_layers": (0,)}], ids=["all", "window"])
def test_prompts_go_through_flashinfer_once_it_is_compiled(library, spec):
    decoder = tiny_decoder(tiny_spec(**spec), seed=1)
    library.compiled.set()
    said, kept = [], SimpleNamespace()
    hand = gpu_hand(decoder, block_size=8, attend=make(said, kept))
    assert kept.attention.wait(WAIT_S) is None

    got = play(hand)

    assert library.runs == 2 * decoder.spec.num_layers
    assert not said
    assert_alike(got, play(hand_for(decoder, block_size=8)))


def test_until_it_is_compiled_they_go_through_ours(library):
    decoder = tiny_decoder(seed=1)
    said, kept = [], SimpleNamespace()
    hand = gpu_hand(decoder, block_size=8, attend=make(said, kept))
    assert kept.attention.wait(0) is None
    assert kept.attention.compiling

    got = play(hand)

    assert library.runs == 0
    assert_alike(got, play(hand_for(decoder, block_size=8)))
    library.compiled.set()
    hand.runner.finish_start()
    assert not kept.attention.compiling
    hand.start(9, list(range(20)))
    hand.run(hand.slice(9, 20))
    assert library.runs == decoder.spec.num_layers


def test_without_a_compiler_they_stay_with_ours_and_one_line_says_why(library):
    decoder = tiny_decoder(seed=1)
    library.failure = RuntimeError("nvcc: not found\nand more")
    library.compiled.set()
    said, kept = [], SimpleNamespace()
    hand = gpu_hand(decoder, block_size=8, attend=make(said, kept))

    assert kept.attention.wait(WAIT_S) is library.failure
    got = play(hand)

    assert said == [
        "FlashInfer has no kernels, prompts go through triton's (RuntimeError: nvcc: not found)"
    ]
    assert_alike(got, play(hand_for(decoder, block_size=8)))
