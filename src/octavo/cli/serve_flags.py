"""What a flag of `octavo serve` is: its kind, what it does here, and how its value is read.

A value comes from the command line, as text, or from a file, as YAML or JSON has it.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, cast

from octavo.errors import ConfigError

Value: TypeAlias = str | int | float | bool | tuple[str, ...] | dict[str, Any] | list[Any] | None
"""JSON values are dictionaries and lists of whatever JSON has."""

_COUNT = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)\s*([kKmMgGtT]?)(i?[bB])?")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4}


class Kind(StrEnum):
    """What the value of a flag is."""

    TEXT = "TEXT"
    COUNT = "INTEGER"
    """4096, 8k (8,000), 8K (8,192), 2GiB."""
    NUMBER = "NUMBER"
    SWITCH = ""
    """On, or off with `--no-`."""
    TEXTS = "TEXT, repeatable"
    NAMES = "TEXT …"
    """Several after one flag; repeatable too."""
    JSON = "JSON"
    WORD = "WORD"
    """The word without a flag."""


class Effect(StrEnum):
    """What a flag does here."""

    WORKS = "works"
    NEUTRAL = "refused"
    """Unless its value asks for nothing that there is not."""
    NONE = "no effect"
    """Taken, with a warning: scripts that give it keep running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One flag of the table."""

    name: str
    """Without its dashes, such as max-model-len."""
    kind: Kind
    default: Value = None
    """Of one that works; None: left out."""
    help: str = ""
    letters: tuple[str, ...] = ()
    """Other names, with their dashes."""
    choices: tuple[str, ...] = ()
    """Of a text; empty: any."""
    effect: Effect = Effect.WORKS
    neutral: tuple[Value, ...] = ()
    """Values that are taken though the flag is refused."""
    reason: str = ""
    """Why it is refused, or has no effect."""

    @property
    def spelled(self) -> str:
        """As people write it."""
        return self.name if self.kind is Kind.WORD else f"--{self.name}"

    def add_to(self, parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
        """Tell argparse of it; what the line leaves out stays out of the result."""
        if self.kind is Kind.WORD:
            parser.add_argument(
                self.name, nargs="?", default=argparse.SUPPRESS, help=self.described
            )
            return
        flags = (*self.letters, f"--{self.name}")
        if self.kind is Kind.SWITCH:
            parser.add_argument(
                *flags,
                dest=self.name,
                action=argparse.BooleanOptionalAction,
                help=self.described,
            )
            return
        several = self.kind in (Kind.TEXTS, Kind.NAMES)
        parser.add_argument(
            *flags,
            dest=self.name,
            action="extend" if several else "store",
            nargs="+" if self.kind is Kind.NAMES else 1 if several else None,
            metavar=self.kind.value.partition(",")[0].removesuffix(" …"),
            help=self.described,
        )

    @property
    def described(self) -> str:
        """What help says of it, for argparse."""
        return self.said.replace("%", "%%")

    @property
    def said(self) -> str:
        """What is said of it in a line."""
        if self.effect is Effect.NONE:
            return f"No effect: {self.reason}."
        if self.effect is Effect.NEUTRAL:
            taken = " or ".join(write(value) for value in self.neutral)
            return f"Refused{f' unless {taken}' if taken else ''}: {self.reason}."
        if self.default in (None, "", False, (), {}, []):
            return self.help
        return f"{self.help} [default: {write(self.default)}]"

    def read(self, given: object) -> Value:
        """Return the value of what a line or a file gives. Raises ConfigError."""
        value = _READERS[self.kind](self, given)
        if self.choices and value not in self.choices:
            raise self.wrong(f"is not one of {', '.join(self.choices)}", given)
        return value

    def wrong(self, what: str, given: object) -> ConfigError:
        """Return what to raise for a value."""
        shown = "(a key)" if self.name.endswith("api-key") else f"{write(given):.200}"
        return ConfigError(f"{self.spelled} {shown} {what}")


def write(value: object) -> str:
    """Write a value as people would on a command line."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str):
        return value or "''"
    if isinstance(value, tuple):
        return " ".join(str(one) for one in cast("tuple[object, ...]", value))
    return json.dumps(value, ensure_ascii=False, default=str)


def _read_text(flag: Flag, given: object) -> Value:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise flag.wrong("must be a text", given)
    return str(given)


def _read_count(flag: Flag, given: object) -> Value:
    if isinstance(given, int) and not isinstance(given, bool):
        return given
    found = _COUNT.fullmatch(given.strip()) if isinstance(given, str) else None
    if found is None:
        raise flag.wrong("must be a whole number, such as 4096, 8k (8000) or 2GiB", given)
    number, letter, unit = found.groups()
    # As vLLM has it: a small letter is a power of 1000, a capital one of 1024.
    binary = unit.lower().startswith("i") if unit else letter.isupper()
    factor = (1024 if binary else 1000) ** _POWERS.get(letter.lower(), 0)
    whole = int(number) * factor if "." not in number else float(number) * factor
    if whole != int(whole):
        raise flag.wrong("must be a whole number", given)
    return int(whole)


def _read_number(flag: Flag, given: object) -> Value:
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise flag.wrong("must be a number", given)
    try:
        return float(given)
    except ValueError:
        raise flag.wrong("must be a number", given) from None


def _read_switch(flag: Flag, given: object) -> Value:
    if not isinstance(given, bool):
        raise flag.wrong("must be true or false", given)
    return given


def _read_texts(flag: Flag, given: object) -> Value:
    several = cast("list[object]", given) if isinstance(given, list) else [given]
    return tuple(cast("str", _read_text(flag, one)) for one in several)


def _read_json(flag: Flag, given: object) -> Value:
    if not isinstance(given, str):
        return cast("Value", given)
    try:
        return json.loads(given)
    except ValueError as error:
        raise flag.wrong(f"is no JSON ({error})", given) from None


_READERS: dict[Kind, Callable[[Flag, object], Value]] = {
    Kind.TEXT: _read_text,
    Kind.WORD: _read_text,
    Kind.COUNT: _read_count,
    Kind.NUMBER: _read_number,
    Kind.SWITCH: _read_switch,
    Kind.TEXTS: _read_texts,
    Kind.NAMES: _read_texts,
    Kind.JSON: _read_json,
}


def only(
    name: str, kind: Kind, *neutral: Value, reason: str, letters: tuple[str, ...] = ()
) -> Flag:
    """Return a flag that is refused unless its value is one of these."""
    return Flag(
        name=name,
        kind=kind,
        effect=Effect.NEUTRAL,
        neutral=neutral,
        reason=reason,
        letters=letters,
    )


def idle(name: str, kind: Kind, reason: str) -> Flag:
    """Return a flag that is taken and does nothing."""
    return Flag(name=name, kind=kind, effect=Effect.NONE, reason=reason)
