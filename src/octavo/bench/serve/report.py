"""The figures of a run, as `vllm bench serve` names them, and ours beside them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from octavo.bench.serve.load import Pace, Run
from octavo.bench.serve.stream import Outcome
from octavo.errors import ConfigError

METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
_GOOD = ("ttft", "tpot", "e2el")
_WIDTH = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is reported beside the usual. Raises ConfigError for an unknown name."""

    metrics: tuple[str, ...] = tuple(METRICS)
    percentiles: tuple[float, ...] = (99.0,)
    goodput: dict[str, float] = field(default_factory=dict[str, float])
    """By metric, the milliseconds that a good request keeps to."""

    def __post_init__(self) -> None:
        for name in self.metrics:
            if name not in METRICS:
                raise ConfigError(
                    f"--percentile-metrics: {name!r} is not one of {', '.join(METRICS)}"
                )
        for percentile in self.percentiles:
            if not 0 <= percentile <= 100:
                raise ConfigError(f"--metric-percentiles must be from 0 to 100, got {percentile:g}")


def read_goodput(texts: Iterable[str]) -> dict[str, float]:
    """Read bounds such as ttft:500 tpot:50, in milliseconds. Raises ConfigError."""
    bounds: dict[str, float] = {}
    for part in " ".join(texts).replace(",", " ").split():
        name, _, value = part.partition(":")
        try:
            bound = float(value)
        except ValueError:
            bound = math.nan
        if name not in _GOOD or not bound > 0:
            raise ConfigError(
                f"--goodput takes such as ttft:500, of {', '.join(_GOOD)} in milliseconds, "
                f"got {part!r}"
            )
        bounds[name] = bound
    return bounds


def percentile(values: list[float], percent: float) -> float:
    """Return a percentile, between two values where it falls between them; 0 of none."""
    ordered = sorted(values)
    if not ordered:
        return 0.0
    place = (len(ordered) - 1) * percent / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summarize(
    run: Run,
    wanted: Wanted,
    *,
    pace: Pace,
    counted: tuple[float, float] | None = None,
) -> dict[str, object]:
    """Return all figures by their JSON names.

    counted: prompt tokens (found in the cache, looked for) as the server's metrics say, where its
    replies do not.
    """
    good = [one for one in run.outcomes if not one.error]
    seconds = run.duration_s or math.inf
    prompt = sum(one.prompt_tokens for one in good)
    output = sum(one.output_tokens for one in good)
    figures: dict[str, object] = {
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "num_prompts": len(run.outcomes),
        "request_rate": "inf" if math.isinf(pace.rate_per_s) else pace.rate_per_s,
        "burstiness": pace.burstiness,
        "max_concurrency": pace.max_concurrency,
        "duration": run.duration_s,
        "completed": len(good),
        "failed": len(run.outcomes) - len(good),
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": len(good) / seconds,
        "request_goodput": _goodput(good, wanted) / seconds if wanted.goodput else None,
        "output_throughput": output / seconds,
        "total_token_throughput": (prompt + output) / seconds,
        "max_concurrent_requests": most_at_once(run.outcomes),
        "cached_prompt_share": cached_share(good, counted),
    }
    values = _milliseconds(good)
    for name in METRICS:
        own = values[name]
        figures[f"mean_{name}_ms"] = statistics.fmean(own) if own else 0.0
        figures[f"median_{name}_ms"] = percentile(own, 50)
        figures[f"std_{name}_ms"] = statistics.pstdev(own) if own else 0.0
        for percent in sorted({*wanted.percentiles, 99.0}):
            figures[f"p{percent:g}_{name}_ms"] = percentile(own, percent)
    tpot = percentile(values["tpot"], 50)
    figures["tokens_per_second_per_user"] = 1000 / tpot if tpot else None
    return figures


def details(run: Run) -> dict[str, object]:
    """Return what is known of each request, by the JSON names."""
    outcomes = run.outcomes
    return {
        "input_lens": [one.prompt_tokens for one in outcomes],
        "output_lens": [one.output_tokens for one in outcomes],
        "cached_lens": [one.cached_tokens for one in outcomes],
        "start_times": [one.start_s - run.start_s for one in outcomes],
        "ttfts": [one.ttft_s if one.first_s is not None else 0.0 for one in outcomes],
        "itls": [one.gaps_s for one in outcomes],
        "generated_texts": [one.text for one in outcomes],
        "errors": [one.error for one in outcomes],
    }


