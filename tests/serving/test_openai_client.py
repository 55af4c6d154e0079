"""`octavo serve` answers the official client on every route that it knows."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import openai
import pytest
from commands import octavo_serve
from tiny_served import HELLO, tiny_llm

from octavo import SamplingParams

KEY = "tiny-key"


@pytest.fixture(scope="module")
def url(tiny_gguf):
    """Where `octavo serve` answers for the tiny model, to those who have the key."""
    with octavo_serve(tiny_gguf, "--port", 0, "--served-model-name", "tiny", key=KEY) as (_, at):
        yield f"{at}/v1"


@pytest.fixture(scope="module")
def client(url):
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0, timeout=20) as made:
        yield made


@pytest.fixture(scope="module")
def llm(tiny_gguf):
    with tiny_llm(tiny_gguf) as made:
        yield made


def test_models_are_listed_and_shown(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").owned_by == "octavo"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("other")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("page", "package"),
    [
        ("README.md", "openai"),
        ("docs/reference/http.md", "openai"),
        ("docs/how-to/responses.md", "openai"),
        ("docs/how-to/messages.md", "anthropic"),
    ],
)
def test_the_lines_that_a_page_shows_are_answered(url, capsys, page, package):
    text = (Path(__file__).parents[2] / page).read_text()
    blocks = re.findall("```python\n(.*?)```", text, re.S)
    (lines,) = (block for block in blocks if package in block)
    here = {
        "http://127.0.0.1:8000": url.removesuffix("/v1"),
        '"none"': f'"{KEY}"',
        "smollm2-135m": "tiny",
    }
    for shown, used in here.items():
        assert shown in lines
        lines = lines.replace(shown, used)
    names = {}
    exec(lines, names)
    names["client"].close()
    assert capsys.readouterr().out


def test_a_completion_is_that_of_the_offline_api(client, llm):
    params = SamplingParams(max_tokens=12, temperature=0.7, seed=3, n=2, logprobs=2)
    (expected,) = llm.generate("hello the", params, use_tqdm=False)
    reply = client.completions.create(
        model="tiny", prompt="hello the", max_tokens=12, temperature=0.7, seed=3, n=2, logprobs=2
    )
    assert [one.text for one in reply.choices] == [one.text for one in expected.outputs]
    assert [one.finish_reason for one in reply.choices] == ["length", "length"]
    assert len(reply.choices[0].logprobs.tokens) == 12
    assert reply.usage.prompt_tokens == len(expected.prompt_token_ids)
    assert reply.usage.completion_tokens == 24
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0


def test_a_completion_is_streamed(client, llm):
    params = SamplingParams(max_tokens=12, seed=3)
    (expected,) = llm.generate("in the", params, use_tqdm=False)
    chunks = list(
        client.completions.create(
            model="tiny",
            prompt="in the",
            max_tokens=12,
            seed=3,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(one.choices[0].text for one in chunks[:-1]) == expected.outputs[0].text
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage.completion_tokens == 12


def test_several_prompts_and_echo(client):
    reply = client.completions.create(
        model="tiny", prompt=["hello", "the"], max_tokens=0, echo=True
    )
    assert [one.text for one in reply.choices] == ["hello", "the"]


def test_a_chat_is_that_of_the_offline_api(client, llm):
    params = SamplingParams(max_tokens=12, temperature=0)
    (expected,) = llm.chat(HELLO, params, use_tqdm=False)
    reply = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_completion_tokens=12,
        temperature=0,
        logprobs=True,
        top_logprobs=2,
    )
    (choice,) = reply.choices
    assert choice.message.role == "assistant"
    assert choice.message.content == expected.outputs[0].text
    assert len(choice.logprobs.content) == 12
    assert choice.logprobs.content[0].top_logprobs[0].logprob <= 0


def test_a_chat_is_streamed_and_put_together_by_the_client_s_own_hand(client):
    asked = {"model": "tiny", "messages": HELLO, "max_tokens": 12, "seed": 5}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(one.choices[0].delta.content or "" for one in chunks)
    assert text == whole.choices[0].message.content
    # Its own hand takes no answer that ends at its maximum.
    stop = text[5]
    with client.chat.completions.stream(**asked, stop=stop) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text[: text.index(stop)]
    assert final.choices[0].finish_reason == "stop"


def test_what_the_api_does_not_know_goes_in_by_its_extra_body(client):
    reply = client.chat.completions.create(
        model="tiny",
        messages=HELLO,
        max_tokens=8,
        extra_body={"top_k": 1, "ignore_eos": True, "return_token_ids": True, "cache_salt": "mine"},
    )
    assert reply.usage.completion_tokens == 8
    assert len(reply.choices[0].token_ids) == 8
    beams = client.completions.create(
        model="tiny",
        prompt="hello",
        max_tokens=4,
        extra_body={"use_beam_search": True, "beam_width": 2},
    )
    assert len(beams.choices) == 2


def test_a_second_time_the_prompt_is_in_memory(client):
    asked = {"model": "tiny", "prompt": "in the hello " * 12, "max_tokens": 1}
    cached = [
        client.completions.create(**asked).usage.prompt_tokens_details.cached_tokens
        for _ in range(2)
    ]
    # Others may have begun with the same word.
    assert cached[0] < 10 < cached[1]


def test_the_id_of_a_request_comes_back(client):
    raw = client.completions.with_raw_response.create(
        model="tiny", prompt="hello", max_tokens=1, extra_headers={"X-Request-Id": "mine-7"}
    )
    assert raw.headers["x-request-id"] == "mine-7"
    assert raw.parse().choices[0].finish_reason


@pytest.mark.parametrize(
    ("asked", "error", "param"),
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"max_tokens": 0}, openai.BadRequestError, "max_tokens"),
        ({"prompt": "the " * 600}, openai.BadRequestError, "prompt"),
        ({"model": "other"}, openai.NotFoundError, "model"),
        ({"extra_body": {"bogus": 1}}, openai.BadRequestError, "bogus"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_mistakes_are_the_client_s_own_exceptions(client, asked, error, param, stream):
    with pytest.raises(error) as caught:
        client.completions.create(
            **{"model": "tiny", "prompt": "hello", "max_tokens": 4, "stream": stream, **asked}
        )
    assert caught.value.param == param
    assert caught.value.type


def test_without_its_key_it_is_not_let_in(url):
    with (
        openai.OpenAI(base_url=url, api_key="another", max_retries=0) as stranger,
        pytest.raises(openai.AuthenticationError) as caught,
    ):
        stranger.models.list()
    assert caught.value.code == "invalid_api_key"


def test_a_stream_that_is_left_early_leaves_room_for_others(client):
    for _ in range(12):
        with client.completions.create(
            model="tiny",
            prompt="hello",
            max_tokens=400,
            stream=True,
            extra_body={"ignore_eos": True},
        ) as stream:
            next(iter(stream))
    reply = client.completions.create(model="tiny", prompt="the", max_tokens=2)
    assert reply.choices[0].finish_reason


def test_many_at_once_are_answered_each_with_its_own(url, llm):
    prompts = [f"hello {number}" for number in range(24)]
    params = SamplingParams(max_tokens=10, temperature=0)
    expected = [one.outputs[0].text for one in llm.generate(prompts, params, use_tqdm=False)]

    async def ask_all():
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as made:

            async def ask(prompt, streamed):
                asked = {"model": "tiny", "prompt": prompt, "max_tokens": 10, "temperature": 0}
                if not streamed:
                    return (await made.completions.create(**asked)).choices[0].text
                stream = await made.completions.create(**asked, stream=True)
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(
                *(ask(prompt, number % 2) for number, prompt in enumerate(prompts))
            )

    assert asyncio.run(ask_all()) == expected
