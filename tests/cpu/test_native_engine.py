"""The native executor: any model, the numbers of the reference, the same bits in any company."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import msgspec
import pytest
import torch

from gguf_families import SETTINGS, convert
from octavo import cpu
from octavo.contract.batch import Batch, Copy, Sample, Score, Slice
from octavo.contract.model import ExpertSpec, YarnRope
from octavo.contract.sampling import SamplingParams
from octavo.models.checkpoint import open_checkpoint
from octavo.testing.bound_suite import check_bound_runner
from octavo.testing.conformance import check_runner
from octavo.testing.pooled_suite import check_pooled_runner
from octavo.testing.tiny import GREEDY, tiny_spec
from tiny_families import FAMILIES, ROPES, make_model, reference_logits

_cpu = cpu.native()
if _cpu is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

from native_hand import (  # noqa: E402
    BLOCK,
    StoredRandomWeights,
    answer,
    mix,
    native_hand,
    torch_logits,
    words,
)

ISAS = _cpu.available_isas()
TOLERANCE = 2e-5
"""Of float32 logits, relative to the largest."""
ARITHMETICS = ("float32", "bf16", "int8")
NEW = 3


def assert_near(got: torch.Tensor, expected: torch.Tensor, tolerance: float = TOLERANCE) -> None:
    assert expected.abs().max() > 0.5, "logits that say nothing"
    error = (got - expected).abs().max() / expected.abs().max()
    assert error < tolerance, f"off by {error:.2e} of the largest logit"


# ── every family ──────────────────────────────────────────────────────────────────────────

# Heads are of whole tiles here, rows of whole groups; widths of feed-forward parts are neither.
SHAPES = {
    "llama": {},
    "smollm": {"hidden_size": 288},
    "mistral": {"sliding_window": 24, "num_hidden_layers": 3},
    "qwen2": {"hidden_size": 224, "intermediate_size": 128},
    "qwen3": {"head_dim": 48, "hidden_size": 96},
    "mixtral": {"sliding_window": 24},
    "qwen3_moe": {"moe_intermediate_size": 40},
    "gemma3": {"head_dim": 48, "sliding_window": 24},
}
WINDOWS = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
# A file of 8 bits has whole groups everywhere.
GGUF_SHAPES = {
    "mixtral": {"intermediate_size": 96},
    "qwen3_moe": {"moe_intermediate_size": 32},
    "gemma3": {"intermediate_size": 96},
    "qwen2": {"intermediate_size": 96},
}
CASES = {
    **{name: (name, settings) for name, settings in SHAPES.items()},
    "qwen2 with windows": ("qwen2", SHAPES["qwen2"] | WINDOWS),
    "qwen3_moe with windows": ("qwen3_moe", {"norm_topk_prob": False} | WINDOWS),
    **{
        f"llama, {kind}": ("llama", {"rope_parameters": rope, "max_position_embeddings": 128})
        for kind, rope in ROPES.items()
    },
}


def test_every_family_is_here():
    assert set(SHAPES) == set(FAMILIES)


@pytest.mark.parametrize("case", CASES)
def test_logits_are_those_of_transformers(tmp_path, case):
    name, settings = CASES[case]
    model = make_model(name, tmp_path, **settings)
    checkpoint = open_checkpoint(tmp_path)
    prompts = [words(checkpoint.spec, length, length) for length in (75, 1, 20, 130)]
    hand = native_hand(checkpoint, threads=2, num_blocks=200)

    mix(hand, prompts, new=NEW, most=60)

    for seq, prompt in enumerate(prompts):
        text = hand.texts[seq]
        expected = reference_logits(model, text[:-1])[len(prompt) - 1 :]
        assert_near(torch.stack(hand.logits[seq]), expected)


# ── every way to store weights ────────────────────────────────────────────────────────────

EXPERTS = ExpertSpec(number=5, per_token=2, intermediate_size=40, normalized=True)
# Rows of 240 numbers of attention, feed-forward parts of 140 or 40: neither are whole groups.
SPECS = {
    "plain": {},
    "windows and experts": {
        "experts": EXPERTS,
        "qk_norm": True,
        "window": 24,
        "window_layers": (1,),
        "num_heads": 5,
        "num_kv_heads": 1,
        "head_dim": 48,
    },
    "biases, stretched": {
        "qkv_bias": True,
        "tied_embeddings": False,
        "rope_scaling": YarnRope(factor=4.0, original_context=32, attention_factor=1.14),
    },
}
# Activations of 8 bits, or KV of bfloat16: the tiny model's own numbers are off by up to 6 %.
NEAR = {"float32": TOLERANCE, "bf16": 0.1, "int8": 0.1}


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q5_1", "Q4_0", "Q4_1"])
@pytest.mark.parametrize("spec", SPECS)
def test_logits_are_those_of_the_torch_decoder_with_the_stored_weights(spec, kind):
    weights = StoredRandomWeights(tiny_spec(**SPECS[spec]), kind=kind)
    prompt = words(weights.spec, 60)

    for arithmetic in ARITHMETICS:
        hand = native_hand(weights, arithmetic=arithmetic)
        got = answer(hand, prompt, new=NEW)

        expected = torch_logits(weights, hand.texts[1][:-1], len(prompt))
        if arithmetic == "float32" or "experts" not in SPECS[spec]:
            assert_near(got, expected, NEAR[arithmetic])
        else:
            # A row whose experts are nearly tied may choose others.
            assert (got - expected).abs().mean() < 0.1 * expected.abs().mean()


def test_matrices_that_are_stored_in_several_ways_are_packed_together():
    class Mixed(StoredRandomWeights):
        def kind_of(self, name):
            kinds = {"q": "Q4_0", "k": "Q8_0", "gate": "Q4_1", "up": "BF16", "o": "F16"}
            return kinds.get(name.rpartition(".")[2], "Q8_0")

    weights = Mixed(tiny_spec(hidden_size=96))
    prompt = words(weights.spec, 60)
    for arithmetic in ARITHMETICS:
        hand = native_hand(weights, arithmetic=arithmetic)
        got = answer(hand, prompt, new=NEW)

        expected = torch_logits(weights, hand.texts[1][:-1], len(prompt))
        assert_near(got, expected, NEAR[arithmetic])


@pytest.mark.parametrize("name", GGUF_SHAPES)
def test_a_gguf_file_gives_the_logits_of_the_torch_decoder(tmp_path, name):
    model = make_model(
        name, tmp_path, **(SHAPES[name] | GGUF_SHAPES[name] | SETTINGS.get(name, {}))
    )
    checkpoint = open_checkpoint(convert(model, tmp_path / "model.gguf", kind="Q8_0"))
    prompt = words(checkpoint.spec, 60)
    hand = native_hand(checkpoint, threads=2)

    got = answer(hand, prompt, new=NEW)

    assert_near(got, torch_logits(checkpoint, hand.texts[1][:-1], len(prompt)))


def test_a_text_of_several_segments_is_that_of_the_torch_decoder():
    """Segments of 512 positions, cut at threads and merged, are softmax over all that is seen."""
    weights = StoredRandomWeights(tiny_spec(**SPECS["windows and experts"]))
    prompt = words(weights.spec, 1100)
    hand = native_hand(weights, threads=3, num_blocks=160)

    got = answer(hand, prompt, chunks=[600])

    assert_near(got, torch_logits(weights, hand.texts[1][:-1], len(prompt)))


# ── the same bits ─────────────────────────────────────────────────────────────────────────

STRICT = [("float32", "F32"), ("bf16", "BF16"), ("int8", "Q4_0"), ("int8", "Q8_0")]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("arithmetic", "kind"), STRICT)
@pytest.mark.parametrize("spec", SPECS)
def test_a_text_has_the_same_bits_in_chunks_in_company_and_on_any_threads(
    spec, arithmetic, kind, isa
):
    weights = StoredRandomWeights(tiny_spec(**SPECS[spec]), kind=kind)
    prompts = [words(weights.spec, length, length) for length in (70, 1, 33, 90)]
    how = {"arithmetic": arithmetic, "isa": isa, "num_blocks": 120}
    alone = [answer(native_hand(weights, **how), prompt, new=NEW) for prompt in prompts]

    for chunk in (1, 5, 17):
        hand = native_hand(weights, **how)
        assert torch.equal(answer(hand, prompts[0], chunks=[chunk] * 70), alone[0])
    for threads in (1, 2, 3):
        hand = native_hand(weights, threads=threads, placement=list(range(119, -1, -1)), **how)
        mix(hand, prompts, new=NEW, most=40, seed=threads)
        for seq, expected in enumerate(alone):
            assert torch.equal(torch.stack(hand.logits[seq]), expected)


@pytest.mark.parametrize(("arithmetic", "kind"), STRICT)
@pytest.mark.parametrize("spec", SPECS)
def test_a_shared_prefix_gives_the_bits_of_one_of_its_own(spec, arithmetic, kind):
    """Segments of 512 positions that several texts share are computed once for all of them."""
    weights = StoredRandomWeights(tiny_spec(num_layers=2, **SPECS[spec]), kind=kind)
    prefix = words(weights.spec, 540)
    rests = [words(weights.spec, length, length) for length in (3, 20, 1, 41)]
    how = {"arithmetic": arithmetic, "num_blocks": 200}
    alone = [answer(native_hand(weights, **how), prefix + rest, new=NEW) for rest in rests]

    for threads in (1, 2, 3):
        hand = native_hand(weights, threads=threads, **how)
        hand.start(99, prefix)
        hand.generate(99, 1)
        for seq, rest in enumerate(rests):
            hand.start(seq, prefix + rest, like=99)
        hand.run(*(hand.slice(seq, len(rest)) for seq, rest in enumerate(rests[:2])))
        while behind := [s for s in range(4) if len(hand.texts[s]) < 540 + len(rests[s]) + NEW]:
            missing = [(seq, len(hand.texts[seq]) - hand.written[seq]) for seq in behind]
            hand.run(*(hand.slice(seq, left) for seq, left in missing))

        for seq, expected in enumerate(alone):
            assert torch.equal(torch.stack(hand.logits[seq]), expected)


def test_the_variable_for_tests_chooses_the_kernels_of_a_whole_step():
    code = """
