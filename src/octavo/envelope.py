"""The keys with which every `--json` document begins."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from pathlib import Path
from typing import Any

import msgspec

from octavo import __version__
from octavo.config import EngineConfig
from octavo.machine import this_machine


def envelope(schema: str, config: EngineConfig | None, **settings: object) -> dict[str, Any]:
    """Return schema, version, commit, machine and all settings that made the result.

    config: None for a command that builds no engine.
    """
    return {
        "schema": schema,
        "version": __version__,
        "commit": source_commit(),
        "machine": msgspec.to_builtins(this_machine()),
        "config": (dataclasses.asdict(config) if config else {}) | settings,
    }


def source_commit() -> str | None:
    """Return the commit of the checkout that this code runs from, or None outside of one.

    It ends in -dirty where files have been changed since. OCTAVO_COMMIT in the environment says it
    for a copy that is no checkout.
    """
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return os.environ.get("OCTAVO_COMMIT")
    try:
        done = subprocess.run(
            [
                "git",
                "-C",
                str(folder),
                "describe",
                "--always",
                "--abbrev=40",
                "--dirty",
                "--exclude=*",
            ],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
