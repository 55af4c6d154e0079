"""Which release this is."""

from __future__ import annotations

from importlib import metadata

VERSION = metadata.version("octavo")
"""As the package's installer knows it: the package's own root would import all of it."""
