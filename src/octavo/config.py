"""Settings of an engine: frozen, checked once, never rewritten."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import SupportsIndex, cast

from octavo.errors import ConfigError

DTYPES = ("auto", "float32", "bfloat16", "float16")
CPU_ARITHMETICS = ("int8", "bf16", "float32")
MOST_THREADS = 1024
_REQUIRED = ("block_size", "max_num_seqs", "max_num_batched_tokens", "seed")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How to build an engine; names are vLLM's where it has the same setting.

    Raises ConfigError for a value that no engine could use.
    """

    model: str | None = None
    """A path or a known name; None: the embedded default."""
    dtype: str = "auto"
    """What weights are multiplied in. auto: on the backend cpu its cpu_arithmetic; on others the
    checkpoint's own, float32 for GGUF."""
    kv_cache_dtype: str = "auto"
    """How KV is stored: a codec's name, or two as KEYS/VALUES. auto: bfloat16 on the
    backend cpu unless its arithmetic is float32; on others as the weights' dtype."""
    device: str = "auto"
    """cpu, cuda, cuda:1, …, or another device that torch knows. auto: a GPU if there is one."""
    seed: int = 0
    """Requests without a seed derive theirs from this and from their number."""
    block_size: int = 16
    """Tokens per block."""
    kv_cache_memory_bytes: int | None = None
    """None: a quarter of the free memory, or three quarters of what the weights leave of a GPU; at
    most max_num_seqs texts of max_model_len."""
    max_num_seqs: int = 128
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Tokens computed in one step, all sequences together."""
    max_model_len: int | None = None
    """Longest text; None: the model's context."""
    reservation: str = "on_demand"
    """How memory is set aside for a request; all but on_demand are baselines."""
    scheduling_policy: str = "fcfs"
    """fcfs, priority, or one that a plug-in brings."""
    eviction_policy: str = "lru"
    """Which cached block is given up first: lru, or one that a plug-in brings."""
    backend: str = "auto"
    """cpu (native kernels, without torch), reference, or one that a plug-in brings. auto: cpu where
    it can do what is asked for and device does not mean a GPU, else reference."""
    cpu_arithmetic: str | None = None
    """Of the backend cpu, for weights of 8 bits or less: int8, bf16 or float32; None: int8, or
    what dtype implies. With the backend auto, this or threads means cpu."""
    threads: int | None = None
    """Of the backend cpu; None: one for each core that this process may use. More than that are
    allowed, with a note: they are slower."""
    deterministic: bool = False
    """The same bits whatever else is in the batch, warm or cold: always so on the backend cpu,
    slower on others."""
    offline: bool = False
    """Never fetch a model."""

    def __post_init__(self) -> None:
        self._check_cpu()
        for name in ("deterministic", "offline"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be True or False, got {getattr(self, name)!r}")
        model = cast("object", self.model)
        if model is not None and (not isinstance(model, str) or not model):
            raise ConfigError(f"model must be a path or a name, got {model!r}")
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        for name in ("device", "kv_cache_dtype"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{name} must be a name, or auto, got {value!r}")
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            self._settle_count(name, least=1)
        self._settle_count("max_model_len", least=2)
        self._settle_count("kv_cache_memory_bytes", least=1)
        self._settle_count("seed", least=-(2**63))

    def _settle_count(self, name: str, *, least: int) -> None:
        """Check a whole number of any kind, numpy's included, and keep it as an int; None stays."""
        value = getattr(self, name)
        if value is None and name not in _REQUIRED:
            return
        try:
            whole = operator.index(cast("SupportsIndex", value))
        except TypeError:
            raise ConfigError(f"{name} must be a whole number, got {value!r}") from None
        if isinstance(value, bool):
            raise ConfigError(f"{name} must be a whole number, got {value!r}")
        if whole < least:
            raise ConfigError(f"{name} must be at least {least}, got {whole}")
        if whole >= 2**63:
            raise ConfigError(f"{name} must be below 2^63, got {whole}")
        object.__setattr__(self, name, whole)

    def _check_cpu(self) -> None:
        if self.cpu_arithmetic not in (None, *CPU_ARITHMETICS):
            raise ConfigError(
                f"cpu_arithmetic {self.cpu_arithmetic!r} is not one of {', '.join(CPU_ARITHMETICS)}"
            )
        self._settle_count("threads", least=1)
        if self.threads is not None and self.threads > MOST_THREADS:
            raise ConfigError(f"threads must be at most {MOST_THREADS}, got {self.threads}")
