"""Answers as `/v1/completions` writes them."""

from __future__ import annotations

import msgspec

from octavo.server import sse
from octavo.server.answers import Usage
from octavo.server.ask import Ask
from octavo.server.choice import Choice, Piece
from octavo.server.failures import ApiError
from octavo.server.head import Head
from octavo.server.logprobs import CompletionLogprobs, TokenNames, prompt_logprobs
from octavo.server.schemas.completions import CompletionBody


class CompletionForm:
    """A `Form`. head: what all of its objects begin with."""

    def __init__(self, body: CompletionBody, head: Head, names: TokenNames) -> None:
        self._head = head
        self._names = names
        self._echo = bool(body.echo)
        self._logprobs = body.logprobs is not None
        self._prompt_logprobs = body.prompt_logprobs is not None
        self._ids = bool(body.return_token_ids)
        self._by_id = bool(body.return_tokens_as_token_ids)
        self._offsets: dict[int, int] = {}
        """Characters of each answer whose log-probabilities have been told."""
        self._plain = not (self._logprobs or self._ids or self._prompt_logprobs)
        # Most chunks are a piece of text between two texts that never change.
        self._before = head.opening("text_completion") + b',"choices":[{"index":'
        self._after = (
            b',"logprobs":null,"finish_reason":null,"stop_reason":null}]'
            + head.null_usage
            + b"}\n\n"
        )

    def whole(self, asks: list[Ask], usage: Usage) -> object:
        """Return the answer in one piece."""
        choices = [
            self._choice(ask, choice, choice.take()) for ask in asks for choice in ask.choices
        ]
        return {**self._head.fields("text_completion"), "choices": choices, "usage": usage}

    def chunk(self, ask: Ask, choice: Choice, piece: Piece, usage: Usage | None) -> bytes:
        """Return news of one answer as an event."""
        begins = piece.first and self._echo
        if self._plain and not begins and piece.finish is None and usage is None:
            if not piece.text:
                return b""
            text = msgspec.json.encode(piece.text)
            return b'%b%d,"text":%b%b' % (self._before, choice.index, text, self._after)
        return sse.event(
            {
                **self._head.fields("text_completion"),
                "choices": [self._choice(ask, choice, piece)],
                **self._head.usage_field(usage),
            }
        )

    def end(self, usage: Usage | None) -> bytes:
        """Return what ends a stream: the usage, if it was asked for."""
        if usage is None:
            return sse.DONE
        told: dict[str, object] = {
            **self._head.fields("text_completion"),
            "choices": [],
            "usage": usage,
        }
        return sse.event(told) + sse.DONE

    def broken(self, error: ApiError) -> bytes:
        """Return what ends a stream that has failed."""
        return sse.event(error.body) + sse.DONE

    def _choice(self, ask: Ask, choice: Choice, piece: Piece) -> dict[str, object]:
        text = piece.text
        if piece.first and self._echo:
            text = self._prompt_text(ask) + text
        fields: dict[str, object] = {
            "index": choice.index,
            "text": text,
            "logprobs": self._told(ask, choice, piece) if self._logprobs else None,
            "finish_reason": piece.finish,
            "stop_reason": piece.stop_reason,
        }
        if self._ids:
            fields["token_ids"] = piece.tokens
            if piece.first:
                fields["prompt_token_ids"] = ask.prompt.ids
        if self._prompt_logprobs and piece.first:
            fields["prompt_logprobs"] = prompt_logprobs(self._names, ask.prompt_logprobs or [])
        return fields

    def _told(self, ask: Ask, choice: Choice, piece: Piece) -> dict[str, object]:
        told = CompletionLogprobs(
            self._names, by_id=self._by_id, offset=self._offsets.get(choice.index, 0)
        )
        if piece.first and self._echo:
            ids = ask.prompt.ids
            told.add(ids[:1], [None])
            # What ended before its first token knows nothing of the prompt's.
            told.add(ids[1:], ask.prompt_logprobs or [None] * (len(ids) - 1))
        told.add(piece.tokens, piece.logprobs)
        self._offsets[choice.index] = told.offset
        return told.json

    def _prompt_text(self, ask: Ask) -> str:
        if ask.prompt.text is None:
            return self._names.join(ask.prompt.ids)
        return ask.prompt.text
