"""Answers as `/v1/chat/completions` writes them."""

from __future__ import annotations

import msgspec

from octavo.server import sse
from octavo.server.answers import Usage
from octavo.server.ask import Ask
from octavo.server.choice import Choice, Piece
from octavo.server.failures import ApiError
from octavo.server.head import Head
from octavo.server.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from octavo.server.schemas.chat import ChatBody
from octavo.text.parsing import CallPiece

_WHOLE = "chat.completion"
_CHUNK = "chat.completion.chunk"


class ChatForm:
    """A `Form`. head: what all of its objects begin with. role: of answers."""

    def __init__(self, body: ChatBody, head: Head, names: TokenNames, *, role: str) -> None:
        self._head = head
        self._names = names
        self._role = body.messages[-1].role if body.continue_final_message else role
        self._echo = bool(body.echo)
        self._top = body.top_logprobs or 0
        self._logprobs = bool(body.logprobs)
        self._prompt_logprobs = body.prompt_logprobs is not None
        self._ids = bool(body.return_token_ids)
        self._by_id = bool(body.return_tokens_as_token_ids)
        # Most chunks are a piece of text between two texts that never change.
        self._plain = not (self._logprobs or self._ids)
        self._before = head.opening(_CHUNK) + b',"choices":[{"index":'
        self._after = (
            b'},"logprobs":null,"finish_reason":null,"stop_reason":null}]'
            + head.null_usage
            + b"}\n\n"
        )

    def whole(self, asks: list[Ask], usage: Usage) -> object:
        """Return the answer in one piece."""
        (ask,) = asks
        choices: list[dict[str, object]] = []
        for choice in ask.choices:
            piece = choice.take()
            content = (ask.prompt.opening if self._echo else "") + piece.text
            message: dict[str, object] = {"role": self._role, "content": content, "refusal": None}
            if piece.reasoning:
                message["reasoning"] = piece.reasoning
            if piece.calls:
                message["content"] = content or None
                message["tool_calls"] = _whole_calls(piece.calls)
            told = {"index": choice.index, "message": message, **self._ends(choice, piece)}
            choices.append(told)
        return {
            **self._head.fields(_WHOLE),
            "choices": choices,
            "usage": usage,
            **self._of_prompt(ask),
        }

    def chunk(self, ask: Ask, choice: Choice, piece: Piece, usage: Usage | None) -> bytes:
        """Return news of one answer as an event; before the first of them, whose it is."""
        opening = self._opening(ask, choice) if piece.first else b""
        if self._plain and piece.finish is None and usage is None and not piece.parsed:
            if not piece.text:
                return opening
            text = msgspec.json.encode(piece.text)
            return b'%b%b%d,"delta":{"content":%b%b' % (
                opening,
                self._before,
                choice.index,
                text,
                self._after,
            )
        delta = _delta(piece)
        if self._plain and not delta and piece.finish is None and usage is None:
            return opening
        told = {"index": choice.index, "delta": delta, **self._ends(choice, piece)}
        return opening + sse.event(
            {
                **self._head.fields(_CHUNK),
                "choices": [told],
                **self._head.usage_field(usage),
            }
        )

    def end(self, usage: Usage | None) -> bytes:
        """Return what ends a stream: the usage, if it was asked for."""
        if usage is None:
            return sse.DONE
        told: dict[str, object] = {**self._head.fields(_CHUNK), "choices": [], "usage": usage}
        return sse.event(told) + sse.DONE

    def broken(self, error: ApiError) -> bytes:
        """Return what ends a stream that has failed."""
        return sse.event(error.body) + sse.DONE

    def _opening(self, ask: Ask, choice: Choice) -> bytes:
        content = ask.prompt.opening if self._echo else ""
        delta = {"role": self._role, "content": content}
        told = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": None}
        return sse.event(
            {
                **self._head.fields(_CHUNK),
                "choices": [told],
                **self._head.usage_field(None),
                **(self._of_prompt(ask) if choice is ask.choices[0] else {}),
            }
        )

    def _ends(self, choice: Choice, piece: Piece) -> dict[str, object]:
        """Return what stands beside the text of an answer."""
        called = piece.finish == "stop" and choice.calls
        fields: dict[str, object] = {
            "logprobs": None,
            "finish_reason": "tool_calls" if called else piece.finish,
            "stop_reason": piece.stop_reason,
        }
        if self._logprobs:
            fields["logprobs"] = chat_logprobs(
                self._names, piece.tokens, piece.logprobs, self._top, by_id=self._by_id
            )
        if self._ids:
            fields["token_ids"] = piece.tokens
        return fields

    def _of_prompt(self, ask: Ask) -> dict[str, object]:
        fields: dict[str, object] = {}
        if self._ids:
            fields["prompt_token_ids"] = ask.prompt.ids
        if self._prompt_logprobs:
            fields["prompt_logprobs"] = prompt_logprobs(self._names, ask.prompt_logprobs or [])
        return fields


def _delta(piece: Piece) -> dict[str, object]:
    """Return what is new of a message."""
    delta: dict[str, object] = {}
    if piece.reasoning:
        delta["reasoning"] = piece.reasoning
    if piece.text or (piece.tokens and not piece.parsed):
        delta["content"] = piece.text
    if piece.calls:
        delta["tool_calls"] = [_piece_of(call) for call in piece.calls]
    return delta


def _piece_of(call: CallPiece) -> dict[str, object]:
    if not call.name:
        return {"index": call.index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": call.index, "id": call.id, "type": "function", "function": function}


def _whole_calls(pieces: list[CallPiece]) -> list[dict[str, object]]:
    """Return calls of which all pieces are there."""
    calls: list[dict[str, object]] = []
    for piece in pieces:
        if piece.name:
            arguments = "".join(one.arguments for one in pieces if one.index == piece.index)
            function = {"name": piece.name, "arguments": arguments}
            calls.append({"id": piece.id, "type": "function", "function": function})
    return calls
