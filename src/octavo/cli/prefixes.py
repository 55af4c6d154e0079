"""The command `octavo bench prefixes`."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING, Annotated

from octavo.cli import bench as options
from octavo.cli.flags import Option
from octavo.cli.options import Arithmetic, Backend, Deterministic, DType, Model, Threads
from octavo.cli.output import print_json
from octavo.cli.pull import model_path
from octavo.cli.throughput import KV_BYTES, STEP_TOKENS, Rounds, check_rounds
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.bench.prefixes import SharedPrefix
    from octavo.llm import LLM

Requests = Annotated[int, Option(help="How many, all there at the start.")]
Shared = Annotated[int, Option(help="Tokens that all prompts begin with.")]
Own = Annotated[int, Option(help="Tokens of each prompt behind them.")]
Tokens = Annotated[int, Option("--max-tokens", help="Tokens of each answer.")]

_MOST = 100_000


def prefixes(
    requests: Requests = 64,
    shared: Shared = 1024,
    own: Own = 32,
    max_tokens: Tokens = 16,
    model: Model = None,
    backend: Backend = "auto",
    threads: Threads = None,
    cpu_arithmetic: Arithmetic = None,
    dtype: DType = "auto",
    deterministic: Deterministic = False,
    rounds: Rounds = 3,
    json: options.Json = False,
) -> None:
    """Requests a second that begin alike, with the prefix cache and without, and their answers.

    Strict mode, which the backend cpu always is, gives the same answers both ways.
    """
    from octavo import LLM

    check_rounds(rounds)
    work = _work(requests, shared, own, max_tokens)
    llm = LLM(
        str(model_path(model)),
        dtype=dtype,
        backend=backend,
        threads=threads,
        cpu_arithmetic=cpu_arithmetic,
        deterministic=deterministic,
        kv_cache_memory_bytes=KV_BYTES,
        max_num_seqs=requests,
        max_num_batched_tokens=STEP_TOKENS,
    )
    with llm:
        _check_context(work, llm.built.max_model_len)
        _measure(llm, work, rounds, json=json)


def _measure(llm: LLM, work: SharedPrefix, rounds: int, *, json: bool) -> None:
    import msgspec

    from octavo.bench.bandwidth import read_bytes_per_s
    from octavo.bench.prefixes import measure_prefixes
    from octavo.bench.show_prefixes import prefix_table
    from octavo.progress import work_bar

    built = llm.built
    with work_bar("runs", 2 * (rounds + 1)) as advance:
        figures = measure_prefixes(
            built.engine,
            work,
            built.namespace,
            vocab_size=built.spec.vocab_size,
            rounds=rounds,
            bandwidth=read_bytes_per_s,
            advance=advance,
        )
    if not json:
        options.print_tables(prefix_table(figures, work))
        return
    settings: dict[str, object] = {"model": built.model_path.name, "backend": built.backend}
    settings |= {"rounds": rounds, "python": platform.python_version()}
    payload = {"work": msgspec.to_builtins(work)} | msgspec.structs.asdict(figures)
    print_json("octavo.bench.prefixes/1", settings, payload, config=llm.config)


def _work(requests: int, shared: int, own: int, output: int) -> SharedPrefix:
    from octavo.bench.prefixes import SharedPrefix

    for flag, value in (
        ("--requests", requests),
        ("--shared", shared),
        ("--own", own),
        ("--max-tokens", output),
    ):
        if not 1 <= value <= _MOST:
            raise ConfigError(f"{flag} must be from 1 to {_MOST}, got {value}")
    return SharedPrefix(requests=requests, shared=shared, own=own, output=output)


def _check_context(work: SharedPrefix, context: int) -> None:
    longest = work.shared + work.own + work.output
    if longest > context:
        raise ConfigError(
            f"--shared {work.shared}, --own {work.own} and --max-tokens {work.output} make texts "
            f"of {longest} tokens, but the model's context is {context}: lower one of them"
        )
