"""Texts that can be encoded."""

from __future__ import annotations

from octavo.errors import RequestError


def check_unicode(text: str, what: str) -> None:
    """Raise RequestError, naming the place, if a text holds half a character."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{what} is not valid Unicode: it holds {text[error.start]!r} at character "
            f"{error.start}; decode the bytes it came from with their own encoding"
        ) from error
