"""The command `octavo bench throughput`."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli import bench as options
from octavo.cli.flags import Option
from octavo.cli.options import Arithmetic, Backend, Deterministic, DType, Model, Threads
from octavo.cli.output import print_json
from octavo.cli.pull import model_path
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.throughput import ThroughputRow
    from octavo.bench.works import Work
    from octavo.config import EngineConfig
    from octavo.llm import LLM

Works = Annotated[str | None, Option("--work", help="Works, by commas; default: all.")]
Rounds = Annotated[int, Option(help="Runs that count, after one that does not.")]

KV_BYTES = 2 << 30
MAX_SEQS = 256
STEP_TOKENS = 2048
LONGEST = 2048
"""What `benchmarks/peers/worker.py` gives to every engine too."""
_MOST_ROUNDS = 1000


def throughput(
    work: Works = None,
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
    """Tokens a second of the whole engine, at the works on which it is compared with others.

    Greedy answers of fixed lengths; the prefix cache is emptied before every run.
    """
    from octavo import LLM
    from octavo.bench.bandwidth import read_bytes_per_s
    from octavo.bench.throughput import measure_throughput
    from octavo.bench.works import find_works
    from octavo.models.checkpoint import open_checkpoint
    from octavo.progress import work_bar

    options.check_plot_file(plot)
    check_rounds(rounds)
    path = model_path(model)
    spec = open_checkpoint(path).spec
    longest = min(LONGEST, spec.context)
    works = find_works(work, vocab_size=spec.vocab_size, context=longest)
    llm = LLM(
        str(path),
        dtype=dtype,
        backend=backend,
        threads=threads,
        cpu_arithmetic=cpu_arithmetic,
        deterministic=deterministic,
        kv_cache_memory_bytes=KV_BYTES,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=STEP_TOKENS,
        max_model_len=longest,
    )
    with llm, work_bar("runs", len(works) * (rounds + 1)) as advance:
        rows = [
            measure_throughput(
                one,
                lambda given: run_work(llm, given),
                rounds=rounds,
                bandwidth=read_bytes_per_s,
                advance=advance,
            )
            for one in works
        ]
    _show(rows, llm.config, path, plot, rounds=rounds, json=json)


def run_work(llm: LLM, work: Work) -> float:
    """Run a work without cached prefixes; returns its seconds."""
    from octavo import SamplingParams

    llm.reset_prefix_cache()
    prompts = [{"prompt_token_ids": request.prompt} for request in work.requests]
    params = [
        SamplingParams(temperature=0, max_tokens=request.output_tokens, ignore_eos=True)
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


def _show(
    rows: list[ThroughputRow],
    config: EngineConfig,
    path: Path,
    plot: Path | None,
    *,
    rounds: int,
    json: bool,
) -> None:
    from octavo.bench.plot_speed import plot_throughput
    from octavo.bench.show_speed import throughput_table

    if plot is not None:
        plot_throughput(rows, plot)
    if not json:
        options.print_tables(throughput_table(rows))
        return
    settings: dict[str, object] = {
        "model": path.name,
        "rounds": rounds,
        "python": platform.python_version(),
    }
    print_json("octavo.bench.throughput/1", settings, {"rows": rows}, config=config)
