"""The GPU executor: fused kernels, captured steps, two of them in flight. Loads torch late."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.config import EngineConfig
from octavo.contract.layout import KVLayout
from octavo.errors import ConfigError
from octavo.executors.gpu_memory import (
    FLASHINFER_BYTES,
    FUSED,
    GpuPlan,
    captured_sizes,
    fused_dtype,
    mixed_sizes,
)
from octavo.executors.torch import TorchChoice, choose_torch, refuse_cpu_settings
from octavo.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from octavo.attention.paged import PagedAttention, TritonAttention
    from octavo.engine.loop import ModelRunner
    from octavo.executors.choice import Observer
    from octavo.models.decoder import Decoder
    from octavo.models.fused import FusedDecoder
    from octavo.pages.arena import Arena
    from octavo.runner.gpu_graphs import StepGraphs
    from octavo.runner.gpu_runner import GpuRunner, Newest
    from octavo.runner.masks import Matchers

TRITON = "triton"
"""Its name as a backend: attention by our own kernels."""

FLASHINFER = "flashinfer"
"""Its name as a backend: attention of prompts by FlashInfer."""

NAMES = (FLASHINFER, TRITON)

FLASHINFER_HEADS = (64, 128, 256)

_COMPILED_S = 5.0
"""How long the start waits for FlashInfer's kernels: longer than to load what has been compiled."""

LEAST_CAPABILITY = (8, 0)
"""Of a card: before Ampere none multiplies bfloat16."""


class GpuUnfit(ConfigError):
    """The GPU executor cannot do what is asked for; `auto` takes another one."""


