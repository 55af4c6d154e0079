"""YAML files of settings, read strictly: a name that is given twice is an error."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, cast

import yaml

from octavo.errors import ConfigError


class _Strict(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Make a mapping whose keys differ."""
        self.flatten_mapping(node)
        seen: set[Hashable] = set()
        for key_node, _ in node.value:
            key = cast("Hashable", self.construct_object(key_node, deep=True))  # pyright: ignore[reportUnknownMemberType]
            if not isinstance(key, Hashable) or key in seen:  # pyright: ignore[reportUnnecessaryIsInstance]
                line = key_node.start_mark.line + 1
                raise ConfigError(f"line {line}: {key!r:.80} stands there twice, or is no name")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def read_yaml(path: Path, what: str) -> Mapping[object, object]:
    """Return a file's mapping; an empty file has none. what: the file is, in errors.

    Raises ConfigError.
    """
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError(f"{what} {path} cannot be read: {reason}") from error
    try:
        found: object = yaml.load(text, _Strict)
    except ConfigError as error:
        raise ConfigError(f"{what} {path}, {error}") from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        # The words of the parser come with a piece of the file, which may be a key.
        mark: object = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if isinstance(mark, yaml.Mark) else ""
        raise ConfigError(f"{what} {path}{where} is no YAML") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ConfigError(
            f"{what} {path} must hold `name: value` lines, not a {type(found).__name__}"
        )
    return cast("dict[object, object]", found)
