"""Retention and tenants through the API: who may say what, what is kept, and what is told."""

from __future__ import annotations

import asyncio
import json

import pytest

from octavo import LLM, AsyncLLM, ConfigError, RequestError, Retention, SamplingParams
from octavo.cli.app import run_command
from octavo.config import EngineConfig

GREEDY = SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
KEPT = 160
"""Tokens in whole blocks."""


def prompt(*question):
    """A rulebook of ten blocks, and a question."""
    return {"prompt_token_ids": [3 + 7 * i % 199 for i in range(KEPT)] + list(question)}


@pytest.fixture
def llm(tiny_gguf):
    with LLM(
        str(tiny_gguf),
        max_model_len=256,
        kv_cache_memory_bytes=1 << 18,
        tenants={"a": {"guaranteed": 0.2, "maximum": 0.5}},
        pin_limit=0.35,
    ) as llm:
        yield llm


def press(llm):
    """Fill the memory with other texts."""
    size = llm.built.num_blocks * 16
    others = ([4 + i] + [9] * 199 for i in range(1 + size // 200))
    llm.generate([{"prompt_token_ids": ids} for ids in others], GREEDY)


def found(llm, **options):
    return llm.generate(prompt(5), GREEDY, **options)[0].num_cached_tokens


def test_a_pinned_prompt_is_found_whatever_happens_between(llm):
    llm.generate(prompt(6), GREEDY, retention=Retention(end=KEPT, pin="rules"))

    press(llm)

    assert found(llm) == KEPT


def test_an_unpinned_one_is_not(llm):
    llm.generate(prompt(6), GREEDY)

    press(llm)

    assert found(llm) == 0


def test_answers_do_not_depend_on_what_is_kept(llm):
    plain = llm.generate(prompt(7), GREEDY)[0].outputs[0].token_ids

    kept = llm.generate(
        [prompt(7)] * 2,
        GREEDY,
        tenant=["a", "default"],
        retention=[[Retention(0, 32, 90), Retention(40, pin="x")], None],
    )

    assert [result.outputs[0].token_ids for result in kept] == [plain, plain]


def test_unpin_lets_go_and_tells_how_much(llm):
    llm.generate(prompt(7), GREEDY, retention=Retention(end=KEPT, pin="rules"))

    assert llm.unpin("others") == 0
    assert llm.unpin("rules", tenant="a") == 0
    assert llm.unpin("rules") == KEPT // 16
    assert llm.unpin() == 0


@pytest.mark.parametrize("wrong", [{"name": 3}, {"tenant": ["a"]}, {"name": b"rules"}])
def test_unpin_tells_of_what_cannot_be_a_name(llm, wrong):
    with pytest.raises(RequestError, match="must be a text, or None for all, got"):
        llm.unpin(**wrong)


def test_unpin_tells_of_a_tenant_that_there_is_not(tiny_gguf, llm):
    with pytest.raises(RequestError, match="tenant 'b' is not one of default, a"):
        llm.unpin("rules", tenant="b")
    with (
        LLM(str(tiny_gguf), reservation="max") as other,
        pytest.raises(RequestError, match="tenant 'b' is not one of default"),
    ):
        other.unpin(tenant="b")


def test_metrics_tell_of_pins_and_tenants(llm):
    llm.generate(prompt(7), GREEDY, tenant="a", retention=Retention(end=KEPT, pin="rules"))

    values = {metric.name: metric.value for metric in llm.get_metrics()}

    assert values["octavo:blocks_pinned"] == KEPT // 16
    # The end of the text, which fills no block, is cached beside them.
    assert values['octavo:blocks{tenant="a"}'] == KEPT // 16 + 1
    assert values['octavo:blocks{tenant="default"}'] == 0


def test_an_async_engine_takes_the_same_options(tiny_gguf):
    async def ask():
        llm = AsyncLLM(LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 18, pin_limit=0.3))
        async with llm:
            wish = [Retention(end=KEPT, pin="rules")]
            async for _ in llm.generate(prompt(7), GREEDY, retention=wish, tenant="default"):
                pass
            with pytest.raises(RequestError, match="tenant 'b' is not one of default"):
                await llm.unpin("rules", tenant="b")
            return await llm.unpin("rules")

    assert asyncio.run(ask()) == KEPT // 16


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"tenant": "b"}, "tenant 'b' is not one of default, a"),
        ({"tenant": 3}, "tenant cannot be 3"),
        ({"tenant": ["a", "a"]}, "1 prompts, but 2 tenant"),
        ({"retention": "high"}, "retention cannot be 'high'"),
        ({"retention": ["high"]}, "retention must be a Retention, or several, got 'high'"),
        ({"retention": [3]}, "retention must be a Retention, or several, got 3"),
        ({"retention": [[Retention(0, 9), Retention(8)]]}, "must not overlap"),
        (
            {"retention": Retention(end=192, pin="x"), "tenant": "a"},
            r"12 more blocks, .* at most 11",
        ),
    ],
)
def test_a_wrong_option_is_told_before_anything_runs(llm, options, told):
    text = {"prompt_token_ids": [5] * 200}
    steps = llm.built.engine.stats.steps

    with pytest.raises(RequestError, match=told):
        llm.generate(text, GREEDY, **options)

    assert llm.built.engine.stats.steps == steps
    assert not llm.built.engine.busy


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("{", "is no JSON"),
        ("[]", "must be a mapping of names to shares"),
        ({}, "must be a mapping of names to shares"),
        ({"": {}}, "a tenant needs a name"),
        ({"a": 0.5}, "shares of 'a' must be a mapping, got 0.5"),
        ({"a": {"minimum": 0.5}}, "no share 'minimum'; it has: guaranteed, maximum"),
        ({"a": {"maximum": 2}}, "maximum of 'a' must be a share from 0 to 1, got 2"),
        ({"a": {"guaranteed": True}}, "guaranteed of 'a' must be a share"),
        ({"a": {"guaranteed": 10**400}}, "guaranteed of 'a' must be a share"),
        ('{"a": {}, "a": {}}', "gives a twice: leave one out"),
        ('{"a": {"maximum": 1, "maximum": 0.5}}', "gives maximum twice"),
        ("[" * 99_999, "is no JSON .it is nested too deeply"),
        ({"a": {"guaranteed": 0.5, "maximum": 0.4}}, "more than its maximum of 0.4"),
        ({"a": {"guaranteed": 0.6}, "b": {"guaranteed": 0.6}}, "guaranteed 1.2 of the KV memory"),
    ],
)
def test_wrong_shares_are_told(setting, told):
    with pytest.raises(ConfigError, match=told):
        EngineConfig(tenants=setting)


