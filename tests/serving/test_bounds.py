"""One request cannot ask for more than a server allows, whatever it is made of."""

from __future__ import annotations

import threading
import time

import pytest
from pydantic import ValidationError
from tiny_served import HELLO, worded

from octavo.server.schemas.chat import ChatBody
from octavo.server.schemas.completions import CompletionBody
from octavo.server.schemas.tokens import DetokenizeBody
from octavo.server.settings import RequestBounds, ServerSettings
from octavo.testing.near_server import served

BOUNDS = RequestBounds(
    max_body_bytes=20_000,
    max_prompts=3,
    max_n=4,
    max_answers=8,
    max_stop=2,
    max_stop_chars=5,
    max_logit_bias=3,
    max_logprobs=2,
    max_prompt_logprobs=60,
    max_messages=3,
    max_template_chars=10,
    max_token_ids=50,
)
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("field", "most", "more"),
    [
        ("prompt", ["a"] * 3, ["a"] * 4),
        ("prompt", [1] * 50, [1] * 51),
        ("prompt", [[1] * 25] * 2, [[1] * 25, [1] * 26]),
        ("n", 4, 5),
        ("stop", ["abcde", "b"], ["a", "b", "c"]),
        ("stop", "abcde", "abcdef"),
        ("logit_bias", {"1": 1.0, "2": 1.0, "3": 1.0}, {str(i): 1.0 for i in range(4)}),
        ("allowed_token_ids", [1, 2, 3], [1, 2, 3, 4]),
        ("stop_token_ids", [1, 2, 3], [1, 2, 3, 4]),
        ("bad_words", ["a", "b", "c"], ["a", "b", "c", "d"]),
        ("bad_words", ["abcdefghij"], ["abcdefghijk"]),
        ("logprobs", 2, 3),
        ("cache_salt", "s" * 1024, "s" * 1025),
        ("request_id", "r" * 128, "r" * 129),
        ("priority", 2**63 - 1, 2**63),
        ("seed", -(2**63), -(2**63) - 1),
    ],
)
def test_what_is_within_a_bound_is_answered_and_what_is_not_is_refused_by_name(
    tiny_tokenizer, field, most, more
):
    async def test(server):
        body = {"prompt": "hello", "max_tokens": 1}
        reply = await server.post(COMPLETIONS, **{**body, field: most})
        assert reply.status_code == 200, reply.text
        reply = await server.post(COMPLETIONS, **{**body, field: more})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == field

    served(test, **worded(tiny_tokenizer), settings=ServerSettings(bounds=BOUNDS))


def test_prompts_times_n_have_a_bound_of_their_own(tiny_tokenizer):
    async def test(server):
        body = {"prompt": ["a", "b", "c"], "max_tokens": 1}
        assert (await server.post(COMPLETIONS, **body, n=2)).status_code == 200
        reply = await server.post(COMPLETIONS, **body, n=3)
        assert reply.status_code == 400
        assert "9" in reply.json()["error"]["message"] or "3 prompts" in reply.text
        assert reply.json()["error"]["param"] == "n"

    served(test, **worded(tiny_tokenizer), settings=ServerSettings(bounds=BOUNDS))


@pytest.mark.parametrize(
    ("body", "most", "field"),
    [
        ({"prompt_logprobs": 1}, 30, "prompt_logprobs"),
        ({"prompt_logprobs": 2}, 20, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "n": 3}, 20, "prompt_logprobs"),
        ({"logprobs": 1, "echo": True}, 30, "logprobs"),
    ],
)
def test_so_many_log_probabilities_are_told_of_all_prompts(tiny_tokenizer, body, most, field):
    async def test(server):
        for tokens, status in ((most, 200), (most + 1, 400)):
            prompts = [[1] * 10, [1] * (tokens - 10)]
            reply = await server.post(COMPLETIONS, prompt=prompts, max_tokens=1, **body)
            assert reply.status_code == status, reply.text
        assert reply.json()["error"]["param"] == field

    served(test, **worded(tiny_tokenizer), settings=ServerSettings(bounds=BOUNDS))


def test_the_largest_options_of_all_are_read_once_for_all_answers(tiny_tokenizer):
    async def test(server):
        stops = [chr(0x4E00 + i) + "abcdefghi" * 111 for i in range(16)]
        words = [f"hello{i}" for i in range(1024)]
        began_s = time.monotonic()
        reply = await server.post(
            COMPLETIONS, prompt=["a"] * 128, n=8, stop=stops, bad_words=words, max_tokens=1
        )
        assert reply.status_code == 200
        # Once for each answer they would take a minute.
        assert time.monotonic() - began_s < 8

    options = worded(tiny_tokenizer, num_blocks=4000, max_num_seqs=1024)
    served(test, **options)


def test_a_conversation_has_so_many_messages(tiny_tokenizer):
    async def test(server):
        assert (await server.post(CHAT, messages=HELLO * 3, max_tokens=1)).status_code == 200
        reply = await server.post(CHAT, messages=HELLO * 4, max_tokens=1)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "messages"

    served(test, **worded(tiny_tokenizer), settings=ServerSettings(bounds=BOUNDS))


