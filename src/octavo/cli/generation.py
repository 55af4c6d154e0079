"""Sampling defaults of a model: what its generation_config.json says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

from octavo.contract.sampling import SamplingParams
from octavo.errors import ConfigError, RequestError

FILE_NAME = "generation_config.json"
_OPTIONS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""Those that vLLM takes over, and what we call them."""


def generation_defaults(setting: str, model: Path) -> dict[str, object]:
    """Return the sampling options that requests have unless they name them.

    setting: auto (the file in the model's folder, if there is one), vllm (none), the file, or a
    folder with it. model: where the model is. Raises ConfigError.
    """
    if setting == "vllm":
        return {}
    place = model if setting == "auto" else Path(setting)
    file = place / FILE_NAME if setting == "auto" or place.is_dir() else place
    if setting == "auto" and not file.is_file():
        return {}
    try:
        found: object = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(
            f"--generation-config {setting}: {file} cannot be read: {error.strerror}; give auto, "
            "vllm or a folder with it"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{file} is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError(f"{file} must hold a JSON object")
    fields = cast("dict[str, Any]", found)
    defaults = {
        ours: fields[theirs] for theirs, ours in _OPTIONS.items() if fields.get(theirs) is not None
    }
    if fields.get("do_sample") is False:
        defaults["temperature"] = 0.0
    try:
        SamplingParams(**defaults)
    except RequestError as error:
        raise ConfigError(
            f"{file}: {error}; give --generation-config vllm to leave it out"
        ) from None
    return defaults
