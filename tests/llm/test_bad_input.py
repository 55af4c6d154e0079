"""What `LLM` answers to input that cannot work: a typed error, and nothing is lost."""

from __future__ import annotations

import pytest

from octavo import LLM, ConfigError, ModelError, RequestError, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


@pytest.fixture(scope="module")
def llm(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20, max_model_len=128) as llm:
        yield llm


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ("", "the prompt is empty"),
        ({"prompt_token_ids": []}, "the prompt is empty"),
        ({"prompt_token_ids": [0, 272]}, "token id 272 is out of range: the vocabulary has 272"),
        ({"prompt_token_ids": [-1]}, "token id -1 is out of range"),
        ({"prompt_token_ids": ["a"]}, "token id 'a' is out of range"),
        ({"prompt_token_ids": "abc"}, "must be a list of token ids"),
        ({"text": "x"}, "got a dict with"),
        ({"prompt_token_ids": [1] * 200}, "the prompt has 200 tokens and the context 128"),
    ],
)
def test_an_impossible_prompt_is_refused_with_the_numbers(llm, prompt, message):
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt, GREEDY)


def test_a_prompt_that_can_never_fit_the_memory_is_refused(tiny_gguf):
    message = "has 60 tokens and the KV memory holds 48"
    with (
        LLM(str(tiny_gguf), kv_cache_memory_bytes=3 * 8192) as llm,
        pytest.raises(RequestError, match=message),
    ):
        llm.generate({"prompt_token_ids": [5] * 60}, GREEDY)


def test_one_bad_prompt_leaves_nothing_behind_and_the_next_call_works(llm):
    with pytest.raises(RequestError):
        llm.generate(["fine", {"prompt_token_ids": [1] * 200}], GREEDY)

    assert llm.built.engine.usage().blocks_used == 0
    assert len(llm.generate("fine", GREEDY)[0].outputs[0].token_ids) == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": 0}, "n must be at least 1, got 0"),
        ({"n": 2, "temperature": 0}, "n must be 1 when sampling is greedy"),
        ({"temperature": -1}, "temperature must be 0 or more, got -1"),
        ({"temperature": float("nan")}, "temperature must be 0 or more, got nan"),
        ({"top_p": 2}, "top_p must be above 0 and at most 1, got 2"),
        ({"top_p": 0}, "top_p must be above 0"),
        ({"top_k": -2}, "top_k must be -1 or 0"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": 1.5}, "max_tokens must be a whole number, got 1.5"),
        ({"stop": ""}, "empty text"),
        ({"stop": [1]}, "stop must be a text"),
        ({"stop_token_ids": ["x"]}, "stop_token_ids must be token ids"),
        ({"seed": 2**64}, "seed must fit 64 bits"),
        ({"temperature": "hot"}, "temperature must be a number"),
    ],
)
def test_an_impossible_sampling_option_is_refused(options, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**options)


def test_unknown_options_are_errors(tiny_gguf):
    with pytest.raises(TypeError, match="best_of"):
        SamplingParams(best_of=2)
    with pytest.raises(TypeError, match="gpu_memory"):
        LLM(str(tiny_gguf), gpu_memory=1)
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20) as llm, pytest.raises(TypeError):
        llm.generate("x", GREEDY, lora_request=None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_cache_memory_bytes": 0}, "kv_cache_memory_bytes must be at least 1, got 0"),
        ({"kv_cache_memory_bytes": 1 << 50}, "kv_cache_memory_bytes is 1125899906842624, but only"),
        ({"kv_cache_memory_bytes": 100}, "holds 0 blocks of 8192 bytes"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1"),
        ({"max_model_len": 1 << 20}, "max_model_len is 1048576, but the model's context is 512"),
        ({"max_model_len": 1}, "max_model_len must be at least 2"),
        ({"reservation": "orca"}, "reservation 'orca' is not one of on_demand, max, pow2"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy 'lifo' is not one of fcfs, priority"),
        ({"dtype": "int3"}, "dtype 'int3' is not one of auto"),
        ({"block_size": 1.5}, "block_size must be a whole number"),
    ],
)
def test_impossible_settings_are_refused(tiny_gguf, settings, message):
    with pytest.raises(ConfigError, match=message):
        LLM(str(tiny_gguf), **settings)


def test_a_path_that_does_not_exist_is_named_with_the_way_out():
    with pytest.raises(ModelError, match=r"no/such/model.*smollm2-135m"):
        LLM("no/such/model")


def test_as_many_params_as_prompts_are_needed(llm):
    with pytest.raises(RequestError, match="2 prompts, but 3 sampling_params"):
        llm.generate(["a", "b"], [GREEDY] * 3)
    with pytest.raises(RequestError, match="2 prompts, but 1 priority"):
        llm.generate(["a", "b"], GREEDY, priority=[1])


def test_no_prompts_give_no_results(llm):
    assert llm.generate([], GREEDY) == []


def test_an_interrupt_in_the_middle_leaves_the_engine_usable(llm, monkeypatch):
    runner = llm.built.runner
    submit, steps = runner.submit, iter(range(3))

    def interrupted(batch):
        if next(steps, None) is None:
            raise KeyboardInterrupt
        submit(batch)

    monkeypatch.setattr(runner, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.generate(["one", "two"], SamplingParams(temperature=0, max_tokens=9, ignore_eos=True))
    monkeypatch.undo()

    llm.built.engine.check()
    assert llm.built.engine.usage().blocks_used == 0
    assert len(llm.generate("three", GREEDY)[0].outputs[0].token_ids) == 4


def test_a_step_that_fails_twice_ends_its_request_with_the_reason(llm, monkeypatch):
    from octavo.models.decoder import Decoder

    def broken(*args):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken_machine:
        broken_machine.setattr(Decoder, "forward", broken)
        (result,) = llm.generate("one", GREEDY)

    assert result.outputs[0].finish_reason == "error"
    assert "out of memory" in result.outputs[0].stop_reason
    assert llm.generate("one", GREEDY)[0].outputs[0].finish_reason == "length"
