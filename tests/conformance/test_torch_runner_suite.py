"""The torch runner keeps what every model runner must keep."""

from __future__ import annotations

import pytest

from octavo.build import attention_backends
from octavo.testing.conformance import check_runner
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
        forward, submit = runner._decoder.forward, runner.submit

        class Broken:
            """A decoder whose device fails in one step."""

            def __getattr__(self, name):
                return getattr(decoder, name)

            def forward(self, *arguments):
                if failing:
                    raise RuntimeError("the device caught fire")
                return forward(*arguments)

        failing = []

        def watched(batch):
            failing[:] = [True] if batch.step == step else []
            submit(batch)

        runner._decoder = Broken()
        runner.submit = watched
        return runner

    check_runner(make, make_failing=make_failing)
