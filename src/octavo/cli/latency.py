"""The command `octavo bench latency`."""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli import bench as options
from octavo.cli.flags import Option
from octavo.cli.options import Arithmetic, Backend, Deterministic, DType, Model, Threads
from octavo.cli.output import print_json
from octavo.cli.pull import model_path
from octavo.cli.throughput import STEP_TOKENS, Rounds, check_rounds
from octavo.errors import ConfigError
from octavo.sizes import parse_bytes, parse_counts

if TYPE_CHECKING:
    from octavo.bench.latency import LatencyRow
    from octavo.bench.steps import Line, StepBench, StepRow
    from octavo.bench.works import Work
    from octavo.llm import LLM
    from octavo.models.checkpoint import Checkpoint

Batches = Annotated[str, Option("--batch", help="Requests that arrive together, by commas.")]
Prompts = Annotated[str, Option("--prompt", help="Tokens of their prompts, by commas.")]
Tokens = Annotated[int, Option("--max-tokens", help="Tokens of their answers.")]
Rows = Annotated[str, Option("--rows", help="Sequences of a step, by commas.")]
Contexts = Annotated[
    str | None,
    Option(
        "--context",
        help="Tokens in memory of each, by commas; default: 128 and on to 8192 or the model's.",
    ),
]
Memory = Annotated[str, Option("--memory", help="Size of the KV pool, such as 7GiB.")]

_CONTEXTS = (128, 512, 1024, 2048, 4096, 8192)
_MOST_SEQS = 1024
_MOST_TOKENS = 4096


def latency(
    batch: Batches = "1,8,32",
    prompt: Prompts = "64,1024",
    max_tokens: Tokens = 64,
    rows: Rows = "1,2,4,8,16,32,64,128,256",
    context: Contexts = None,
    memory: Memory = "7GiB",
    model: Model = None,
    backend: Backend = "auto",
    threads: Threads = None,
    cpu_arithmetic: Arithmetic = None,
    dtype: DType = "auto",
    deterministic: Deterministic = False,
    rounds: Rounds = 5,
    plot: options.Plot = None,
    json: options.Json = False,
) -> None:
    """Time to the first token and from token to token, and what a decoding step costs.

    Steps are timed below the scheduler, by rows and by context; points beyond --memory are left
    out.
    """
    from octavo import LLM
    from octavo.models.checkpoint import open_checkpoint

    options.check_plot_file(plot)
    check_rounds(rounds)
    path = model_path(model)
    checkpoint = open_checkpoint(path)
    batches = parse_counts(batch, name="--batch", most=_MOST_SEQS)
    prompts = parse_counts(prompt, name="--prompt")
    counts = parse_counts(rows, name="--rows", most=_MOST_SEQS)
    contexts = _contexts(context, checkpoint)
    _check_lengths(prompts, max_tokens, checkpoint)
    llm = LLM(
        str(path),
        dtype=dtype,
        backend=backend,
        threads=threads,
        cpu_arithmetic=cpu_arithmetic,
        deterministic=deterministic,
        kv_cache_memory_bytes=parse_bytes(memory, name="--memory"),
        max_num_seqs=max(*batches, *counts),
        max_num_batched_tokens=STEP_TOKENS,
    )
    with llm:
        bench = _step_bench(llm, checkpoint)
        requests = [(b, p) for p in prompts for b in batches]
        points = [(r, c) for r in counts for c in contexts if bench.fits(r, c)]
        if not points:
            raise ConfigError(
                f"--memory {memory} has no room for {min(counts)} sequences of {min(contexts)} "
                "tokens: raise it, or lower --rows or --context"
            )
        found = _measure(llm, bench, requests, points, max_tokens, rounds)
    _show(found, llm, path, plot, rounds=rounds, json=json)


def _contexts(text: str | None, checkpoint: Checkpoint) -> list[int]:
    """Return the contexts of the steps. Raises ConfigError for one that the model has not."""
    most = checkpoint.spec.context - 1  # a step writes one token more
    if text is None:
        return sorted({min(length, most) for length in _CONTEXTS})
    return parse_counts(text, name="--context", most=most)


