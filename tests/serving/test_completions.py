"""Completions, in one piece and streamed, say what the offline API says."""

from __future__ import annotations

import pytest
from tiny_served import events, joined, real, tiny_llm, worded

from octavo import SamplingParams
from octavo.server.schemas.chat import ChatBody
from octavo.server.schemas.completions import CompletionBody
from octavo.server.settings import ServerSettings
from octavo.testing.near_server import served

PATH = "/v1/completions"


@pytest.fixture
def options(tiny_tokenizer):
    return worded(tiny_tokenizer)


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0},
        {"seed": 7, "temperature": 0.8, "top_p": 0.9, "top_k": 40, "min_p": 0.01},
        {"seed": 7, "n": 3, "presence_penalty": 0.5, "frequency_penalty": 0.5},
        {"seed": 9, "repetition_penalty": 1.3, "logit_bias": {"70": 3.0}, "bad_words": ["he"]},
        {"seed": 4, "stop": ["e", "a"], "min_tokens": 3, "include_stop_str_in_output": True},
        {"seed": 4, "stop_token_ids": list(range(40, 120)), "ignore_eos": True},
        {"use_beam_search": True, "beam_width": 3},
        {"seed": 1, "allowed_token_ids": [70, 71, 72, 73]},
    ],
    ids=lambda sampling: "-".join(sampling),
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_texts_and_reasons_are_those_of_the_offline_api(tiny_gguf, sampling, stream):
    own = dict(sampling)
    if "logit_bias" in own:
        own["logit_bias"] = {int(token): bias for token, bias in own["logit_bias"].items()}
    with tiny_llm(tiny_gguf) as llm:
        params = SamplingParams(max_tokens=24, **own)
        expected = llm.generate(["hello the world", "in the"], params, use_tqdm=False)
    answers = [answer for result in expected for answer in result.outputs]

    async def test(server):
        body = {"prompt": ["hello the world", "in the"], "max_tokens": 24, **sampling}
        reply = await server.post(PATH, **body, stream=stream)
        assert reply.status_code == 200, reply.text
        if stream:
            chunks = events(reply.text)
            texts = [joined(chunks, index) for index in range(len(answers))]
            ends = [one for chunk in chunks for one in chunk["choices"] if one["finish_reason"]]
            ends.sort(key=lambda one: one["index"])
        else:
            ends = reply.json()["choices"]
            texts = [one["text"] for one in ends]
            usage = reply.json()["usage"]
            assert usage["completion_tokens"] == sum(len(one.token_ids) for one in answers)
        assert texts == [answer.text for answer in answers]
        assert [(one["finish_reason"], one["stop_reason"]) for one in ends] == [
            (answer.finish_reason, answer.stop_reason) for answer in answers
        ]

    served(test, **real(tiny_llm(tiny_gguf)))


def test_without_a_seed_requests_are_numbered_like_those_of_the_offline_api(tiny_gguf):
    with tiny_llm(tiny_gguf) as llm:
        expected = [llm.generate("hello", use_tqdm=False)[0].outputs[0].text for _ in range(2)]

    async def test(server):
        texts = [
            (await server.post(PATH, prompt="hello")).json()["choices"][0]["text"] for _ in range(2)
        ]
        assert texts == expected
        assert texts[0] != texts[1]

    served(test, **real(tiny_llm(tiny_gguf)))


