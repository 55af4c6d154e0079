"""All commands, and what becomes of their errors."""

from __future__ import annotations

import sys
from functools import partial
from importlib import import_module

from octavo import __version__
from octavo.cli import INTERRUPTED
from octavo.cli.flags import Command, Group, Runnable, TableCommand, UsageError
from octavo.cli.output import OutputError, ReaderGone, say
from octavo.errors import Corrupted, EngineGone, OctavoError, OutOfBlocks

BAD_INPUT = 2

COMMANDS = {
    "generate": "octavo.cli.generate:generate",
    "chat": "octavo.cli.chat:chat",
    "serve": "octavo.cli.serve:serve",
    "top": "octavo.cli.top:top",
    "pull": "octavo.cli.pull:pull",
    "plan": "octavo.cli.plan:plan",
    "replay": "octavo.cli.replay:replay",
    "doctor": "octavo.cli.doctor:doctor",
    "bench": "octavo.cli.measurements:bench",
    "eval": "octavo.cli.evaluate:evaluate",
}
"""Where each command, or group of commands, is."""


def command_line() -> Group:
    """Make what reads a command line; of the commands it loads those that are needed."""
    return Group(
        "octavo",
        "Serve language models on a paged KV cache whose every memory policy can be swapped.",
        {name: partial(_load, place) for name, place in COMMANDS.items()},
        f"octavo {__version__}",
    )


def _load(place: str) -> Runnable:
    module, _, attribute = place.partition(":")
    found = getattr(import_module(module), attribute)
    return found if isinstance(found, Group | TableCommand) else Command(found)


def run_command(arguments: list[str]) -> int:
    """Run a command and return its exit status; errors are one line on stderr."""
    try:
        if arguments[:1] == ["--version"]:
            say(f"octavo {__version__}")
            return 0
        status = command_line().run(arguments, "octavo")
    except KeyboardInterrupt:
        return _say("interrupted", INTERRUPTED)
    except UsageError as error:
        return _say(f"octavo: error: {error}", BAD_INPUT)
    except EngineGone as error:
        return _say(f"octavo: error: {error}", 1)
    except (Corrupted, OutOfBlocks) as error:
        return _say(f"octavo: bug: {error}", 1)
    except OctavoError as error:
        return _say(f"octavo: error: {error}", BAD_INPUT)
    except ReaderGone:
        return 0
    except OutputError as error:
        return _say(f"octavo: error: {error}", 1)
    return status if isinstance(status, int) else 0


def _say(message: str, status: int) -> int:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr.write(message.encode("utf-8", "backslashreplace").decode() + "\n")
    return status
