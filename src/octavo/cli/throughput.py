"""The command `octavo bench throughput`."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli import bench as options
from octavo.cli.flags import Option
from octavo.cli.options import (
    Arithmetic,
    Backend,
    Deterministic,
    Device,
    DType,
    LoadFormat,
    Model,
    Shape,
    Threads,
)
from octavo.cli.output import note, print_json, say
from octavo.cli.pull import model_path
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.engine_facts import EngineFacts
    from octavo.bench.throughput import ThroughputRow
    from octavo.bench.works import Work, WorkTable
    from octavo.config import EngineConfig
    from octavo.llm import LLM

Works = Annotated[str | None, Option("--work", help="Works, by commas; default: all.")]
Rounds = Annotated[int, Option(help="Runs that count, after one that does not.")]
StepTokens = Annotated[
    int | None,
    Option(help="Tokens computed in one step; default: 2048, with dummy weights 8192."),
]
PoolSize = Annotated[
    int | None,
    Option(
        "--kv-cache-memory-bytes",
        help="Size of the KV pool; default: 2 GiB, with dummy weights what the engine takes.",
    ),
]

KV_BYTES = 2 << 30
MAX_SEQS = 256
STEP_TOKENS = 2048
LONGEST = 2048
"""What `benchmarks/peers/worker.py` gives to every engine too."""
GPU_STEP_TOKENS = 8192
GPU_LONGEST = 16_384
"""What the other engine on the GPU was given too."""
_MOST_ROUNDS = 1000


@dataclass(frozen=True, slots=True)
class _Setting:
    """The works of a kind of machine, and what an engine gets for them."""

    works: WorkTable
    longest: int
    step_tokens: int
    kv_bytes: int | None
    bandwidth: bool
    """How fast the machine's memory is read says something about them."""
    detokenize: bool


def throughput(
    work: Works = None,
    model: Model = None,
    load_format: LoadFormat = "auto",
    shape: Shape = None,
    backend: Backend = "auto",
    device: Device = "auto",
    threads: Threads = None,
    cpu_arithmetic: Arithmetic = None,
    dtype: DType = "auto",
    deterministic: Deterministic = False,
    max_num_batched_tokens: StepTokens = None,
    kv_cache_memory_bytes: PoolSize = None,
    rounds: Rounds = 5,
    plot: options.Plot = None,
    json: options.Json = False,
) -> None:
    """Tokens a second of the whole engine, at the works on which it is compared with others.

    Greedy answers of fixed lengths; the prefix cache is emptied before every run. With dummy
    weights: the works of a GPU.
    """
    from octavo import LLM
    from octavo.bench.engine_facts import engine_facts
    from octavo.bench.works import find_works
    from octavo.build import open_model
    from octavo.config import EngineConfig

    options.check_plot_file(plot)
    check_rounds(rounds)
    path = model if shape is not None else str(model_path(model))
    asked = EngineConfig(model=path, load_format=load_format, shape=shape)
    spec = open_model(asked, report=note).spec
    setting = _setting(load_format, max_num_batched_tokens, kv_cache_memory_bytes)
    longest = min(setting.longest, spec.context)
    works = find_works(work, vocab_size=spec.vocab_size, context=longest, table=setting.works)
    llm = LLM(
        path,
        load_format=load_format,
        shape=shape,
        dtype=dtype,
        backend=backend,
        device=device,
        threads=threads,
        cpu_arithmetic=cpu_arithmetic,
        deterministic=deterministic,
        kv_cache_memory_bytes=setting.kv_bytes,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=setting.step_tokens,
        max_model_len=longest,
    )
    facts = engine_facts(llm.built.backend, llm.built.device)
    with llm:
        llm.built.finish_start()
        rows = _measure(llm, works, setting, rounds)
    _show(_Found(rows, facts, llm.config, llm.built.model_path.name, rounds), plot, json=json)


