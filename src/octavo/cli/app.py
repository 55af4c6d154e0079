"""All commands, and what becomes of their errors."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from octavo import __version__
from octavo.cli import INTERRUPTED
from octavo.cli.chat import chat
from octavo.cli.curve import bench
from octavo.cli.doctor import doctor
from octavo.cli.generate import generate
from octavo.cli.output import OutputError, ReaderGone, say
from octavo.cli.plan import plan
from octavo.cli.pull import pull
from octavo.cli.sharing import sharing
from octavo.errors import Corrupted, OctavoError, OutOfBlocks

BAD_INPUT = 2

app = typer.Typer(
    name="octavo",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
bench.command()(sharing)
app.add_typer(bench, name="bench")
for _command in (generate, chat, pull, plan, doctor):
    app.command()(_command)


def run_command(arguments: list[str]) -> int:
    """Run a command and return its exit status; errors are one line on stderr."""
    try:
        status = app(arguments, prog_name="octavo", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        return _say("interrupted", INTERRUPTED)
    except (Corrupted, OutOfBlocks) as error:
        return _say(f"octavo: bug: {error}", 1)
    except OctavoError as error:
        return _say(f"octavo: error: {error}", BAD_INPUT)
    except ReaderGone:
        return 0
    except OutputError as error:
        return _say(f"octavo: error: {error}", 1)
    except Exception as error:
        show = getattr(error, "format_message", None)  # what the option parser raises
        if show is None:
            raise
        return _say(f"octavo: error: {show()}", BAD_INPUT)
    if status == INTERRUPTED:  # the option parser catches Ctrl-C inside a command
        return _say("interrupted", INTERRUPTED)
    return status if isinstance(status, int) else 0


def _say(message: str, status: int) -> int:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr.write(message.encode("utf-8", "backslashreplace").decode() + "\n")
    return status


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"octavo {__version__}")
        raise typer.Exit


@app.callback()
def octavo(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    """Serve language models on a paged KV cache whose every memory policy can be swapped."""
