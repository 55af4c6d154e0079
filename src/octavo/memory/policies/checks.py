"""Limits of the policies' parameters."""

from __future__ import annotations

from octavo.errors import ConfigError


def at_least(least: float, **values: float) -> None:
    """Check that each named value is `least` or more. Raises ConfigError."""
    for name, value in values.items():
        if not value >= least:
            raise ConfigError(f"{name} must be at least {least}, got {value}")


def above_zero(**values: float) -> None:
    """Check that each named value is positive. Raises ConfigError."""
    for name, value in values.items():
        if not value > 0:
            raise ConfigError(f"{name} must be above 0, got {value}")


def between(least: float, most: float, **values: float) -> None:
    """Check that each named value is from `least` to `most`. Raises ConfigError."""
    for name, value in values.items():
        if not least <= value <= most:
            raise ConfigError(f"{name} must be between {least} and {most}, got {value}")