def _setting(load_format: str, step_tokens: int | None, kv_bytes: int | None) -> _Setting:
    """Return what belongs to a load format; step_tokens and kv_bytes: what flags say instead."""
    from octavo.bench.works import CPU_WORKS, GPU_WORKS

    dummy = load_format == "dummy"
    if step_tokens is None:
        step_tokens = GPU_STEP_TOKENS if dummy else STEP_TOKENS
    if dummy:
        works, longest = GPU_WORKS, GPU_LONGEST
        return _Setting(works, longest, step_tokens, kv_bytes, bandwidth=False, detokenize=False)
    kv_bytes = KV_BYTES if kv_bytes is None else kv_bytes
    return _Setting(CPU_WORKS, LONGEST, step_tokens, kv_bytes, bandwidth=True, detokenize=True)


def _measure(llm: LLM, works: list[Work], setting: _Setting, rounds: int) -> list[ThroughputRow]:
    from octavo.bench.bandwidth import read_bytes_per_s
    from octavo.bench.throughput import measure_throughput
    from octavo.progress import work_bar

    with work_bar("runs", len(works) * (rounds + 1)) as advance:
        return [
            measure_throughput(
                one,
                lambda given: run_work(llm, given, detokenize=setting.detokenize),
                rounds=rounds,
                bandwidth=read_bytes_per_s if setting.bandwidth else None,
                advance=advance,
            )
            for one in works
        ]


def run_work(llm: LLM, work: Work, *, detokenize: bool = True) -> float:
    """Run a work without cached prefixes; returns its seconds."""
    from octavo import SamplingParams

    llm.reset_prefix_cache()
    prompts = [{"prompt_token_ids": request.prompt} for request in work.requests]
    params = [
        SamplingParams(
            temperature=0,
            max_tokens=request.output_tokens,
            ignore_eos=True,
            detokenize=detokenize,
        )
        for request in work.requests
    ]
    before = time.perf_counter()
    answers = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - before
    for answer, request in zip(answers, work.requests, strict=True):
        (output,) = answer.outputs
        if len(output.token_ids) != request.output_tokens:
            raise ConfigError(
                f"work {work.name}: an answer has {len(output.token_ids)} tokens instead of "
                f"{request.output_tokens} ({output.finish_reason}: {output.stop_reason}), so its "
                "time says nothing"
            )
    return seconds


def check_rounds(rounds: int) -> None:
    """Raise ConfigError for a number of rounds that cannot be run."""
    if not 1 <= rounds <= _MOST_ROUNDS:
        raise ConfigError(f"--rounds must be from 1 to {_MOST_ROUNDS}, got {rounds}")


# ── what comes out ────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Found:
    """What was measured, and on which engine."""

    rows: list[ThroughputRow]
    facts: EngineFacts
    config: EngineConfig
    model: str
    rounds: int


def _show(found: _Found, plot: Path | None, *, json: bool) -> None:
    from octavo.bench.gpu_goals import COMPARISONS, StartGoal, comparable
    from octavo.bench.plot_speed import plot_throughput
    from octavo.bench.show_gpu import gpu_table, start_line
    from octavo.bench.show_speed import throughput_table

    rows, config = found.rows, found.config
    start = None
    if comparable(config.shape, config.dtype, found.facts.card):
        start = StartGoal()
        rows = [row.judged(COMPARISONS[row.work]) for row in rows]
    if plot is not None:
        plot_throughput(rows, plot)
    if json:
        settings: dict[str, object] = {
            "model": found.model,
            "rounds": found.rounds,
            "python": platform.python_version(),
        }
        payload: dict[str, object] = {"engine": found.facts, "start_goal": start, "rows": rows}
        print_json("octavo.bench.throughput/1", settings, payload, config=config)
    elif config.load_format == "dummy":
        options.print_tables(gpu_table(rows))
        say(start_line(found.facts.start_s, start))
    else:
        options.print_tables(throughput_table(rows))
