"""How many blocks the pool of an engine has, wherever its memory lies."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.errors import ConfigError, ModelError
from octavo.executors.native import NATIVE, choose_native
from octavo.machine import free_memory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from octavo.config import EngineConfig
    from octavo.contract.layout import KVLayout
    from octavo.executors.choice import Choice
    from octavo.models.checkpoint import Checkpoint

_SHARE = 0.25
"""Of the machine's free memory, for the default pool."""


def num_blocks_of(
    config: EngineConfig,
    checkpoint: Checkpoint,
    executor: Choice,
    longest: int,
    *,
    report: Callable[[str], None],
) -> int:
    """Blocks of the KV pool, wherever it lies; the plan of a GPU is shown.

    Raises ConfigError if the model does not fit, or where a setting of GPUs means nothing.
    """
    plan = executor.gpu_plan
    if plan is None:
        if config.enforce_eager:
            raise ConfigError(
                f"enforce_eager is True, but on {executor.device} no graphs are captured: leave it "
                "out"
            )
        if config.gpu_memory_utilization is not None:
            raise ConfigError(
                f"gpu_memory_utilization is {config.gpu_memory_utilization}, but on "
                f"{executor.device} the pool lies in the machine's memory: leave it out, and give "
                "kv_cache_memory_bytes instead"
            )
        return pool_blocks(config, executor.layout, longest, weight_bytes=executor.weight_bytes)
    from octavo.executors.gpu_fit import require_fit
    from octavo.executors.torch import other_cards

    require_fit(
        plan,
        others=lambda: other_cards(executor.device),
        elsewhere=lambda: _cpu_flags(config, checkpoint, longest),
    )
    for line in plan.show():
        report(line)
    return _asked_for(config, executor.layout, plan.num_blocks) or plan.num_blocks


def _asked_for(config: EngineConfig, layout: KVLayout, most: int) -> int | None:
    """Return the blocks that the settings name; None: they name no number.

    Raises ConfigError if the memory does not hold them, or they do not hold one token.
    """
    count, least = (
        config.num_gpu_blocks_override,
        layout.peak_blocks(2, config.max_num_batched_tokens),
    )
    if count is None:
        return None
    if not least <= count <= most:
        raise ConfigError(
            f"num_gpu_blocks_override is {count}, but one sequence needs at least {least} blocks "
            f"and the memory holds {most}: choose a number between them, or lower block_size"
        )
    return count


def _cpu_flags(config: EngineConfig, checkpoint: Checkpoint, longest: int) -> list[str]:
    """Return the flags of the native executor, if it would run the model in this machine."""
    other = replace(config, backend=NATIVE, device="cpu", gpu_memory_utilization=None)
    try:
        choice = choose_native(other, checkpoint)
        count = pool_blocks(other, choice.layout, longest, weight_bytes=choice.weight_bytes)
    except (ConfigError, ModelError):
        return []
    asked = config.max_model_len or 2
    if count < choice.layout.peak_blocks(asked, config.max_num_batched_tokens):
        return []
    without = "" if config.gpu_memory_utilization is None else " without --gpu-memory-utilization"
    return [f"--backend {NATIVE} --device cpu{without}"]


def pool_blocks(
    config: EngineConfig, layout: KVLayout, longest: int, *, weight_bytes: int = 0
) -> int:
    """Blocks of a KV pool in the machine's memory, of which weights will take some more.

    Raises ConfigError if not even one token and its answer fit.
    """
    wanted, step = config.kv_cache_memory_bytes, config.max_num_batched_tokens
    free = free_memory_bytes() - weight_bytes
    if free <= 0:
        raise ConfigError(
            f"the weights take {weight_bytes / 2**30:.2f} GiB, but only "
            f"{(free + weight_bytes) / 2**30:.2f} GiB of memory are free: choose a smaller model, "
            "shape or dtype"
        )
    count = _asked_for(config, layout, layout.blocks_in(free))
    if count is not None:
        return count
    if wanted is None:
        ceiling = config.max_num_seqs * layout.peak_blocks(longest, step) * layout.block_bytes
        wanted = min(int(free * _SHARE), ceiling)
    if wanted > free:
        raise ConfigError(
            f"kv_cache_memory_bytes is {wanted}, but only {free} bytes of memory are free: lower it"
        )
    count = layout.blocks_in(wanted)
    least = layout.peak_blocks(2, step)
    if count < least:
        raise ConfigError(
            f"KV memory of {wanted} bytes holds {count} blocks of {layout.block_bytes} bytes, but "
            f"one sequence needs at least {least}: give kv_cache_memory_bytes at least "
            f"{least * layout.block_bytes}, or lower block_size (now {config.block_size})"
        )
    return count
