"""Texts in the log: only if whoever runs the server asks for them."""

from __future__ import annotations

import logging

from octavo.server.ask import Ask
from octavo.server.prompting import Prompt
from octavo.server.settings import ServerSettings
from octavo.server.terms import Terms

log = logging.getLogger("octavo.server")


class TextLog:
    """Writes what is asked and what is answered, as far as the settings allow it."""

    def __init__(self, settings: ServerSettings) -> None:
        self._asked = settings.log_requests
        self.answers = settings.log_outputs
        """Whether answers are written."""
        self._chars = settings.log_chars

    def asked(self, request_id: str, terms: Terms, prompts: list[Prompt]) -> None:
        """Write prompts and options of a request."""
        if not self._asked:
            return
        options = terms.logged()
        for prompt in prompts:
            said = prompt.ids if prompt.text is None else prompt.text
            log.info("%s prompt=%s options=%s", request_id, self._cut(said), options)

    def answered(self, request_id: str, asks: list[Ask]) -> None:
        """Write the answers to a request."""
        for choice in (choice for ask in asks for choice in ask.choices) if self.answers else ():
            log.info(
                "%s answer=%s finish=%s tokens=%d",
                request_id,
                self._cut(choice.said),
                choice.finish,
                choice.tokens,
            )

    def _cut(self, said: str | tuple[int, ...]) -> str:
        """Write a text on one line, its beginning if it is long."""
        if self._chars is not None and len(said) > self._chars:
            return f"{said[: self._chars]!r}…"
        return repr(said)
