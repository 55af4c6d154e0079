"""Commands from functions, read by argparse: an annotation says a parameter's flag, type and help.

A command may also take its flags from a table. A group loads the command that is named and no
other: every start pays for what it loads.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import (
    Annotated,
    Any,
    NoReturn,
    Protocol,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

from octavo.cli import begin_work


class UsageError(Exception):
    """A command line that no command can read."""


class Option:
    """A flag, `--name` of a parameter `name` unless another name is given.

    One that is True or False has a second flag, `--no-name`, unless a name is given. One that is
    a list may be given several times; `many`: with several values each time.
    """

    def __init__(
        self, name: str = "", *, help: str = "", metavar: str = "", many: bool = False
    ) -> None:
        self.name, self.help, self.metavar, self.many = name, help, metavar, many


class Argument:
    """What stands in its place without a flag; a list takes all that stand there."""

    def __init__(self, *, help: str = "") -> None:
        self.help = help


class _Given:
    """Marks the parameter that is told the names of the parameters on the command line."""


Given: TypeAlias = Annotated[frozenset[str], _Given()]
"""Of a parameter: the names of those that the command line gives."""

_LONGEST_ERROR = 300
"""Characters of what is wrong with a line: it may repeat a value of any length."""

_METAVARS: dict[Callable[[str], Any], str] = {int: "INTEGER", float: "NUMBER", str: "TEXT"}


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One parameter of a command."""

    name: str
    mark: Option | Argument | _Given
    convert: Callable[[str], Any]
    several: bool
    default: Any  # of any type that can be read

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty and not isinstance(self.mark, _Given)

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Tell argparse of it; what the line leaves out stays out of the result."""
        if isinstance(self.mark, Argument):
            count = "*" if self.several else None if self.required else "?"
            parser.add_argument(
                self.name,
                nargs=count,
                type=self.convert,
                help=self._help,
                default=argparse.SUPPRESS,
            )
        elif isinstance(self.mark, Option):
            self._add_flag(parser, self.mark)

    def _add_flag(self, parser: argparse.ArgumentParser, mark: Option) -> None:
        flag = mark.name or "--" + self.name.replace("_", "-")
        if self.convert is bool:
            action = "store_true" if mark.name else argparse.BooleanOptionalAction
            parser.add_argument(flag, dest=self.name, action=action, help=self._help)
            return
        parser.add_argument(
            flag,
            dest=self.name,
            action="extend" if mark.many else "append" if self.several else "store",
            nargs="+" if mark.many else None,
            type=self.convert,
            required=self.required,
            metavar=mark.metavar or _METAVARS.get(self.convert, self.convert.__name__.upper()),
            help=self._help,
        )

    @property
    def _help(self) -> str:
        assert isinstance(self.mark, Option | Argument)
        text = self.mark.help.replace("%", "%%")
        if (
            self.required
            or self.default in ("", ())
            or self.default is None
            or self.default is False
        ):
            return text
        default = str(self.default).replace("%", "%%")
        return f"{text} [default: {default}]"


@dataclass(frozen=True, slots=True)
class Command:
    """A function that a command line calls."""

    function: Callable[..., Any]  # returns an exit status, or None

    @property
    def name(self) -> str:
        """What it is called on a command line."""
        return self.function.__name__.replace("_", "-")

    @property
    def help(self) -> str:
        """What the function says of itself."""
        return inspect.getdoc(self.function) or ""

    def run(self, arguments: list[str], path: str) -> Any:  # as the function
        """Call the function. path: the words before the arguments. Raises UsageError."""
        parser = _Parser(path, self.help)
        parameters = list(_read_signature(self.function))
        for one in parameters:
            one.add_to(parser)
        try:
            # Words and flags may stand in any order.
            given = vars(parser.parse_intermixed_args(arguments))
        except _Helped:
            return 0
        names = frozenset(given)
        for one in parameters:
            given.setdefault(one.name, names if isinstance(one.mark, _Given) else one.default)
        begin_work()
        return self.function(**given)


class Row(Protocol):
    """One flag of a table."""

    def add_to(self, parser: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
        """Tell argparse of it; what the line leaves out stays out of the result."""
        ...


@dataclass(frozen=True, slots=True)
class TableCommand:
    """A command whose flags are rows of a table, by the title of their group.

    In the names of its flags, underscores are dashes.
    """

    name: str
    help: str
    groups: Mapping[str, tuple[Row, ...]]
    function: Callable[[dict[str, Any]], Any]
    """Gets the flags that the line names; returns an exit status, or None."""

    def run(self, arguments: list[str], path: str) -> Any:  # as the function
        """Call the function. path: the words before the arguments. Raises UsageError."""
        parser = _Parser(path, self.help)
        parser.usage = f"{path} [words and flags, as below]"  # all of them would fill a page
        for title, rows in self.groups.items():
            group = parser.add_argument_group(title)
            for row in rows:
                row.add_to(group)
        try:
            given = vars(parser.parse_intermixed_args(_with_dashes(arguments)))
        except _Helped:
            return 0
        begin_work()
        return self.function(given)


def _with_dashes(arguments: list[str]) -> list[str]:
    """Write `--max_model_len=5` as `--max-model-len=5`; what follows `--` are words."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    written: list[str] = []
    for one in arguments[:end]:
        name, equals, value = one.partition("=")
        written.append(name.replace("_", "-") + equals + value if one.startswith("--") else one)
    return written + arguments[end:]


