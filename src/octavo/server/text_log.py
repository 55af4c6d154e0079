"""Prompts and answers in the log, for servers that are told to keep them there."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any, cast

from octavo.server.answers import Form, Usage
from octavo.server.ask import Ask
from octavo.server.choice import Choice, Piece
from octavo.server.settings import ServerSettings

LOG = logging.getLogger("octavo.texts")


class TextLog:
    """Writes what `ServerSettings` asks for: nothing, prompts with their options, answers."""

    def __init__(self, settings: ServerSettings) -> None:
        self._requests = settings.log_requests
        self._outputs = settings.log_outputs
        self._most = settings.log_chars

    def request(
        self,
        request_id: str,
        route: str,
        prompts: Iterable[str | tuple[int, ...]],
        options: Mapping[str, Any],
    ) -> None:
        """Write what is asked."""
        if self._requests:
            shown = [self._cut(prompt) for prompt in prompts]
            LOG.info("request %s %s prompts=%s options=%r", request_id, route, shown, options)

    def answer(self, request_id: str, index: int, text: str) -> None:
        """Write one answer."""
        LOG.info("answer %s %d text=%s", request_id, index, self._cut(text))

    def form(self, form: Form, request_id: str) -> Form:
        """Return a form that writes answers here too, if that is asked for."""
        return _LoggedForm(form, self, request_id) if self._outputs else form

    def _cut(self, text: str | tuple[int, ...]) -> str:
        """Write a text on one line, whatever it holds."""
        if self._most is None or len(text) <= self._most:
            return repr(text)
        return f"{text[: self._most]!r}… ({len(text)} in all)"


class _LoggedForm:
    """A `Form` that notes what another one writes."""

    def __init__(self, form: Form, log: TextLog, request_id: str) -> None:
        self._form, self._log, self._id = form, log, request_id
        self._texts: dict[int, list[str]] = {}

    def whole(self, asks: list[Ask], usage: Usage) -> object:
        answer = cast("dict[str, Any]", self._form.whole(asks, usage))
        for choice in answer["choices"]:
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            self._log.answer(self._id, choice["index"], text)
        return answer

    def chunk(self, ask: Ask, choice: Choice, piece: Piece, usage: Usage | None) -> bytes:
        self._texts.setdefault(choice.index, []).append(piece.text)
        if piece.finish is not None:
            self._log.answer(self._id, choice.index, "".join(self._texts.pop(choice.index)))
        return self._form.chunk(ask, choice, piece, usage)

    def last(self, usage: Usage) -> bytes:
        return self._form.last(usage)
