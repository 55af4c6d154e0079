"""An eviction policy is chosen by name, with or without parameters, and mistakes are told."""

from __future__ import annotations

import json

import numpy as np
import pytest

from octavo import LLM, ConfigError
from octavo.build import EVICTION_POLICIES, eviction_policy
from octavo.cli.app import run_command
from octavo.config import EngineConfig
from octavo.memory.policies.cost import WEIGHABLE
from octavo.parameters import read_setting, with_parameters, write_setting


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "lfu", "remember": 4}',
        "{name: lfu, remember: 4}",
        "{ name: 'lfu' , \"remember\": 4 }",
        " {name:lfu,remember:4}",
        "{name: lfu, remember: 4,}",
    ],
)
def test_a_policy_with_parameters_is_written_as_json_or_as_a_bare_mapping(text):
    assert read_setting("it", text) == ("lfu", {"remember": 4})


def test_values_keep_their_types():
    text = "{name: x, a: 1, b: 0.5, c: true, d: word, e: 'two words', f: -1e3, g: \"2\"}"

    assert read_setting("it", text)[1] == {
        "a": 1, "b": 0.5, "c": True, "d": "word", "e": "two words", "f": -1000.0, "g": "2",
    }  # fmt: skip


def test_a_name_alone_has_no_parameters():
    assert read_setting("it", "lru") == ("lru", {})


@pytest.mark.parametrize(
    "text",
    ["{", "{}", "{lfu}", "{name lfu}", "{name: lfu remember: 4}", "{name: lfu", "{name: lfu}}",
     "{name: {name: lfu}}", "{name: lfu, : 4}", "{name: lfu, name: lru}", "{remember: 4}",
     '{"name": "lfu", "remember": [4]}', '{"name": "lfu", "remember": null}', '{"name": 3}',
     "{name: lfu,, remember: 4}", '{"name": "lfu", "remember": 1, "remember": 1}'],
)  # fmt: skip
def test_what_is_no_mapping_of_a_name_is_refused(text):
    with pytest.raises(ConfigError, match="it"):
        read_setting("it", text)


def test_a_written_mapping_reads_as_it_was():
    setting = {"name": "cost", "policy": "gittins", "equal_tokens": 2.5e4}

    name, parameters = read_setting("it", write_setting("it", setting))

    assert {"name": name, **parameters} == setting


def test_numbers_of_numpy_are_numbers_of_parameters():
    setting = {"name": "lfu", "remember": np.float32(0.5), "x": np.int64(3)}

    assert read_setting("it", write_setting("it", setting))[1] == {"remember": 0.5, "x": 3}


@pytest.mark.parametrize("setting", [3, None, ["lru"], {"name": "lfu", "remember": [1]}, {1: "a"}])
def test_a_setting_of_another_type_is_refused(setting):
    with pytest.raises(ConfigError, match="eviction_policy"):
        EngineConfig(eviction_policy=setting)


def test_a_config_with_a_mapping_is_hashable_and_equal_to_itself():
    first, second = (EngineConfig(eviction_policy={"name": "lfu", "remember": 2}) for _ in range(2))

    assert hash(first) == hash(second)
    assert first == second


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_every_policy_is_made_by_its_name(name):
    assert len(eviction_policy(name)()) == 0


@pytest.mark.parametrize("inner", WEIGHABLE)
def test_cost_takes_the_policy_that_it_weighs(inner):
    assert len(eviction_policy({"name": "cost", "policy": inner})()) == 0


def test_parameters_reach_the_policy():
    with pytest.raises(ConfigError, match="eviction_policy s3fifo: small_share must be between"):
        eviction_policy("{name: s3fifo, small_share: 3}")


def test_an_unknown_policy_lists_those_there_are():
    with pytest.raises(ConfigError, match="'mru' is not one of lru, fifo, lfu, s3fifo, arc"):
        eviction_policy("mru")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("{name: lfu, half_life: 600}", r"no parameter 'half_life'; it has: remember \(float\)"),
        ("{name: lru, size: 1}", "no parameter 'size'; it has: none"),
        ("{name: lfu, remember: often}", "remember must be of type float, got 'often'"),
        ("{name: lfu, remember: true}", "remember must be of type float, got True"),
        ("{name: gittins, sample: 1.5}", "sample must be of type int, got 1.5"),
        ("{name: hotprefix, hotness: 3}", "hotness must be of type str, got 3"),
        ("{name: hotprefix, hotness: cold}", "'cold' is not one of sum, ratio, plain"),
        ("{name: cost, policy: lru}", "'lru' is not one of bonus, gittins"),
        ("{name: bonus, horizon_tokens: 0}", "horizon_tokens must be above 0, got 0"),
        ("{name: lfu, remember: -1}", "remember must be at least 0, got -1"),
        ("{name: lfu, remember: Infinity}", "remember must be a number of at most 1e.12 in size"),
        ("{name: bonus, uses: NaN}", "uses must be a number of at most 1e.12 in size, got nan"),
    ],
)
def test_a_wrong_parameter_is_told_with_what_there_is(setting, told):
    with pytest.raises(ConfigError, match=told):
        eviction_policy(setting)


def test_parameters_of_a_callable_without_types_are_known_by_their_defaults():
    def make(size=3, label=None):
        return (size, label)

    assert with_parameters("it", "x", make, {"size": 5, "label": "a"})() == (5, "a")
    with pytest.raises(ConfigError, match="size must be of type int, got 'a'"):
        with_parameters("it", "x", make, {"size": "a"})


@pytest.mark.parametrize("name", ["bonus", "hotprefix"])
def test_answers_do_not_depend_on_the_policy(tiny_gguf, name):
    prompts = ["Once upon a time", "Once upon a midnight", "Once upon a time"]

    answers = [
        [one.outputs[0].token_ids for one in LLM(str(tiny_gguf), eviction_policy=policy).generate(
            prompts
        )]
        for policy in ("lru", {"name": name, "remember": 2})
    ]  # fmt: skip

    assert answers[0] == answers[1]


def test_the_command_line_takes_a_mapping(tiny_gguf, capsys):
    arguments = ["generate", "Hello", "--model", str(tiny_gguf), "--raw", "--json"]

    status = run_command([*arguments, "--eviction-policy", "{name: hotprefix, max_age: 60}"])

    assert status == 0
    assert json.loads(capsys.readouterr().out)


def test_the_command_line_tells_of_an_unknown_parameter(tiny_gguf, capsys):
    arguments = ["generate", "Hello", "--model", str(tiny_gguf), "--raw"]

    status = run_command([*arguments, "--eviction-policy", "{name: hotprefix, half_life: 600}"])

    assert status != 0
    assert "max_age (int)" in capsys.readouterr().err