@pytest.mark.parametrize(
    ("prompt", "count"),
    [("hello", 1), (["hello", "the"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2)],
)
def test_prompts_are_texts_or_tokens_one_or_several(options, prompt, count):
    async def test(server):
        reply = (await server.post(PATH, prompt=prompt, max_tokens=3, n=2)).json()
        assert [one["index"] for one in reply["choices"]] == list(range(2 * count))
        assert reply["usage"]["completion_tokens"] == 2 * count * 3

    served(test, **options)


def test_a_completion_without_a_maximum_has_sixteen_tokens(options):
    async def test(server):
        reply = (await server.post(PATH, prompt=[9, 8, 7], ignore_eos=True, max_tokens=None)).json()
        assert reply["usage"]["completion_tokens"] == 16
        assert reply["choices"][0]["finish_reason"] == "length"

    served(test, **options)


def test_echo_begins_with_the_prompt_and_may_be_all(options):
    async def test(server):
        body = {"prompt": "hello the world", "echo": True}
        only = (await server.post(PATH, **body, max_tokens=0)).json()
        assert only["choices"][0]["text"] == "hello the world"
        assert only["choices"][0]["finish_reason"] == "length"
        assert only["usage"]["completion_tokens"] == 0
        more = await server.post(PATH, **body, max_tokens=4, n=2, stream=True)
        for index in range(2):
            assert joined(events(more.text), index).startswith("hello the world")

    served(test, **options)


def test_a_stream_tells_its_usage_if_asked_and_in_every_chunk_if_asked(options):
    async def test(server):
        body = {"prompt": "hello the", "max_tokens": 5, "ignore_eos": True, "stream": True}
        plain = events((await server.post(PATH, **body)).text)
        assert not any("usage" in chunk for chunk in plain)
        last = events(
            (await server.post(PATH, **body, stream_options={"include_usage": True})).text
        )
        assert [chunk["usage"] for chunk in last[:-1]] == [None] * (len(last) - 1)
        assert last[-1]["choices"] == []
        assert last[-1]["usage"] == {
            "prompt_tokens": 2,
            "completion_tokens": 5,
            "total_tokens": 7,
            # The first of these requests has left its prompt.
            "prompt_tokens_details": {"cached_tokens": 1},
        }
        every = events(
            (
                await server.post(
                    PATH,
                    **body,
                    stream_options={"include_usage": True, "continuous_usage_stats": True},
                )
            ).text
        )
        counts = [chunk["usage"]["completion_tokens"] for chunk in every]
        assert counts == sorted(counts)
        assert counts[-1] == 5

    served(test, **options)


def test_tokens_found_in_memory_are_told(options):
    async def test(server):
        body = {"prompt": list(range(20, 40)), "max_tokens": 2}
        cached = [
            (await server.post(PATH, **body)).json()["usage"]["prompt_tokens_details"]
            for _ in range(2)
        ]
        assert [one["cached_tokens"] for one in cached] == [0, 19]

    served(test, **options)


def test_another_cache_salt_finds_nothing_and_the_same_finds_it(options):
    async def test(server):
        async def cached(**more):
            reply = await server.post(PATH, prompt=list(range(20, 40)), max_tokens=2, **more)
            return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

        assert [await cached(), await cached(cache_salt="a"), await cached(cache_salt="a")] == [
            0,
            0,
            19,
        ]

    served(test, **options)


def test_tokens_of_prompt_and_answer_are_told_if_asked(options):
    async def test(server):
        body = {"prompt": [5, 6, 7], "max_tokens": 4, "return_token_ids": True}
        whole = (await server.post(PATH, **body, seed=1)).json()["choices"][0]
        assert whole["prompt_token_ids"] == [5, 6, 7]
        chunks = events((await server.post(PATH, **body, seed=1, stream=True)).text)
        told = [token for chunk in chunks for token in chunk["choices"][0]["token_ids"]]
        assert told == whole["token_ids"]
        assert len(told) <= 4

    served(test, **options)


def test_a_prompt_may_be_cut_to_its_last_tokens(options):
    async def test(server):
        reply = await server.post(
            PATH, prompt=list(range(20, 60)), truncate_prompt_tokens=5, max_tokens=1
        )
        assert reply.json()["usage"]["prompt_tokens"] == 5
        assert reply.headers["x-octavo-truncated"] == "35"
        room = await server.post(PATH, prompt=[7] * 1000, truncate_prompt_tokens=-1, max_tokens=30)
        assert room.json()["usage"]["prompt_tokens"] == 370

    served(test, **options)


def test_pieces_of_a_stream_may_be_put_together(options):
    async def test(server):
        body = {"prompt": "hello", "max_tokens": 12, "seed": 3, "ignore_eos": True, "stream": True}
        each = events((await server.post(PATH, **body)).text)
        every_fifth = events((await server.post(PATH, **body, stream_interval=5)).text)
        assert joined(each) == joined(every_fifth)
        assert len(every_fifth) == 3

    served(test, **options)


def test_ids_and_model_are_as_the_request_says(options):
    async def test(server):
        made = (await server.post(PATH, prompt="hello", max_tokens=1)).json()
        assert made["id"].startswith("cmpl-")
        assert made["model"] == "fake"
        given = (
            await server.post(PATH, prompt="the", max_tokens=1, request_id="7-a", model="alias")
        ).json()
        assert given["id"] == "cmpl-7-a"
        assert given["model"] == "alias"

    served(test, **options)


def test_every_option_of_the_offline_api_is_a_field():
    fields = set(CompletionBody.model_fields) & set(ChatBody.model_fields)
    assert set(SamplingParams.__struct_fields__) <= fields


def test_a_maximum_beyond_what_there_is_room_for_is_cut_and_told(options):
    async def test(server):
        body = {"prompt": [7] * 100, "ignore_eos": True}
        cut = await server.post(PATH, **body, max_tokens=10_000)
        assert cut.json()["usage"]["completion_tokens"] == 300
        assert cut.headers["x-octavo-max-tokens"] == "300"
        assert "x-octavo-max-tokens" not in (await server.post(PATH, **body, max_tokens=9)).headers

    served(test, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_texts_are_in_the_log_only_if_that_is_asked_for(options, caplog, stream):
    async def test(server):
        await server.post(PATH, prompt="hello the world", max_tokens=6, seed=1, stream=stream)

    caplog.set_level("INFO", "octavo")
    served(test, **options)
    assert "hello" not in caplog.text
    served(test, **options, settings=ServerSettings(log_requests=True))
    assert "'hello the world'" in caplog.text
    assert "answer=" not in caplog.text
    caplog.clear()
    served(test, **options, settings=ServerSettings(log_outputs=True, log_chars=2))
    assert "hello" not in caplog.text
    assert "finish=length tokens=6" in caplog.text
    caplog.clear()
    served(test, **options, settings=ServerSettings(log_requests=True, log_chars=5))
    assert "prompt='hello'…" in caplog.text


def test_a_model_without_text_answers_tokens_with_tokens():
    async def test(server):
        reply = await server.post(PATH, prompt=[1, 2, 3], max_tokens=3, return_token_ids=True)
        assert len(reply.json()["choices"][0]["token_ids"]) == 3
        assert reply.json()["choices"][0]["text"] == ""
        text = await server.post(PATH, prompt="hello")
        assert text.status_code == 400
        assert "no tokenizer" in text.json()["error"]["message"]

    served(test)
