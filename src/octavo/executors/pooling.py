"""Whether an engine embeds prompts, and how."""

from __future__ import annotations

from octavo.config import EngineConfig
from octavo.contract.pooling import HowPooled
from octavo.engine.loop import ModelRunner
from octavo.errors import ConfigError
from octavo.models.checkpoint import Checkpoint
from octavo.models.pooling import pooling_of
from octavo.runner.step_runner import StepRunner


def choose_pooling(
    config: EngineConfig, checkpoint: Checkpoint, runner: ModelRunner
) -> HowPooled | None:
    """Return how prompts are embedded. Raises ConfigError where it is asked for and cannot be."""
    if config.pooling == "auto":
        how = pooling_of(checkpoint)
        return how if isinstance(runner, StepRunner) else None
    if config.pooling == "none":
        return None
    if not isinstance(runner, StepRunner):
        raise ConfigError(
            f"pooling is {config.pooling!r}, but this backend embeds no prompts: choose the "
            "backend cpu or reference, or leave it out"
        )
    return "mean" if config.pooling == "mean" else "last"