def _check_lengths(prompts: list[int], max_tokens: int, checkpoint: Checkpoint) -> None:
    if not 2 <= max_tokens <= _MOST_TOKENS:
        raise ConfigError(f"--max-tokens must be from 2 to {_MOST_TOKENS}, got {max_tokens}")
    longest, context = max(prompts) + max_tokens, checkpoint.spec.context
    if longest > context:
        raise ConfigError(
            f"--prompt {max(prompts)} and --max-tokens {max_tokens} make texts of {longest} "
            f"tokens, but the model's context is {context}: lower one of them"
        )


def _step_bench(llm: LLM, checkpoint: Checkpoint) -> StepBench:
    from octavo.bench.steps import StepBench

    built = llm.built
    if len(built.layout.groups) > 1:
        raise ConfigError(
            f"{built.model_path.name} has layers with a window, for which steps are not timed: "
            "give --model one without windows"
        )
    return StepBench(
        built.runner,
        built.layout,
        built.num_blocks,
        built.spec.vocab_size,
        _weight_bytes(checkpoint),
    )


def _weight_bytes(checkpoint: Checkpoint) -> int:
    """Bytes of the matrices that a step reads, as the file stores them."""
    read_by_row = () if checkpoint.spec.tied_embeddings else ("embedding",)
    return sum(
        checkpoint.stored_rows(name)[1].nbytes
        for name in checkpoint.names
        if name not in read_by_row
    )


# ── measuring ─────────────────────────────────────────────────────────────────────────────


class _Found:
    """What was measured."""

    def __init__(
        self, requests: list[LatencyRow], steps: list[StepRow], bandwidths: list[float]
    ) -> None:
        from octavo.bench.steps import fit_lines

        self.requests = requests
        self.steps = steps
        self.lines: list[Line] = fit_lines(steps)
        self.bandwidths = bandwidths


def _measure(
    llm: LLM,
    bench: StepBench,
    requests: list[tuple[int, int]],
    points: list[tuple[int, int]],
    max_tokens: int,
    rounds: int,
) -> _Found:
    from octavo.bench.bandwidth import read_bytes_per_s
    from octavo.bench.latency import even_work, measure_latency
    from octavo.bench.steps import measure_steps
    from octavo.progress import work_bar

    size = bench.vocab_size
    with work_bar("runs", len(requests) * (rounds + 1) + len(points) * rounds) as advance:
        latencies = [
            measure_latency(
                even_work(batch, prompt, max_tokens, vocab_size=size),
                lambda work: _stream(llm, work),
                rounds=rounds,
                clock=time.perf_counter,
                bandwidth=read_bytes_per_s,
                advance=advance,
            )
            for batch, prompt in requests
        ]
        steps, speeds = measure_steps(
            bench,
            points,
            rounds=rounds,
            clock=time.perf_counter,
            bandwidth=read_bytes_per_s,
            advance=advance,
        )
    return _Found(latencies, steps, speeds)


def _stream(llm: LLM, work: Work) -> Iterator[tuple[int, int]]:
    """Answer requests without cached prefixes, and yield how many tokens come for which."""
    from octavo import SamplingParams

    llm.reset_prefix_cache()
    prompts = [{"prompt_token_ids": request.prompt} for request in work.requests]
    params = [
        SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
        for request in work.requests
    ]
    for piece in llm.stream(prompts, params):
        if piece.finish_reason == "error":
            raise ConfigError(f"work {work.name}: {piece.stop_reason}")
        yield piece.prompt, len(piece.token_ids)


# ── what comes out ────────────────────────────────────────────────────────────────────────


def _show(
    found: _Found, llm: LLM, path: Path, plot: Path | None, *, rounds: int, json: bool
) -> None:
    from octavo.bench.show_latency import latency_table, lines_table, steps_table

    if plot is not None:
        from octavo.bench.plot_speed import plot_steps

        plot_steps(found.steps, found.lines, plot)
    if not json:
        tables = [latency_table(found.requests), steps_table(found.steps, found.bandwidths)]
        options.print_tables(*tables, *([lines_table(found.lines)] if found.lines else []))
        return
    settings: dict[str, object] = {
        "model": path.name,
        "backend": llm.built.backend,
        "rounds": rounds,
        "python": platform.python_version(),
    }
    payload: dict[str, object] = {
        "requests": found.requests,
        "steps": found.steps,
        "lines": found.lines,
        "read_bytes_per_s": found.bandwidths,
    }
    print_json("octavo.bench.latency/1", settings, payload, config=llm.config)
