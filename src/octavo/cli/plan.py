"""The command `octavo plan`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from octavo.cli.flags import Argument, Option
from octavo.cli.output import note, print_json
from octavo.cli.pull import model_path
from octavo.errors import ConfigError
from octavo.sizes import parse_bytes

if TYPE_CHECKING:
    from octavo.planner.plan import Plan, Wish
    from octavo.planner.subject import Subject

Model = Annotated[
    str | None,
    Argument(help="A path, a known name, or a folder with a config.json; or give a shape."),
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
    layers: Layers = None,
    kv_heads: KVHeads = None,
    heads: Heads = None,
    head_dim: HeadDim = None,
    dtype: DType = "auto",
    context: Context = None,
    requests: Requests = 1,
    memory: Memory = None,
    block_size: BlockSize = 16,
    prefill_rate: PrefillRate = None,
    price_per_hour: PricePerHour = None,
    throughput: Throughput = None,
    load: Load = None,
    share_without_paging: Share = 0.31,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Say what fits into memory, before anything is loaded."""
    from octavo.machine import free_memory_bytes
    from octavo.planner.cost import Price, read_throughput
    from octavo.planner.plan import Wish, advise

    speed = None if throughput is None else read_throughput(throughput)
    size = free_memory_bytes() if memory is None else parse_bytes(memory, name="--memory")
    wish = Wish(
        memory_bytes=size,
        context_tokens=context,
        requests=requests,
        dtype=dtype,
        block_size=block_size,
        prefill_rate_per_s=prefill_rate,
        price=Price(price_per_hour, speed, load, share_without_paging),
    )
    shape = (layers, kv_heads, heads, head_dim)
    result = advise(_subject(model, shape, wish, offline=offline), wish)
    missing = (price_per_hour is not None or load is not None) and speed is None
    if missing:
        note("octavo: give --throughput as well: without it there is no cost")
    if json:
        print_json("octavo.plan/1", _settings(result, wish), msgspec.to_builtins(result))
    else:
        _print_table(result)


def _subject(
    model: str | None,
    shape: tuple[int | None, int | None, int | None, int | None],
    wish: Wish,
    *,
    offline: bool,
) -> Subject:
    from octavo.planner.subject import Shape, is_config_alone, model_subject, shape_subject

    layers, kv_heads, heads, head_dim = shape
    bare = any(number is not None for number in shape)
    if model is not None and bare:
        raise ConfigError(
            "give a model or a shape (--layers --kv-heads --heads --head-dim), not both"
        )
    if not bare:
        path = model_path(model, offline=offline)
        subject = model_subject(path)
        return subject if is_config_alone(path) else _as_it_runs(subject, path, wish)
    kv_heads = heads if kv_heads is None else kv_heads
    if layers is None or kv_heads is None or head_dim is None:
        raise ConfigError("a shape needs --layers, --kv-heads (or --heads) and --head-dim")
    return shape_subject(Shape(layers=layers, kv_heads=kv_heads, head_dim=head_dim, heads=heads))


def _as_it_runs(subject: Subject, path: Path, wish: Wish) -> Subject:
    """Count weights and KV as the backend that would be taken holds them."""
    from octavo.build import choose_executor
    from octavo.config import EngineConfig

    config = EngineConfig(model=str(path), kv_cache_dtype=wish.dtype, block_size=wish.block_size)
    try:
        choice = choose_executor(config)
    except ConfigError:  # without torch a plan is still a plan: as the reference backend would
        return subject
    return replace(subject, dtype=choice.layout.dtype, weights_bytes=choice.weight_bytes)


def _settings(plan: Plan, wish: Wish) -> dict[str, object]:
    return {
        "model": plan.model,
        "dtype": plan.dtype,
        "memory_bytes": plan.memory_bytes,
        "context_tokens": plan.context_tokens,
        "requests": plan.requests,
        "block_size": wish.block_size,
    }


def _print_table(plan: Plan) -> None:
    from rich.console import Console

    from octavo.planner.show import plan_bar, plan_table

    console = Console()
    console.print(f"{plan.model}, KV in {plan.dtype}", soft_wrap=True, highlight=False)
    console.print(plan_table(plan))
    console.print(plan_bar(plan))
    for line in plan.advice:
        console.print(f"it would fit with {line}", soft_wrap=True, highlight=False)
