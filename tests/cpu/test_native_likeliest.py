"""The likeliest tokens without their logits: what the logits say, to the bit."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from octavo import LLM, SamplingParams, StructuredOutputs, cpu
from octavo.contract.batch import Batch, Sample, Slice
from octavo.runner.masks import mask_words
from octavo.runner.sampler import Refused
from octavo.testing.fake_grammars import fake_form, random_mask
from octavo.testing.tiny import GREEDY, tiny_spec
from tiny_model import write_tiny_gguf

_cpu = cpu.native()
if _cpu is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

from native_hand import KV_DTYPE, StoredRandomWeights, words  # noqa: E402
from octavo.runner.native import NativeExecutor, start_threads  # noqa: E402
from octavo.runner.native_padding import native_layout  # noqa: E402
from octavo.runner.native_sampler import NativeSampler  # noqa: E402
from octavo.runner.numpy_sampler import NumpySampler  # noqa: E402
from octavo.runner.step_runner import StepRunner  # noqa: E402

ISAS = _cpu.available_isas()
POISON = 95


class BothWays:
    """Answers from the logits what it answers without them, and keeps all answers."""

    def __init__(self, executor):
        self._executor = executor
        self._native, self._numpy = NativeSampler(executor), NumpySampler(executor)

    def sample(self, work, logits):
        assert logits is None
        rows = self._executor.logits(0, work.sampled)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(self._executor, "write_logits", None)
            self.short = self._native.sample(work, None)
        self.long = self._native.sample(work, rows)
        self.numpy = self._numpy.sample(work, rows)
        return self.short


class GivenMasks:
    """Lets come what masks say, one for each sequence; None: it is not bound."""

    def __init__(self, masks):
        self._masks = masks

    def params(self, seq):
        if self._masks[seq] is None:
            return GREEDY
        return msgspec.structs.replace(GREEDY, structured_outputs=fake_form(seq))

    def start(self, form):
        given = self._masks[int(form.regex.split()[1])]
        return SimpleNamespace(fill=lambda mask: np.copyto(mask, given))


def run(
    weights,
    prompts,
    *,
    masks=None,
    sampler=NativeSampler,
    arithmetic="float32",
    threads=1,
    isa=None,
):
    """Compute all prompts in one step; returns the sampler and the result."""
    matchers = GivenMasks([None] * len(prompts) if masks is None else masks)
    layout = native_layout(weights.spec, block_size=16, dtype=KV_DTYPE[arithmetic])
    executor = NativeExecutor(
        weights, layout, len(prompts), arithmetic=arithmetic, pool=start_threads(threads), isa=isa
    )
    used = sampler(executor)
    runner = StepRunner(executor, sampler=used, matchers=matchers)
    samples = (Sample(seq, 0, matchers.params(seq), len(text)) for seq, text in enumerate(prompts))
    parts = (
        Slice(one.seq, 0, tuple(prompt), (0,), ((one.seq,),), (one,))
        for one, prompt in zip(samples, prompts, strict=True)
    )
    runner.submit(Batch(step=1, slices=tuple(parts)))
    return used, runner.collect()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("vocab", "rows", "threads"),
    [(96, 1, 1), (97, 3, 2), (128, 13, 1), (333, 65, 3), (1000, 150, 2)],
)
@pytest.mark.parametrize(
    ("arithmetic", "kind"), [("float32", "F32"), ("bf16", "F32"), ("int8", "Q8_0")]
)
def test_the_likeliest_token_is_that_of_the_logits(vocab, rows, threads, isa, arithmetic, kind):
    weights = StoredRandomWeights(tiny_spec(vocab_size=vocab), kind=kind)
    prompts = [words(weights.spec, 1 + row % 5, row) for row in range(rows)]

    ways, result = run(
        weights,
        prompts,
        sampler=BothWays,
        arithmetic=arithmetic,
        threads=threads,
        isa=isa,
    )

    assert result.error is None
    assert ways.short == ways.long
    assert [one.token for one in ways.short] == [one.token for one in ways.numpy]
    np.testing.assert_allclose(
        [one.logprob for one in ways.short], [one.logprob for one in ways.numpy], atol=2e-6
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    ("vocab", "rows", "threads", "arithmetic", "kind"),
    [
        (96, 1, 1, "int8", "Q8_0"),
        (97, 9, 2, "float32", "F32"),
        (333, 65, 3, "bf16", "F32"),
        (1000, 150, 2, "int8", "Q8_0"),
    ],
)
def test_the_likeliest_allowed_token_is_that_of_the_logits(
    vocab, rows, threads, arithmetic, kind, isa
):
    weights = StoredRandomWeights(tiny_spec(vocab_size=vocab), kind=kind)
    prompts = [words(weights.spec, 1 + row % 5, row) for row in range(rows)]
    draw = np.random.default_rng(vocab)
    masks = [random_mask(draw, vocab) if row % 4 != 1 else None for row in range(rows)]

    how = {"arithmetic": arithmetic, "threads": threads, "isa": isa}
    ways, result = run(weights, prompts, masks=masks, sampler=BothWays, **how)

    assert result.error is None
    assert ways.short == ways.long
    assert [answered(one) for one in ways.short] == [answered(one) for one in ways.numpy]
    # The mask has no part in what a token's probability was.
    free, _ = run(weights, prompts, sampler=BothWays, **how)
    for one, other in zip(ways.short, free.short, strict=True):
        assert isinstance(one, Refused) or one.token != other.token or one == other


def answered(one):
    return one.reason if isinstance(one, Refused) else one.token


class Even(StoredRandomWeights):
    """All rows of the embedding, which is the head too, are one vector."""

    def stored_rows(self, name):
        kind, stored = StoredRandomWeights.stored_rows(self, name)
        if name == "embedding":
            stored[:] = stored[0]
        return kind, stored


def test_of_equal_logits_the_lowest_allowed_id_is_taken():
    allowed = [[299, 131, 140], [7, 299], [], range(32, 300)]
    masks = [mask_of(tokens, 300) for tokens in allowed]

    _, result = run(Even(tiny_spec(vocab_size=300)), [[5], [7], [8], [9]], masks=masks, threads=2)

    assert {seq: one.token for seq, one in result.sampled.items()} == {0: 131, 1: 7, 3: 32}
    assert list(result.refused) == [2]
    assert "structured_outputs" in result.refused[2]


def mask_of(tokens, vocab):
    bits = np.zeros(32 * mask_words(vocab), dtype=np.uint8)
    bits[list(tokens)] = 1
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


def test_of_equal_logits_the_lowest_id_is_taken():
    _, result = run(Even(tiny_spec(vocab_size=300)), [[5, 6], [7]], threads=2)

    assert [one.token for one in result.sampled.values()] == [0, 0]
    assert [one.logprob for one in result.sampled.values()] == pytest.approx([-np.log(300)] * 2)


def test_a_poisoned_text_is_an_error_that_names_it():
    weights = StoredRandomWeights(tiny_spec(tied_embeddings=False), poison=POISON)

    _, result = run(weights, [[1, 2, 3], [POISON, 4]])

    assert result.error == (
        "ModelError: 96 of 96 logits are not finite for sequence 1 at position 2: "
        "the weights or the KV memory are damaged"
    )


@pytest.mark.parametrize("arithmetic", ["int8", "bf16", "float32"])
def test_greedy_tokens_have_the_same_bits_beside_a_request_that_needs_logits(tmp_path, arithmetic):
    model = write_tiny_gguf(tmp_path / "model.gguf", matrix_type="Q8_0")
    free = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    form = StructuredOutputs(regex="[ -~]{20,}")
    bound = SamplingParams(temperature=0, max_tokens=20, structured_outputs=form)
    greedy = [free] * 50 + [bound, free] * 10
    other = SamplingParams(seed=0, max_tokens=20, ignore_eos=True)

    def generate(asked, threads):
        prompts = [{"prompt_token_ids": [7, i, *range(3, 20)]} for i in range(len(asked))]
        how = {"backend": "cpu", "cpu_arithmetic": arithmetic, "threads": threads}
        with LLM(str(model), kv_cache_memory_bytes=4 << 20, report=lambda _: None, **how) as llm:
            outputs = [result.outputs[0] for result in llm.generate(prompts, asked)]
        return [(one.token_ids, one.cumulative_logprob) for one in outputs]

    assert generate([*greedy, other], 3)[:-1] == generate(greedy, 2)
