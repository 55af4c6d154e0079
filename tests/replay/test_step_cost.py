"""How long a step takes, by name or fitted to what was measured."""

from __future__ import annotations

import json
import math

import pytest

from octavo.errors import ConfigError
from octavo.memory.policies.lru import Lru
from octavo.replay.cost import NAMED_COSTS, StepCost, find_cost
from octavo.replay.engine import EngineSettings, replay_engine
from octavo.replay.trace import RecordedRequest, Trace

COST = StepCost(((1, 0.010), (11, 0.020), (111, 0.120)), 1e-6, 1e-9, step_s=0.001)


@pytest.mark.parametrize(
    ("rows", "seconds"), [(1, 0.010), (6, 0.015), (11, 0.020), (61, 0.070), (222, 0.240)]
)
def test_products_are_straight_lines_between_what_was_measured(rows, seconds):
    assert COST.step(rows, 0, 0) == pytest.approx(0.001 + seconds)


def test_context_and_pairs_cost_what_each_of_them_does():
    assert COST.step(1, 500, 2000) - COST.step(1, 0, 0) == pytest.approx(500e-6 + 2000e-9)


def test_many_steps_at_once_cost_what_they_cost_one_by_one():
    one_by_one = sum(COST.step(7, 1000 + 7 * done, 0) for done in range(40))

    assert COST.decoding(7, 1000, 40) == pytest.approx(one_by_one)


@pytest.mark.parametrize("seconds", [0.0, 0.001, 0.1, 0.5, 1.0])
def test_an_arrival_ends_the_steps_that_have_begun(seconds):
    steps = COST.steps_within(7, 1000, seconds, 50)

    assert steps == 50 or COST.decoding(7, 1000, steps) >= seconds
    assert steps == 1 or COST.decoding(7, 1000, steps - 1) < seconds


@pytest.mark.parametrize(
    ("requests", "prompt", "output", "tokens_per_s"),
    [(1, 1024, 256, 228), (64, 1024, 256, 4937), (256, 1024, 256, 6352), (32, 4096, 1, 10.2)],
)
def test_the_h200_takes_as_long_as_was_measured(requests, prompt, output, tokens_per_s):
    """The works decode_b1, decode_b64, decode_b256 and prefill_32x4k of docs/performance/gpu.md."""
    work = [
        RecordedRequest(0.0, prompt, output, tuple(b"%d %d" % (n, i) for i in range(prompt // 64)))
        for n in range(requests)
    ]
    settings = EngineSettings(NAMED_COSTS["h200-llama-3.1-8b"])

    tally = replay_engine(Trace("work", 64, tuple(work)), Lru(), 10_000, settings)

    assert requests * output / tally.seconds == pytest.approx(tokens_per_s, rel=0.05)


def record(*, row_s=3e-4, pair_s=2e-8, step_s=4e-3, token_s=7e-7):
    """What `octavo bench latency --json` writes of a machine of these speeds."""

    def first_token(tokens):
        steps = math.ceil(tokens / 2048)
        return steps * step_s + tokens * row_s + tokens * tokens / 2 * pair_s

    return {
        "config": {"max_num_batched_tokens": 2048},
        "lines": [
            {"rows": rows, "fixed_s": step_s + rows * 1e-4, "per_token_s": token_s}
            for rows in (1, 8, 64)
        ],
        "requests": [
            {"batch": batch, "context": tokens, "first_token_s": {"median": first_token(tokens)}}
            for batch, tokens in ((1, 64), (1, 1024), (1, 4096), (8, 64))
        ],
    }


def test_a_cost_is_fitted_to_a_record_of_measured_latency(tmp_path):
    path = tmp_path / "latency.json"
    path.write_text(json.dumps(record()))

    cost = find_cost(str(path))

    assert cost.step(8, 0, 0) == pytest.approx(4.8e-3)
    assert cost.step(8, 1000, 0) - cost.step(8, 0, 0) == pytest.approx(7e-4)
    assert cost.step(1024, 0, 1024 * 512) == pytest.approx(4e-3 + 1024 * 3e-4 + 0.0105, rel=0.05)
    assert cost.pair_s == pytest.approx(2e-8, rel=0.05)
    assert cost.kv_token_bytes is None


def test_prompts_of_one_length_say_nothing_of_pairs(tmp_path):
    path, one = tmp_path / "latency.json", record()
    one["requests"] = one["requests"][1:2]
    path.write_text(json.dumps(one))

    assert find_cost(str(path)).pair_s == 0.0


def without(key, value):
    """A record in which the first of some figures is another."""
    one = record()
    place = {"rows": one["lines"][0], "fixed_s": one["lines"][0], "context": one["requests"][0]}
    place.get(key, one["config"] if key == "max_num_batched_tokens" else one)[key] = value
    return json.dumps(one)


@pytest.mark.parametrize(
    "text",
    [
        "{}", "[", '{"config": {}}', "[" * 99_999,
        without("lines", []), without("requests", []), without("fixed_s", float("nan")),
        without("fixed_s", 0), without("rows", 0), without("rows", 10**400),
        without("context", 0), without("max_num_batched_tokens", 0),
        without("max_num_batched_tokens", 10**400),
    ],
)  # fmt: skip
def test_what_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)

    with pytest.raises(ConfigError, match="--cost takes the path of a record or one of h200-"):
        find_cost(str(path))


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="'h300' cannot be read"):
        find_cost("h300")
