"""`/v1/embeddings` answers the official client, and says so where a model has no embeddings."""

from __future__ import annotations

import base64

import numpy as np
import openai
import pytest
from commands import octavo_serve

from octavo import LLM


def client_of(at):
    return openai.OpenAI(base_url=f"{at}/v1", api_key="none", max_retries=0, timeout=30)


@pytest.fixture(scope="module")
def client(tiny_gguf):
    with (
        octavo_serve(tiny_gguf, "--port", 0, "--pooling", "mean") as (_, at),
        client_of(at) as made,
    ):
        yield made


@pytest.fixture(scope="module")
def truth(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20, pooling="mean") as llm:
        return [one.embedding for one in llm.embed(["hello", "the quick brown fox"])]


def name(client):
    return client.models.list().data[0].id


@pytest.mark.parametrize("how", ["float", "base64"])
def test_texts_and_token_ids_have_the_vectors_that_the_offline_call_has(client, truth, how):
    texts = ["hello", "the quick brown fox"]
    tokenizer = str(client.base_url).replace("/v1/", "/tokenize")
    ids = [client.post(tokenizer, cast_to=object, body={"prompt": t})["tokens"] for t in texts]
    for given in (texts, ids):
        reply = client.embeddings.create(model=name(client), input=given, encoding_format=how)
        vectors = [
            one.embedding
            if how == "float"
            else np.frombuffer(base64.b64decode(one.embedding), "<f4").tolist()
            for one in reply.data
        ]
        assert vectors == truth
        assert [one.index for one in reply.data] == [0, 1]
        assert reply.usage.prompt_tokens == reply.usage.total_tokens == sum(map(len, ids))


def test_one_text_and_fewer_dimensions(client, truth):
    reply = client.embeddings.create(model=name(client), input="hello", dimensions=4)

    (one,) = reply.data
    first = np.array(truth[0][:4])
    assert np.allclose(one.embedding, first / np.linalg.norm(first), atol=1e-6)


@pytest.mark.parametrize(
    ("extra", "told"),
    [
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [[]]}, "empty"),
        ({"input": [99999999]}, "99999999"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 9999}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": ["a"] * 257}, "input"),
        ({"input": "a", "stream": True}, "stream"),
    ],
)
def test_what_cannot_be_embedded_is_a_400_that_names_it(client, extra, told):
    with pytest.raises(openai.BadRequestError) as refused:
        client.post("/embeddings", cast_to=object, body=extra)

    assert told in refused.value.body["message"]


def test_texts_are_written_beside_vectors(client):
    stream = client.completions.create(
        model=name(client),
        prompt="hello",
        max_tokens=30,
        stream=True,
        extra_body={"min_tokens": 30},
    )
    next(iter(stream))
    assert len(client.embeddings.create(model=name(client), input="the quick").data) == 1
    assert [chunk for chunk in stream][-1].choices[0].finish_reason == "length"


def test_a_model_without_embeddings_says_so(tiny_gguf):
    with (
        octavo_serve(tiny_gguf, "--port", 0) as (_, at),
        client_of(at) as client,
        pytest.raises(openai.BadRequestError) as refused,
    ):
        client.embeddings.create(model=name(client), input="hello")

    assert "this model has no embeddings" in refused.value.body["message"]
