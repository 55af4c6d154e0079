"""The command `octavo bench serve`."""

from __future__ import annotations

import asyncio
import importlib.util
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated

import msgspec

from octavo.bench.serve.curve import user_row, user_table
from octavo.cli import bench as options
from octavo.cli.flags import Option
from octavo.cli.output import note, say, write_bytes
from octavo.errors import ConfigError
from octavo.sizes import parse_counts

if TYPE_CHECKING:
    from octavo.cli.bench_load import Measured, Work

Backend = Annotated[str, Option(help="Which API: openai (completions) or openai-chat.")]
BaseUrl = Annotated[
    str | None,
    Option(help="Of the server, such as http://127.0.0.1:8000; wins over host and port."),
]
Host = Annotated[str, Option(help="Of the server.")]
Port = Annotated[int, Option(help="Of the server.")]
Endpoint = Annotated[str | None, Option(help="Path, if not the usual one of the API.")]
Model = Annotated[str | None, Option(help="As the server calls it; default: its first.")]
ApiKey = Annotated[str | None, Option(help="Default: OPENAI_API_KEY of the environment.")]
AdminKey = Annotated[str | None, Option("--admin-api-key", help="For --cache empty.")]
Headers = Annotated[list[str], Option("--header", help="name=value, sent too; several times.")]
Insecure = Annotated[bool, Option("--insecure", help="Take any certificate.")]
Timeout = Annotated[float, Option(help="Seconds after which a request has failed.")]
Dataset = Annotated[
    str,
    Option(help="random, sharegpt, prefix-repetition, agents, trace or custom."),
]
DatasetPath = Annotated[Path | None, Option(help="Its file; sharegpt has lengths like it without.")]
NumPrompts = Annotated[int, Option(help="Requests.")]
InputLen = Annotated[int, Option("--random-input-len", help="random: tokens of a prompt.")]
RandomOutput = Annotated[int, Option("--random-output-len", help="random: tokens of an answer.")]
RangeRatio = Annotated[float, Option("--random-range-ratio", help="random: from 1 - r to 1 + r.")]
PrefixLen = Annotated[int, Option("--random-prefix-len", help="random: the same for all, before.")]
RepPrefix = Annotated[int, Option("--prefix-repetition-prefix-len", help="Tokens of a head.")]
RepSuffix = Annotated[int, Option("--prefix-repetition-suffix-len", help="Tokens of a tail.")]
RepCount = Annotated[int, Option("--prefix-repetition-num-prefixes", help="Heads.")]
RepOutput = Annotated[int, Option("--prefix-repetition-output-len", help="Tokens of an answer.")]
OutputLen = Annotated[
    int | None, Option("--output-len", help="Of every answer, for data sets from files.")
]
TraceSpeed = Annotated[float, Option(help="trace: requests come so many times as fast.")]
Rate = Annotated[float, Option("--request-rate", help="Requests a second; inf: all at once.")]
Burstiness = Annotated[float, Option(help="1: at random; lower: in bursts; higher: evenly.")]
Concurrency = Annotated[int | None, Option("--max-concurrency", help="On their way at once.")]
Warmups = Annotated[int, Option("--num-warmups", help="Requests before, which do not count.")]
IgnoreEos = Annotated[bool, Option("--ignore-eos", help="Answers have all their tokens.")]
Temperature = Annotated[float, Option(help="Of the sampling.")]
ExtraBody = Annotated[str | None, Option(help="JSON object: further fields of every request.")]
Cache = Annotated[
    str | None,
    Option(
        help="empty: the server forgets before each run; vary: prompts are new in each run, of the "
        "same lengths; keep: neither. Default: empty with --admin-api-key, else vary."
    ),
]
PercentileMetrics = Annotated[str, Option(help="Of which, by commas, percentiles are shown.")]
Percentiles = Annotated[str, Option("--metric-percentiles", help="Which, by commas.")]
Goodput = Annotated[
    list[str], Option(help="Bounds of a good request in ms, such as ttft:500 tpot:50.", many=True)
]
SaveResult = Annotated[bool, Option("--save-result", help="Write the JSON document to a file.")]
SaveDetailed = Annotated[bool, Option("--save-detailed", help="With each request in it.")]
ResultDir = Annotated[Path, Option(help="Its folder.")]
ResultFilename = Annotated[str | None, Option(help="Its name.")]
CurveOf = Annotated[
    str | None, Option("--curve", help="Run once for each number of users, such as 1,2,4,8.")
]


