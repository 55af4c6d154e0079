"""Bytes and counts as people write and read them."""

from __future__ import annotations

import math
import re

from octavo.errors import ConfigError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgtp", 1)}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgtp", 1)}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?(?:[eE][0-9]+)?)\s*([A-Za-z]*)")


def parse_bytes(text: str, *, name: str) -> int:
    """Read a size such as 12GiB, 40GB or 12884901888. Raises ConfigError; `name` says whose."""
    found = _SIZE.fullmatch(text.strip())
    unit = _UNITS.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ConfigError(
            f"{name} must be a size such as 12GiB, 40GB or a number of bytes, got {text!r}"
        )
    # Whole numbers stay exact, whatever their size.
    size = int(found[1]) * unit if found[1].isdigit() else _rounded(float(found[1]) * unit)
    if not 0 < size < 2**63:
        raise ConfigError(f"{name} must be between 1 byte and 2^63, got {text!r}")
    return size


def parse_counts(text: str, *, name: str, least: int = 1, most: int | None = None) -> list[int]:
    """Read whole numbers separated by commas. Raises ConfigError; `name` says whose."""
    counts: list[int] = []
    for part in text.split(","):
        if not re.fullmatch(r"-?[0-9]{1,18}", part.strip()):
            raise ConfigError(
                f"{name} must be whole numbers separated by commas, such as 8,16, got {text!r}"
            )
        counts.append(int(part))
    low = [count for count in counts if count < least]
    if low:
        raise ConfigError(f"{name} must be at least {least}, got {low[0]}")
    if most is not None and max(counts) > most:
        raise ConfigError(f"{name} must be at most {most}, got {max(counts)}: give fewer")
    return counts


def show_bytes(count: float) -> str:
    """Write a size in the binary unit that leaves one to four digits before the point."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024:
            return f"{size:.0f} B" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} PiB"


def ask_bytes(count: int) -> str:
    """Write a size that `parse_bytes` reads as at least so many bytes, as short as `show_bytes`."""
    power = min((max(1, count).bit_length() - 1) // 10, 5)
    if not power:
        return str(count)
    unit, name = 1024**power, "KMGTP"[power - 1] + "iB"
    hundredths = -(-count * 100 // unit)
    text = f"{hundredths // 100}.{hundredths % 100:02}".rstrip("0").rstrip(".") + name
    try:
        return text if parse_bytes(text, name="") >= count else str(count)
    except ConfigError:  # rounded up beyond what can be asked for
        return str(count)


def _rounded(size: float) -> int:
    return round(size) if math.isfinite(size) else 2**63
