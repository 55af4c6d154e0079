"""Broken plug-ins are named with the package that brings them."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.errors import ConfigError
from octavo.plugins import extended, installed


def install(site: Path, group: str, name: str, value: str) -> None:
    """Write the metadata that an installed package has."""
    info = site / "bad_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: bad-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {value}\n")


def test_a_plugin_that_cannot_be_loaded_is_named(tmp_path, monkeypatch):
    install(tmp_path, "octavo.eviction", "mru", "no_such_module:Mru")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match=r"package bad-package brings 'mru'.*No module named"):
        extended("octavo.eviction", {})


def test_a_plugin_may_not_take_a_name_of_ours(tmp_path, monkeypatch):
    install(tmp_path, "octavo.eviction", "lru", "octavo.memory.policies.lru:Lru")
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(ConfigError, match=r"package bad-package brings 'lru'.*taken"):
        extended("octavo.eviction", {"lru": object})


def test_a_plugin_joins_the_table(tmp_path, monkeypatch):
    install(tmp_path, "octavo.eviction", "lru2", "octavo.memory.policies.lru:Lru")
    monkeypatch.syspath_prepend(tmp_path)

    assert [point.name for point in installed("octavo.eviction")] == ["lru2"]
    assert set(extended("octavo.eviction", {"lru": object})) == {"lru", "lru2"}
