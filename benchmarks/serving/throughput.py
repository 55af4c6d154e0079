"""Output tokens a second over HTTP against the offline API, on the same requests.

Both take the same prompts as text, 32 at once, in turns: a round of one, a round of the other. No
round's prompts begin like another's, so nothing is found in a cache.

    python benchmarks/serving/throughput.py --json docs/performance/records/serving-throughput.json
"""

from __future__ import annotations

import statistics
import sys
import time

from rig import Goal, load_once, parser, report, server_flags, serving, site_of

from octavo import LLM, SamplingParams
from octavo.bench.serve.datasets import Lengths, random_asks
from octavo.bench.serve.load import Chain, Pace
from octavo.bench.serve.words import Words

GOAL = 0.9


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--streams", type=int, default=32)
    made.add_argument("--requests", type=int, default=96)
    made.add_argument("--prompt", type=int, default=64, help="tokens")
    made.add_argument("--output", type=int, default=128, help="tokens")
    made.add_argument("--rounds", type=int, default=5)
    options = made.parse_args()

    flags = server_flags(options, "--max-num-seqs", str(options.streams))
    rows: list[dict[str, object]] = []
    with (
        LLM(
            options.model,
            kv_cache_memory_bytes=_bytes(options.memory),
            max_num_seqs=options.streams,
        ) as llm,
        serving(*flags) as server,
    ):
        words = site_of(server.address).words
        offline_rate(llm, chains_of(words, options, -1))
        online_rate(server.address, chains_of(words, options, -1), options.streams)
        for number in range(options.rounds):
            chains = chains_of(words, options, number)
            offline = offline_rate(llm, chains)
            online = online_rate(server.address, chains, options.streams)
            rows.append({
                "round": number, "offline_tokens_per_s": offline, "http_tokens_per_s": online,
                "share": online / offline,
            })  # fmt: skip
    share = statistics.median(row["share"] for row in rows)
    goal = Goal("HTTP, as a share of offline", share, GOAL, at_least=True)
    return report("octavo.serving.throughput/1", options, rows, [goal])


def chains_of(words: Words, options: object, seed: int) -> list[Chain]:
    lengths = Lengths(input=options.prompt, output=options.output)
    return random_asks(words, options.requests, lengths, seed)


def offline_rate(llm: LLM, chains: list[Chain]) -> float:
    asks = [chain[0] for chain in chains]
    params = [
        SamplingParams(temperature=0, max_tokens=ask.output_tokens, ignore_eos=True) for ask in asks
    ]
    start = time.perf_counter()
    outputs = llm.generate([ask.text for ask in asks], params, use_tqdm=False)
    seconds = time.perf_counter() - start
    return sum(len(one.outputs[0].token_ids) for one in outputs) / seconds


def online_rate(address: str, chains: list[Chain], streams: int) -> float:
    run = load_once(address, chains, Pace(max_concurrency=streams))
    return sum(one.output_tokens for one in run.outcomes) / run.duration_s


def _bytes(text: str) -> int:
    from octavo.sizes import parse_bytes

    return parse_bytes(text, name="--memory")


if __name__ == "__main__":
    sys.exit(main())
