"""Flags from a file: `octavo serve --config file.yaml`."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from octavo.cli.serve_flags import Flag, Value
from octavo.errors import ConfigError
from octavo.server.yaml_file import read_yaml


def read_config_file(path: Path, flags: dict[str, Flag]) -> dict[str, Value]:
    """Return the flags that a YAML file gives, by name. Raises ConfigError.

    Names are those of the command line, with dashes or underscores and without the first two.
    flags: all that there are.
    """
    values: dict[str, Value] = {}
    for key, given in read_yaml(path, "--config").items():
        name = str(key).replace("_", "-")
        flag = flags.get(name)
        if flag is None:
            near = get_close_matches(name, flags, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"--config {path}: there is no flag {key!r:.80}{hint}")
        if name in values:
            raise ConfigError(f"--config {path} gives {name} twice, in both spellings")
        if given is None:
            continue  # `name:` alone leaves it as it is
        try:
            values[name] = flag.read(given)
        except ConfigError as error:
            raise ConfigError(f"--config {path}: {error}") from None
    return values
