"""The tensors of a model by the names that its files use: one interface for every container.

What the names mean is the business of `families`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ModelError
from octavo.models.gguf import GGUFFile
from octavo.models.safetensors import SafetensorsFile


class StoredWeights(Protocol):
    """Tensors by the names that the files use."""

    def names(self) -> list[str]:
        """Name all tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, rows first."""
        ...

    def kind(self, name: str) -> str:
        """How the numbers are stored, as a word."""
        ...

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's bytes as they lie in the file."""
        ...

    def release(self, name: str) -> None:
        """Give back the memory that a tensor's bytes take; they are read again when needed."""
        ...

    def tensor(self, name: str, part: int | None = None) -> NDArray[np.float32]:
        """Read a tensor, or one entry of its first axis."""
        ...


class GGUFWeights:
    """The tensors of a GGUF file."""

    def __init__(self, file: GGUFFile) -> None:
        self.file = file
        self.raw = file.raw
        self.release = file.release
        self.tensor = file.tensor

    def names(self) -> list[str]:
        """Name all tensors."""
        return list(self.file.tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, rows first."""
        return self.file.tensors[name].shape

    def kind(self, name: str) -> str:
        """Return how the numbers are stored, as a word."""
        return self.file.tensors[name].kind.name


class FolderWeights:
    """The tensors of a folder, from one safetensors file or several with an index.

    prefix: of the names that count; they are told without it.
    """

    def __init__(self, folder: Path, prefix: str = "") -> None:
        self._prefix = prefix
        self._file_of: dict[str, SafetensorsFile] = {}
        for path in _weight_files(folder):
            file = SafetensorsFile(path)
            names = [name for name in file.tensors if name.startswith(prefix)]
            self._file_of |= {name.removeprefix(prefix): file for name in names}

    def names(self) -> list[str]:
        """Name all tensors."""
        return list(self._file_of)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape, rows first."""
        return self._file_of[name].tensors[self._prefix + name].shape

    def kind(self, name: str) -> str:
        """Return how the numbers are stored, as a word."""
        return self._file_of[name].tensors[self._prefix + name].dtype

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's bytes as they lie in the file."""
        return self._file_of[name].raw(self._prefix + name)

    def release(self, name: str) -> None:
        """Give back the memory that a tensor's bytes take; they are read again when needed."""
        self._file_of[name].release(self._prefix + name)

    def tensor(self, name: str, part: int | None = None) -> NDArray[np.float32]:
        """Read a tensor, or one entry of its first axis."""
        return self._file_of[name].tensor(self._prefix + name, part)


def _weight_files(folder: Path) -> list[Path]:
    single = folder / "model.safetensors"
    if single.is_file():
        return [single]
    index_path = folder / "model.safetensors.index.json"
    if not index_path.is_file():
        raise ModelError(
            f"{folder} has neither model.safetensors nor model.safetensors.index.json. Other "
            "formats (.bin, .pt) are not read: get the safetensors version, or a GGUF file."
        )
    table = read_json(index_path).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise ModelError(
            f"{index_path} has no weight_map from tensors to files. Download it again."
        )
    # Only plain names: an index must not lead out of its folder.
    files = sorted({Path(name).name for name in table.values()})
    absent = [name for name in files if not (folder / name).is_file()]
    if absent:
        raise ModelError(
            f"{folder}: {len(absent)} of {len(files)} weight files are missing ({absent[0]} "
            "first). Download the folder again."
        )
    return [folder / name for name in files]


def read_json(path: Path) -> dict[str, Any]:  # any JSON
    """Read a JSON object; anything else is a `ModelError`."""
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}. Download it again.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object. Download it again.")
    return value
