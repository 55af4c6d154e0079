"""Chats, in one piece and streamed, say what the offline API says."""

from __future__ import annotations

import pytest
from tiny_served import HELLO, events, joined, real, tiny_llm, worded

from octavo import SamplingParams
from octavo.server.parts import ServedModel
from octavo.server.settings import ServerSettings
from octavo.testing.near_server import served

PATH = "/v1/chat/completions"


@pytest.fixture
def options(tiny_tokenizer):
    return worded(tiny_tokenizer)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"seed": 5, "n": 2, "stop": "e"}])
def test_texts_are_those_of_the_offline_api(tiny_gguf, sampling, stream):
    with tiny_llm(tiny_gguf) as llm:
        params = SamplingParams(max_tokens=20, **sampling)
        (expected,) = llm.chat(HELLO, params, use_tqdm=False)

    async def test(server):
        reply = await server.post(PATH, messages=HELLO, max_tokens=20, stream=stream, **sampling)
        if stream:
            chunks = events(reply.text)
            texts = [joined(chunks, index) for index in range(len(expected.outputs))]
        else:
            texts = [one["message"]["content"] for one in reply.json()["choices"]]
            assert reply.json()["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)
        assert texts == [answer.text for answer in expected.outputs]

    served(test, **real(tiny_llm(tiny_gguf)))


def test_a_stream_says_first_whose_the_text_is_and_last_why_it_ends(options):
    async def test(server):
        reply = await server.post(PATH, messages=HELLO, max_tokens=5, stream=True, ignore_eos=True)
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        chunks = events(reply.text)
        assert chunks[0]["object"] == "chat.completion.chunk"
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]] == [None] * (
            len(chunks) - 1
        )
        assert chunks[-1]["choices"][0]["finish_reason"] == "length"
        assert len({chunk["id"] for chunk in chunks}) == 1
        assert chunks[0]["id"].startswith("chatcmpl-")

    served(test, **options)


def test_a_chat_without_a_maximum_goes_on_to_the_end_of_the_context(options):
    async def test(server):
        reply = (await server.post(PATH, messages=HELLO, ignore_eos=True)).json()
        assert reply["usage"]["total_tokens"] == 400

    served(test, **options)


def test_max_completion_tokens_wins_over_max_tokens(options):
    async def test(server):
        reply = await server.post(
            PATH, messages=HELLO, max_tokens=9, max_completion_tokens=2, ignore_eos=True
        )
        assert reply.json()["usage"]["completion_tokens"] == 2

    served(test, **options)


def test_the_last_message_may_be_continued_and_repeated(options):
    async def test(server):
        messages = [*HELLO, {"role": "assistant", "content": "the hell"}]
        reply = await server.post(
            PATH,
            messages=messages,
            continue_final_message=True,
            echo=True,
            max_tokens=3,
            return_token_ids=True,
        )
        text = server.parts.model.tokenizer.decode(
            reply.json()["prompt_token_ids"], skip_special_tokens=False
        )
        assert text.endswith("<|im_start|>assistant\nthe hell")
        assert reply.json()["choices"][0]["message"]["content"].startswith("the hell")
        both = await server.post(
            PATH, messages=messages, continue_final_message=True, add_generation_prompt=True
        )
        assert both.status_code == 400

    served(test, **options)


def test_parts_of_text_are_one_text(options):
    async def test(server):
        parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
        split = [{"role": "user", "content": parts, "name": "ann"}]
        replies = [
            await server.post(PATH, messages=messages, max_tokens=4, seed=1)
            for messages in (HELLO, split)
        ]
        texts = [one.json()["choices"][0]["message"]["content"] for one in replies]
        assert texts[0] == texts[1]

    served(test, **options)


def test_what_the_client_leaves_in_messages_of_the_assistant_is_taken(options):
    async def test(server):
        said = {
            "role": "assistant",
            "content": "the",
            "refusal": None,
            "annotations": [],
            "audio": None,
            "tool_calls": None,
            "reasoning_content": "in the",
        }
        reply = await server.post(PATH, messages=[*HELLO, said, *HELLO], max_tokens=2)
        assert reply.status_code == 200, reply.text

    served(test, **options)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"role": "user"}, "messages.0.content"),
        ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, "messages.0"),
        ({"role": 3, "content": "a"}, "messages.0.role"),
        ({"role": "assistant", "content": "a", "tool_calls": [{"id": "x"}]}, "messages"),
        ({"role": "user", "content": "a", "colour": "red"}, "messages.0.colour"),
        ("hello", "messages.0"),
    ],
)
def test_a_message_that_cannot_be_read_is_named(options, message, field):
    async def test(server):
        reply = await server.post(PATH, messages=[message])
        assert reply.status_code == 400
        assert reply.json()["error"]["param"].startswith(field)

    served(test, **options)


def test_what_a_template_rejects_is_the_sender_s_mistake(options):
    async def test(server):
        reply = await server.post(
            PATH, messages=HELLO, chat_template_kwargs={"messages": "mine"}, max_tokens=1
        )
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "chat_template_kwargs"

    served(test, **options)


def test_defaults_of_the_model_hold_where_a_request_says_nothing(options, tiny_tokenizer):
    model = ServedModel(
        names=("m",),
        root="m",
        tokenizer=tiny_tokenizer,
        created_s=1,
        defaults={"max_tokens": 3, "ignore_eos": True},
        fingerprint="abc",
    )

    async def test(server):
        short = (await server.post(PATH, messages=HELLO)).json()
        assert short["usage"]["completion_tokens"] == 3
        assert short["system_fingerprint"] == "abc"
        longer = (await server.post(PATH, messages=HELLO, max_tokens=6)).json()
        assert longer["usage"]["completion_tokens"] == 6

    served(test, **options, model=model)


def test_a_conversation_becomes_the_tokens_that_a_chat_begins_with(options):
    async def test(server):
        chat = await server.post(PATH, messages=HELLO, max_tokens=1, return_token_ids=True)
        tokens = (await server.post("/tokenize", messages=HELLO)).json()
        assert tokens["tokens"] == chat.json()["prompt_token_ids"]
        assert tokens["count"] == len(tokens["tokens"])
        assert tokens["max_model_len"] == 400

    served(test, **options)


def test_tokens_are_texts_and_back(options):
    async def test(server):
        reply = await server.post("/tokenize", prompt="hello the", return_token_strs=True)
        assert reply.json()["token_strs"] == ["hello", " the"]
        text = await server.post("/detokenize", tokens=reply.json()["tokens"])
        assert text.json() == {"prompt": "hello the"}
        wrong = await server.post("/detokenize", tokens=[10**6])
        assert wrong.status_code == 400

    served(test, **options)


def test_the_server_may_say_whose_answers_are_and_what_templates_are_told(tiny_tokenizer):
    settings = ServerSettings(response_role="model", chat_variables={"enable_thinking": True})
    seen = []
    apply = tiny_tokenizer.apply_chat_template

    class Spy:
        def __getattr__(self, name):
            return getattr(tiny_tokenizer, name)

        def apply_chat_template(self, messages, **variables):
            seen.append(variables["enable_thinking"])
            return apply(messages, **variables)

    async def test(server):
        reply = await server.post(PATH, messages=HELLO, max_tokens=2)
        assert reply.json()["choices"][0]["message"]["role"] == "model"
        await server.post(
            PATH, messages=HELLO, max_tokens=2, chat_template_kwargs={"enable_thinking": False}
        )
        assert seen == [True, False], "what a request says goes before"

    options = worded(tiny_tokenizer)
    served(test, **{**options, "tokenizer": Spy()}, settings=settings)
