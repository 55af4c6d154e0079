"""`/tokenize` and `/detokenize`."""

from __future__ import annotations

from fastapi import APIRouter, Response

from octavo.server.body import bounded_route
from octavo.server.failures import ApiError
from octavo.server.logprobs import TokenNames
from octavo.server.parts import Parts
from octavo.server.prompting import Prompter
from octavo.server.replies import json_response
from octavo.server.routes.models import known_model
from octavo.server.schemas.replies import TextReply, TokensReply, replies
from octavo.server.schemas.tokens import DetokenizeBody, TokenizeBody


def router(parts: Parts, prompter: Prompter) -> APIRouter:
    """Turn texts into tokens and back, as the model's prompts are."""
    routes = APIRouter(tags=["tokens"], route_class=bounded_route(parts.settings.bounds))
    names = TokenNames(parts.model.tokenizer)

    @routes.post(
        "/tokenize", responses=replies(TokensReply), summary="Token ids of a text or a conversation"
    )
    async def tokenize(body: TokenizeBody) -> Response:
        known_model(parts, body.model)
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "prompt: give either prompt or messages", param="prompt")
        chat = body.conversation()
        if chat is not None:
            text = await prompter.render(chat)
            special = bool(body.add_special_tokens)
        else:
            text, special = body.prompt or "", body.add_special_tokens is not False
        ids = await prompter.encode(text, special=special)
        reply: dict[str, object] = {
            "count": len(ids),
            "max_model_len": parts.core.facts.longest_text,
            "tokens": ids,
        }
        if body.return_token_strs:
            prompter.check_ids("return_token_strs", len(ids))
            reply["token_strs"] = await prompter.beside(lambda: [names.text(one) for one in ids])
        return json_response(reply)

    @routes.post("/detokenize", responses=replies(TextReply), summary="Text of token ids")
    async def detokenize(body: DetokenizeBody) -> Response:
        known_model(parts, body.model)
        prompter.check_ids("tokens", len(body.tokens))
        size = parts.core.facts.vocab_size
        for token in body.tokens:
            if not 0 <= token < size:
                raise ApiError(
                    400,
                    f"tokens: {token} is out of range: the vocabulary has {size}",
                    param="tokens",
                )
        text = await prompter.decode(body.tokens)
        return json_response({"prompt": text})

    return routes
