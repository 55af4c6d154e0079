"""The torch executor: any torch device, any backend and codec of the tables. Loads torch late."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.config import EngineConfig
from octavo.contract.formats import ITEM_BYTES, format_names
from octavo.contract.layout import KVLayout, kv_layout
from octavo.contract.model import ModelSpec
from octavo.errors import ConfigError
from octavo.executors.choice import named
from octavo.executors.gpu_memory import GATHERING, Card, Demand, GpuPlan, Way
from octavo.models.checkpoint import Checkpoint
from octavo.models.weights import weight_shapes

if TYPE_CHECKING:
    from typing import TypeAlias

    import torch

    from octavo.attention.backend import AttentionBackend
    from octavo.engine.loop import ModelRunner
    from octavo.executors.choice import Observer
    from octavo.models.decoder import Decoder
    from octavo.pages.arena import Arena
    from octavo.pages.codec import KVCodec, KVCodecs
    from octavo.runner.masks import Matchers

    MakeAttention: TypeAlias = Callable[[Arena, ModelSpec], AttentionBackend]


OTHERS = ("auto", "cpu", "flashinfer", "triton")
"""Backends that are no torch executors."""


def attention_backends() -> dict[str, MakeAttention]:
    """Return the attention backends by name, those of plug-ins included; loads torch."""
    from octavo.attention.reference import ReferenceAttention
    from octavo.plugins import extended

    def reference(arena: Arena, spec: ModelSpec) -> AttentionBackend:
        return ReferenceAttention(arena, num_heads=spec.num_heads)

    table: dict[str, MakeAttention] = {"reference": reference}
    return extended("octavo.attention", table)


def kv_codecs() -> dict[str, Callable[[], KVCodec]]:
    """Return the makers of KV codecs by name, those of plug-ins included; loads torch."""
    from octavo.pages.codecs import CODECS
    from octavo.plugins import extended

    return extended("octavo.codecs", CODECS)


def other_cards(device: str) -> list[Card]:
    """Describe the GPUs that torch sees, but for the one that is named; loads torch."""
    import torch

    from octavo.runner.device import device_memory, present

    cards: list[Card] = []
    for name in present():
        memory = None if name == device else device_memory(torch.device(name))
        if memory is not None:
            free, total = memory
            cards.append(Card(name, total, free))
    return cards


@dataclass(frozen=True, slots=True)
class TorchChoice:
    """A decoder of torch modules, on one device."""

    config: EngineConfig
    checkpoint: Checkpoint
    place: torch.device
    dtype: str
    """Of the weights."""
    codecs: KVCodecs
    layout: KVLayout
    way: Way = GATHERING
    depth: int = 1

    @property
    def backend(self) -> str:
        """Name the backend."""
        return self.config.backend

    @property
    def device(self) -> str:
        """Name the device: cpu, cuda:0, …."""
        return str(self.place)

    @property
    def lossy(self) -> str:
        """Names the codecs if KV does not come back as it was computed; else empty."""
        if all(self.dtype in codec.exact_for for codec in self.codecs):
            return ""
        return f"kv_cache_dtype={self.layout.dtype}"

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in their dtype."""
        shapes = weight_shapes(self.checkpoint.spec).values()
        return ITEM_BYTES[self.dtype] * sum(math.prod(shape) for shape in shapes)

    @property
    def gpu_plan(self) -> GpuPlan | None:
        """What will lie where on its GPU, as it is now; None: there is none."""
        from octavo.runner.device import device_memory

        memory = device_memory(self.place)
        if memory is None:
            return None
        free, total = memory
        return GpuPlan(Card(self.device, total, free), self.demand)

    @property
    def demand(self) -> Demand:
        """What it will hold on a GPU."""
        return Demand(
            config=self.config,
            spec=self.checkpoint.spec,
            layout=self.layout,
            dtype=self.dtype,
            weight_bytes=self.weight_bytes,
            way=self.way,
        )

    def load_decoder(self) -> Decoder:
        """Load the weights onto the device. Raises ConfigError or ModelError."""
        import torch

        from octavo.models.decoder import load_decoder

        try:
            return load_decoder(self.checkpoint, dtype=self.dtype, device=self.place)
        except torch.OutOfMemoryError as error:
            raise ConfigError(
                f"{self.place} has no room for {self.weight_bytes} bytes of weights any more: end "
                "what uses it, or choose another device"
            ) from error

    def reserve(self, num_blocks: int) -> Arena:
        """Reserve the KV memory. Raises ConfigError."""
        from octavo.pages.arena import Arena

        try:
            return Arena(self.layout, num_blocks, device=self.place, codecs=self.codecs)
        except RuntimeError as error:
            raise ConfigError(
                f"{num_blocks * self.layout.block_bytes} bytes of KV memory cannot be allocated on "
                f"{self.place}: lower kv_cache_memory_bytes or, on a GPU, gpu_memory_utilization"
            ) from error

    def make(
        self, num_blocks: int, on_logits: Observer | None, matchers: Matchers | None
    ) -> tuple[ModelRunner, tuple[int, ...]]:
        """Load the decoder and reserve the arena. Raises ConfigError or ModelError."""
        from octavo.runner.torch_runner import TorchRunner

        config = self.config
        decoder = self.load_decoder()
        arena = self.reserve(num_blocks)
        backend = named("backend", config.backend, attention_backends(), *OTHERS)
        runner = TorchRunner(
            decoder,
            arena,
            backend(arena, self.checkpoint.spec),
            deterministic=config.deterministic,
            matchers=matchers,
            on_logits=on_logits,
        )
        return runner, runner.row_tiles.sizes


def refuse_cpu_settings(config: EngineConfig, backend: str) -> None:
    """Raise ConfigError for a setting that only the backend cpu has."""
    for name in ("cpu_arithmetic", "threads"):
        value = getattr(config, name)
        if value is not None:
            raise ConfigError(
                f"{name} is {value!r}, but the backend is {backend!r}: only the backend cpu "
                f"has it; choose that, or leave {name} out"
            )


def choose_torch(config: EngineConfig, checkpoint: Checkpoint) -> TorchChoice:
    """Choose the torch executor. Raises ConfigError if torch, the device or a codec is missing."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigError(
            "this executor needs torch, which is not installed: pip install 'octavo[torch]', or "
            "choose the backend cpu"
        )
    from octavo.runner.device import find_device

    named("backend", config.backend, attention_backends(), *OTHERS)
    refuse_cpu_settings(config, config.backend)
    device = find_device(config.device)
    dtype = checkpoint.dtype if config.dtype == "auto" else config.dtype
    names = format_names(dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype)
    table = kv_codecs()
    keys, values = (named("kv_cache_dtype", name, table)() for name in names)
    for name, codec in zip(names, (keys, values), strict=True):
        if codec.format.name != name:
            raise ConfigError(
                f"KV codec {name!r} calls its format {codec.format.name!r}: its package must give "
                "both one name, or texts of two codecs might be mixed up"
            )
    stored = (keys.format, values.format)
    layout = kv_layout(checkpoint.spec, block_size=config.block_size, dtype=stored)
    return TorchChoice(config, checkpoint, device, dtype, (keys, values), layout)
