"""Tests that `pytest --octavo-conformance` collects: one per installed plug-in."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from octavo.plugins import GROUPS, installed, load
from octavo.testing.conformance import (
    check_eviction_policy,
    check_order,
    check_reservation,
)


def _check_attention(make: Any) -> None:
    from octavo.testing.attention import check_attention_backend

    check_attention_backend(make)


def _check_codec(make: Any) -> None:
    from octavo.testing.codecs import check_codec

    check_codec(make)


def _check_family(row: Any) -> None:
    from octavo.models.families import Family

    assert isinstance(row, Family), f"a family of models must be a Family, not {type(row)}"


SUITES: dict[str, Callable[[Any], None]] = {
    "octavo.eviction": check_eviction_policy,
    "octavo.codecs": _check_codec,
    "octavo.attention": _check_attention,
    "octavo.orders": check_order,
    "octavo.reservations": check_reservation,
    "octavo.models": _check_family,
}

POINTS = [point for group in GROUPS for point in installed(group)]


def _name(point: EntryPoint) -> str:
    return f"{point.group.removeprefix('octavo.')}-{point.name}"


@pytest.mark.parametrize("point", POINTS, ids=_name)
def test_conformance(point: EntryPoint) -> None:
    """The plug-in keeps the promises of its protocol."""
    SUITES[point.group](load(point))


def test_there_are_plugins() -> None:
    """Asking for the suites where no plug-in is installed is a mistake worth hearing of."""
    if not POINTS:
        groups = ", ".join(GROUPS)
        pytest.fail(f"no installed package brings an entry point of {groups}", pytrace=False)
