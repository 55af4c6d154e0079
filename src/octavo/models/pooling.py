"""How a model makes one vector of a prompt, as its files say it. Needs no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping

from octavo.contract.pooling import HowPooled
from octavo.errors import ModelError
from octavo.models.checkpoint import Checkpoint

_OF_GGUF: Mapping[int, HowPooled] = {1: "mean", 3: "last"}
"""llama.cpp's numbers; 0 is none, 2 and 4 need a token or a head of their own."""
_OF_FOLDER: Mapping[str, HowPooled] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_lasttoken": "last",
}
"""Switches of sentence-transformers."""


def pooling_of(checkpoint: Checkpoint) -> HowPooled | None:
    """Return how a model is pooled; None: its files say nothing of it, or something else.

    Raises ModelError for a file that is broken.
    """
    source = checkpoint.tokenizer_source
    if isinstance(source, Mapping):
        kind = source.get(f"{source.get('general.architecture')}.pooling_type")
        return _OF_GGUF.get(kind) if isinstance(kind, int) else None
    file = checkpoint.path / "1_Pooling" / "config.json"
    if not file.is_file():
        return None
    try:
        value = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read: {error}. Download it again.") from None
    on = [
        name for name, given in value.items() if name.startswith("pooling_mode_") and given is True
    ]
    return _OF_FOLDER.get(on[0]) if len(on) == 1 else None
