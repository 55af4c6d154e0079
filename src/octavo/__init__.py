"""octavo: serve large language models on a paged KV cache whose every memory policy can be swapped.

Names resolve on first use, so that importing the package (or only its deciding plane) is quick.
"""

from __future__ import annotations

TYPE_CHECKING = False
"""As `typing` has it, whose import takes most of the time before a command can meet Ctrl-C."""

if TYPE_CHECKING:
    from typing import Any

    from octavo.async_llm import AsyncLLM
    from octavo.contract.hint import CacheHint
    from octavo.contract.retention import Retention
    from octavo.contract.sampling import SamplingParams
    from octavo.contract.structured import StructuredOutputs
    from octavo.errors import (
        ConfigError,
        FetchError,
        ModelError,
        OctavoError,
        RequestError,
    )
    from octavo.llm import LLM
    from octavo.results import CompletionOutput, RequestOutput

__version__ = "0.1.0"

_HOMES = {
    "AsyncLLM": "octavo.async_llm",
    "LLM": "octavo.llm",
    "CacheHint": "octavo.contract.hint",
    "CompletionOutput": "octavo.results",
    "RequestOutput": "octavo.results",
    "Retention": "octavo.contract.retention",
    "SamplingParams": "octavo.contract.sampling",
    "StructuredOutputs": "octavo.contract.structured",
    "OctavoError": "octavo.errors",
    "ConfigError": "octavo.errors",
    "RequestError": "octavo.errors",
    "ModelError": "octavo.errors",
    "FetchError": "octavo.errors",
}

__all__ = [
    "LLM",
    "AsyncLLM",
    "CacheHint",
    "CompletionOutput",
    "ConfigError",
    "FetchError",
    "ModelError",
    "OctavoError",
    "RequestError",
    "RequestOutput",
    "Retention",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]


def __getattr__(name: str) -> Any:  # any public object of the package
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
