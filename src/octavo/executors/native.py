"""The native executor of the CPU, without torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.config import EngineConfig
from octavo.contract.layout import KVLayout
from octavo.cpu import ISA_VARIABLE, NativeUnfit, require_native
from octavo.errors import ConfigError
from octavo.machine import available_cores
from octavo.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from octavo.engine.loop import ModelRunner
    from octavo.executors.choice import Observer
    from octavo.executors.gpu_memory import GpuPlan
    from octavo.runner.masks import Matchers

NATIVE = "cpu"
"""Its name as a backend."""

_OF_DTYPE = {"auto": None, "float32": "float32", "bfloat16": "bf16"}
_KV_DTYPES = {"int8": "bfloat16", "bf16": "bfloat16", "float32": "float32"}


@dataclass(frozen=True, slots=True)
class NativeChoice:
    """One native engine, with threads of its own."""

    config: EngineConfig
    checkpoint: Checkpoint
    arithmetic: str
    layout: KVLayout
    backend: str = NATIVE
    device: str = "cpu"
    gpu_plan: GpuPlan | None = None
    depth: int = 1

    @property
    def weight_bytes(self) -> int:
        """Bytes that the packed weights take."""
        from octavo.runner.native_size import packed_bytes

        return packed_bytes(self.checkpoint, arithmetic=self.arithmetic)

    @property
    def lossy(self) -> str:
        """Names the arithmetic if KV is not that of float32 arithmetic."""
        return "" if self.arithmetic == "float32" else f"cpu_arithmetic={self.arithmetic}"

    def make(
        self, num_blocks: int, on_logits: Observer | None, matchers: Matchers | None
    ) -> tuple[ModelRunner, tuple[int, ...]]:
        """Pack the weights and reserve the KV memory. Raises ConfigError or ModelError."""
        from octavo.runner.native import NativeExecutor, start_threads

        try:
            executor = NativeExecutor(
                self.checkpoint,
                self.layout,
                num_blocks,
                arithmetic=self.arithmetic,
                pool=start_threads(
                    self.config.threads or available_cores(), self.config.give_way_ms
                ),
                touch_ahead_mb=self.config.touch_ahead_mb,
            )
        except MemoryError:
            raise ConfigError(
                f"{num_blocks * self.layout.block_bytes} bytes of KV memory cannot be allocated "
                "beside the weights: lower kv_cache_memory_bytes"
            ) from None
        # Loaded while the weights are packed.
        from octavo.runner.native_sampler import NativeSampler
        from octavo.runner.step_runner import StepRunner

        # A row's bits never depend on its company: strict mode changes nothing.
        sampler = NativeSampler(executor)
        return StepRunner(executor, sampler=sampler, matchers=matchers, on_logits=on_logits), ()


def choose_native(config: EngineConfig, checkpoint: Checkpoint) -> NativeChoice:
    """Choose the native executor. Raises NativeUnfit for what it cannot do."""
    from octavo.runner.native_model import check_stored
    from octavo.runner.native_padding import native_layout

    native_isa()
    if config.device not in ("auto", "cpu"):
        raise NativeUnfit(
            f"device is {config.device!r}, but the backend cpu runs on the CPU",
            "leave device out",
        )
    arithmetic = _arithmetic(config)
    kv_dtype = _KV_DTYPES[arithmetic]
    if config.kv_cache_dtype not in ("auto", kv_dtype):
        raise NativeUnfit(
            f"kv_cache_dtype is {config.kv_cache_dtype!r}, but with {arithmetic} arithmetic the "
            f"backend cpu stores KV as {kv_dtype}",
            "leave it out",
        )
    check_stored(checkpoint)
    layout = native_layout(checkpoint.spec, block_size=config.block_size, dtype=kv_dtype)
    return NativeChoice(config, checkpoint, arithmetic, layout)


def native_isa() -> str:
    """Name the instruction set in use. Raises NativeUnfit if there is no native executor."""
    native = require_native()
    try:
        return native.isa()
    except ValueError as error:
        raise ConfigError(f"environment variable {ISA_VARIABLE}: {error}") from None


def _arithmetic(config: EngineConfig) -> str:
    """Work out the arithmetic; a dtype implies one."""
    if config.dtype not in _OF_DTYPE:
        raise NativeUnfit(
            f"dtype is {config.dtype!r}, but the backend cpu computes in float32, bfloat16 or, "
            "with dtype auto, in 8 bits",
            "choose one of these",
        )
    implied, asked = _OF_DTYPE[config.dtype], config.cpu_arithmetic
    if implied is not None and asked not in (None, implied):
        raise ConfigError(
            f"dtype {config.dtype!r} means {implied} arithmetic, but cpu_arithmetic is {asked!r}: "
            "leave one of them out"
        )
    return implied or asked or "int8"
