"""What comes back is what the document says, with no field more and none less."""

from __future__ import annotations

import pytest
from tiny_served import HELLO, real, tiny_llm

from octavo.server.schemas.message_replies import CountReply, MessageReply
from octavo.server.schemas.replies import (
    ChatReply,
    CompletionReply,
    ModelCard,
    ModelList,
    TextReply,
    TokensReply,
    VersionReply,
)
from octavo.server.schemas.response_replies import ResponseReply
from octavo.testing.near_server import served

COMPLETION = {"prompt": "hello the", "max_tokens": 3}
CHAT = {"messages": HELLO, "max_tokens": 3}
EVERYTHING = {"return_token_ids": True, "prompt_logprobs": 2, "n": 2, "stop": "a"}


@pytest.mark.parametrize(
    ("path", "body", "kind"),
    [
        ("/v1/completions", COMPLETION, CompletionReply),
        ("/v1/completions", {**COMPLETION, **EVERYTHING, "logprobs": 2}, CompletionReply),
        ("/v1/completions", {**COMPLETION, "logprobs": 0, "echo": True}, CompletionReply),
        ("/v1/chat/completions", CHAT, ChatReply),
        (
            "/v1/chat/completions",
            {**CHAT, **EVERYTHING, "logprobs": True, "top_logprobs": 2},
            ChatReply,
        ),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 3}, ResponseReply),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 3}, MessageReply),
        ("/v1/messages/count_tokens", {"messages": HELLO}, CountReply),
        ("/tokenize", {"prompt": "hello", "return_token_strs": True}, TokensReply),
        ("/tokenize", {"messages": HELLO}, TokensReply),
        ("/detokenize", {"tokens": [70, 71]}, TextReply),
        ("/v1/models", None, ModelList),
        ("/v1/models/alias", None, ModelCard),
        ("/version", None, VersionReply),
    ],
)
def test_a_reply_is_as_documented(tiny_gguf, path, body, kind):
    async def test(server):
        reply = await (server.get(path) if body is None else server.post(path, **body))
        assert reply.status_code == 200, reply.text
        kind.model_validate_json(reply.text)
        document = (await server.get("/openapi.json")).json()
        (operation,) = document["paths"][path.replace("alias", "{name}")].values()
        told = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert told == {"$ref": f"#/components/schemas/{kind.__name__}"}
        assert operation["responses"].keys() == {"200", "4XX", "5XX"}

    served(test, **real(tiny_llm(tiny_gguf)))