class Runnable(Protocol):
    """What can stand in a group."""

    @property
    def help(self) -> str:
        """What it says of itself."""
        ...

    def run(self, arguments: list[str], path: str) -> Any:  # as the command's function
        """Run it. path: the words before the arguments. Raises UsageError."""
        ...


@dataclass(slots=True)
class Group:
    """Commands under one word, which are loaded when they are named."""

    name: str
    help: str
    commands: dict[str, Callable[[], Runnable]] = field(
        default_factory=dict[str, "Callable[[], Runnable]"]
    )
    version: str = ""
    """Shown for --version; empty: there is no such flag."""

    def command(self) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Take in the function that is decorated."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            made = Command(function)
            self.commands[made.name] = lambda: made
            return function

        return add

    def run(self, arguments: list[str], path: str) -> Any:  # as the command's function
        """Run the command that is named. Raises UsageError."""
        name = arguments[0] if arguments else ""
        if name in self.commands:
            return self.commands[name]().run(arguments[1:], f"{path} {name}")
        # Nobody is named, or help is wanted: all are loaded for what they say of themselves.
        parser = _Parser(path, self.help)
        if self.version:
            parser.add_argument(
                "--version", action="version", version=self.version, help="Show it."
            )
        commands = parser.add_subparsers(
            title="commands", metavar="COMMAND", parser_class=argparse.ArgumentParser
        )
        for known, load in self.commands.items():
            commands.add_parser(known, help=_first_sentence(load().help).replace("%", "%%"))
        if not arguments:
            raise UsageError(parser.format_help().strip())
        with suppress(_Helped):
            parser.parse_args(arguments[:1])
        return 0


class _Helped(Exception):
    """Help was asked for, and has been printed."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of ending the process, and prints as all commands print."""

    def __init__(self, path: str, help: str) -> None:
        super().__init__(
            prog=path,
            description=help.replace("%", "%%"),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            argument_default=argparse.SUPPRESS,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        """Refuse a line."""
        if len(message) > _LONGEST_ERROR:
            message = message[:_LONGEST_ERROR] + "…"
        raise UsageError(f"{message} (see `{self.prog} --help`)")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End reading: nothing but help gets here."""
        raise _Helped

    def _print_message(self, message: str, file: object = None) -> None:
        from octavo.cli.output import write_bytes

        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        write_bytes(message.encode(encoding, errors="replace"))


def _read_signature(function: Callable[..., Any]) -> Iterator[_Parameter]:
    hints = get_type_hints(function, include_extras=True)
    for name, one in inspect.signature(function).parameters.items():
        hint, mark = hints[name], Option()
        if get_origin(hint) is Annotated:
            hint, mark = get_args(hint)[:2]
        kinds = [kind for kind in get_args(hint) or (hint,) if kind is not type(None)]
        kind = kinds[0] if get_origin(hint) is not list else hint
        several = get_origin(kind) is list
        convert = get_args(kind)[0] if several else kind
        yield _Parameter(name, mark, convert, several, one.default)


def _first_sentence(text: str) -> str:
    first = " ".join(text.split("\n\n")[0].split())
    return first.partition(". ")[0].removesuffix(".") + "."