@pytest.mark.parametrize("share", [-0.1, 1, "half", True, 10**400, float("nan")])
def test_a_wrong_limit_on_pins_is_told(share):
    with pytest.raises(ConfigError, match="pin_limit must be a share from 0 to below 1"):
        EngineConfig(pin_limit=share)


def test_shares_as_json_and_as_a_mapping_are_one_setting():
    mapping = {"a": {"guaranteed": 0.2}, "b": {}}

    assert EngineConfig(tenants=mapping) == EngineConfig(tenants=json.dumps(mapping))


@pytest.mark.parametrize(
    "options",
    [
        {"tenants": {"a": {}}},
        {"pin_limit": 0.2},
        {"eviction_policy": "lfu"},
        {"scheduling_policy": "longest_prefix"},
        {"scheduling_policy": {"name": "depth_first"}},
    ],
    ids=["tenants", "pin_limit", "eviction_policy", "longest_prefix", "depth_first"],
)
def test_contiguous_baselines_have_nothing_of_what_needs_shared_blocks(tiny_gguf, options):
    with pytest.raises(ConfigError, match=r"needs blocks that are shared, .* use on_demand"):
        LLM(str(tiny_gguf), reservation="max", **options)


def test_a_share_that_holds_no_text_is_refused_at_the_start(tiny_gguf):
    with pytest.raises(ConfigError, match="tenant 'a' can count on 0 of"):
        LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 18, tenants={"a": {"maximum": 0.001}})


def test_all_of_the_memory_may_be_guaranteed_to_named_tenants(tiny_gguf):
    halves = {"a": {"guaranteed": 0.5}, "b": {"guaranteed": 0.5}}
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 18, tenants=halves) as llm:
        (answer,) = llm.generate([prompt()], GREEDY, tenant="a")
        assert len(answer.outputs[0].token_ids) == 2

        with pytest.raises(RequestError, match=r"the 0 of .* tenant 'default' can count on"):
            llm.generate([prompt()], GREEDY)


def test_a_default_tenant_that_is_given_shares_holds_a_text_or_is_refused(tiny_gguf):
    shares = {"a": {"guaranteed": 0.9}, "default": {"maximum": 0.001}}
    with pytest.raises(ConfigError, match="tenant 'default' can count on 0 of"):
        LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 18, tenants=shares)


def test_the_command_line_takes_shares_and_a_limit(tiny_gguf, capsys):
    arguments = ["generate", "Hello", "--model", str(tiny_gguf), "--raw", "--json"]

    status = run_command([*arguments, "--tenants", '{"a": {}}', "--pin-limit", "0.2"])

    assert status == 0
    assert json.loads(capsys.readouterr().out)["config"]["pin_limit"] == 0.2


@pytest.mark.weights
@pytest.mark.slow
def test_the_embedded_model_computes_a_pinned_rulebook_once(smollm2_path):
    rules = "".join(f"Rule {i}: a player may move {i} fields.\n" for i in range(1, 31))
    with LLM(
        str(smollm2_path), max_model_len=1024, kv_cache_memory_bytes=32 << 20, pin_limit=0.5
    ) as llm:
        length = len(llm.get_tokenizer().encode(rules))
        pin = Retention(end=length, pin="rules")
        cached: list[int] = []
        for i in range(4):
            llm.generate([f"Story {i}{j}. " + f"{i} times told. " * 100 for j in range(6)], GREEDY)
            cached.append(
                llm.generate(f"{rules}Question {i}:", GREEDY, retention=pin)[0].num_cached_tokens
            )

    assert cached == [0] + [length // 16 * 16] * 3


def test_a_call_of_which_one_prompt_is_refused_leaves_no_pins(llm):
    pins = [Retention(end=KEPT, pin="rules"), Retention(pin="too much")]
    long = {"prompt_token_ids": [2] * 230}

    with pytest.raises(RequestError, match="pin 'too much'"):
        llm.generate([prompt(5), long], GREEDY, retention=pins)

    assert llm.unpin() == 0