import hashlib
from native_hand import StoredRandomWeights, answer, native_hand, words
from octavo.testing.tiny import tiny_spec
weights = StoredRandomWeights(tiny_spec(), kind="Q4_0")
logits = answer(native_hand(weights, arithmetic="int8"), words(weights.spec, 20))
print(hashlib.sha256(logits.numpy().tobytes()).hexdigest())
"""
    weights = StoredRandomWeights(tiny_spec(), kind="Q4_0")
    isa = ISAS[-1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {cpu.ISA_VARIABLE: isa, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr

    logits = answer(native_hand(weights, arithmetic="int8", isa=isa), words(weights.spec, 20))
    assert done.stdout.strip() == hashlib.sha256(logits.numpy().tobytes()).hexdigest()


# ── the runner ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("arithmetic", "kind"), STRICT[:3])
def test_the_native_runner_keeps_what_every_runner_must(arithmetic, kind, monkeypatch):
    weights = StoredRandomWeights(tiny_spec(), kind=kind)

    def make():
        return native_hand(weights, arithmetic=arithmetic, num_blocks=16, threads=2).runner

    def make_failing(step):
        runner = make()
        compute, submit = runner._executor.compute, runner.submit
        failing = []

        def burning(arrays):
            if failing:
                raise RuntimeError("the device caught fire")
            compute(arrays)

        def watched(batch):
            failing[:] = [True] if batch.step == step else []
            submit(batch)

        monkeypatch.setattr(runner._executor, "compute", burning)
        monkeypatch.setattr(runner, "submit", watched)
        return runner

    check_runner(make, make_failing=make_failing, block_size=BLOCK)


def test_texts_that_a_grammar_binds_keep_their_form():
    weights = StoredRandomWeights(tiny_spec())

    def make(matchers):
        return native_hand(weights, num_blocks=16, threads=2, matchers=matchers).runner

    check_bound_runner(make, vocab_size=weights.spec.vocab_size, block_size=BLOCK)


def test_vectors_have_the_same_bits_in_any_pieces_and_company():
    weights = StoredRandomWeights(tiny_spec())

    def make():
        return native_hand(weights, num_blocks=16, threads=2).runner

    check_pooled_runner(make, block_size=BLOCK, close=0)


POISON = 95


@pytest.mark.parametrize(("arithmetic", "kind"), STRICT)
@pytest.mark.parametrize("spec", SPECS)
def test_memory_that_was_not_written_does_not_count(spec, arithmetic, kind):
    beyond = SPECS[spec] | {"tied_embeddings": False}
    weights = StoredRandomWeights(tiny_spec(**beyond), kind=kind, poison=POISON)
    prompts = [words(weights.spec, length, length) for length in (70, 1, 33)]
    how = {"arithmetic": arithmetic, "num_blocks": 30}
    clean = [answer(native_hand(weights, **how), prompt) for prompt in prompts]

    hand = native_hand(weights, poison=POISON, **how)
    mix(hand, prompts, new=NEW, most=40)

    for seq, expected in enumerate(clean):
        assert torch.equal(torch.stack(hand.logits[seq]), expected)


def test_a_poisoned_text_is_an_error_of_its_step_and_the_runner_goes_on():
    weights = StoredRandomWeights(tiny_spec(tied_embeddings=False), poison=POISON)
    hand = native_hand(weights)
    bad = Slice(5, 0, (POISON,), (0,), ((9,),), (Sample(5, 0, GREEDY),))

    hand.runner.submit(Batch(step=1, slices=(bad,)))

    assert "logits are not finite for sequence 5" in hand.runner.collect().error
    prompt = words(weights.spec, 20)
    assert torch.equal(answer(hand, prompt), answer(native_hand(weights), prompt))


def test_a_fork_writes_to_a_copy_of_the_last_block():
    weights = StoredRandomWeights(tiny_spec())
    prompt = words(weights.spec, 20)
    hand = native_hand(weights)
    hand.start(1, prompt)
    hand.generate(1, 1)
    asked = (Sample(1, 0, GREEDY),), (Sample(2, 0, GREEDY),)
    old = Slice(1, 20, (7,), (2,), ((),), asked[0])
    fork = Slice(2, 20, (8,), (0,), ((0, 5),), asked[1])

    hand.runner.submit(Batch(step=9, slices=(old, fork), copies=(Copy(1, 5),)))
    assert hand.runner.collect().error is None

    for seq, token in ((1, 7), (2, 8)):
        alone = answer(native_hand(weights), [*prompt, token], new=1)
        assert torch.equal(hand.logits[seq][-1], alone[0])


def test_a_prompt_of_many_tiles_is_scored_as_one_token_at_a_time():
    """More rows than are scored at once, beside a text that samples."""
    weights = StoredRandomWeights(tiny_spec())
    prompt = words(weights.spec, 100)
    hand = native_hand(weights)
    hand.start(1, prompt)
    part = hand.slice(1, 100)
    hand.start(2, prompt[:9])
    other = hand.slice(2, 9)
    part = msgspec.structs.replace(part, score=Score(0, tuple(prompt[1:]), 0))

    result = hand.run(part, other)

    logits = torch_logits(weights, prompt, 1)
    expected = torch.log_softmax(logits.double(), -1)
    assert len(result.scored[1]) == 99
    for row, (target, one) in enumerate(zip(prompt[1:], result.scored[1], strict=True)):
        assert one.values[0] == pytest.approx(float(expected[row, target]), abs=1e-3)
    assert set(result.sampled) == {1, 2}
    assert torch.equal(hand.logits[2][0], answer(native_hand(weights), prompt[:9], new=1)[0])


def test_beams_choose_what_the_logits_say():
    weights = StoredRandomWeights(tiny_spec())
    prompt = words(weights.spec, 20)
    hand = native_hand(weights)
    hand.start(1, prompt)
    params = SamplingParams(use_beam_search=True, max_tokens=None)
    part = Slice(1, 0, tuple(prompt), (0,), ((0, 1),), (Sample(1, 0, params, candidates=5),))

    candidates = hand.run(part).candidates[1]

    assert list(candidates.tokens) == hand.logits[1][0].topk(5).indices.tolist()
