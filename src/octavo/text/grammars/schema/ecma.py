"""Regular expressions as JSON Schema has them (ECMA-262), spelled for Rust's regex syntax."""

from __future__ import annotations

import re

from octavo.errors import RequestError

_SPACE = (
    r"\t\n\x{b}\x{c}\r \x{a0}\x{feff}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}"
    r"\x{3000}"
)
_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": _SPACE}
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}
_LOOKING = {"?=": "a lookahead", "?!": "a lookahead", "?<=": "a lookbehind", "?<!": "a lookbehind"}
_COUNT = re.compile(r"\{(\d{1,9})(,(\d{0,9}))?\}")
_PROPERTY = re.compile(r"\{[A-Za-z0-9_=]+\}")
_HEX = re.compile(r"[0-9A-Fa-f]+")
_QUOTED = (0x22, 0x5C)
"""What JSON writes with a backslash, beside controls."""
NOTHING = r"[^\x{0}-\x{10ffff}]"


def translated(pattern: str) -> str:
    """Return the same expression in Rust's syntax.

    Raises RequestError, as the end of a sentence, for what is none, or needs to look around.
    """
    return _Reader(pattern).whole()


def literal(text: str) -> str:
    """Return an expression for exactly this text."""
    return "".join(_char(ord(letter)) for letter in text)


def _char(code: int) -> str:
    letter = chr(code)
    return letter if letter.isascii() and letter.isalnum() else f"\\x{{{code:x}}}"