def serve(
    backend: Backend = "openai",
    base_url: BaseUrl = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    endpoint: Endpoint = None,
    model: Model = None,
    api_key: ApiKey = None,
    admin_api_key: AdminKey = None,
    header: Headers = [],  # noqa: B006 (read only)
    insecure: Insecure = False,
    timeout: Timeout = 3600.0,
    dataset_name: Dataset = "random",
    dataset_path: DatasetPath = None,
    num_prompts: NumPrompts = 1000,
    random_input_len: InputLen = 1024,
    random_output_len: RandomOutput = 128,
    random_range_ratio: RangeRatio = 0.0,
    random_prefix_len: PrefixLen = 0,
    prefix_repetition_prefix_len: RepPrefix = 256,
    prefix_repetition_suffix_len: RepSuffix = 256,
    prefix_repetition_num_prefixes: RepCount = 10,
    prefix_repetition_output_len: RepOutput = 128,
    output_len: OutputLen = None,
    trace_speed: TraceSpeed = 1.0,
    request_rate: Rate = float("inf"),
    burstiness: Burstiness = 1.0,
    max_concurrency: Concurrency = None,
    num_warmups: Warmups = 0,
    seed: options.Seed = 0,
    ignore_eos: IgnoreEos = False,
    temperature: Temperature = 0.0,
    extra_body: ExtraBody = None,
    cache: Cache = None,
    percentile_metrics: PercentileMetrics = "ttft,tpot,itl",
    metric_percentiles: Percentiles = "99",
    goodput: Goodput = [],  # noqa: B006 (read only)
    save_result: SaveResult = False,
    save_detailed: SaveDetailed = False,
    result_dir: ResultDir = Path(),
    result_filename: ResultFilename = None,
    curve: CurveOf = None,
    plot: options.Plot = None,
    json: options.Json = False,
) -> int:
    """Load on a server that speaks OpenAI's API, as `vllm bench serve` measures and reports it.

    Prompts are in nobody's cache unless told otherwise, and it says which share of them was.
    """
    given = SimpleNamespace(**locals())  # what the document says of the run, too
    from octavo.cli.bench_load import Work, measure

    options.check_plot_file(plot)
    users = [max_concurrency] if curve is None else _users(curve, max_concurrency, num_prompts)
    if save_result and not result_dir.is_dir():
        raise ConfigError(f"--result-dir: there is no folder {result_dir}")
    work = Work.read(given)
    with asyncio.Runner(loop_factory=_quick_loop()) as runner:
        found = runner.run(measure(work, users))
    return _report(work, found)


def _quick_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return what makes an event loop that takes less from a server on the same machine.

    None: only Python's own is installed.
    """
    if importlib.util.find_spec("uvloop") is None:
        return None
    import uvloop

    return uvloop.new_event_loop


def _users(curve: str, max_concurrency: int | None, num_prompts: int) -> list[int | None]:
    """Return the numbers of users of a curve. Raises ConfigError."""
    if max_concurrency is not None:
        raise ConfigError("--curve sets --max-concurrency itself: give one of them")
    counts = parse_counts(curve, name="--curve")
    if max(counts) > num_prompts:
        raise ConfigError(
            f"--curve goes to {max(counts)} users, but --num-prompts is {num_prompts}: raise it"
        )
    return [*counts]


# ── what comes out ────────────────────────────────────────────────────────────────────────────


def _report(work: Work, found: list[Measured]) -> int:
    """Show what was measured; returns the exit status, 1 if no request went well."""
    from octavo.bench.serve.report import console_block

    given = work.given
    _note_failures(found)
    document = _document(work, found)
    if given.plot is not None:
        _draw(found, given.plot)
    if given.save_result:
        path = given.result_dir / (given.result_filename or _file_name(found[0].figures))
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
        note(f"octavo: written to {path}")
    if given.json:
        write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    elif len(found) > 1:
        options.print_tables(user_table([user_row(one.figures) for one in found]))
    else:
        say(console_block(found[0].figures, work.wanted))
    return 0 if any(one.figures["completed"] for one in found) else 1


def _document(work: Work, found: list[Measured]) -> dict[str, object]:
    """Return the envelope and, at top level, the figures of the run; of a curve its rows."""
    from octavo.bench.serve.report import details
    from octavo.envelope import envelope

    hidden = ("api_key", "admin_api_key", "header")
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(work.given).items()
        if name not in hidden
    }
    settings = {name: "inf" if value == math.inf else value for name, value in settings.items()}
    document: dict[str, object] = envelope("octavo.bench.serve/1", None, **settings)
    if len(found) > 1:
        return document | {"curve": [one.figures for one in found]}
    more = details(found[0].run) if work.given.save_detailed else {}
    return document | found[0].figures | more


def _draw(found: list[Measured], path: Path) -> None:
    from octavo.bench.serve.plot import plot_run, plot_users

    if len(found) > 1:
        plot_users([user_row(one.figures) for one in found], path)
    else:
        plot_run(found[0].run, path)


def _note_failures(found: list[Measured]) -> None:
    failed = [one.error for each in found for one in each.run.outcomes if one.error]
    for message, count in Counter(failed).most_common(3):
        note(f"octavo: {count} failed: {message}")


def _file_name(figures: dict[str, object]) -> str:
    """Return a name as vLLM gives them."""
    model = str(figures["model_id"]).rsplit("/", 1)[-1]
    users = figures["max_concurrency"]
    concurrency = f"-concurrency{users}" if users is not None else ""
    rate = figures["request_rate"]
    return f"{figures['backend']}-{rate}qps{concurrency}-{model}-{figures['date']}.json"
