"""Settings of a file, whose values nobody has checked yet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.errors import ModelError


class Values:
    """Reads settings by key; a value of the wrong kind is a `ModelError` with file and key."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self.where = where
        """The file, for errors."""

    def get(self, key: str) -> Any:  # whatever the file says
        """Return what the file says, or None."""
        return self._values.get(key)

    def size(self, key: str, *, default: int | None = None) -> int:
        """Return a positive whole number; a list of equal ones counts as one."""
        value = self._values.get(key, default)
        if isinstance(value, list) and len(set(map(str, value))) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise ModelError(
                f"{self.where}: {key} must be a positive whole number, found {value!r}."
            )
        return value

    def real(
        self, key: str, *, default: float | None = None, least: float = 0.0, most: float = 1e30
    ) -> float:
        """Return a positive number from `least` to `most`."""
        value = self._values.get(key, default)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value < 1e30:
            raise ModelError(f"{self.where}: {key} must be a positive number, found {value!r}.")
        if value < least:
            raise ModelError(f"{self.where}: {key} must be at least {least:g}, found {value!r}.")
        if value > most:
            raise ModelError(f"{self.where}: {key} must be at most {most:g}, found {value!r}.")
        return float(value)

    def refuse_unless(self, key: str, supported: tuple[Any, ...]) -> None:
        """Raise `ModelError` if a setting has any other value; None: absent is fine."""
        value = self._values.get(key)
        if value not in supported:
            known = " or ".join("absent" if one is None else repr(one) for one in supported)
            raise ModelError(
                f"{self.where}: {key} is {value!r}; supported: {known}. "
                "Use a model without this setting: running it anyway would give wrong text."
            )
