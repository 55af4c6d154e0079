"""What `LLM` answers to input that cannot work: a typed error, and nothing is lost."""

from __future__ import annotations

import json
from fractions import Fraction

import msgspec
import numpy as np
import pytest

from octavo import LLM, ConfigError, ModelError, RequestError, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)

END = 2
"""The tiny model's end token."""


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
        ({"prompt_token_ids": ["a"]}, "a token id must be a whole number, got 'a'"),
        ({"prompt_token_ids": [5.0]}, "a token id must be a whole number, got 5.0"),
        ({"prompt_token_ids": [True]}, "a token id must be a whole number, got True"),
        ({"prompt_token_ids": "abc"}, "must be a list of token ids"),
        ({"text": "x"}, "got a dict with"),
        ({"prompt": 5}, "'prompt' must be a text, got 5"),
        ([[1, 2, 3]], "token ids alone go into"),
        ([5], "a prompt is a text"),
        (None, "prompts cannot be None"),
        (b"hi", "prompts cannot be b'hi'"),
        ("a\ud800b", "not valid Unicode: it holds '.*' at character 1"),
        ({"prompt_token_ids": [1] * 200}, "the prompt has 200 tokens and the context 128"),
    ],
)
def test_an_impossible_prompt_is_refused_with_the_numbers(llm, prompt, message):
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt, GREEDY)


def test_a_prompt_that_can_never_fit_the_memory_is_refused(tiny_gguf):
    message = "has 60 tokens and the KV memory holds 48"
    with (
        LLM(str(tiny_gguf), dtype="float32", kv_cache_memory_bytes=3 * 8192) as llm,
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
        ({"n": 0}, "n must be at least 1 and at most 16384, got 0"),
        ({"n": 2, "temperature": 0}, "n must be 1 when sampling is greedy"),
        ({"temperature": -1}, "temperature must be 0 or more and finite, got -1"),
        ({"n": 10**30}, "n must be at least 1 and at most 16384, got 1000"),
        ({"temperature": float("nan")}, "temperature must be 0 or more and finite, got nan"),
        ({"temperature": 10**400}, "temperature must be 0 or more"),
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
        ({"min_p": 1.5}, "min_p must be from 0 \\(keep all\\) to 1, got 1.5"),
        ({"min_p": float("nan")}, "min_p must be from 0"),
        ({"presence_penalty": 2.5}, "presence_penalty must be from -2 to 2 .*, got 2.5"),
        ({"frequency_penalty": -3}, "frequency_penalty must be from -2 to 2 .*, got -3"),
        ({"frequency_penalty": "much"}, "frequency_penalty must be a number, got 'much'"),
        ({"repetition_penalty": 0}, "repetition_penalty must be above 0 .*, got 0"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty must be above 0"),
        ({"logit_bias": [1]}, "logit_bias must be a dict of token id to number"),
        ({"logit_bias": {"a": 1}}, "logit_bias must be keyed by token ids, got 'a'"),
        ({"logit_bias": {1: float("-inf")}}, "must be a finite number, got -inf; .* ban tokens"),
        ({"allowed_token_ids": []}, "allowed_token_ids is empty.*name at least one"),
        ({"allowed_token_ids": ["x"]}, "allowed_token_ids must be token ids, got 'x'"),
        ({"allowed_token_ids": 5}, "allowed_token_ids must be a list, got 5"),
        ({"bad_words": "word"}, "bad_words must be a list, got 'word'"),
        ({"bad_words": ["ok", " "]}, "bad_words must not hold an empty text.*leave it out"),
        ({"bad_words": [3]}, "bad_words must be a text or several, got 3"),
        ({"min_tokens": -1}, "min_tokens must be 0 or more, got -1"),
        ({"min_tokens": 17}, "min_tokens is 17, but max_tokens is 16: lower the one or raise"),
        ({"min_tokens": 1.0}, "min_tokens must be a whole number"),
        ({"logprobs": -2}, "logprobs must be -1 .* or 0 or more, got -2"),
        ({"logprobs": True}, "logprobs must be a whole number, got True"),
        ({"prompt_logprobs": -2}, "prompt_logprobs must be -1 .* or 0 or more, got -2"),
        ({"detokenize": False, "stop": "x"}, "detokenize is False.*give stop_token_ids"),
        ({"skip_special_tokens": 1}, "skip_special_tokens must be true or false, got 1"),
        ({"detokenize": None}, "detokenize must be true or false"),
        ({"ignore_eos": "yes"}, "ignore_eos must be true or false, got 'yes'"),
        ({"include_stop_str_in_output": 0}, "include_stop_str_in_output must be true or false"),
    ],
)
def test_an_impossible_sampling_option_is_refused(options, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logit_bias": {272: 1.0}}, "logit_bias names token id 272, but the vocabulary has 272"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias names token id -1.*ids are from 0 to 271"),
        ({"allowed_token_ids": [0, 999]}, "allowed_token_ids names token id 999"),
        ({"logprobs": 273}, "logprobs is 273, but the vocabulary has 272.*or for all with -1"),
        ({"prompt_logprobs": 300}, "prompt_logprobs is 300, but the vocabulary has 272"),
        (
            {"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 2},
            "allowed_token_ids is \\[7\\], but each of these ends the answer, and min_tokens is 2",
        ),
        (
            {"allowed_token_ids": [7, END], "stop_token_ids": [7], "min_tokens": 1},
            "each of these ends the answer, and min_tokens is 1: allow another token",
        ),
        (
            {"allowed_token_ids": [70], "bad_words": ["d"], "min_tokens": 1},
            "allowed_token_ids is \\[70\\], but bad_words bans every one",
        ),
    ],
)
def test_an_option_that_the_vocabulary_makes_impossible_is_refused(llm, options, message):
    with pytest.raises(RequestError, match=message):
        llm.generate(["fine", "x"], [GREEDY, SamplingParams(**options)])

    assert not llm.built.engine.busy


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
        ({"kv_cache_memory_bytes": 100, "dtype": "float32"}, "holds 0 blocks of 8192 bytes"),
        ({"block_size": 0}, "block_size must be at least 1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens must be at least 1"),
        ({"max_model_len": 1 << 20}, "max_model_len is 1048576, but the model's context is 512"),
        ({"max_model_len": 1}, "max_model_len must be at least 2"),
        ({"reservation": "orca"}, "reservation 'orca' is not one of on_demand, max, pow2"),
        ({"scheduling_policy": "lifo"}, "scheduling_policy 'lifo' is not one of fcfs, priority"),
        ({"dtype": "int3"}, "dtype 'int3' is not one of auto"),
        ({"reservation": ["max"]}, r"reservation \['max'\] is not one of"),
        ({"deterministic": "yes"}, "deterministic must be True or False, got 'yes'"),
        ({"offline": None}, "offline must be True or False, got None"),
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
    from octavo.runner.step_runner import StepRunner

    def broken(*args):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as broken_machine:
        broken_machine.setattr(StepRunner, "_compute", broken)
        (result,) = llm.generate("one", GREEDY)

    assert result.outputs[0].finish_reason == "error"
    assert "out of memory" in result.outputs[0].stop_reason
    assert llm.generate("one", GREEDY)[0].outputs[0].finish_reason == "length"


