"""Time to the first token of short requests while long conversations of agents run.

Short requests come at a rate, first alone, then beside 16 conversations, each of which sends its
next call when the one before has ended, up to --longest tokens a prompt. With --agents they are
recorded ones (JSON lines of timestamp, input, output, session_id); without, they are made of words
and grow by --turn tokens a call. A conversation that has ended begins again as another one.

    python benchmarks/serving/flat_ttft.py --agents agents/lmcache_miniswe.jsonl.gz \\
        --json docs/performance/records/serving-flat-ttft.json
"""

from __future__ import annotations

import asyncio
import sys
from itertools import count
from pathlib import Path
from random import Random

from rig import Goal, Load, parser, report, run_on_a_quick_loop, server_flags, serving, spread

from octavo.bench.serve.datasets import Lengths, random_asks, read_agents
from octavo.bench.serve.load import Chain, Pace
from octavo.bench.serve.site import new_first_line
from octavo.bench.serve.stream import Ask, Outcome, Sender
from octavo.bench.serve.words import Words

GOAL = 2.0
_CALLS = 100_000


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--agents", type=Path, help="recorded conversations")
    made.add_argument("--conversations", type=int, default=16)
    made.add_argument("--longest", type=int, default=7000, help="tokens of a long prompt")
    made.add_argument("--turn", type=int, default=700, help="tokens that made ones grow by")
    made.add_argument("--rate", type=float, default=1.0, help="short requests a second")
    made.add_argument("--seconds", type=float, default=180.0, help="beside the conversations")
    made.add_argument("--warm", type=float, default=20.0, help="seconds of them before it counts")
    made.add_argument("--prompt", type=int, default=32, help="tokens of a short one")
    made.add_argument("--output", type=int, default=8, help="tokens of its answer")
    made.set_defaults(memory="3GiB")
    options = made.parse_args()

    with serving(*server_flags(options)) as server:
        rows, long_prompts = run_on_a_quick_loop(measure(server.address, options))
    beside = rows[-1]
    ratio = beside["p99_ms"] / beside["p50_ms"]
    rows = [row | {"long_prompts": 0} for row in rows[:1]] + [
        beside | {"long_prompts": len(long_prompts)}
    ]
    longest = max((one.prompt_tokens for one in long_prompts), default=0)
    goals = [
        Goal("p99 of the first token beside long prompts, in medians", ratio, GOAL),
        Goal("longest prompt that ended", longest, 0.7 * options.longest, at_least=True),
    ]
    return report("octavo.serving.flat_ttft/1", options, rows, goals)


async def measure(address: str, options: object) -> tuple[list[dict[str, object]], list[Outcome]]:
    load = Load(address)
    ended: list[Outcome] = []
    try:
        site = await load.site()
        sender = load.sender(site)
        few = max(10, int(options.rate * options.seconds / 4))
        alone = await probe(sender, site.words, options, few, seed=1)
        conversations = [
            asyncio.create_task(converse(sender, chains, place / options.conversations, ended))
            for place, chains in enumerate(shared_out(site.words, options))
        ]
        await asyncio.sleep(options.warm)
        many = max(10, int(options.rate * options.seconds))
        beside = await probe(sender, site.words, options, many, seed=2)
        for task in conversations:
            if task.done():
                task.result()
            task.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)
    finally:
        load.close()
    rows = [
        {"beside": name, "requests": len(waits)} | spread(waits) | {"max_ms": 1000 * max(waits)}
        for name, waits in (("nothing", alone), (f"{options.conversations} agents", beside))
    ]
    return rows, ended


async def probe(
    sender: Sender, words: Words, options: object, requests: int, *, seed: int
) -> list[float]:
    """Send short requests at random times; returns the seconds to the first token of each."""
    from octavo.bench.serve.load import run_load

    lengths = Lengths(input=options.prompt, output=options.output)
    chains = random_asks(words, requests, lengths, seed)
    run = await run_load(chains, sender.send, Pace(rate_per_s=options.rate, seed=seed))
    failed = [one.error for one in run.outcomes if one.error]
    if failed:
        raise SystemExit(f"{len(failed)} short requests failed: {failed[0]}")
    return [one.ttft_s for one in run.outcomes]


async def converse(sender: Sender, chains: list[Chain], begun: float, ended: list[Outcome]) -> None:
    """Follow conversations, one after the other, for ever.

    begun: the share of the first one that is past, so that not all are short at the same time.
    """
    skip = int(begun * len(chains[0]))
    while True:
        before = len(ended)
        for chain in chains:
            first_line = new_first_line()
            for ask in chain[skip:]:
                outcome = await sender.send(ask, first_line)
                if outcome.error:
                    # A call that is longer than was guessed ends its conversation.
                    if outcome.status != 400:
                        raise SystemExit(f"a long prompt failed: {outcome.error}")
                    break
                ended.append(outcome)
            skip = 0
        if len(ended) == before:
            raise SystemExit("none of the conversations fits into the model's context")


def shared_out(words: Words, options: object) -> list[list[Chain]]:
    """Return the conversations that each of the agents has."""
    if options.agents is None:
        chains = [grown(words, options, number) for number in range(options.conversations)]
    else:
        # Tokens are counted by three characters each there, and have more as a rule.
        chains = read_agents(options.agents, _CALLS, None, int(1.15 * options.longest))
    agents: list[list[Chain]] = [[] for _ in range(options.conversations)]
    for number, chain in zip(count(), chains, strict=False):
        agents[number % len(agents)].append(chain)
    return [own or [chains[number % len(chains)]] for number, own in enumerate(agents)]


def grown(words: Words, options: object, number: int) -> Chain:
    random = Random(f"conversation {number}")
    asks: list[Ask] = []
    text, tokens = "", 0
    while tokens + options.turn <= options.longest:
        text += words.text(options.turn, random)
        tokens += options.turn
        asks.append(Ask(text=text, output_tokens=32, prompt_tokens=tokens))
    return tuple(asks)


if __name__ == "__main__":
    sys.exit(main())
