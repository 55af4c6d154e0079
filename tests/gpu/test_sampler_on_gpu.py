"""The sampler of a device on a GPU: numpy's answers, and a host that never waits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.contract.batch import Sampled
from octavo.runner.device_sampler import DeviceSampler
from octavo.runner.inputs import Target
from octavo.runner.logprobs import name_likely
from octavo.testing.sampling import (
    assert_same_names,
    check_device_sampler,
    hide_newest,
    numpy_answers,
    random_row,
    random_sample,
    settle,
    work_of,
)

pytestmark = pytest.mark.gpu

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(scope="module")
def device(cuda):
    return torch.device(cuda)


@pytest.mark.parametrize("pending", [False, True], ids=["known", "pending"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("size", "rounds"), [(3, 50), (127, 50), (2500, 30), (128_256, 2)])
def test_any_mix_of_options_gives_the_answer_of_numpy(device, size, rounds, dtype, pending):
    check_device_sampler(device, size=size, rounds=rounds, dtype=dtype, pending=pending)


def test_any_mix_is_answered_in_little_memory_too(device):
    check_device_sampler(device, size=2500, rounds=8, seed=1, pending=True, room_bytes=100_000)


@pytest.mark.parametrize("top", [-1, 0, 4, 1500])
def test_tokens_of_a_prompt_are_named_as_numpy_does(device, top):
    draw = np.random.default_rng(top + 1)
    rows = np.array([random_row(draw, 2500) for _ in range(20)], dtype=np.float32)
    targets = [Target(seq, int(draw.integers(0, 2500)), top) for seq in range(20)]

    launched = DeviceSampler(2500, device).launch_names(torch.tensor(rows, device=device), targets)
    settle(device)

    for one, row, target in zip(launched.answers(), rows, targets, strict=True):
        assert_same_names(one, name_likely(row, target.token, top))


def test_a_launch_never_waits_for_the_gpu(device):
    draw = np.random.default_rng(2)
    mix = [random_sample(draw, seq, 1500) for seq in range(150)]
    known, newest = hide_newest(draw, mix)
    logits = torch.randn(150, 1500, device=device, dtype=torch.bfloat16)
    newest = newest.to(device)
    sampler = DeviceSampler(1500, device)
    settle(device)

    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = sampler.launch(logits, work_of(known), newest)
        named = sampler.launch_names(logits, [Target(0, 3, 5), Target(0, 3, -1)])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    settle(device)

    expected = numpy_answers(logits, mix)
    assert [type(one) for one in launched.answers()] == [type(one) for one in expected]
    assert len(named.answers()) == 2


def test_an_answer_does_not_depend_on_company(device):
    draw = np.random.default_rng(1)
    mix = [random_sample(draw, seq, 5000) for seq in range(64)]
    rows = np.array([random_row(draw, 5000) for _ in mix])
    logits = torch.tensor(rows, device=device, dtype=torch.bfloat16)
    sampler = DeviceSampler(5000, device)

    together = sampler.launch(logits, work_of(mix))
    alone = [
        sampler.launch(row[None], work_of([one])) for row, one in zip(logits, mix, strict=True)
    ]
    settle(device)

    for one, launched in zip(together.answers(), alone, strict=True):
        (got,) = launched.answers()
        if isinstance(one, Sampled):
            assert got == one
