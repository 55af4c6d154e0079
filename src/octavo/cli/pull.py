"""The command `octavo pull`, and how other commands find a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from octavo.cli.flags import Argument
from octavo.cli.output import note, say
from octavo.errors import ConfigError


def pull(
    alias: Annotated[
        str | None,
        Argument(help="A known model or a Hugging Face id; none: list the known ones."),
    ] = None,
) -> None:
    """Fetch a known model into the user's cache folder and check its sum."""
    from octavo.build import CATALOG, pull_model

    if alias is None:
        for entry in CATALOG.values():
            size = f"{entry.num_bytes / 1e6:.0f} MB"
            say(f"{entry.alias}  {entry.title}, {size}, {entry.licence}\n  {entry.terms}")
    else:
        say(str(pull_model(alias, note)))


def model_path(model: str | None = None, *, offline: bool = False) -> Path:
    """Return the path of a model that a flag names; None: the embedded one."""
    from octavo.build import resolve_model

    if model is not None and not model.strip():
        raise ConfigError(
            f"the model is {model!r}: give a path, a known name or a hub id, or leave it out for "
            "the embedded one"
        )
    return resolve_model(model, offline=offline, report=note)
