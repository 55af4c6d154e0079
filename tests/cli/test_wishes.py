"""Flags of `octavo generate` that say whose KV it is, how it is kept and what comes next."""

from __future__ import annotations

import json

import pytest

from octavo import LLM, Retention
from octavo.cli import run

TENANTS = ["--tenants", '{"a": {"maximum": 0.5}}']


@pytest.fixture
def generate(tiny_gguf):
    memory = ["--kv-cache-memory-bytes", str(1 << 18), "--max-model-len", "256"]

    def generate(*arguments):
        short = ["--raw", "--max-tokens", "2", "--model", str(tiny_gguf), *memory]
        return run(["generate", "one two three four", *short, *arguments])

    return generate


@pytest.fixture
def asked(monkeypatch):
    """What `LLM.generate` has been asked for, beside prompts and sampling."""
    given = {}
    answer = LLM.generate

    def listen(llm, prompts, params, **options):
        given.update(options)
        return answer(llm, prompts, params, **options)

    monkeypatch.setattr(LLM, "generate", listen)
    return given


def test_a_tenant_a_pin_and_a_hint_reach_the_engine(generate, asked, capsys):
    wishes = ["--tenant", "a", "--pin", "rules", "--retention-ttl", "60", "--cache-hint", "0.5"]

    assert generate(*TENANTS, "--pin-limit", "0.3", *wishes, "--json") == 0

    kept = Retention(pin="rules", ttl_s=60.0)
    assert asked == {"tenant": "a", "retention": kept, "cache_hint": 0.5}
    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["tenant"], config["cache_hint"]) == ("a", 0.5)
    assert config["retention"]["pin"] == "rules"


def test_a_priority_and_a_word_reach_the_engine(generate, asked):
    assert generate("--retention-priority", "80", "--cache-hint", "continues") == 0

    kept = Retention(priority=80)
    assert asked == {"tenant": None, "retention": kept, "cache_hint": "continues"}


def test_nothing_is_wished_unless_it_is_said(generate, asked, capsys):
    assert generate("--json") == 0

    assert asked == {"tenant": None, "retention": None, "cache_hint": None}
    assert json.loads(capsys.readouterr().out)["config"]["retention"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tenant", "b", *TENANTS], "tenant 'b' is not one of default, a"),
        (["--tenant", ""], "tenant '' is not one of default"),
        (["--pin", "rules"], "build the engine with pin_limit"),
        (["--pin", ""], "pin must be the name under which it can be let go"),
        (["--retention-priority", "101"], "must be a whole number from 0 (evicted first) to 100"),
        (["--retention-ttl", "0"], "ttl_s must be above 0 and at most 31622400 seconds"),
        (["--retention-ttl", "nan"], "ttl_s must be above 0 and at most 31622400 seconds"),
        (["--cache-hint", "maybe"], "cache_hint must be one of continues, closed, shared"),
        (["--cache-hint", "2"], "a probability from 0 to 1, got 2.0"),
    ],
)
def test_a_wish_that_cannot_be_is_one_line(generate, arguments, message, capsys):
    assert generate(*arguments) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""
