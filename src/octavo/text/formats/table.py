"""The tables of formats, and how a row is found: by name, or by the model's chat template."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

from octavo.errors import ConfigError
from octavo.text.formats.hermes import HermesFormat
from octavo.text.formats.llama3 import Llama3Format
from octavo.text.formats.mistral import MistralFormat
from octavo.text.formats.qwen3_coder import Qwen3CoderFormat
from octavo.text.formats.think import ThinkFormat
from octavo.text.parsing import ReasoningFormat, ToolFormat

AUTO = "auto"
"""The first row that fits the model's template."""
NONE = "none"
"""No row, whatever the template is."""

_HERMES = HermesFormat()

TOOL_FORMATS: dict[str, ToolFormat] = {
    "mistral": MistralFormat(),
    "llama3_json": Llama3Format(),
    "qwen3_coder": Qwen3CoderFormat(),
    "qwen": _HERMES,
    "hermes": _HERMES,
}
"""By the name that --tool-call-parser takes."""

REASONING_FORMATS: dict[str, ReasoningFormat] = {
    "mistral": ThinkFormat("[THINK]", "[/THINK]"),
    "qwen3": ThinkFormat(),
    "deepseek_r1": ThinkFormat(),
}
"""By the name that --reasoning-parser takes."""


class _Format(Protocol):
    def fits(self, template: str) -> bool: ...


_Row = TypeVar("_Row", bound=_Format)


def find_format(
    setting: str, name: str, rows: Mapping[str, _Row], template: str | None
) -> _Row | None:
    """Return a row by its name, or with auto the first that fits a template; None: none does.

    setting: which names it, for errors. Raises ConfigError for an unknown name.
    """
    if name == NONE:
        return None
    if name == AUTO:
        return next((row for row in rows.values() if row.fits(template or "")), None)
    if name not in rows:
        known = ", ".join([AUTO, NONE, *rows])
        raise ConfigError(f"{setting} {name!r:.80} is not one of {known}")
    return rows[name]
