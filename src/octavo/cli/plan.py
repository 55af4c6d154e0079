"""The command `octavo plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from octavo.cli.flags import Argument, Option
from octavo.cli.options import DEVICE_HELP, MaxSeqs, StepTokens, Utilization
from octavo.cli.output import note, print_json
from octavo.cli.pull import model_path
from octavo.errors import ConfigError
from octavo.sizes import parse_bytes

if TYPE_CHECKING:
    from octavo.config import EngineConfig
    from octavo.executors.gpu_memory import GpuPlan
    from octavo.planner.plan import Plan, Wish
    from octavo.planner.subject import Subject

Model = Annotated[
    str | None,
    Argument(help="A path, a known name, or a folder with a config.json; or give a shape."),
]
Published = Annotated[
    str | None, Option(help="A published shape in place of a model: llama-3.1-8b, ….")
]
Layers = Annotated[int | None, Option(help="Of a bare shape.")]
KVHeads = Annotated[int | None, Option(help="Of a bare shape; default: --heads.")]
Heads = Annotated[
    int | None, Option(help="Of a bare shape: query heads, a multiple of the KV heads.")
]
HeadDim = Annotated[int | None, Option(help="Of a bare shape: numbers in one head.")]
DType = Annotated[str, Option(help="Of KV: auto, float32, …, int8, or two as KEYS/VALUES.")]
Context = Annotated[
    int | None,
    Option(help="Tokens of a request, answer included; default: all the model can."),
]
Requests = Annotated[int, Option(help="Requests at once.")]
Memory = Annotated[
    str | None, Option(help="12GiB, 40GB or bytes; default: this machine's free memory.")
]
Device = Annotated[str, Option(help=DEVICE_HELP)]
GpuMemory = Annotated[
    str | None, Option(help="All that a GPU has, such as 141GB; it need not be here.")
]
BlockSize = Annotated[int, Option(help="Tokens per KV block.")]
PrefillRate = Annotated[
    float | None, Option(help="Requests a second whose KV is sent to another machine.")
]
PricePerHour = Annotated[float | None, Option(help="Of one machine; gives costs.")]
Throughput = Annotated[
    str | None, Option(help="Output tokens/s of one machine, or a record with them.")
]
Load = Annotated[float | None, Option(help="Output tokens/s that a fleet must give.")]
Share = Annotated[float, Option(help="Load sustained without paging, as a share of that with it.")]
Offline = Annotated[bool, Option("--offline", help="Never fetch a model.")]
Json = Annotated[bool, Option("--json", help="Print one JSON document.")]


def plan(
    model: Model = None,
    shape: Published = None,
    layers: Layers = None,
    kv_heads: KVHeads = None,
    heads: Heads = None,
    head_dim: HeadDim = None,
    dtype: DType = "auto",
    context: Context = None,
    requests: Requests = 1,
    memory: Memory = None,
    block_size: BlockSize = 16,
    max_num_seqs: MaxSeqs = 128,
    max_num_batched_tokens: StepTokens = 2048,
    device: Device = "auto",
    gpu_memory: GpuMemory = None,
    gpu_memory_utilization: Utilization = None,
    prefill_rate: PrefillRate = None,
    price_per_hour: PricePerHour = None,
    throughput: Throughput = None,
    load: Load = None,
    share_without_paging: Share = 0.31,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Say what fits into memory, before anything is loaded."""
    from octavo.planner.cost import Price, read_throughput
    from octavo.planner.plan import Wish, advise

    speed = None if throughput is None else read_throughput(throughput)
    _check_memory(device, memory, gpu_memory)
    wish = Wish(
        memory_bytes=_memory_bytes(memory, gpu_memory),
        context_tokens=context,
        requests=requests,
        dtype=dtype,
        block_size=block_size,
        step_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        prefill_rate_per_s=prefill_rate,
        price=Price(price_per_hour, speed, load, share_without_paging),
    )
    config = _config(wish, device, gpu_memory_utilization)
    numbers = (layers, kv_heads, heads, head_dim)
    subject, path = _subject(model, shape, numbers, offline=offline)
    _check_context(context, subject)
    gpu: GpuPlan | None = None
    if gpu_memory is not None:
        gpu = _plan_of_card(subject, wish, config)
    elif path is not None:
        subject, here = _as_it_runs(subject, path, config)
        gpu = here if memory is None else None
    if gpu is not None:
        subject = _counted(subject, gpu)
        wish = replace(wish, memory_bytes=gpu.card.total_bytes)
    elif device not in ("auto", "cpu") and path is None:
        raise ConfigError(f"--device {device} needs --gpu-memory: there are no weights to run here")
    elif gpu_memory_utilization is not None:
        raise ConfigError("--gpu-memory-utilization is of a GPU: give --gpu-memory as well")
    result = advise(subject, wish)
    missing = (price_per_hour is not None or load is not None) and speed is None
    if missing:
        note("octavo: give --throughput as well: without it there is no cost")
    if json:
        print_json("octavo.plan/1", _settings(result, wish), msgspec.to_builtins(result))
    else:
        _print_table(result, gpu)


