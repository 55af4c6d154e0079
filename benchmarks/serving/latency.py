"""From the moment a step's result is there until its token is at the client, on one host.

The server tells in a comment of the stream when it applied the step, on the clock that all
processes of a host share; the client looks at that clock when the bytes come. Figures are medians
of the rounds; those of the 99th percentile are told from the lowest to the highest.

    python benchmarks/serving/latency.py --json docs/performance/records/serving-latency.json
"""

from __future__ import annotations

import sys
from statistics import median

from rig import Goal, Server, load_once, parser, report, server_flags, serving, site_of, spread

from octavo.bench.serve.datasets import Lengths, random_asks
from octavo.bench.serve.load import Pace
from octavo.bench.serve.words import Words

GOAL_MS = 5.0


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--streams", default="1,8,32", help="by commas; the goal is for the last")
    made.add_argument("--requests", type=int, default=4, help="for each stream")
    made.add_argument("--rounds", type=int, default=3, help="each with prompts of its own")
    made.add_argument("--prompt", type=int, default=64, help="tokens")
    made.add_argument("--output", type=int, default=128, help="tokens")
    options = made.parse_args()

    counts = [int(part) for part in options.streams.split(",")]
    rows: list[dict[str, object]] = []
    flags = server_flags(options, "--max-num-seqs", str(max(counts)))
    with serving(*flags, tell_applied=True) as server:
        words = site_of(server.address).words
        lengths = Lengths(input=options.prompt, output=options.output)
        load_once(server.address, random_asks(words, max(counts), lengths, -1), Pace())
        for streams in counts:
            rounds = [
                _round(server, words, streams, lengths, seed, options.requests)
                for seed in range(options.rounds)
            ]
            row = {name: median(one[name] for one in rounds) for name in rounds[0]}
            worst = [one["p99_ms"] for one in rounds]
            rows.append({"streams": streams} | row | {"p99_from": min(worst), "p99_to": max(worst)})
    goal = Goal(f"p99 ms at {counts[-1]} streams", rows[-1]["p99_ms"], GOAL_MS)
    return report("octavo.serving.latency/2", options, rows, [goal])


def _round(
    server: Server,
    words: Words,
    streams: int,
    lengths: Lengths,
    seed: int,
    requests: int,
) -> dict[str, float]:
    """Load a server once, with prompts that it has not seen."""
    chains = random_asks(words, streams * requests, lengths, 1000 * streams + seed)
    before = server.processor_s()
    run = load_once(server.address, chains, Pace(max_concurrency=streams))
    used = server.processor_s()
    waits = [wait for one in run.outcomes for wait in one.applied_s]
    tokens = sum(one.output_tokens for one in run.outcomes)
    return {
        "pieces": len(waits),
        **spread(waits),
        "max_ms": 1000 * max(waits),
        "tokens_per_s": tokens / run.duration_s,
        "server_us_per_token": _per_token(before, used, tokens),
    }


def _per_token(before_s: float | None, after_s: float | None, tokens: int) -> float:
    """Return the processor's microseconds for a token in the process that speaks HTTP."""
    return 0.0 if before_s is None or after_s is None else 1e6 * (after_s - before_s) / tokens


if __name__ == "__main__":
    sys.exit(main())