class _Reader:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def whole(self) -> str:
        parts: list[str] = []
        while self._at < len(self._pattern):
            parts.append(self._one())
        if self._depth:
            raise RequestError("a bracket is not closed")
        return "".join(parts)

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            raise RequestError("it ends in the middle")
        letter = self._pattern[self._at]
        self._at += 1
        return letter

    def _one(self) -> str:
        letter = self._next()
        match letter:
            case "\\":
                return self._escape(in_class=False)
            case "[":
                return self._class()
            case "(":
                return self._group()
            case ")":
                self._depth -= 1
                if self._depth < 0:
                    raise RequestError("a bracket is closed that is not open")
                return ")"
            case "{":
                return self._count()
            case ".":
                return r"[^\n\r\x{2028}\x{2029}]"
            case "^" | "$" | "|":
                return letter
            case "*" | "+" | "?":
                return letter + self._lazy()
            case _:
                return _char(ord(letter))

    def _lazy(self) -> str:
        """Leave out what only says which of several ways to match comes first."""
        if self._pattern[self._at : self._at + 1] == "?":
            self._at += 1
        return ""

    def _count(self) -> str:
        found = _COUNT.match(self._pattern, self._at - 1)
        if found is None:
            return r"\{"
        self._at = found.end()
        return found.group() + self._lazy()

    def _group(self) -> str:
        self._depth += 1
        if self._pattern[self._at : self._at + 1] != "?":
            return "(?:"
        for start, what in _LOOKING.items():
            if self._pattern.startswith(start, self._at):
                raise RequestError(f"it has {what}, which is not supported")
        if self._pattern.startswith("?:", self._at):
            self._at += 2
            return "(?:"
        named = re.compile(r"\?<[A-Za-z_$][\w$]*>").match(self._pattern, self._at)
        if named is None:
            raise RequestError("a group begins with a mark that is not known")
        self._at = named.end()
        return "(?:"

    def _class(self) -> str:
        negative = self._pattern[self._at : self._at + 1] == "^"
        self._at += negative
        parts: list[str] = []
        while (letter := self._next()) != "]":
            part = self._escape(in_class=True) if letter == "\\" else _char(ord(letter))
            parts.append("-" if self._between(letter, parts) else part)
        inner = "".join(parts)
        if not inner:
            return r"[\x{0}-\x{10ffff}]" if negative else NOTHING
        if all(_holds(parts, code) != negative for code in range(32)) and any(
            _holds(parts, code) == negative for code in _QUOTED
        ):
            return self._without_escapes(parts, negative=negative)
        return f"[{'^' if negative else ''}{inner}]"

    def _without_escapes(self, parts: list[str], *, negative: bool) -> str:
        """Return a class of all controls, but not of quote and backslash, with what repeats it.

        The library lets quote and backslash into a string escaped wherever all controls may come:
        so U+0000 comes apart from the others.
        """
        repeat = self._pattern[self._at : self._at + 1]
        if repeat not in ("*", "+"):
            raise RequestError(
                "it has a class without a quote or a backslash but with all control characters, "
                "which is supported only behind * or +: exclude \\n too"
            )
        self._at += 1
        self._lazy()
        inner = "".join(parts)
        some = rf"[^\x{{0}}{inner}]" if negative else rf"[[{inner}]--[\x{{0}}]]"
        if repeat == "*":
            return rf"(?:(?:{some}*\x{{0}})*{some}*)"
        return rf"(?:{some}+|(?:{some}*\x{{0}})+{some}*)"

    def _between(self, letter: str, parts: list[str]) -> bool:
        """True for the mark between the ends of a range, which both are single characters."""
        if letter != "-" or not parts or self._pattern[self._at : self._at + 1] in ("]", ""):
            return False
        ahead = self._pattern[self._at : self._at + 2]
        set_ahead = len(ahead) == 2 and ahead[0] == "\\" and ahead[1] in "dDwWsSpP"
        ends_a_range = len(parts) > 1 and parts[-2] == "-"
        return not (ends_a_range or set_ahead or _is_set(parts[-1]))

    def _escape(self, *, in_class: bool) -> str:
        letter = self._next()
        if letter.lower() in _CLASSES:
            inner = _CLASSES[letter.lower()]
            return f"[{'^' if letter.isupper() else ''}{inner}]"
        if letter in "pP":
            found = _PROPERTY.match(self._pattern, self._at)
            if found is None:
                return _char(ord(letter))
            self._at = found.end()
            return f"[\\{letter}{found.group()}]"
        if letter in "bB" and not in_class:
            raise RequestError(f"it has a word boundary (\\{letter}), which is not supported")
        if letter == "b":
            return _char(8)
        if letter == "0" and self._pattern[self._at : self._at + 1].isdigit():
            raise RequestError("it has an octal number")
        if letter in _CONTROLS:
            return _char(_CONTROLS[letter])
        return self._coded(letter)

    def _coded(self, letter: str) -> str:
        if letter == "x":
            return _char(self._hex(2))
        if letter == "u":
            return _char(self._unicode())
        if letter == "c":
            control = self._next()
            if not (control.isascii() and control.isalpha()):
                raise RequestError("\\c needs a letter")
            return _char(ord(control) % 32)
        if letter.isdigit() or letter == "k":
            raise RequestError("it refers back to a group, which is not supported")
        if letter.isascii() and letter.isalpha():
            raise RequestError(f"it has an escape that is not known (\\{letter})")
        return _char(ord(letter))

    def _hex(self, digits: int) -> int:
        found = self._pattern[self._at : self._at + digits]
        if len(found) < digits or not _HEX.fullmatch(found):
            raise RequestError("it has an escape without its digits")
        self._at += digits
        return int(found, 16)

    def _unicode(self) -> int:
        if self._pattern[self._at : self._at + 1] == "{":
            end = self._pattern.find("}", self._at)
            digits = self._pattern[self._at + 1 : end]
            if end < 0 or not _HEX.fullmatch(digits) or int(digits, 16) > 0x10FFFF:
                raise RequestError("it has an escape without its digits")
            self._at = end + 1
            return int(digits, 16)
        code = self._hex(4)
        if 0xD800 <= code < 0xDC00 and self._pattern.startswith("\\u", self._at):
            self._at += 2
            low = self._hex(4)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
        if 0xD800 <= code < 0xE000:
            raise RequestError("it has half a surrogate pair, which no string can hold")
        return code


def _holds(parts: list[str], code: int) -> bool:
    """True if a class of these parts, as they were spelled, has a character below U+0080."""
    at = 0
    while at < len(parts):
        if at + 2 < len(parts) and parts[at + 1] == "-":
            low, high = _code(parts[at]), _code(parts[at + 2])
            if low <= code <= high:
                return True
            at += 3
            continue
        part = parts[at]
        if _is_set(part):
            if _set_holds(part, code):
                return True
        elif _code(part) == code:
            return True
        at += 1
    return False


def _set_holds(part: str, code: int) -> bool:
    if "\\p" in part or "\\P" in part:
        # Of controls, quote and backslash, categories of other (C) have the controls alone.
        return ("\\P" in part) != (code < 32 and part.startswith(("[\\p{C", "[\\P{C")))
    letter = chr(code)
    known = {"0-9": letter.isdigit(), "A-Za-z0-9_": letter.isalnum() or letter == "_"}
    held = known.get(part.strip("[]^"), letter in "\t\n\x0b\x0c\r ")
    return held != part.startswith("[^")


def _code(part: str) -> int:
    return int(part[3:-1], 16) if part.startswith("\\x{") else ord(part)


def _is_set(part: str) -> bool:
    return part.startswith("[")