def _check_context(context: int | None, subject: Subject) -> None:
    if context is not None and subject.context is not None and context > subject.context:
        raise ConfigError(
            f"--context is {context}, but the model's context is {subject.context}: lower it"
        )


def _check_memory(device: str, memory: str | None, gpu_memory: str | None) -> None:
    """Raise ConfigError for flags that contradict each other."""
    if memory is not None and device not in ("auto", "cpu"):
        raise ConfigError("--memory is the machine's: for a GPU give --gpu-memory instead")
    if gpu_memory is None:
        return
    if memory is not None:
        raise ConfigError("give --memory or --gpu-memory, not both")
    if device != "auto" and device.partition(":")[0] != "cuda":
        raise ConfigError(f"--gpu-memory is of a GPU, but --device is {device!r}: leave one out")


def _memory_bytes(memory: str | None, gpu_memory: str | None) -> int:
    from octavo.machine import free_memory_bytes

    if gpu_memory is not None:
        return parse_bytes(gpu_memory, name="--gpu-memory")
    return free_memory_bytes() if memory is None else parse_bytes(memory, name="--memory")


def _config(wish: Wish, device: str, utilization: float | None) -> EngineConfig:
    """Return the settings of an engine for such a wish."""
    from octavo.config import EngineConfig

    return EngineConfig(
        kv_cache_dtype=wish.dtype,
        device=device,
        block_size=wish.block_size,
        gpu_memory_utilization=utilization,
        max_num_seqs=wish.max_num_seqs,
        max_num_batched_tokens=wish.step_tokens,
    )


def _subject(
    model: str | None,
    published: str | None,
    numbers: tuple[int | None, int | None, int | None, int | None],
    *,
    offline: bool,
) -> tuple[Subject, Path | None]:
    """Return what is planned for, and where its weights are; None: there are none."""
    from octavo.planner.subject import (
        Shape,
        is_config_alone,
        model_subject,
        published_subject,
        shape_subject,
    )

    layers, kv_heads, heads, head_dim = numbers
    bare = any(number is not None for number in numbers)
    if sum((model is not None, published is not None, bare)) > 1:
        raise ConfigError(
            "give a model or a shape (--shape, or --layers --kv-heads --heads --head-dim), not both"
        )
    if published is not None:
        return published_subject(published), None
    if not bare:
        path = model_path(model, offline=offline)
        return model_subject(path), None if is_config_alone(path) else path
    kv_heads = heads if kv_heads is None else kv_heads
    if layers is None or kv_heads is None or head_dim is None:
        raise ConfigError("a shape needs --layers, --kv-heads (or --heads) and --head-dim")
    given = Shape(layers=layers, kv_heads=kv_heads, head_dim=head_dim, heads=heads)
    return shape_subject(given), None


