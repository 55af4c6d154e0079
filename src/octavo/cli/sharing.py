"""The command `octavo bench sharing`."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from octavo.cli import bench as options
from octavo.cli.flags import Option
from octavo.cli.options import DEVICE_HELP, Backend
from octavo.cli.output import note, print_json
from octavo.cli.pull import model_path
from octavo.errors import ConfigError
from octavo.machine import available_cores
from octavo.sizes import parse_counts

if TYPE_CHECKING:
    from octavo.bench.resubmit import Timing
    from octavo.bench.sharing import Bench, Curve, Measured, Run, Setting, SharingRow
    from octavo.bench.workload import Workload
    from octavo.build import Built
    from octavo.config import EngineConfig

Parts = Annotated[
    str,
    Option(
        "--part",
        help="What to measure, by commas: lengths (texts as in the PagedAttention paper), prompt "
        "(five answers to a long one), time (beams against a loop outside).",
    ),
]
Texts = Annotated[
    Path | None, Option(help="Prompts are cut from this UTF-8 file; default: our own text.")
]
Requests = Annotated[
    int | None,
    Option(help="Prompts of each distribution; default: 24 of Alpaca's, 3 of ShareGPT's."),
]
Widths = Annotated[str, Option("--width", help="Beam widths, by commas.")]
Model = Annotated[
    str | None, Option(help="A path, a known name or a hub id; default: the embedded one.")
]
Device = Annotated[str, Option(help=DEVICE_HELP)]

_REQUESTS = {"alpaca-lognormal": 24, "sharegpt-lognormal": 3}
_PARTS = ("lengths", "prompt", "time")
_MOST_REQUESTS = 1000
_MOST_ANSWERS = 32
_MOST_SEQS = 1024
_BLOCK_SIZE = 16
_STEP_TOKENS = 2048
_LONGEST = 2048
_PROMPT, _PROMPT_ANSWER, _PROMPT_ANSWERS = 1024, 128, 5
_TIME_PROMPT, _TIME_ANSWER, _TIME_WIDTH, _ROUNDS = 64, 64, 4, 3
_NEED = {"prompt": _PROMPT + _PROMPT_ANSWER, "time": _TIME_PROMPT + _TIME_ANSWER}


_COUNTS = "2,4,6"
"""Samples and beam widths, by default."""


@dataclass(slots=True)
class _Plan:
    """What is to be measured."""

    parts: list[str]
    works: list[Workload]
    """Of part lengths."""
    settings: list[Setting]
    """Of part lengths."""


@dataclass(slots=True)
class _Report:
    """What was measured."""

    rows: list[SharingRow]
    curves: list[Curve]
    runs: list[Run]
    timing: Timing | None = None

    def add(self, measured: Measured, step_s: float | None = None) -> None:
        import msgspec

        self.rows += [msgspec.structs.replace(row, step_s=step_s) for row in measured.rows]
        self.curves += measured.curves
        self.runs.append(measured.run)


def sharing(
    part: Parts = "lengths,prompt,time",
    texts: Texts = None,
    requests: Requests = None,
    distribution: options.Distribution = None,
    n: options.Choices = _COUNTS,
    width: Widths = _COUNTS,
    seed: options.Seed = 0,
    model: Model = None,
    device: Device = "auto",
    backend: Backend = "auto",
    plot: options.Plot = None,
    json: options.Json = False,
) -> None:
    """KV blocks that beams and parallel samples of a real model share, and the time that it saves.

    Without options: the embedded model, at the lengths of the PagedAttention paper.
    """
    from octavo.bench.bandwidth import read_bytes_per_s
    from octavo.bench.texts import PACKAGED, read_text

    options.check_plot_file(plot)
    parts = _parts(part)
    settings = _settings(n, width)
    _check_requests(requests)
    _check_meaning(
        parts,
        {
            "--requests": requests is not None,
            "--distribution": distribution is not None,
            "--n": n != _COUNTS,
            "--width": width != _COUNTS,
        },
    )
    text = read_text(texts)
    path = model_path(model)
    longest = _longest(path, parts, settings)
    plan = _Plan(parts, _works(parts, requests, distribution, longest, seed), settings)
    config = _config(plan, path, device, backend, longest)
    if plan.works and longest < _LONGEST:
        note(f"octavo: texts are up to {longest} tokens, the context of {path.name}")
    before = read_bytes_per_s()
    built, bench = _open(config, text, PACKAGED if texts is None else str(texts))
    try:
        report = _measure(plan, bench, seed)
    finally:
        built.engine.close()
    speed = {"before": before, "after": read_bytes_per_s()}
    _warn(report)
    if plot is not None:
        from octavo.bench.plot import plot_sharing

        plot_sharing(report.rows, report.curves, plot)
    if json:
        _print_json(report, plan, config, built, bench, speed, seed)
    else:
        _print_tables(report, speed)


def _parts(names: str) -> list[str]:
    parts = [name.strip() for name in names.split(",")]
    for name in parts:
        if name not in _PARTS:
            raise ConfigError(f"--part {name!r} is not one of {', '.join(_PARTS)}")
    return [name for name in _PARTS if name in parts]


def _settings(n: str, width: str) -> list[Setting]:
    from octavo.bench.sharing import Setting

    counts = {
        "samples": parse_counts(n, name="--n", most=_MOST_ANSWERS),
        "beams": parse_counts(width, name="--width", most=_MOST_ANSWERS),
    }
    return [Setting(method, count) for method, own in counts.items() for count in own]


def _check_requests(requests: int | None) -> None:
    if requests is not None and not 1 <= requests <= _MOST_REQUESTS:
        raise ConfigError(f"--requests must be from 1 to {_MOST_REQUESTS}, got {requests}")


def _check_meaning(parts: list[str], given: dict[str, bool]) -> None:
    """Raise ConfigError for an option of part lengths if that is not measured."""
    for flag, is_given in given.items():
        if is_given and "lengths" not in parts:
            raise ConfigError(
                f"{flag} is for the part lengths, but --part is {','.join(parts)}: leave it out, "
                "or add lengths"
            )


def _longest(path: Path, parts: list[str], settings: list[Setting]) -> int:
    """Return the longest text to run. Raises ConfigError for a model that cannot serve it."""
    from octavo.models.checkpoint import open_checkpoint

    spec = open_checkpoint(path).spec
    if spec.window_layers:
        raise ConfigError(
            f"{path.name} has layers with a window, whose blocks go before their text ends: give "
            "--model one without windows"
        )
    for part, need in _NEED.items():
        if part in parts and spec.context < need:
            others = ",".join(p for p in _PARTS if _NEED.get(p, 0) <= spec.context)
            raise ConfigError(
                f"--part {part} takes texts of {need} tokens, but the context of {path.name} is "
                f"{spec.context}: give --part {others}, or another --model"
            )
    widest = max(one.count for one in settings if one.method == "beams")
    if 2 * widest > spec.vocab_size:
        raise ConfigError(
            f"--width is {widest}, but the vocabulary has {spec.vocab_size} tokens, and a search "
            f"needs two for each beam: lower it to {spec.vocab_size // 2} or less"
        )
    return min(_LONGEST, spec.context)


def _works(
    parts: list[str], requests: int | None, distribution: str | None, longest: int, seed: int
) -> list[Workload]:
    from octavo.bench.workload import draw_evenly

    if "lengths" not in parts:
        return []
    names = list(_REQUESTS) if distribution is None else distribution.split(",")
    return [
        draw_evenly(
            name.strip(),
            requests=requests or _REQUESTS.get(name.strip(), 1),
            max_length=longest,
            seed=seed,
        )
        for name in names
    ]


def _config(plan: _Plan, path: Path, device: str, backend: str, longest: int) -> EngineConfig:
    from octavo.config import EngineConfig

    answers = sum(setting.count for setting in plan.settings)
    seqs = answers * max((len(work.lengths) for work in plan.works), default=1)
    return EngineConfig(
        model=str(path),
        device=device,
        backend=backend,
        block_size=_BLOCK_SIZE,
        max_num_seqs=min(max(seqs, _PROMPT_ANSWERS), _MOST_SEQS),
        max_num_batched_tokens=_STEP_TOKENS,
        max_model_len=longest,
    )


def _open(config: EngineConfig, text: str, text_name: str) -> tuple[Built, Bench]:
    from octavo.bench.sharing import Bench
    from octavo.bench.watch import Tap
    from octavo.build import build_engine

    tap = Tap()
    built = build_engine(config, report=note, on_logits=tap)
    assert built.tokenizer is not None, "a model's own files have one"
    tokens = built.tokenizer.encode(text, add_special_tokens=False)
    return built, Bench(built.engine, tap, built.namespace, tokens, text_name)


# ── the three parts ───────────────────────────────────────────────────────────────────────


def _measure(plan: _Plan, bench: Bench, seed: int) -> _Report:
    from octavo.bench.sharing import Setting, measure
    from octavo.bench.texts import cut
    from octavo.progress import work_bar

    report = _Report([], [], [])
    for work in plan.works:  # what cannot work is said before anything runs
        cut(bench.tokens, (prompt for prompt, _ in work.lengths), bench.text_name)
    for part in plan.parts:
        if part in _NEED:
            cut(bench.tokens, [_PROMPT if part == "prompt" else _TIME_PROMPT], bench.text_name)
    with work_bar("tokens", _expected(plan)) as advance:
        bench.tap.advance = advance
        for work in plan.works:
            report.add(measure(bench, work, plan.settings, seed=seed))
        if "prompt" in plan.parts:
            work = _one("prompt-1024", _PROMPT, _PROMPT_ANSWER)
            found = measure(bench, work, [Setting("samples", _PROMPT_ANSWERS)], seed=seed)
            report.add(found, found.run.seconds / found.run.steps)
        if "time" in plan.parts:
            _time(bench, report)
    return report


def _time(bench: Bench, report: _Report) -> None:
    import msgspec

    from octavo.bench.resubmit import compare
    from octavo.bench.sharing import Setting, measure
    from octavo.bench.texts import cut

    found = measure(
        bench, _one("time", _TIME_PROMPT, _TIME_ANSWER), [Setting("beams", _TIME_WIDTH)]
    )
    (prompt,) = cut(bench.tokens, [_TIME_PROMPT], bench.text_name)
    timing = compare(bench, prompt, width=_TIME_WIDTH, tokens=_TIME_ANSWER, rounds=_ROUNDS)
    native, _, warm = timing.ways
    report.add(found, native.median_s / native.steps)
    report.rows[-1] = msgspec.structs.replace(report.rows[-1], resubmit_step_s=warm.token_s)
    report.timing = timing


def _one(name: str, prompt: int, output: int) -> Workload:
    from octavo.bench.workload import Workload

    return Workload(
        name, f"one prompt of {prompt} tokens, {output} more", ((prompt, output),), None
    )


def _expected(plan: _Plan) -> int:
    """Tokens that will be computed, roughly."""
    settings = plan.settings
    answers = sum(setting.count for setting in settings)
    total = sum(len(settings) * p + answers * o for work in plan.works for p, o in work.lengths)
    if "prompt" in plan.parts:
        total += _PROMPT + _PROMPT_ANSWERS * _PROMPT_ANSWER
    if "time" in plan.parts:
        beams = _TIME_WIDTH * _TIME_ANSWER
        cold = beams * (_TIME_PROMPT + _TIME_ANSWER // 2)
        total += beams + _ROUNDS * (beams + cold + beams * _BLOCK_SIZE // 2)
    return total


# ── what comes out ────────────────────────────────────────────────────────────────────────


def _warn(report: _Report) -> None:
    for run in report.runs:
        if run.preemptions:
            note(
                f"octavo: {run.workload}: memory was short, {run.preemptions} requests were "
                "preempted, so their beams did not share for a while; lower --requests"
            )
    if report.timing is not None and not report.timing.same_beams:
        note(
            "octavo: the three ways did not find the same beams (two were as likely as each other "
            "within rounding), so their times compare different texts; give other --texts"
        )


def _print_tables(report: _Report, speed: dict[str, float]) -> None:
    from octavo.bench.show_sharing import runs_table, sharing_table, timing_table
    from octavo.cli.output import say

    options.print_tables(sharing_table(report.rows), runs_table(report.runs))
    if report.timing is not None:
        options.print_tables(timing_table(report.timing))
    before, after = (value / 1e9 for value in speed.values())
    say(f"memory read at {before:.1f} GB/s before and at {after:.1f} GB/s after")


def _print_json(
    report: _Report,
    plan: _Plan,
    config: EngineConfig,
    built: Built,
    bench: Bench,
    speed: dict[str, float],
    seed: int,
) -> None:
    settings: dict[str, object] = {
        "model": built.model_path.name,
        "backend": built.backend,
        "device": built.device,
        "part": plan.parts,
        "requests": {work.name: len(work.lengths) for work in plan.works},
        "seed": seed,
        "text": bench.text_name,
        "text_tokens": len(bench.tokens),
        "rounds": _ROUNDS,
        "python": platform.python_version(),
    }
    if built.backend == "cpu":
        settings["threads"] = config.threads or available_cores()
    else:
        import torch

        settings |= {"threads": torch.get_num_threads(), "torch": torch.__version__}
    payload: dict[str, object] = {
        "rows": report.rows,
        "curves": report.curves,
        "runs": report.runs,
        "timing": report.timing,
        "read_bytes_per_s": speed,
    }
    print_json("octavo.bench.sharing/1", settings, payload, config=config)
