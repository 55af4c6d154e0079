"""The page about the API names all that the API takes, and all bounds as they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from octavo.server.fields import NOT_YET, WITHOUT_EFFECT
from octavo.server.schemas.chat import ChatBody, Message
from octavo.server.schemas.common import CacheHintGiven, StreamOptions
from octavo.server.schemas.completions import CompletionBody
from octavo.server.schemas.embeddings import EmbeddingBody
from octavo.server.schemas.messages import MessagesBody
from octavo.server.schemas.pins import PinBody
from octavo.server.schemas.responses import ResponsesBody
from octavo.server.schemas.tokens import DetokenizeBody, TokenizeBody
from octavo.server.settings import RequestBounds

PAGE = Path(__file__).parents[2] / "docs/reference/http.md"
BODIES = [
    CompletionBody,
    ChatBody,
    ResponsesBody,
    MessagesBody,
    EmbeddingBody,
    CacheHintGiven,
    PinBody,
    Message,
    StreamOptions,
    TokenizeBody,
    DetokenizeBody,
]


@pytest.fixture(scope="module")
def named():
    """Everything that the page writes as code."""
    return set(re.findall(r"`([^`\n]+)`", PAGE.read_text()))


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_field_is_named(named, body):
    assert set(body.model_fields) <= named


def test_fields_that_do_nothing_and_fields_that_are_refused_are_named(named):
    assert named >= WITHOUT_EFFECT | NOT_YET.keys()


def test_bounds_are_those_of_a_server():
    text = PAGE.read_text()
    bounds = RequestBounds()
    assert f"{bounds.max_body_bytes >> 20} MiB" in text
    for row in (
        f"| prompts of a completion | {bounds.max_prompts} |",
        f"| `n`, `beam_width` | {bounds.max_n} |",
        f"| answers: prompts times `n` | {bounds.max_answers:,} |",
        f"| `bad_words` all together | {bounds.max_stop * bounds.max_stop_chars:,} characters |",
        f"| `stop` | {bounds.max_stop} texts of {bounds.max_stop_chars:,} characters |",
        f"`bad_words` | {bounds.max_logit_bias:,} entries |",
        f"`prompt_logprobs` | {bounds.max_logprobs} |",
        f"for each answer | {bounds.max_prompt_logprobs:,} |",
        f"| `messages` | {bounds.max_messages:,} |",
        f"| parts in all messages | {bounds.max_messages:,} |",
        f"`documents` | {bounds.max_tools} of each, {bounds.max_tool_chars:,} characters",
        f"| `chat_template_kwargs` | {bounds.max_template_chars:,} characters, names and values |",
        f"| token ids in `prompt` or `tokens` | {bounds.max_token_ids:,} |",
    ):
        assert row in text
