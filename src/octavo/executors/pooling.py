"""Whether an engine embeds prompts, and how."""

from __future__ import annotations

from octavo.config import EngineConfig
from octavo.contract.pooling import HowPooled
from octavo.models.checkpoint import Checkpoint
from octavo.models.pooling import pooling_of


def choose_pooling(config: EngineConfig, checkpoint: Checkpoint) -> HowPooled | None:
    """Return how prompts are embedded; None: they are not. Raises ModelError for a broken file."""
    if config.pooling == "auto":
        return pooling_of(checkpoint)
    if config.pooling == "none":
        return None
    return "mean" if config.pooling == "mean" else "last"
