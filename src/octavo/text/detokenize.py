"""Turn tokens into text as they arrive, and stop at stop strings."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

from octavo.text.stops import StopMatcher, StopTable
from octavo.text.tokenizer import Tokenizer

_REPLACEMENT = "\ufffd"


class Detokenizer:
    """Text of one answer, piece by piece; what has been returned never changes.

    Joined, the pieces equal `Tokenizer.decode` of all tokens, up to the first stop string.
    Each token costs O(1), whatever the length of the answer.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: StopTable | tuple[str, ...] = (),
        *,
        skip_special_tokens: bool = True,
        shown: frozenset[int] = frozenset(),
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """Begin an answer.

        stop: several answers may share a table. shown: special tokens that are text all the
        same: the pieces have them, and `decode` has not. include_stop: the stop string is part of
        the text. min_tokens: a stop string that ends within so many tokens does not count.
        """
        self._skipped = tokenizer.special_ids - shown if skip_special_tokens else frozenset[int]()
        self._decoder: _Decoder = (
            _ByteDecoder(tokenizer) if tokenizer.byte_level else _WindowDecoder(tokenizer)
        )
        self._stops = StopMatcher(stop, include=include_stop) if stop else None
        self._too_early = min_tokens
        """Tokens still to come whose text cannot end the answer."""

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None so far."""
        return self._stops.stopped if self._stops else None

    def push(self, token_ids: Iterable[int]) -> str:
        """Take more tokens; return the text that is certain now.

        Held back are the bytes of a character that is not complete and text that may begin a
        stop string. After a match nothing is returned any more.
        """
        if self.stopped is not None:
            return ""
        tokens = list(token_ids)
        early, self._too_early = self._too_early, max(0, self._too_early - len(tokens))
        if not early:
            return self._push(tokens, counts=True)
        return self._push(tokens[:early], counts=False) + self._push(tokens[early:], counts=True)

    def _push(self, token_ids: list[int], *, counts: bool) -> str:
        text = self._decoder.push([token for token in token_ids if token not in self._skipped])
        return self._stops.push(text, counts=counts) if self._stops else text

    def finish(self) -> str:
        """Return the rest when the answer is over; half a character comes out as U+FFFD."""
        if self.stopped is not None:
            return ""
        text = self._decoder.finish()
        if self._stops is None:
            return text
        return self._stops.push(text, counts=not self._too_early) + self._stops.finish()


class _Decoder(Protocol):
    def push(self, token_ids: list[int]) -> str: ...

    def finish(self) -> str: ...


class _ByteDecoder:
    """For byte-level vocabularies: the text is the tokens' bytes, read as UTF-8."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: list[int]) -> str:
        return self._utf8.decode(b"".join(map(self._token_bytes, token_ids)))

    def finish(self) -> str:
        return self._utf8.decode(b"", final=True)


class _WindowDecoder:
    """For any other vocabulary: decodes the last few tokens with and without the new one.

    The tokens before the new ones are there because a decoder may treat the first token in a
    special way, such as dropping its space. Equal to decoding at once as long as a token
    changes no text before it. Decoders with byte fallback break that for bytes that are not
    UTF-8: they reject a whole run of bytes for one bad byte, a stream only the bad end of it.
    """

    MAX_TOKENS = 64
    """Tokens that decode to nothing or to half a character pile up no further than this."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._emitted = 0
        """How many leading tokens of the window are in the text already."""

    def push(self, token_ids: list[int]) -> str:
        return "".join(map(self._push_one, token_ids))

    def finish(self) -> str:
        text = self._new_text()
        self._emitted = len(self._window)
        return text

    def _push_one(self, token_id: int) -> str:
        self._window.append(token_id)
        text = self._new_text()
        undecided = not text or text.endswith(_REPLACEMENT)
        if undecided and len(self._window) - self._emitted < self.MAX_TOKENS:
            return ""
        self._window = self._window[self._emitted :]
        self._emitted = len(self._window)
        return text

    def _new_text(self) -> str:
        before = self._decode(self._window[: self._emitted])
        return self._decode(self._window)[len(before) :]

    def _decode(self, token_ids: list[int]) -> str:
        # Special tokens to be skipped are gone already.
        return self._tokenizer.decode(token_ids, skip_special_tokens=False)
