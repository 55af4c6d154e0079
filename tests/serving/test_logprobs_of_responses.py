"""Log-probabilities of `/v1/responses`: those of the tokens that a message is made of."""

from __future__ import annotations

import openai
import pytest
from scripted import SAYS, scripted
from sockets import in_a_thread
from tiny_served import real, tiny_llm

from octavo import SamplingParams
from octavo.contract.batch import Logprobs
from octavo.server.scored_text import ScoredText
from octavo.testing.near_server import served

PATH = "/v1/responses"
SCORES = "message.output_text.logprobs"
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def client(tiny_tokenizer):
    """The official client of a server that thinks, speaks and calls."""
    with (
        in_a_thread(scripted(tiny_tokenizer, SAYS)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10) as made,
    ):
        yield made


def asked(**more):
    return {
        "model": "tiny",
        "input": "hello",
        "tools": [TOOL],
        "include": [SCORES],
        "top_logprobs": 2,
        "extra_body": {"request_id": "7"},
        **more,
    }


def scores_of(response):
    (message,) = [item for item in response.output if item.type == "message"]
    return message.content[0].logprobs


def test_they_are_of_the_text_and_not_of_what_is_thought_and_called(client):
    told = scores_of(client.responses.create(**asked()))

    assert "".join(one.token for one in told) == "well"
    assert bytes(byte for one in told for byte in one.bytes) == b"well"
    assert [len(one.top_logprobs) for one in told] == [2] * len(told)
    assert [one.logprob for one in told] == sorted((one.logprob for one in told), reverse=True)


def test_a_stream_tells_them_with_their_text_and_once_more_at_its_end(client):
    whole = client.responses.create(**asked())
    pieces, done = [], []
    for event in client.responses.create(**asked(stream=True)):
        if event.type == "response.output_text.delta":
            assert "".join(one.token for one in event.logprobs) == event.delta
            pieces += event.logprobs
        elif event.type == "response.output_text.done":
            done = event.logprobs

    expected = [one.to_dict() for one in scores_of(whole)]
    assert [one.to_dict() for one in pieces] == [one.to_dict() for one in done] == expected
    assert event.response.output == whole.output
    assert client.responses.retrieve(whole.id).output == whole.output


def test_they_are_told_only_where_they_are_included(client):
    response = client.responses.create(model="tiny", input="hello")

    assert scores_of(response) == []
    for more, param in (
        ({"include": []}, "top_logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"include": ["file_search_call.results"]}, "include.0"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(**asked(**more))
        assert caught.value.param == param


def test_they_are_what_the_model_says_also_where_many_are_written(tiny_gguf):
    count = 240
    params = SamplingParams(max_tokens=count, temperature=0, logprobs=1, ignore_eos=True)
    with tiny_llm(tiny_gguf) as llm:
        (said,) = llm.chat([{"role": "user", "content": "hello"}], params, use_tqdm=False)
    answer = said.outputs[0]

    async def test(server):
        body = {"input": "hello", "max_output_tokens": count, "temperature": 0, "ignore_eos": True}
        reply = await server.post(PATH, **body, include=[SCORES], top_logprobs=1)
        (message,) = reply.json()["output"]
        told = message["content"][0]["logprobs"]
        special = server.parts.model.tokenizer.special_ids
        named = zip(answer.logprobs, answer.token_ids, strict=True)
        found = [one[token] for one, token in named if token not in special]
        assert [one["logprob"] for one in told] == [
            pytest.approx(one.logprob, abs=1e-6) for one in found
        ]
        assert (await server.get(f"{PATH}/{reply.json()['id']}")).json() == reply.json()

    served(test, **real(tiny_llm(tiny_gguf)))


# ── which tokens a text is from ───────────────────────────────────────────────────────────

SPELLED = [b"ab", b"<", b"/x>", "é".encode()[:1], "é".encode()[1:], b" stop", b"b"]


def taken(*steps):
    """What texts are from: each step is tokens, and the text that comes with them or None."""
    scores = ScoredText(SPELLED.__getitem__)
    found = []
    for tokens, text, *how in steps:
        scores.push(tokens, [Logprobs((token,), (-1.0,), (1,)) for token in tokens])
        if text is None:
            continue
        if text == "":
            scores.drop()
        else:
            found.append([token for token, _ in scores.take(text, cut=bool(how))])
    return found


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ([([0], "ab"), ([0, 6], "abb")], [[0], [0, 6]]),
        ([([1], None), ([2], None), ([0], "ab")], [[0]]),
        ([([0], "a"), ([1], None), ([6], "b<b")], [[0], [1, 6]]),
        ([([3], None), ([4], "é")], [[3, 4]]),
        ([([0, 1], "ab"), ([6], "<b")], [[0], [1, 6]]),
        ([([0], None), ([5], "ab", "cut")], [[0]]),
        ([([0], ""), ([6], "b")], [[6]]),
        ([([3], "\ufffd")], [[3]]),
    ],
    ids=["plain", "marker", "held", "character", "kept back", "stop", "thought", "no text"],
)
def test_a_token_is_of_the_first_text_that_holds_any_of_its_bytes(steps, found):
    assert taken(*steps) == found