@pytest.mark.parametrize("ids", [range(5), (1, 2, 3), iter([1, 2])])
def test_token_ids_may_come_in_any_container(llm, ids):
    assert llm.generate({"prompt_token_ids": ids}, GREEDY)[0].finished


def test_allowed_tokens_that_end_the_answer_are_fine_where_it_may_end(llm):
    params = SamplingParams(allowed_token_ids=[7, END], stop_token_ids=[7], temperature=0)
    (ended,) = llm.generate("x", params)
    params = SamplingParams(
        allowed_token_ids=[7, 8], stop_token_ids=[7], min_tokens=2, max_tokens=2, temperature=0
    )
    (other,) = llm.generate("x", params)

    assert len(ended.outputs[0].token_ids) == 1
    assert other.outputs[0].token_ids[0] == 8


def test_numbers_of_numpy_are_numbers_in_every_option():
    import numpy as np

    given = SamplingParams(
        n=np.int64(2), temperature=np.float32(0.5), top_k=np.int32(3), top_p=np.float64(0.25),
        min_p=np.float16(0.5), seed=np.uint64(7), max_tokens=np.int8(9), min_tokens=np.int16(1),
        logprobs=np.int64(2), presence_penalty=np.int64(1), stop_token_ids=np.array([3, 4]),
        allowed_token_ids=[np.int64(5)], logit_bias={np.int64(6): np.float32(1.5)},
    )  # fmt: skip

    assert given == SamplingParams(
        n=2, temperature=0.5, top_k=3, top_p=0.25, min_p=0.5, seed=7, max_tokens=9, min_tokens=1,
        logprobs=2, presence_penalty=1.0, stop_token_ids=[3, 4], allowed_token_ids=[5],
        logit_bias={6: 1.5},
    )  # fmt: skip
    assert "np." not in repr(given)
    assert json.loads(msgspec.json.encode(given))["temperature"] == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n": "2"}, "n must be a whole number, got '2'"),
        ({"n": True}, "n must be a whole number, got True"),
        ({"top_k": 2.0}, "top_k must be a whole number, got 2.0"),
        ({"max_tokens": Fraction(3, 2)}, "max_tokens must be a whole number"),
        ({"temperature": True}, "temperature must be a number, got True"),
        ({"temperature": Fraction(10**400)}, "temperature must be a number"),
        ({"temperature": 1j}, "temperature must be a number"),
        ({"logit_bias": {True: 1.0}}, "logit_bias must be keyed by token ids, got True"),
        ({"repetition_penalty": 10**400}, "above 0 .1: none. and finite, got 1000.*…"),
        ({"logit_bias": {1: -(10**400)}}, "must be a finite number, got -1000.*…; allowed"),
        ({"logit_bias": {1: "1"}}, "must be a finite number, got '1'"),
        ({"stop_token_ids": [2.0]}, "stop_token_ids must be token ids, got 2.0"),
    ],
)
def test_what_only_looks_like_a_number_is_refused(options, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**options)


