"""Log-probabilities over HTTP are those of the offline API, in the forms of the two routes."""

from __future__ import annotations

import threading

import pytest
from tiny_served import HELLO, events, real, tiny_llm

from octavo import SamplingParams
from octavo.server.logprobs import TokenNames
from octavo.testing.near_server import served

TEXT = "hello the world"


@pytest.fixture(scope="module")
def expected(tiny_gguf):
    """What the offline API says of a greedy answer."""
    with tiny_llm(tiny_gguf) as llm:
        params = SamplingParams(max_tokens=6, temperature=0, logprobs=3, prompt_logprobs=3)
        (said,) = llm.generate(TEXT, params, use_tqdm=False)
        (chatted,) = llm.chat(HELLO, params, use_tqdm=False)
    return said, chatted


def close(values):
    return [None if value is None else pytest.approx(value, abs=1e-6) for value in values]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("echo", [False, True], ids=["answer", "echo"])
def test_completions_tell_them_in_four_lists(tiny_gguf, expected, stream, echo):
    said = expected[0]
    answer = said.outputs[0]
    ids, found = list(answer.token_ids), list(answer.logprobs)
    if echo:
        ids, found = said.prompt_token_ids + ids, said.prompt_logprobs + found

    async def test(server):
        reply = await server.post(
            "/v1/completions",
            prompt=TEXT,
            max_tokens=6,
            temperature=0,
            logprobs=3,
            echo=echo,
            stream=stream,
        )
        parts = events(reply.text) if stream else [reply.json()]
        told = {}
        for part in parts:
            for name, values in part["choices"][0]["logprobs"].items():
                told.setdefault(name, []).extend(values)
        decode = server.parts.model.tokenizer.decode
        names = [decode([token], skip_special_tokens=False) for token in ids]
        assert told["tokens"] == names
        assert told["token_logprobs"] == close(
            [None if one is None else one[t].logprob for t, one in zip(ids, found, strict=True)]
        )
        assert [None if one is None else len(one) for one in told["top_logprobs"]] == [
            None if one is None else len({decode([t], skip_special_tokens=False) for t in one})
            for one in found
        ]
        assert told["text_offset"] == [sum(map(len, names[:i])) for i in range(len(names))]

    served(test, **real(tiny_llm(tiny_gguf)))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_chats_tell_them_token_by_token_with_their_bytes(tiny_gguf, expected, stream):
    answer = expected[1].outputs[0]

    async def test(server):
        reply = await server.post(
            "/v1/chat/completions",
            messages=HELLO,
            max_tokens=6,
            temperature=0,
            logprobs=True,
            top_logprobs=3,
            stream=stream,
        )
        parts = events(reply.text) if stream else [reply.json()]
        told = [
            entry
            for part in parts
            for one in part["choices"]
            if one["logprobs"]
            for entry in one["logprobs"]["content"]
        ]
        best = [
            one[token].logprob for token, one in zip(answer.token_ids, answer.logprobs, strict=True)
        ]
        assert [entry["logprob"] for entry in told] == close(best)
        for entry in told:
            assert len(entry["top_logprobs"]) == 3
            assert entry["top_logprobs"][0] == {
                name: entry[name] for name in ("token", "logprob", "bytes")
            }, "a greedy token is the likeliest"
        text = b"".join(bytes(entry["bytes"]) for entry in told).decode("utf-8", "replace")
        assert text.startswith(answer.text.rstrip("\ufffd"))

    served(test, **real(tiny_llm(tiny_gguf)))


def test_those_of_a_prompt_are_keyed_by_token(tiny_gguf, expected):
    said = expected[0]

    async def test(server):
        reply = await server.post("/v1/completions", prompt=TEXT, max_tokens=1, prompt_logprobs=3)
        told = reply.json()["choices"][0]["prompt_logprobs"]
        assert told[0] is None
        for entry, one in zip(told[1:], said.prompt_logprobs[1:], strict=True):
            assert set(entry) == {str(token) for token in one}
            for token, known in one.items():
                assert entry[str(token)]["rank"] == known.rank
                assert entry[str(token)]["decoded_token"] == known.decoded_token

    served(test, **real(tiny_llm(tiny_gguf)))


def test_tokens_may_be_named_by_their_ids(tiny_gguf, expected):
    ids = list(expected[0].outputs[0].token_ids)

    async def test(server):
        reply = await server.post(
            "/v1/completions",
            prompt=TEXT,
            max_tokens=6,
            temperature=0,
            logprobs=0,
            return_tokens_as_token_ids=True,
        )
        told = reply.json()["choices"][0]["logprobs"]
        assert told["tokens"] == [f"token_id:{token}" for token in ids]
        assert [list(one) for one in told["top_logprobs"]] == [[name] for name in told["tokens"]]

    served(test, **real(tiny_llm(tiny_gguf)))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_many_are_written_beside_the_event_loop(tiny_gguf, monkeypatch, path, stream):
    threads = set[threading.Thread]()
    real_text = TokenNames.text

    def text(names, token, **options):
        threads.add(threading.current_thread())
        return real_text(names, token, **options)

    monkeypatch.setattr(TokenNames, "text", text)

    async def test(server):
        for words, beside in ((2, False), (210, True)):
            threads.clear()
            long = "hello " * words
            about = {"messages": [{"role": "user", "content": long}]}
            reply = await server.post(
                path,
                **({"prompt": long} if path == "/v1/completions" else about),
                max_tokens=1,
                prompt_logprobs=1,
                stream=stream,
            )
            assert reply.status_code == 200, reply.text
            (told,) = [one for one in told_of_prompts(reply, stream=stream) if one]
            assert len(told) > words
            assert (threading.current_thread() not in threads) == beside

    served(test, **real(tiny_llm(tiny_gguf)))


def told_of_prompts(reply, *, stream):
    """Return the log-probabilities of the prompt wherever the two routes write them."""
    for part in events(reply.text) if stream else [reply.json()]:
        yield part.get("prompt_logprobs")
        yield from (choice.get("prompt_logprobs") for choice in part["choices"])


def test_no_more_of_them_are_told_than_the_server_allows(tiny_gguf):
    async def test(server):
        for body in (
            {"logprobs": 21, "prompt": "a"},
            {"logprobs": -1, "prompt": "a"},
            {"prompt_logprobs": 21, "prompt": "a"},
        ):
            reply = await server.post("/v1/completions", **body)
            assert reply.status_code == 400
            assert reply.json()["error"]["param"] in body
        reply = await server.post("/v1/chat/completions", messages=HELLO, top_logprobs=2)
        assert reply.json()["error"]["param"] == "top_logprobs"

    served(test, **real(tiny_llm(tiny_gguf)))
