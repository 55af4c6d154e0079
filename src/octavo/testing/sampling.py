"""Random mixes of sampling options, and a check of a device's sampler against that of numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from octavo.contract.batch import Candidates, Logprobs, Sample, Sampled
from octavo.contract.sampling import SamplingParams
from octavo.contract.structured import StructuredOutputs
from octavo.runner.device_sampler import ROOM, DeviceSampler
from octavo.runner.history import History
from octavo.runner.inputs import StepArrays, Work
from octavo.runner.logprobs import log_probabilities
from octavo.runner.masks import Mask
from octavo.runner.philox import uniforms
from octavo.runner.processors import process
from octavo.runner.sampler import Answer, edits_logits, sample
from octavo.testing.fake_grammars import random_mask

EDGE = 1e-9
"""A draw so near to the edge of a token may fall on either side."""
CLOSE = 1e-5
"""Nats: float32 has no more digits for a log-probability of 100."""
SAMPLES = 12
"""In each mix."""

_NO_INTS = np.empty(0, dtype=np.int64)
_NO_STEP = StepArrays((), (), _NO_INTS, _NO_INTS, (), _NO_INTS)


@dataclass(frozen=True, slots=True)
class Asked:
    """A sample with its place and its text."""

    sample: Sample
    position: int
    history: History | None
    mask: Mask | None = None
    """What a grammar lets come, if one binds it."""


def check_device_sampler(
    device: torch.device,
    *,
    size: int,
    rounds: int,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    pending: bool = False,
    room_bytes: int = ROOM,
) -> None:
    """Check random mixes over a vocabulary of a size; pending: newest tokens on the device only."""
    draw = np.random.default_rng([seed, size])
    sampler = DeviceSampler(size, device, room_bytes=room_bytes)
    near = compared = 0
    for _ in range(rounds):
        mix = [random_sample(draw, seq, size) for seq in range(SAMPLES)]
        read = np.sort(draw.integers(0, SAMPLES, SAMPLES))
        read = np.unique(read, return_inverse=True)[1].tolist()
        rows = [random_row(draw, size) for _ in range(max(read) + 1)]
        logits = torch.tensor(np.array(rows), dtype=dtype)
        known, newest = hide_newest(draw, mix) if pending else (mix, None)
        newest = None if newest is None else newest.to(device)
        launched = sampler.launch(logits.to(device), work_of(known, read), newest)
        settle(device)
        answers, tokens = launched.answers(), launched.tokens.tolist()
        expected = numpy_answers(logits, mix, read)
        for number, (got, wanted) in enumerate(zip(answers, expected, strict=True)):
            row = logits[read[number]].float().numpy()
            if differs(got, wanted) and is_near_an_edge(row, mix[number]):
                near += 1
                continue
            compared += 1
            assert_same(got, wanted)
            assert 0 <= tokens[number] < size
            assert not isinstance(got, Sampled) or tokens[number] == got.token
    assert near < max(2, compared / 100), f"{near} of {compared + near} draws fell near an edge"


def settle(device: torch.device) -> None:
    """Wait until a device has done all that was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def work_of(asked: list[Asked], rows: list[int] | None = None) -> Work:
    """Return what a sampler is given; rows: what each sample reads, ascending; None: its own."""
    rows = list(range(len(asked))) if rows is None else rows
    return Work(
        _NO_STEP,
        sampled=max(rows) + 1,
        samples=[one.sample for one in asked],
        sample_rows=rows,
        positions=[one.position for one in asked],
        histories=[one.history for one in asked],
        masks=[one.mask for one in asked],
    )


def numpy_answers(
    logits: torch.Tensor, asked: list[Asked], rows: list[int] | None = None
) -> list[Answer]:
    """Return what the reference answers to the same question."""
    work = work_of(asked, rows)
    read = logits.float().cpu().numpy()[work.sample_rows]
    return sample(read, work.samples, work.positions, work.histories, work.masks)


def random_options(draw: np.random.Generator, size: int) -> dict[str, Any]:
    """Choose a few options of each kind, rare and harsh ones among them."""

    def some(most: int) -> list[int]:
        return draw.choice(size, min(size, most), replace=False).tolist()

    pool: dict[str, Any] = {
        "temperature": draw.choice([0.0, 0.0, 1e-300, 0.2, 0.7, 1.0, 3.0, 1e6]),
        "top_k": int(draw.choice([-1, 1, 2, 50, 400, 1500, size, size + 5])),
        "top_p": draw.choice([1e-9, 0.1, 0.5, 0.9, 0.99, 0.999999]),
        "min_p": draw.choice([1e-6, 0.01, 0.3, 1.0]),
        "presence_penalty": draw.choice([-2.0, -0.5, 0.7, 2.0]),
        "frequency_penalty": draw.choice([-2.0, -0.3, 0.4, 2.0]),
        "repetition_penalty": draw.choice([0.5, 0.9, 1.3, 5.0]),
        "logit_bias": dict(zip(some(5), (5 * draw.standard_normal(5)).tolist(), strict=False)),
        "allowed_token_ids": some(int(draw.choice([1, 3, 200]))),
        "logprobs": int(draw.choice([0, 1, 5, 1500, -1 if size < 100 else 300])),
        "min_tokens": 4,
    }
    options = {name: value for name, value in pool.items() if draw.random() < 0.3}
    if draw.random() < 0.25:
        options["structured_outputs"] = StructuredOutputs(regex="a")
    return options