def _as_it_runs(
    subject: Subject, path: Path, config: EngineConfig
) -> tuple[Subject, GpuPlan | None]:
    """Count weights and KV as the executor that would be taken holds them, and its GPU's memory."""
    from octavo.build import choose_executor

    try:
        choice = choose_executor(replace(config, model=str(path)))
    except ConfigError:
        if config.device != "auto":
            raise
        # Without torch a plan is still a plan: as the reference backend would.
        return subject, None
    dtype, weights = choice.layout.dtype, choice.weight_bytes
    return replace(subject, dtype=dtype, weights_bytes=weights), choice.gpu_plan


def _plan_of_card(subject: Subject, wish: Wish, config: EngineConfig) -> GpuPlan:
    """Count as an engine would on a GPU of that memory, with nothing on it but the driver."""
    from octavo.contract.formats import ITEM_BYTES, format_names
    from octavo.contract.model import ModelSpec
    from octavo.executors.gpu_memory import (
        CONTEXT_BYTES,
        FUSED,
        GATHERING,
        Card,
        Demand,
        GpuPlan,
        fused_dtype,
    )

    if not isinstance(subject.source, ModelSpec) or subject.weights_bytes is None:
        raise ConfigError(
            "--gpu-memory needs a model: a bare shape has neither weights nor a workspace"
        )
    keys, values = format_names("bfloat16" if wish.dtype == "auto" else wish.dtype)
    way = FUSED if keys == values and keys in FUSED.reads else GATHERING
    dtype = fused_dtype(subject.dtype) if way is FUSED else subject.dtype
    stored = dtype if wish.dtype == "auto" else wish.dtype
    demand = Demand(
        config=config,
        spec=subject.source,
        layout=subject.layout(block_size=wish.block_size, dtype=stored),
        dtype=dtype,
        weight_bytes=subject.weights_bytes * ITEM_BYTES[dtype] // ITEM_BYTES[subject.dtype],
        way=way,
    )
    size = wish.memory_bytes
    return GpuPlan(Card("cuda", size, max(0, size - CONTEXT_BYTES)), demand)


def _counted(subject: Subject, gpu: GpuPlan) -> Subject:
    """Plan with what was counted for a GPU."""
    from octavo.executors.gpu_memory import total
    from octavo.planner.subject import OnGpu

    on_gpu = OnGpu(
        utilization=gpu.utilization,
        taken_bytes=gpu.card.used_bytes,
        workspace_bytes=total(gpu.demand.workspace()),
        graph_bytes=total(gpu.demand.graphs()),
    )
    demand = gpu.demand
    return replace(
        subject, dtype=demand.layout.dtype, weights_bytes=demand.weight_bytes, gpu=on_gpu
    )


def _settings(plan: Plan, wish: Wish) -> dict[str, object]:
    return {
        "model": plan.model,
        "dtype": plan.dtype,
        "memory_bytes": plan.memory_bytes,
        "gpu_memory_bytes": plan.gpu_memory_bytes,
        "gpu_memory_utilization": plan.gpu_memory_utilization,
        "context_tokens": plan.context_tokens,
        "requests": plan.requests,
        "block_size": wish.block_size,
    }


def _print_table(plan: Plan, gpu: GpuPlan | None) -> None:
    from rich.console import Console

    from octavo.planner.show import plan_bar, plan_table

    console = Console()
    console.print(f"{plan.model}, KV in {plan.dtype}", soft_wrap=True, highlight=False)
    for line in () if gpu is None else gpu.show():
        console.print(line, soft_wrap=True, highlight=False)
    console.print(plan_table(plan))
    console.print(plan_bar(plan))
    for line in plan.advice:
        console.print(f"it would fit with {line}", soft_wrap=True, highlight=False)
