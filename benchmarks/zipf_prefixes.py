"""HotPrefix against LRU where a few prefixes are hot and what follows them never returns.

Prefixes of equal length are asked for by Zipf's law; each request adds an end of its own. Sweeps
the exponent and the size of the cache, as a share of the blocks of all prefixes; nothing else
could hit. The second half of the requests counts, after the first has filled the cache. Prints a
table, and how much the hit rate is of that of lru.

    python benchmarks/zipf_prefixes.py --json record.json --plot zipf.png
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from random import Random

from octavo.bench.plot import new_figure, save_figure
from octavo.build import eviction_policy
from octavo.replay.sweep import Candidate, Capacity, sweep
from octavo.replay.trace import RecordedRequest, Trace

BLOCK = 16
"""Tokens."""
POLICIES = ("lru", "lfu", "hotprefix", "bonus", "gittins")


def main() -> None:
    """Sweep, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--exponents", type=float, nargs="+", default=[0.6, 0.8, 1.0, 1.2, 1.4])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.5])
    parser.add_argument("--prefixes", type=int, default=400)
    parser.add_argument("--prefix-blocks", type=int, default=8)
    parser.add_argument("--suffix-blocks", type=int, default=8)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write a record here")
    parser.add_argument("--plot", type=Path, help="draw the gain of hotprefix over lru here")
    options = parser.parse_args()

    rows = [row for exponent in options.exponents for row in measure(exponent, options)]
    for row in rows:
        rates = "  ".join(f"{name} {row[name]:.3f}" for name in POLICIES)
        say(
            f"exponent {row['exponent']:g}, cache {100 * row['share']:3.0f} %: {rates}  "
            f"optimum {row['optimum']:.3f}  hotprefix/lru {row['hotprefix'] / row['lru']:.2f}"
        )
    settings = {
        name: getattr(options, name)
        for name in ("prefixes", "prefix_blocks", "suffix_blocks", "requests", "seed")
    }
    if options.json:
        record = {"schema": "octavo.zipf-prefixes/1", "config": settings, "rows": rows}
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.plot:
        draw(rows, options.plot)


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def traffic(exponent: float, options: argparse.Namespace) -> Trace:
    """Return requests, a second apart."""
    draw = Random(options.seed)
    weights = [1 / rank**exponent for rank in range(1, options.prefixes + 1)]
    chosen = draw.choices(range(options.prefixes), weights, k=options.requests)
    tokens = BLOCK * (options.prefix_blocks + options.suffix_blocks)
    requests = [
        RecordedRequest(
            time_s=float(number),
            prompt_tokens=tokens,
            output_tokens=1,
            keys=(
                *key_chain(prefix, options.prefix_blocks),
                *key_chain(options.prefixes + number, options.suffix_blocks),
            ),
        )
        for number, prefix in enumerate(chosen)
    ]
    return Trace(f"zipf {exponent:g}", BLOCK, tuple(requests))


def key_chain(text: int, blocks: int) -> list[bytes]:
    """Return keys that spread over all bytes, as hashes do; the same for the same text."""
    spread = Random(text)
    return [spread.randbytes(16) for _ in range(blocks)]


def measure(exponent: float, options: argparse.Namespace) -> list[dict[str, float]]:
    """Return hit rates at each size, as shares of the blocks of all prompts."""
    trace = traffic(exponent, options)
    reusable = options.prefixes * options.prefix_blocks
    sizes = [Capacity(share, int(share * reusable)) for share in options.shares]
    candidates = [Candidate(name, eviction_policy(name)) for name in POLICIES]
    found = sweep(trace, candidates, sizes, judged_from_s=trace.middle_s)
    rows: list[dict[str, float]] = []
    for size, best in zip(sizes, found.optimum, strict=True):
        row = {"exponent": exponent, "share": size.share, "capacity_blocks": size.blocks}
        row |= {
            one.policy: one.hit_rate for one in found.rows if one.capacity_blocks == size.blocks
        }
        rows.append({**row, "optimum": best.hit_rate, "endless": found.endless.hit_rate})
    return rows


def draw(rows: list[dict[str, float]], path: Path) -> None:
    """Draw how much the hit rate of hotprefix is of that of lru."""
    exponents = list(dict.fromkeys(row["exponent"] for row in rows))
    figure = new_figure(6.4, 4.2)
    axes = figure.subplots()
    for exponent in exponents:
        own = [row for row in rows if row["exponent"] == exponent]
        axes.plot(
            [100 * row["share"] for row in own],
            [row["hotprefix"] / row["lru"] for row in own],
            marker="o",
            markersize=3,
            label=f"exponent {exponent:g}",
        )
    axes.axhspan(1.17, 2.38, alpha=0.1, label="the paper's range")
    axes.axhline(1.0, linewidth=1, linestyle=":", color="#333333")
    axes.set_xscale("log")
    ticks = sorted({100 * row["share"] for row in rows})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("capacity, % of the blocks of all prefixes")
    axes.set_ylabel("hit rate of hotprefix / that of lru")
    axes.set_title("Zipf prefixes, ends that never return", fontsize=10)
    axes.grid(visible=True, linewidth=0.3)
    axes.legend(frameon=False, fontsize=8)
    save_figure(figure, path)


if __name__ == "__main__":
    main()