def random_sample(draw: np.random.Generator, seq: int, size: int) -> Asked:
    """Choose a sample with a text of some tokens that stand there twice, often; or a plain one."""
    options = {} if draw.random() < 0.2 else random_options(draw, size)
    words: list[tuple[int, ...]] = []
    if draw.random() < 0.3:
        words = [tuple(draw.integers(0, size, draw.integers(1, 4)).tolist()) for _ in range(3)]
    prompt = draw.integers(0, size, 6).tolist()
    output = draw.choice([*prompt, *draw.integers(0, size, 4)], draw.integers(1, 9)).tolist()
    if words and draw.random() < 0.7:
        output += words[0][:-1]
        # One that ends alike, of which no more than the end stands there.
        words.append((int(draw.integers(0, size)), *words[0]))
    one = Sample(
        seq,
        int(draw.integers(0, 2**64, dtype=np.uint64)) - 2**63,
        SamplingParams(max_tokens=None, **options),
        len(prompt),
        tuple(draw.integers(0, size + 3, 2).tolist()) if "min_tokens" in options else (),
        tuple(words),
        int(draw.choice([0, 0, 0, 0, 1, 9, size])),
    )
    history = History(prompt + output, len(prompt)) if one.looks_back else None
    mask = random_mask(draw, size) if one.constrained else None
    return Asked(one, len(prompt) + len(output), history, mask)


def random_row(draw: np.random.Generator, size: int) -> NDArray[np.float64]:
    """Make a row that is peaked, flat, or full of ties."""
    row = draw.standard_normal(size) * draw.choice([0.01, 1.0, 4.0, 30.0])
    return np.round(row * 2) / 2 if draw.random() < 0.25 else row


def hide_newest(draw: np.random.Generator, mix: list[Asked]) -> tuple[list[Asked], torch.Tensor]:
    """Take the last token off some texts; returns the samples, and what was taken or -1."""
    known: list[Asked] = []
    newest: list[int] = []
    for one in mix:
        # What a grammar binds knows all of its text.
        if one.history is None or one.sample.constrained or draw.random() < 0.3:
            known.append(one)
            newest.append(-1)
            continue
        *tokens, last = one.history.tokens
        history = History(tokens, one.sample.prompt_length)
        known.append(Asked(one.sample, one.position, history))
        newest.append(last)
    return known, torch.tensor(newest)


def differs(got: Answer, expected: Answer) -> bool:
    """Return True if the tokens of two answers are not the same."""
    names = ("tokens", "token", "reason")
    return any(getattr(got, name, None) != getattr(expected, name, None) for name in names)


def assert_same(got: Answer, expected: Answer) -> None:
    """Assert that two answers agree, log-probabilities within rounding."""
    assert type(got) is type(expected), f"{got} instead of {expected}"
    if isinstance(got, Sampled) and isinstance(expected, Sampled):
        assert got.token == expected.token, f"{got} instead of {expected}"
        assert_close((got.logprob,), (expected.logprob,))
        assert (got.logprobs is None) == (expected.logprobs is None)
        if got.logprobs is not None and expected.logprobs is not None:
            assert_same_names(got.logprobs, expected.logprobs)
    elif isinstance(got, Candidates) and isinstance(expected, Candidates):
        assert got.tokens == expected.tokens, f"{got} instead of {expected}"
        assert_close(got.logprobs, expected.logprobs)
    else:
        assert got == expected


def assert_same_names(got: Logprobs, expected: Logprobs) -> None:
    """Assert that the same tokens are named, with the same ranks."""
    assert got.ids == expected.ids, f"{got.ids} instead of {expected.ids}"
    assert got.ranks == expected.ranks, f"{got.ranks} instead of {expected.ranks}"
    assert_close(got.values, expected.values)


def assert_close(got: tuple[float, ...], expected: tuple[float, ...]) -> None:
    """Assert that numbers agree within float32's rounding."""
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=CLOSE)


def is_near_an_edge(row: NDArray[np.float32], one: Asked) -> bool:
    """Return True if the last of the sums of `sampler` might be rounded to another token."""
    asked, p = one.sample, one.sample.params
    if asked.candidates:
        level = log_probabilities(row)
        likely = process(level, asked, one.history, one.position, one.mask).row
        steps = np.diff(np.sort(likely))
        # What an option has changed may be equal after one rounding and not after another.
        return bool(np.any((steps < EDGE) & ((steps > 0) | edits_logits(asked))))
    eligible = process(row, asked, one.history, one.position, one.mask)
    if p.greedy or len(eligible.row) == 0:
        return False
    with np.errstate(over="ignore", under="ignore"):
        distance = eligible.row.astype(float) - float(eligible.row.max())
        weights = np.exp(distance / p.temperature)
    if p.min_p and np.any(np.abs(weights[weights != 1] - p.min_p) < EDGE):
        return True
    weights[weights < p.min_p] = 0
    ranked = np.argsort(-eligible.row, kind="stable")
    if p.top_k > 0:
        weights[ranked[p.top_k :]] = 0
    if p.top_p < 1:
        sums = np.cumsum(weights[ranked])
        enough = p.top_p * sums[-1]
        if np.any(np.abs(sums - enough) < EDGE * sums[-1]):
            return True
        weights[ranked[np.searchsorted(sums, enough) + 1 :]] = 0
    sums = np.cumsum(weights)
    wanted = uniforms([asked.seed], [one.position])[0] * sums[-1]
    return bool(np.any(np.abs(sums - wanted) < EDGE * sums[-1]))
