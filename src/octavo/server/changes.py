"""Where a conversation parts from the one in memory: at which of its messages."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from octavo.errors import RequestError
from octavo.server.chat_request import ChatRequest
from octavo.server.failures import ApiError
from octavo.text.tokenizer import Tokenizer

MOST_TURNS = 256
"""Of longer conversations it is not told: each look for a message renders those before it."""


@dataclass(frozen=True, slots=True)
class Places:
    """Knows in which message of a conversation a token of its prompt stands.

    text: as rendered. render: returns it for a part of the conversation.
    """

    chat: ChatRequest
    text: str
    render: Callable[[ChatRequest], str]
    tokenizer: Tokenizer

    def changed(self, ids: tuple[int, ...], position: int) -> str | None:
        """Say what must have changed if the prompt parts from another one at a token.

        None: it is behind all messages, or they are too many.
        """
        turns = self.chat.turns
        if len(turns) > MOST_TURNS:
            return None
        before = self.tokenizer.decode(ids[:position], skip_special_tokens=False)
        chars = _common(self.text, before)
        place = bisect_left(range(len(turns)), True, key=lambda last: self._reaches(last, chars))
        if place == len(turns):
            return None
        if not place and self.chat.tools:
            return "the tools or message 0 changed"
        return f"message {place} changed"

    def _reaches(self, last: int, chars: int) -> bool:
        """Tell whether the messages up to one reach beyond so many characters of the prompt.

        A template may write a message otherwise once another one follows; where it parts from the
        prompt, that message has ended.
        """
        try:
            leading = self.render(
                replace(
                    self.chat,
                    turns=self.chat.turns[: last + 1],
                    add_generation_prompt=False,
                    continue_final_turn=False,
                    marks=(),
                )
            )
        except (ApiError, RequestError):
            # Some templates take whole exchanges alone.
            return False
        common = _common(self.text, leading)
        return common > chars or common == chars < len(leading)


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin alike."""
    least = min(len(one), len(other))
    if one[:least] == other[:least]:
        return least
    return next(place for place in range(least) if one[place] != other[place])
