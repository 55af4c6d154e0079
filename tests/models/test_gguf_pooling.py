"""A GGUF file says how its model is pooled, and a file that says nothing has no embeddings."""

from __future__ import annotations

import pytest

from octavo import LLM, RequestError
from octavo.models.checkpoint import open_checkpoint
from octavo.models.pooling import pooling_of
from tiny_model import write_tiny_gguf

PROMPT = {"prompt_token_ids": [5, 9, 40, 77]}


def written(path, kind, architecture="llama"):
    return write_tiny_gguf(path, metadata={f"{architecture}.pooling_type": kind})


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        pytest.param(None, None, id="nothing said"),
        pytest.param(0, None, id="none"),
        pytest.param(1, "mean", id="mean"),
        pytest.param(2, None, id="a token of its own"),
        pytest.param(3, "last", id="last"),
        pytest.param(4, None, id="a head of its own"),
        pytest.param("mean", None, id="a text"),
    ],
)
def test_the_number_in_the_header_is_read_as_it_is_meant(tmp_path, kind, how):
    assert pooling_of(open_checkpoint(written(tmp_path / "m.gguf", kind))) == how


def test_the_key_of_another_architecture_says_nothing(tmp_path):
    path = written(tmp_path / "m.gguf", 1, architecture="qwen2")

    assert pooling_of(open_checkpoint(path)) is None


def opened(path, **options):
    return LLM(str(path), kv_cache_memory_bytes=4 << 20, max_model_len=64, **options)


@pytest.mark.parametrize(("kind", "how"), [(1, "mean"), (3, "last")])
def test_a_file_that_says_it_embeds_as_if_it_had_been_asked_to(tmp_path, kind, how):
    with opened(written(tmp_path / "said.gguf", kind)) as llm:
        (said,) = llm.embed([PROMPT])
    with opened(written(tmp_path / "asked.gguf", None), pooling=how) as llm:
        (asked,) = llm.embed([PROMPT])

    assert said.embedding == asked.embedding


def test_a_file_that_says_nothing_has_no_embeddings(tmp_path):
    path = written(tmp_path / "m.gguf", None)
    with opened(path) as llm, pytest.raises(RequestError, match="its files name no pooling"):
        llm.embed([PROMPT])