@dataclass(frozen=True, slots=True)
class GpuChoice:
    """A fused decoder on one GPU."""

    plain: TorchChoice
    """The same on the reference executor: what is known of the model's memory."""
    backend: str
    report: Callable[[str], None]
    """Told what serves prompts while FlashInfer's kernels are compiled, or without them."""
    required: bool
    """The backend is asked for by name."""
    depth: int = 2

    @property
    def layout(self) -> KVLayout:
        """How its KV memory is laid out."""
        return self.plain.layout

    @property
    def device(self) -> str:
        """Name the device: cuda:0, …."""
        return self.plain.device

    @property
    def lossy(self) -> str:
        """Names the codecs if KV does not come back as it was computed; else empty."""
        return self.plain.lossy

    @property
    def exact(self) -> bool:
        """Whether no bit of a text may depend on others."""
        return self.plain.config.deterministic

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weights in their dtype."""
        return self.plain.weight_bytes

    @property
    def gpu_plan(self) -> GpuPlan | None:
        """What will lie where on its GPU, as it is now."""
        return self.plain.gpu_plan

    def make(
        self, num_blocks: int, on_logits: Observer | None, matchers: Matchers | None
    ) -> tuple[ModelRunner, tuple[int, ...]]:
        """Load the decoder, reserve the memory and capture graphs. Raises as `TorchChoice.make`."""
        from octavo.runner.device import on_device

        decoder = self.plain.load_decoder()
        arena = self.plain.reserve(num_blocks)
        with on_device(arena.device):
            return self._runner(decoder, arena, on_logits, matchers), ()

    def _runner(
        self,
        decoder: Decoder,
        arena: Arena,
        on_logits: Observer | None,
        matchers: Matchers | None,
    ) -> GpuRunner:
        from octavo.attention.paged import TritonAttention
        from octavo.models.fused import FusedDecoder
        from octavo.runner.gpu_runner import GpuRunner, Newest
        from octavo.runner.gpu_step import StepCutter

        config, spec, exact = self.plain.config, self.plain.checkpoint.spec, self.exact
        most_parts, longest = self.plain.demand.parts, self.plain.demand.longest
        newest = Newest(max(64, 2 * config.max_num_seqs), arena.device)
        fused = FusedDecoder(decoder, positions=longest, newest=newest.tokens, exact=exact)
        single = TritonAttention(
            arena,
            num_heads=spec.num_heads,
            most_parts=most_parts,
            most_entries=config.max_num_seqs,
        )
        attention = self._attention(single, decoder)
        cutter = StepCutter(self.layout, single.shapes, most_parts=most_parts, exact=exact)
        graphs = None
        if arena.device.type == "cuda" and fused.capturable and not config.enforce_eager:
            graphs = self._graphs(fused, attention, newest)
        runner = GpuRunner(
            fused,
            arena,
            attention,
            cutter,
            newest,
            graphs=graphs,
            matchers=matchers,
            on_logits=on_logits,
        )
        if arena.device.type == "cuda":
            self._await_kernels(attention)
            runner.warm_up(config.max_num_batched_tokens, longest)
        return runner

    def _await_kernels(self, attention: PagedAttention) -> None:
        """Wait for attention's kernels as long as loading takes. Raises GpuUnfit if they fail."""
        error = attention.wait(_COMPILED_S)
        if error is not None and self.required:
            raise GpuUnfit(
                f"the backend {self.backend} cannot compile its kernels: FlashInfer needs nvcc of "
                f"CUDA's toolkit, or flashinfer-jit-cache; or choose the backend {TRITON}"
            ) from error
        if attention.compiling:
            self.report(
                "FlashInfer compiles its kernels, once, for a minute or two; until then prompts go "
                "through triton's"
            )

    def _attention(self, single: TritonAttention, decoder: Decoder) -> PagedAttention:
        """Put FlashInfer before our kernels, if it is asked for."""
        if self.backend != FLASHINFER or self.exact:
            return single
        from octavo.attention.flashinfer import FlashInferAttention

        return FlashInferAttention(
            single,
            dtype=decoder.dtype,
            device=decoder.device,
            workspace_bytes=FLASHINFER_BYTES,
            report=self.report,
        )

    def _graphs(
        self, decoder: FusedDecoder, attention: PagedAttention, newest: Newest
    ) -> StepGraphs:
        from octavo.runner.gpu_graphs import GraphSizes, StepGraphs

        config, demand = self.plain.config, self.plain.demand
        each = (-(-demand.longest // size) for size in self.layout.block_sizes)
        sizes = GraphSizes(
            single=captured_sizes(config.max_num_seqs),
            mixed=mixed_sizes(config.max_num_batched_tokens),
            parts=demand.parts,
            blocks=tuple(config.max_num_seqs * blocks for blocks in each),
            exact=self.exact,
        )
        graphs = StepGraphs(decoder, attention, self.layout, newest.chosen, sizes)
        graphs.capture_all()
        return graphs


def choose_gpu(
    config: EngineConfig, checkpoint: Checkpoint, *, report: Callable[[str], None]
) -> GpuChoice:
    """Choose the GPU executor; `auto` means FlashInfer where it is installed and fits.

    Raises ConfigError if the device or a library is missing; GpuUnfit, which is one, if the
    kernels cannot do what is asked for. report: see `GpuChoice`.
    """
    if config.backend != "auto":
        return _choose(config.backend, config, checkpoint, report)
    if config.deterministic or importlib.util.find_spec(FLASHINFER) is None:
        return _choose(TRITON, config, checkpoint, report)
    try:
        return _choose(FLASHINFER, config, checkpoint, report)
    except GpuUnfit as unfit:
        other = _choose(TRITON, config, checkpoint, report)
        report(f"backend: {TRITON} ({unfit})")
        return other


def _choose(
    backend: str, config: EngineConfig, checkpoint: Checkpoint, report: Callable[[str], None]
) -> GpuChoice:
    refuse_cpu_settings(config, backend)
    stored_dtype = checkpoint.dtype if interpreted() else fused_dtype(checkpoint.dtype)
    dtype = stored_dtype if config.dtype == "auto" else config.dtype
    plain = choose_torch(replace(config, backend="reference", dtype=dtype), checkpoint)
    if plain.place.type == "cuda":
        _check_card(backend, plain)
    elif not interpreted():
        raise GpuUnfit(
            f"the backend {backend} computes on NVIDIA GPUs, but the device is {plain.place}: "
            "choose the backend cpu or reference, or a CUDA device"
        )
    elif dtype == "bfloat16":
        raise GpuUnfit(
            "Triton's interpreter does not multiply bfloat16: choose float32 or float16 as dtype, "
            "or leave TRITON_INTERPRET out on a GPU"
        )
    _check_libraries(backend)
    if config.deterministic and checkpoint.spec.experts is not None:
        raise GpuUnfit(
            f"the backend {backend} has no deterministic mode for mixtures of experts: choose the "
            "backend reference, or turn deterministic off"
        )
    stored = {plain.layout.keys.name, plain.layout.values.name}
    if not stored <= set(FUSED.reads) or len(stored) > 1:
        raise GpuUnfit(
            f"the backend {backend} reads KV stored as {', '.join(FUSED.reads)}, not as "
            f"{plain.layout.dtype}: choose one of these as kv_cache_dtype, or the backend reference"
        )
    if backend == FLASHINFER:
        _check_flashinfer(plain)
    way = replace(FUSED, library_bytes=FLASHINFER_BYTES) if backend == FLASHINFER else FUSED
    plain = replace(plain, config=replace(config, dtype=dtype), way=way)
    return GpuChoice(plain, backend, report, required=config.backend != "auto")


def _check_libraries(backend: str) -> None:
    """Raise GpuUnfit if what the backend needs is not installed."""
    if backend == FLASHINFER and importlib.util.find_spec("flashinfer") is None:
        raise GpuUnfit(
            f"the backend {backend} needs FlashInfer, which is not installed: pip install "
            f"'octavo[gpu]', or choose the backend {TRITON}"
        )
    if importlib.util.find_spec("triton") is None:
        raise GpuUnfit(
            f"the backend {backend} needs Triton, which is not installed: pip install "
            "'octavo[gpu]', or choose the backend reference"
        )


def _check_card(backend: str, plain: TorchChoice) -> None:
    """Raise GpuUnfit for a card that is older than the kernels."""
    import torch

    found = torch.cuda.get_device_capability(plain.place)
    if found < LEAST_CAPABILITY:
        raise GpuUnfit(
            f"the backend {backend} needs compute capability {_dotted(LEAST_CAPABILITY)}, but "
            f"{plain.place} has {_dotted(found)}: choose the backend reference"
        )


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def _check_flashinfer(plain: TorchChoice) -> None:
    """Raise GpuUnfit if FlashInfer cannot do what is asked for."""
    size, stored = plain.checkpoint.spec.head_dim, plain.layout.dtype
    if size not in FLASHINFER_HEADS or stored == "float32" or plain.dtype != stored:
        sizes = " or ".join(map(str, FLASHINFER_HEADS))
        raise GpuUnfit(
            f"the backend {FLASHINFER} attends with heads of {sizes} numbers in bfloat16 or "
            f"float16, not with {size} in {plain.dtype} on KV in {stored}: choose the backend "
            f"{TRITON}"
        )


def interpreted() -> bool:
    """Tell whether Triton's kernels are interpreted, on CPU tensors: how tests run them."""
    return os.environ.get("TRITON_INTERPRET") == "1"
