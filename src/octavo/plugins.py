"""Parts that other installed packages bring along, found by entry point.

A package names an object under one of the groups below; its name then stands beside octavo's own
names in the same table, and the conformance suites run on it with `pytest --octavo-conformance`.
"""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from octavo.errors import ConfigError

GROUPS = {
    "octavo.eviction": "a callable that makes an EvictionPolicy; its arguments have defaults",
    "octavo.codecs": "a callable without arguments that makes a KVCodec",
    "octavo.attention": "a callable (Arena, ModelSpec) that makes an AttentionBackend",
    "octavo.orders": "a callable without arguments that makes an Order",
    "octavo.reservations": "a Reservation",
    "octavo.models": "a family of models, as a row of octavo.models.families",
}
"""What an entry point of each group must be."""

_Row = TypeVar("_Row")


def installed(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of one group, in the order of their names; loads nothing."""
    assert group in GROUPS, f"{group} is not a group of plug-ins"
    return tuple(sorted(entry_points(group=group), key=lambda point: point.name))


def extended(group: str, table: dict[str, _Row]) -> dict[str, _Row]:
    """Return a table of ours with the rows that installed packages add to it.

    Raises ConfigError, naming the package, if a row cannot be loaded or takes a name of ours.
    """
    rows: dict[str, Any] = dict(table)
    for point in installed(group):
        if point.name in rows:
            raise ConfigError(
                f"package {_package(point)} brings {point.name!r} as {group}, but that name is "
                "taken: uninstall it, or ask its authors for another name"
            )
        rows[point.name] = load(point)
    return rows


def load(point: EntryPoint) -> Any:
    """Load what an entry point names. Raises ConfigError, naming the package."""
    try:
        return point.load()
    except Exception as error:
        raise ConfigError(
            f"package {_package(point)} brings {point.name!r} as {point.group}, but {point.value} "
            f"cannot be loaded: {type(error).__name__}: {error}"
        ) from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "?"