def cached_share(good: list[Outcome], counted: tuple[float, float] | None) -> float | None:
    """Return which share of the prompts' tokens was in the cache; None: nobody says."""
    said = [one for one in good if one.cached_tokens is not None]
    prompt = sum(one.prompt_tokens for one in said)
    if prompt:
        return sum(one.cached_tokens or 0 for one in said) / prompt
    if counted is None or not counted[1]:
        return None
    return counted[0] / counted[1]


def most_at_once(outcomes: list[Outcome]) -> int:
    """Return how many requests were on their way at the same time."""
    turns = sorted([(one.start_s, 1) for one in outcomes] + [(one.end_s, -1) for one in outcomes])
    here = most = 0
    for _, change in turns:
        here += change
        most = max(most, here)
    return most


def _milliseconds(good: list[Outcome]) -> dict[str, list[float]]:
    return {
        "ttft": [1000 * one.ttft_s for one in good if one.first_s is not None],
        "tpot": [1000 * one.tpot_s for one in good if one.tpot_s is not None],
        "itl": [1000 * gap for one in good for gap in one.gaps_s],
        "e2el": [1000 * one.e2e_s for one in good],
    }


def _goodput(good: list[Outcome], wanted: Wanted) -> int:
    def keeps(one: Outcome) -> bool:
        found = {"ttft": one.ttft_s, "tpot": one.tpot_s or 0.0, "e2el": one.e2e_s}
        return all(1000 * found[name] <= bound for name, bound in wanted.goodput.items())

    return sum(map(keeps, good))


# ── for people ────────────────────────────────────────────────────────────────────────────────


def console_block(figures: dict[str, object], wanted: Wanted) -> str:
    """Lay the figures out as `vllm bench serve` does, with our lines below its own."""
    lines = [f"{' Serving Benchmark Result ':=^{_WIDTH}}"]
    rows = [
        ("Successful requests:", "completed"),
        ("Failed requests:", "failed"),
        ("Maximum request concurrency:", "max_concurrency"),
        ("Request rate configured (RPS):", "request_rate"),
        ("Benchmark duration (s):", "duration"),
        ("Total input tokens:", "total_input_tokens"),
        ("Total generated tokens:", "total_output_tokens"),
        ("Request throughput (req/s):", "request_throughput"),
        ("Request goodput (req/s):", "request_goodput"),
        ("Output token throughput (tok/s):", "output_throughput"),
        ("Peak concurrent requests:", "max_concurrent_requests"),
        ("Total token throughput (tok/s):", "total_token_throughput"),
    ]
    unset = ("max_concurrency", "request_goodput")
    for title, name in rows:
        value = figures[name]
        if (value is None and name in unset) or value == "inf":
            continue
        lines.append(_line(title, value))
    for name in wanted.metrics:
        lines.append(f"{METRICS[name]:-^{_WIDTH}}")
        short = name.upper()
        lines.append(_line(f"Mean {short} (ms):", figures[f"mean_{name}_ms"]))
        lines.append(_line(f"Median {short} (ms):", figures[f"median_{name}_ms"]))
        for percent in wanted.percentiles:
            key = f"p{percent:g}"
            lines.append(_line(f"{key.upper()} {short} (ms):", figures[f"{key}_{name}_ms"]))
    lines.append(f"{'Cache and users':-^{_WIDTH}}")
    share = figures["cached_prompt_share"]
    shown = 100 * share if isinstance(share, float) else "not told"
    lines.append(_line("Prompt tokens found in cache (%):", shown))
    user = figures["tokens_per_second_per_user"]
    lines.append(_line("Tokens a second per user:", user if user is not None else "not told"))
    return "\n".join([*lines, "=" * _WIDTH])


def _line(title: str, value: object) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{title:<40} {shown:<9}".rstrip()
