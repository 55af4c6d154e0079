"""Names of hosts (RFC 1123, 2.1), those in Punycode (RFC 5891, 4.4) among them.

Labels are an expression, but for those that begin with xn--: which of them is the spelling of an
international label, no expression tells. Such a label is judged by itself, and in its place an
expression is shown so many stand-ins, a letter that no other expression of a name has.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import product

STAND_IN, UNLIKE = "\U0010ffff", "\U0010fffe"
"""For each letter of an international label; and one that is none. No text has a use for them."""
MAX_LABEL = 63
_MAX_NAME = 253
_LETTER, _MORE = "[0-9A-Za-z]", "[0-9A-Za-z-]"
_TRIED = "abcdefghijklmnopqrstuvwxyz0123456789"
_INTERNATIONAL = re.compile(r"(?<![0-9A-Za-z-])[Xx][Nn]--[0-9A-Za-z-]*")


def _up_to(longest: int) -> str:
    return f"(?:{_MORE}{{0,{longest - 1}}}{_LETTER})"


_PLAIN = f"[0-9A-WYZa-wyz]{_up_to(MAX_LABEL - 1)}?"


def _label() -> str:
    """Return an expression of labels: letter by letter, as long as it may become xn--."""
    fourth = f"-{_LETTER}{_up_to(MAX_LABEL - 4)}?"
    third = f"(?:{fourth}|{_LETTER}{_up_to(MAX_LABEL - 3)}?)?"
    rest = _up_to(MAX_LABEL - 2)
    second = f"(?:[Nn]{third}|[0-9A-MO-Za-mo-z]{rest}?|-{rest})?"
    return rf"(?:{_PLAIN}|[Xx]{second}|\x{{10ffff}}{{5,{MAX_LABEL}}})"


HOSTS = (rf"{_label()}(?:\.{_label()})*", rf"[0-9A-Za-z.\x{{10ffff}}-]{{1,{_MAX_NAME}}}")
"""A name matches both, its international labels stood in for."""


def names_hosts(definition: str) -> bool:
    """True if an expression of names stands in a definition of a form, however it is escaped."""
    return _PLAIN in definition


@lru_cache(maxsize=1024)
def is_international(label: str) -> bool:
    """True if this is how an international label is spelled (IDNA 2008), in letters of any case."""
    import idna

    try:
        return len(label) <= MAX_LABEL and not idna.ulabel(label.lower()).isascii()
    except UnicodeError:  # the library's errors are of this kind
        return False


def with_stand_ins(text: str) -> str:
    """Return a name as expressions are shown it."""
    return _INTERNATIONAL.sub(
        lambda found: STAND_IN * len(found[0]) if is_international(found[0]) else found[0], text
    )


def may_become_international(label: str) -> bool:
    """True if something is found that completes a label, which begins with xn--.

    All letters so far, or all up to the last -, may stand for themselves, with one that is no ASCII
    before or behind them: that takes up to seven more. Where fewer are left, all that one letter
    completes is found, and all that two do at the very end.
    """
    return _may_become(label.lower())


@lru_cache(maxsize=4096)
def _may_become(label: str) -> bool:
    if is_international(label):
        return True
    for plain in (label[4:], label[4:].rpartition("-")[0]):
        for letters in (f"{plain}ü", f"ü{plain}", f"ü{plain}a"):
            spelled = "xn--" + letters.encode("punycode").decode()
            if spelled.startswith(label) and is_international(spelled):
                return True
    room = MAX_LABEL - len(label)
    return any(
        is_international(label + "".join(letters))
        for count in range(1, min(room, 2 if room == 2 else 1) + 1)
        for letters in product(_TRIED, repeat=count)
    )