def test_numpy_token_ids_are_whole_numbers_too(llm):
    import numpy as np

    (result,) = llm.generate({"prompt_token_ids": np.array([1, 2, 3])}, GREEDY)

    assert result.prompt_token_ids == [1, 2, 3]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ("x", "sampling_params cannot be 'x'"),
        ({"n": 1}, "sampling_params cannot be"),
        ([None], "must be SamplingParams, got None"),
        (3, "sampling_params cannot be 3"),
        (SamplingParams(stop_token_ids=[-1]), "stop_token_ids names token id -1"),
        (SamplingParams(stop_token_ids=[10**9]), "but the vocabulary has 272"),
    ],
)
def test_impossible_sampling_params_are_refused(llm, params, message):
    with pytest.raises(RequestError, match=message):
        llm.generate("a", params)


@pytest.mark.parametrize("priority", [["x"], [None], [float("nan")], [1.5], [True], [2**63], 1])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_an_impossible_priority_is_refused_and_the_engine_goes_on(tiny_gguf, policy, priority):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20, scheduling_policy=policy) as llm:
        with pytest.raises(RequestError, match="priority"):
            llm.generate(["hello"], GREEDY, priority=priority)

        assert llm.generate("hello", GREEDY)[0].finished


def test_a_refused_call_changes_no_seed_of_a_later_one(tiny_gguf):
    params = SamplingParams(max_tokens=8, ignore_eos=True)

    def run(*, refused: bool) -> list[int]:
        with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20) as llm:
            if refused:
                with pytest.raises(RequestError):
                    llm.generate(["fine", {"prompt_token_ids": [-1]}], params)
            return llm.generate("hello", params)[0].outputs[0].token_ids

    assert run(refused=True) == run(refused=False)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ("hi", "a conversation is a list of messages"),
        (None, "a conversation is a list of messages, got None"),
        (5, "a conversation is a list of messages, got 5"),
        ({"role": "user", "content": "hi"}, "a conversation is a list of messages"),
        ([{"role": "user", "content": None}], "a message needs a text as 'role'"),
        ([{"role": 5, "content": "x"}], "a message needs a text as 'role'"),
        ([{"role": "user"}], "a message needs a text as 'role'"),
        ([{"role": "user", "content": [{"type": "image"}]}], "parts of text"),
        ([[]], "the conversation is empty"),
        ([{"role": "user", "content": "a\ud800"}], "not valid Unicode"),
        ([5], "messages cannot be 5"),
    ],
)
def test_an_impossible_conversation_is_refused(llm, messages, message):
    with pytest.raises(RequestError, match=message):
        llm.chat(messages, GREEDY)


def test_parts_of_text_are_one_text(llm):
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]

    (whole,) = llm.chat([{"role": "user", "content": "hello"}], GREEDY)
    (joined,) = llm.chat([{"role": "user", "content": parts}], GREEDY)

    assert joined.prompt_token_ids == whole.prompt_token_ids


def test_a_closed_llm_says_so(tiny_gguf):
    llm = LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20)
    llm.close()

    with pytest.raises(ConfigError, match="has been closed"):
        llm.generate("hello", GREEDY)


def test_numbers_of_numpy_are_taken_as_settings(tiny_gguf):
    sizes = {"block_size": np.int64(16), "kv_cache_memory_bytes": np.int64(2**20)}

    with LLM(str(tiny_gguf), max_model_len=np.int32(64), seed=np.uint8(3), **sizes) as llm:
        assert llm.config.block_size == 16
        assert type(llm.config.seed) is int


@pytest.mark.parametrize("value", [True, 2.0, "16", None, np.array([1, 2])])
def test_a_setting_that_is_no_whole_number_is_refused_by_name(tiny_gguf, value):
    with pytest.raises(ConfigError, match="block_size must be a whole number"):
        LLM(str(tiny_gguf), block_size=value)


def test_an_array_as_dtype_is_refused_by_name(tiny_gguf):
    with pytest.raises(ConfigError, match="dtype array"):
        LLM(str(tiny_gguf), dtype=np.array(["auto", "a"]))
