"""The torch runner keeps what every model runner must keep."""

from __future__ import annotations

import pytest

from octavo.executors.torch import attention_backends
from octavo.testing.bound_suite import check_bound_runner
from octavo.testing.conformance import check_runner
from octavo.testing.pooled_suite import check_pooled_runner
from octavo.testing.tiny import hand_for, tiny_decoder

BACKENDS = attention_backends()


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS)
def test_torch_runner(backend, deterministic):
    decoder = tiny_decoder()

    def make():
        hand = hand_for(
            decoder, num_blocks=16, block_size=4, backend=backend, deterministic=deterministic
        )
        return hand.runner

    def make_failing(step):
        runner = make()
        compute, submit = runner._executor.compute, runner.submit

        def burning(arrays):
            """The device fails in one step."""
            if failing:
                raise RuntimeError("the device caught fire")
            compute(arrays)

        failing = []

        def watched(batch):
            failing[:] = [True] if batch.step == step else []
            submit(batch)

        runner._executor.compute = burning
        runner.submit = watched
        return runner

    check_runner(make, make_failing=make_failing)


def test_texts_that_a_grammar_binds_keep_their_form():
    decoder = tiny_decoder()

    def make(matchers):
        return hand_for(decoder, num_blocks=16, block_size=4, matchers=matchers).runner

    check_bound_runner(make, vocab_size=decoder.spec.vocab_size)


@pytest.mark.parametrize("deterministic", [False, True])
def test_prompts_that_are_embedded(deterministic):
    decoder = tiny_decoder()

    def make():
        return hand_for(decoder, num_blocks=16, block_size=4, deterministic=deterministic).runner

    check_pooled_runner(make, close=0 if deterministic else 1e-5)
