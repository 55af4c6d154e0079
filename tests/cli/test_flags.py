"""How a function becomes a command: flags, values, help, and what is said of bad lines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pytest

from octavo.cli.flags import Argument, Command, Given, Group, Option, UsageError

Words = Annotated[list[str] | None, Argument(help="Words.")]
Size = Annotated[int, Option(help="A size.")]
Names = Annotated[list[int] | None, Option("--name", help="Names; repeatable.")]
Bias = Annotated[float | None, Option(metavar="VALUE", help="A bias.")]
Quiet = Annotated[bool, Option("--quiet", help="Say nothing.")]
Clean = Annotated[bool, Option(help="Clean up.")]
File = Annotated[Path | None, Option(help="A file.")]


def stroll(
    given: Given = frozenset(),
    words: Words = None,
    size: Size = 3,
    names: Names = None,
    bias: Bias = None,
    quiet: Quiet = False,
    clean: Clean = True,
    in_file: File = None,
) -> dict[str, object]:
    """Take a walk. Then come back."""
    return dict(locals())


def read(*line):
    return Command(stroll).run(list(line), "walk stroll")


@pytest.mark.parametrize(
    ("line", "changed"),
    [
        ([], {}),
        (["--size", "5"], {"size": 5}),
        (["--size=5"], {"size": 5}),
        (["--size", "-5"], {"size": -5}),
        (["--size", "1", "--size", "2"], {"size": 2}),
        (["--name", "1", "--name", "2"], {"names": [1, 2]}),
        (["--bias", "-0.5"], {"bias": -0.5}),
        (["--in-file", "a/b"], {"in_file": Path("a/b")}),
        (["--in-file="], {"in_file": Path()}),
        (["--quiet"], {"quiet": True}),
        (["--no-clean"], {"clean": False}),
        (["--no-clean", "--clean"], {"clean": True}),
        (["a", "--quiet", "b"], {"words": ["a", "b"], "quiet": True}),
        (["a", "--", "--quiet", "-h"], {"words": ["a", "--quiet", "-h"]}),
        (["-"], {"words": ["-"]}),
    ],
)
def test_a_line_gives_the_function_its_parameters(line, changed):
    defaults = {
        "words": None, "size": 3, "names": None, "bias": None, "quiet": False, "clean": True,
        "in_file": None,
    }  # fmt: skip

    assert read(*line) == defaults | changed | {"given": frozenset(changed)}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["--sizes", "3"], "unrecognized arguments: --sizes"),
        (["-q"], "unrecognized arguments: -q"),
        (["--no-quiet"], "unrecognized arguments: --no-quiet"),
        (["--size"], "argument --size: expected one argument"),
        (["--size", "many"], "argument --size: invalid int value: 'many'"),
        (["--bias", "x"], "argument --bias: invalid float value: 'x'"),
        (["--quiet=yes"], "argument --quiet: ignored explicit argument 'yes'"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_with_the_reason(line, message):
    with pytest.raises(UsageError, match=message):
        read(*line)


def test_a_value_that_fills_the_screen_is_not_repeated_whole():
    with pytest.raises(UsageError) as error:
        read("--size", "1" + "0" * 5000)

    message = str(error.value)
    assert message.startswith("argument --size: invalid int value: '1000")
    assert message.endswith("0… (see `walk stroll --help`)")
    assert len(message) < 400


def test_what_is_needed_must_be_there():
    def go(place: Annotated[str, Argument(help="Where to.")], speed: Annotated[int, Option()]): ...

    with pytest.raises(UsageError, match="arguments are required: place"):
        Command(go).run(["--speed", "3"], "walk go")
    with pytest.raises(UsageError, match="arguments are required: --speed"):
        Command(go).run(["home"], "walk go")
    with pytest.raises(UsageError, match="unrecognized arguments: now please"):
        Command(go).run(["home", "now", "please", "--speed", "3"], "walk go")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_lists_flags_kinds_and_defaults(capsys, flag):
    assert read("--size", "5", flag) == 0

    out = capsys.readouterr().out
    assert out.startswith("usage: walk stroll [-h]")
    assert "\nTake a walk." in out
    for line in (
        "  --size INTEGER",
        "A size. [default: 3]",
        "  --bias VALUE",
        "  --quiet ",
        "  --clean, --no-clean",
        "[default: True]",
        "  --in-file PATH",
        "  -h, --help",
    ):
        assert line in out
    assert "given" not in out


def test_a_group_runs_the_command_that_is_named_and_loads_no_other(capsys):
    loaded = []

    def load(name):
        loaded.append(name)
        return Command(stroll)

    group = Group("walk", "Walks.", {name: lambda n=name: load(n) for name in ("a", "b")})

    assert group.run(["b", "--size", "7"], "walk")["size"] == 7
    assert loaded == ["b"]
    assert group.run(["--help"], "walk") == 0
    assert "    a         Take a walk.\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "usage: walk"),
        (["strol"], "invalid choice: 'strol'"),
        (["--nope"], "unrecognized arguments: --nope"),
    ],
)
def test_a_group_says_what_it_lacks(line, message):
    group = Group("walk", "Walks.")
    group.command()(stroll)

    with pytest.raises(UsageError, match=message):
        group.run(line, "walk")
