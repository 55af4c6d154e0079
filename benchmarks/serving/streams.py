"""A thousand open streams: each is served or queued, none fails, and all get all their tokens.

python benchmarks/serving/streams.py --json docs/performance/records/serving-streams.json
"""

from __future__ import annotations

import sys

from rig import Goal, Load, parser, report, run_on_a_quick_loop, server_flags, serving, spread

from octavo.bench.serve.datasets import Lengths, random_asks
from octavo.bench.serve.load import Pace, Run
from octavo.bench.serve.report import most_at_once


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--streams", type=int, default=1000)
    made.add_argument("--prompt", type=int, default=16, help="tokens")
    made.add_argument("--output", type=int, default=32, help="tokens")
    options = made.parse_args()

    with serving(*server_flags(options)) as server:
        run = run_on_a_quick_loop(open_all(server.address, options))
    good = [one for one in run.outcomes if not one.error]
    short = [one for one in good if one.output_tokens != options.output]
    first = [one.ttft_s for one in good]
    row = {
        "streams": options.streams, "open_at_once": most_at_once(run.outcomes),
        "completed": len(good), "seconds": run.duration_s,
        "tokens_per_s": sum(one.output_tokens for one in good) / run.duration_s,
    } | {f"first_token_{name}": value for name, value in spread(first).items()}  # fmt: skip
    failed = len(run.outcomes) - len(good)
    goals = [
        Goal("streams that failed", failed, 0),
        Goal("answers that lack tokens", len(short), 0),
        Goal("streams open at once", row["open_at_once"], options.streams, at_least=True),
    ]
    return report("octavo.serving.streams/1", options, [row], goals)


async def open_all(address: str, options: object) -> Run:
    from octavo.cli.bench_load import allow_many_files

    allow_many_files()
    load = Load(address)
    try:
        site = await load.site()
        lengths = Lengths(input=options.prompt, output=options.output)
        return await load.run(random_asks(site.words, options.streams, lengths, 0), Pace())
    finally:
        load.close()


if __name__ == "__main__":
    sys.exit(main())
