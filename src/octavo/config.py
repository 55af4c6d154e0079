"""Settings of an engine: frozen, checked once, never rewritten."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import SupportsIndex, TypeGuard, cast

from octavo.errors import ConfigError
from octavo.parameters import write_setting
from octavo.tenants import write_tenants

POOLINGS = ("auto", "none", "mean", "last")
DTYPES = ("auto", "float32", "bfloat16", "float16")
LOAD_FORMATS = ("auto", "dummy")
CPU_ARITHMETICS = ("int8", "bf16", "float32")
MOST_THREADS = 1024
LONG_PREFILL_ON_CPU, LONG_PREFILL_ON_GPU = 128, 512
"""Tokens of a long prompt in a step, so that it keeps others waiting for some tenths of a second at
most: docs/performance/serving.md."""
LONG_PREFILLS_ON_CPU, LONG_PREFILLS_ON_GPU = 1, 2
"""Long prompts in a step."""
_SWITCHES = ("partial_blocks", "kv_cache_metrics", "enforce_eager", "deterministic", "offline")
_REQUIRED = (
    "block_size",
    "max_num_seqs",
    "max_num_batched_tokens",
    "seed",
    "give_way_ms",
    "touch_ahead_mb",
)


_MOST_MS = 1000
_MOST_MB = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How to build an engine; names are vLLM's where it has the same setting.

    Raises ConfigError for a value that no engine could use.
    """

    model: str | None = None
    """A path or a known name; None: the embedded default."""
    load_format: str = "auto"
    """auto: weights are read from the model's files. dummy: they are made up, for measuring."""
    shape: str | None = None
    """With dummy weights, in place of a model: a published shape, such as llama-3.1-8b."""
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
    """None: a quarter of the free memory, or what gpu_memory_utilization leaves of a GPU; at most
    max_num_seqs texts of max_model_len."""
    gpu_memory_utilization: float | None = None
    """Share of a GPU's memory that may be used, by whomever: weights, workspace, graphs and KV come
    out of it, and what others use. None: 0.9. On other devices there is no such thing."""
    num_gpu_blocks_override: int | None = None
    """Blocks of the KV pool, in place of what memory would allow; at most that. On any device."""
    max_num_seqs: int = 128
    """Sequences that run at once."""
    max_num_batched_tokens: int = 2048
    """Tokens computed in one step, all sequences together."""
    long_prefill_token_threshold: int | None = 0
    """A prompt with more tokens to compute than this is given so many a step; 0: none is long.
    None, the server's default: as `long_prefill_tokens` says for the device."""
    max_long_partial_prefills: int | None = 2
    """Long prompts that are given tokens in one step; shorter ones pass the others. None, the
    server's default: as `long_prefills` says for the device."""
    max_model_len: int | None = None
    """Longest text; None: the model's context."""
    reservation: str = "on_demand"
    """How memory is set aside for a request; all but on_demand are baselines."""
    scheduling_policy: str | Mapping[str, str | int | float] = "fcfs"
    """Who runs first: fcfs, priority, longest_prefix, depth_first, or one that a plug-in brings; or
    a mapping of its name and its parameters. Kept as text, as eviction_policy is."""
    eviction_policy: str | Mapping[str, str | int | float] = "lru"
    """Which cached block is given up first: the name of a policy, ours or a plug-in's, or a mapping
    of its name and its parameters. Kept as text: the name, or the mapping as JSON."""
    structured_outputs_backend: str = "auto"
    """Which library makes the grammars that answers are held to: llguidance, or xgrammar where it
    is installed. auto: llguidance. A request may choose another."""
    pooling: str = "auto"
    """How prompts are embedded: mean, last (token), or none. auto: as the model's files say, which
    for most is none."""
    partial_blocks: bool = True
    """What a prompt shares with the beginning of a cached block is copied instead of computed. Of
    no effect with a reservation other than on_demand."""
    tenants: Mapping[str, Mapping[str, float]] | str | None = None
    """Shares of the KV memory by tenant: {name: {"guaranteed": 0.2, "maximum": 0.6}}, or that as
    JSON. Kept as text."""
    kv_cache_metrics: bool = False
    """Measure how long blocks stay, lie idle and wait to be used again."""
    kv_cache_metrics_sample: float = 0.01
    """Of the blocks given out, the share that is measured."""
    pin_limit: float = 0.0
    """Share of the KV memory that requests may pin; the longest text is shorter by as much."""
    backend: str = "auto"
    """cpu (native kernels, without torch), triton or flashinfer (NVIDIA GPUs), reference, or one
    that a plug-in brings. auto: what is quickest on the device among those that can do what is
    asked for."""
    cpu_arithmetic: str | None = None
    """Of the backend cpu, for weights of 8 bits or less: int8, bf16 or float32; None: int8, or
    what dtype implies. With the backend auto, this or threads means cpu."""
    threads: int | None = None
    """Of the backend cpu; None: one for each core that this process may use. More than that are
    allowed, with a note: they are slower."""
    give_way_ms: int = 0
    """Of the backend cpu: for so long after a step begins, its threads let others have their
    cores, who may have been given that step's predecessor to tell of. `octavo serve` says 5."""
    touch_ahead_mb: int = 0
    """Of the backend cpu: so much KV memory behind the blocks in use is taken from the system
    before it is written, so that no step waits for it; 0: when it is written. `octavo serve` says
    256."""
    enforce_eager: bool = False
    """On a GPU: start every kernel by itself, without captured graphs. Slower; less memory."""
    deterministic: bool = False
    """The same bits whatever else is in the batch, warm or cold: always so on the backend cpu,
    slower on others."""
    offline: bool = False
    """Never fetch a model."""
    record: str | Path | None = None
    """A file to which a line is added for each request: hashes and lengths, never text. For
    `octavo replay`."""

    def __post_init__(self) -> None:
        self._check_cpu()
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be True or False, got {getattr(self, name)!r}")
        model = cast("object", self.model)
        if model is not None and (not isinstance(model, str) or not model):
            raise ConfigError(f"model must be a path or a name, got {model!r}")
        self._check_load()
        if not isinstance(self.dtype, str) or self.dtype not in DTYPES:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"dtype {self.dtype!r} is not one of {', '.join(DTYPES)}")
        for name in ("device", "kv_cache_dtype", "structured_outputs_backend"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise ConfigError(f"{name} must be a name, or auto, got {value!r}")
        if self.pooling not in POOLINGS:
            raise ConfigError(f"pooling {self.pooling!r} is not one of {', '.join(POOLINGS)}")
        for name in ("eviction_policy", "scheduling_policy"):
            object.__setattr__(self, name, write_setting(name, getattr(self, name)))
        object.__setattr__(self, "tenants", write_tenants(self.tenants))
        self._settle_pin_limit()
        self._settle_sample()
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens"):
            self._settle_count(name, least=1)
        self._settle_count("long_prefill_token_threshold", least=0)
        self._settle_count("max_long_partial_prefills", least=1)
        self._settle_count("max_model_len", least=2)
        self._settle_count("kv_cache_memory_bytes", least=1)
        self._settle_count("num_gpu_blocks_override", least=1)
        if self.num_gpu_blocks_override is not None and self.kv_cache_memory_bytes is not None:
            raise ConfigError(
                f"num_gpu_blocks_override is {self.num_gpu_blocks_override} and "
                f"kv_cache_memory_bytes {self.kv_cache_memory_bytes}: give one of them, since both "
                "say how large the pool is"
            )
        self._settle_utilization()
        self._settle_count("seed", least=-(2**63))
        self._settle_record()

    def long_prefill_tokens(self, device: str) -> int:
        """Return what a long prompt is given a step on a device (cpu, cuda:0, …); 0: all of it."""
        if self.long_prefill_token_threshold is not None:
            return self.long_prefill_token_threshold
        return LONG_PREFILL_ON_CPU if device == "cpu" else LONG_PREFILL_ON_GPU

    def long_prefills(self, device: str) -> int:
        """Return how many long prompts are given tokens in one step on a device."""
        if self.max_long_partial_prefills is not None:
            return self.max_long_partial_prefills
        return LONG_PREFILLS_ON_CPU if device == "cpu" else LONG_PREFILLS_ON_GPU

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

    def _settle_utilization(self) -> None:
        share = cast("object", self.gpu_memory_utilization)
        if share is None:
            return
        if not (_is_number(share) and 0 < share <= 1):
            raise ConfigError(
                f"gpu_memory_utilization must be above 0 and at most 1, got {share!r:.80}"
            )
        object.__setattr__(self, "gpu_memory_utilization", float(share))

    def _settle_record(self) -> None:
        record = cast("object", self.record)
        if record is None:
            return
        path = str(record) if isinstance(record, Path) else record
        try:
            possible = isinstance(path, str) and path and b"\0" not in os.fsencode(path)
        except UnicodeEncodeError:
            possible = False
        if not possible:
            raise ConfigError(f"record must be the path of a file, got {record!r:.80}")
        object.__setattr__(self, "record", path)

    def _settle_sample(self) -> None:
        share = cast("object", self.kv_cache_metrics_sample)
        if isinstance(share, bool) or not isinstance(share, Real) or not 0 < float(share) <= 1:
            raise ConfigError(
                f"kv_cache_metrics_sample must be above 0 and at most 1, got {share!r:.80}"
            )
        object.__setattr__(self, "kv_cache_metrics_sample", float(share))

    def _settle_pin_limit(self) -> None:
        share = cast("object", self.pin_limit)
        if not (_is_number(share) and 0 <= share < 1):
            raise ConfigError(f"pin_limit must be a share from 0 to below 1, got {share!r:.80}")
        object.__setattr__(self, "pin_limit", float(share))

    def _check_load(self) -> None:
        if self.load_format not in LOAD_FORMATS:
            raise ConfigError(
                f"load_format {self.load_format!r} is not one of {', '.join(LOAD_FORMATS)}"
            )
        shape = cast("object", self.shape)
        if shape is None:
            return
        if not isinstance(shape, str) or not shape:
            raise ConfigError(f"shape must be a name, got {shape!r}")
        if self.model is not None:
            raise ConfigError(
                f"shape is {shape!r} and model is {self.model!r}: give one of them, since dummy "
                "weights have the shape of a model too"
            )
        if self.load_format != "dummy":
            raise ConfigError(
                f"shape is {shape!r}, which has no weights, but load_format is "
                f"{self.load_format!r}: make it dummy, or name a model instead of a shape"
            )

    def _check_cpu(self) -> None:
        if self.cpu_arithmetic not in (None, *CPU_ARITHMETICS):
            raise ConfigError(
                f"cpu_arithmetic {self.cpu_arithmetic!r} is not one of {', '.join(CPU_ARITHMETICS)}"
            )
        self._settle_count("threads", least=1)
        self._settle_count("give_way_ms", least=0)
        if self.give_way_ms > _MOST_MS:
            raise ConfigError(f"give_way_ms must be at most {_MOST_MS}, got {self.give_way_ms}")
        self._settle_count("touch_ahead_mb", least=0)
        if self.touch_ahead_mb > _MOST_MB:
            raise ConfigError(
                f"touch_ahead_mb must be at most {_MOST_MB}, got {self.touch_ahead_mb}"
            )
        if self.threads is not None and self.threads > MOST_THREADS:
            raise ConfigError(f"threads must be at most {MOST_THREADS}, got {self.threads}")


def _is_number(value: object) -> TypeGuard[float]:
    """True of a number of any kind, numpy's included; it may be too large for a float."""
    return not isinstance(value, bool) and isinstance(value, Real)