TEXTS = [{"type": "text", "text": "a"}]


@pytest.mark.parametrize(
    ("path", "field", "most"),
    [
        ("/v1/responses", "input", [{"role": "user", "content": "a"}]),
        ("/v1/responses", "input", [{"role": "user", "content": TEXTS}]),
        ("/v1/responses", "input", [{"type": "reasoning", "summary": TEXTS}]),
        (
            "/v1/responses",
            "input",
            [{"type": "function_call_output", "call_id": "a", "output": TEXTS}],
        ),
        ("/v1/messages", "messages", [{"role": "user", "content": TEXTS}]),
        ("/v1/messages", "system", TEXTS),
        ("/v1/messages/count_tokens", "system", TEXTS),
        (CHAT, "messages", [{"role": "user", "content": TEXTS}]),
        (
            "/v1/messages",
            "messages",
            [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "a", "content": TEXTS}],
                }
            ],
        ),
    ],
)
def test_every_list_of_parts_is_counted_before_it_is_read(tiny_tokenizer, path, field, most):
    body = {"messages": HELLO, "max_tokens": 1}
    if path == "/v1/responses":
        body = {"max_output_tokens": 1}
    if path.endswith("count_tokens"):
        del body["max_tokens"]

    async def test(server):
        def grown(value, times):
            """Grow the innermost list."""
            inner = next(
                (
                    (key, one)
                    for key, one in value[0].items()
                    if key in ("content", "summary", "output") and isinstance(one, list)
                ),
                None,
            )
            if inner is None:
                return value * times
            return [{**value[0], inner[0]: grown(inner[1], times)}]

        reply = await server.post(path, **{**body, field: most})
        assert reply.status_code == 200, reply.text
        reply = await server.post(path, **{**body, field: grown(most, 4)})
        assert reply.status_code == 400
        assert "at most 3" in reply.json()["error"]["message"]

    served(test, **worded(tiny_tokenizer), settings=ServerSettings(bounds=BOUNDS))


@pytest.mark.parametrize(
    "variables",
    [
        {"a": "b" * 8},
        {"a": ["b"] * 4},
        {"a": {"b": 1, "c": 2, "d": 3}},
        {"a" * 10: 1},
        {"a": [[]] * 9},
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_variables_of_a_template_have_so_many_characters_and_values(
    tiny_tokenizer, path, variables
):
    async def test(server):
        for given, status in (({"a": "b" * 3}, 200), (variables, 400)):
            reply = await server.post(path, messages=HELLO, chat_template_kwargs=given)
            assert reply.status_code == status
        assert reply.json()["error"]["param"] == "chat_template_kwargs"

    served(test, **worded(tiny_tokenizer), settings=ServerSettings(bounds=BOUNDS))


def test_a_conversation_has_so_many_parts_in_all_its_messages(tiny_tokenizer):
    async def test(server):
        part = {"type": "text", "text": "hello"}
        for parts, status in ((2, 400), (1, 200)):
            messages = [{"role": "user", "content": [part] * many} for many in (2, parts)]
            reply = await server.post(CHAT, messages=messages, max_tokens=1)
            assert reply.status_code == status
        assert (await server.post("/tokenize", messages=HELLO * 4)).status_code == 400

    served(test, **worded(tiny_tokenizer), settings=ServerSettings(bounds=BOUNDS))


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (CompletionBody, {"prompt": [None] * 1000}),
        (CompletionBody, {"prompt": [[None] * 1000] * 1000}),
        (CompletionBody, {"prompt": [1, *["a"] * 1000]}),
        (CompletionBody, {"prompt": "a", "stop": [1] * 1000}),
        (CompletionBody, {"prompt": "a", "bad_words": [1] * 1000}),
        (CompletionBody, {"prompt": "a", "stop_token_ids": ["a"] * 1000}),
        (CompletionBody, {"prompt": "a", "stream_options": dict.fromkeys(map(str, range(1000)))}),
        (ChatBody, {"messages": [1] * 1000}),
        (ChatBody, {"messages": [{"role": "user", "content": [1] * 1000}]}),
        (ChatBody, {"messages": [{**HELLO[0], **dict.fromkeys(map(str, range(1000)))}]}),
        (DetokenizeBody, {"tokens": ["a"] * 1000}),
    ],
)
def test_a_thousand_mistakes_are_as_few_errors_as_one(schema, body):
    with pytest.raises(ValidationError) as wrong:
        schema.model_validate(body)

    assert wrong.value.error_count() <= 6


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_is_read_up_to_its_bound_whether_it_says_its_length_or_not(
    tiny_tokenizer, announced
):
    sent = 0

    async def stream():
        nonlocal sent
        for _ in range(100):
            sent += 1000
            yield b" " * 1000

    async def test(server):
        content = b" " * 100_000 if announced else stream()
        headers = {"content-type": "application/json"}
        reply = await server.client.post(COMPLETIONS, content=content, headers=headers)
        assert reply.status_code == 413
        assert reply.headers["connection"] == "close"
        assert "max_body_bytes" in reply.json()["error"]["message"]
        assert sent <= 22_000

    served(test, **worded(tiny_tokenizer), settings=ServerSettings(bounds=BOUNDS))


def test_a_text_that_no_prompt_could_hold_is_not_even_tokenized(tiny_tokenizer):
    async def test(server):
        reply = await server.post(COMPLETIONS, prompt="a" * 200_000)
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "context_length_exceeded"
        assert "200000 characters" in reply.json()["error"]["message"]

    served(test, **worded(tiny_tokenizer))


def test_no_more_tokens_become_text_than_a_prompt_can_have(tiny_tokenizer):
    async def test(server):
        longest = server.parts.core.facts.longest_text
        reply = await server.post("/detokenize", tokens=[20] * longest)
        decode = server.parts.model.tokenizer.decode
        assert reply.json()["prompt"] == decode([20] * longest)
        text = {"prompt": "a " * longest}
        assert (await server.post("/tokenize", **text)).status_code == 200
        for reply, field in (
            (await server.post("/detokenize", tokens=[20] * (longest + 1)), "tokens"),
            (await server.post("/tokenize", **text, return_token_strs=True), "return_token_strs"),
        ):
            assert reply.status_code == 400
            assert reply.json()["error"]["param"] == field

    served(test, **worded(tiny_tokenizer))


@pytest.mark.parametrize(
    ("path", "body", "work"),
    [
        (COMPLETIONS, {"prompt": ["hello"] * 100, "max_tokens": 1}, "encode"),
        ("/tokenize", {"prompt": "hello " * 100}, "encode"),
        ("/detokenize", {"tokens": [20] * 100}, "decode"),
        (COMPLETIONS, {"prompt": "hello " * 100, "truncate_prompt_tokens": 9}, "decode"),
        (COMPLETIONS, {"prompt": [20], "bad_words": ["a b"]}, "encode"),
        (CHAT, {"messages": [{**HELLO[0], "content": "hello " * 99}]}, "apply_chat_template"),
        (CHAT, {"messages": HELLO * 20, "max_tokens": 1}, "apply_chat_template"),
        (CHAT, {"messages": [{**HELLO[0], "reasoning": "a" * 999}]}, "apply_chat_template"),
        (CHAT, {"messages": HELLO, "chat_template_kwargs": {"a": 1}}, "apply_chat_template"),
        ("/tokenize", {"messages": HELLO * 20}, "apply_chat_template"),
    ],
)
def test_what_takes_long_to_read_is_read_beside_the_event_loop(
    tiny_tokenizer, monkeypatch, path, body, work
):
    threads = list[threading.Thread]()

    def watch(name):
        real = getattr(tiny_tokenizer, name)

        def watched(*args, **options):
            threads.append(threading.current_thread())
            return real(*args, **options)

        monkeypatch.setattr(tiny_tokenizer, name, watched)

    for name in (work, f"{work}_beside"):
        if hasattr(tiny_tokenizer, name):
            watch(name)

    async def test(server):
        reply = await server.post(path, **body)
        assert reply.status_code == 200, reply.text
        assert threads
        assert threading.current_thread() not in threads

    served(test, **worded(tiny_tokenizer, num_blocks=400, max_num_seqs=128))


def test_without_prefix_caching_no_prompt_finds_anything(tiny_tokenizer):
    async def test(server):
        for _ in range(2):
            reply = await server.post(COMPLETIONS, prompt=list(range(20, 40)), max_tokens=2)
            assert reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0

    served(test, **worded(tiny_tokenizer), settings=ServerSettings(prefix_caching=False))


@pytest.mark.parametrize(
    ("path", "body", "name"),
    [
        ("/v1/responses", {"input": "a", "max_output_tokens": 0}, "max_output_tokens"),
        (CHAT, {"messages": HELLO, "max_completion_tokens": 0}, "max_completion_tokens"),
        (COMPLETIONS, {"prompt": "a", "guided_json": {}, "guided_regex": "a"}, "guided_json"),
    ],
)
def test_an_error_names_the_field_as_its_route_has_it(path, body, name, tiny_tokenizer):
    async def test(server):
        error = (await server.post(path, **body)).json()["error"]
        assert error["param"] == name, error

    served(test, tokenizer=tiny_tokenizer)


@pytest.mark.parametrize(
    ("path", "cuts"),
    [(CHAT, True), (COMPLETIONS, True), ("/v1/responses", False), ("/v1/messages", False)],
)
def test_a_prompt_that_is_too_long_is_told_a_way_out_that_its_route_has(path, cuts, tiny_tokenizer):
    text = "a b " * 2000
    fields = {COMPLETIONS: {"prompt": text}, "/v1/responses": {"input": text}}
    chat = {"messages": [{"role": "user", "content": text}], "max_tokens": 5}

    async def test(server):
        reply = await server.post(path, **fields.get(path, chat))
        assert reply.status_code == 400, reply.text
        assert "shorten it" in reply.text
        assert ("truncate_prompt_tokens" in reply.text) is cuts

    served(test, tokenizer=tiny_tokenizer)
