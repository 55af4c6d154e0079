"""What an order of service makes of shuffled requests whose prefixes do not all fit into memory.

The real scheduler and cache, without a model: each step answers at once. Two queues: `all`, every
request waits from the beginning; `clients`, so many clients each wait for an answer before they
send the next request of the shuffled list.

    python benchmarks/orders.py
    python benchmarks/orders.py --pool-share 0.05 --json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from functools import partial
from random import Random

from octavo.contract.batch import Sampled, StepResult
from octavo.contract.request import Request
from octavo.envelope import envelope
from octavo.memory.groups import Groups
from octavo.sched.depth_first import DepthFirst
from octavo.sched.limits import Limits
from octavo.sched.longest_prefix import LongestPrefix
from octavo.sched.order import Fcfs
from octavo.sched.scheduler import Scheduler
from octavo.testing.driver import make_cache, make_request

BLOCK = 16
ORDERS = {
    "fcfs": Fcfs,
    **{
        f"{name}, max_passed {most}": partial(make, max_passed=most)
        for name, make in (("longest_prefix", LongestPrefix), ("depth_first", DepthFirst))
        for most in (16, 64, 256, 1024)
    },
}


def few_shot(draw: Random) -> list[list[int]]:
    """64 sets of examples (1,024 tokens), each with 16 questions (64 tokens)."""
    texts = []
    for _ in range(64):
        examples = [draw.randrange(30_000) for _ in range(1024)]
        texts += [examples + [draw.randrange(30_000) for _ in range(64)] for _ in range(16)]
    return texts


def agents(draw: Random) -> list[list[int]]:
    """48 tasks under one system prompt: each explores a tree of 21 calls, 4 branches a call."""
    system = [draw.randrange(30_000) for _ in range(512)]
    texts = []
    for _ in range(48):
        level = [system + [draw.randrange(30_000) for _ in range(512)]]
        for _ in range(3):
            texts += level
            level = [
                text + [draw.randrange(30_000) for _ in range(256)]
                for text in level
                for _ in range(4)
            ]
            level = draw.sample(level, min(len(level), 16))
    return texts


WORKLOADS = {"few-shot": few_shot, "agents": agents}


def distinct_blocks(texts: list[list[int]]) -> int:
    """Full blocks of all texts, equal ones counted once."""
    known = set()
    for text in texts:
        known |= {hash(tuple(text[:end])) for end in range(BLOCK, len(text) + 1, BLOCK)}
    return len(known)


def serve(order, texts: list[list[int]], blocks: int, clients: int) -> dict[str, float]:
    """Serve all texts, 8 at once; one token is the answer."""
    cache = make_cache(blocks, Groups((BLOCK,)))
    scheduler = Scheduler(cache, order, Limits(8, 2048, 1 << 20, blocks * BLOCK))
    requests: deque[Request] = deque(
        make_request(f"{i}", text, max_tokens=1) for i, text in enumerate(texts)
    )
    ended: list[int] = []
    planning = 0.0
    steps = 0
    while requests or scheduler.busy:
        running, waiting = scheduler.queue_lengths
        for _ in range(min(len(requests), clients - running - waiting)):
            scheduler.add(requests.popleft())
        began = time.process_time()
        batch = scheduler.plan(float(steps))
        planning += time.process_time() - began
        steps += 1
        assert batch is not None
        sampled = {one.seq: Sampled(1, -1.0) for piece in batch.slices for one in piece.samples}
        news = scheduler.apply(batch, StepResult(batch.step, sampled=sampled))
        ended += [int(update.request_id) for update in news if update.finish]
    later = [sum(other > mine for other in ended[:at]) for at, mine in enumerate(ended)]
    stats = scheduler.stats
    return {
        "hit_share": stats.prefix_hit_tokens / stats.prefix_query_tokens,
        "computed_tokens": stats.computed_prompt_tokens,
        "most_passed": max(later),
        "plan_ms": 1000 * planning / steps,
    }


def main() -> None:
    """Measure, and print a table or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pool-share", type=float, default=0.1, help="of the distinct blocks")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = []
    for name, make in WORKLOADS.items():
        draw = Random(1)
        texts = make(draw)
        draw.shuffle(texts)
        distinct = distinct_blocks(texts)
        for queue, clients in (("all", len(texts)), ("clients", options.clients)):
            for order, make_order in ORDERS.items():
                row = serve(make_order(), texts, int(distinct * options.pool_share), clients)
                rows.append({"workload": name, "queue": queue, "order": order} | row)
                sys.stderr.write(f"{rows[-1]}\n")
    if options.json:
        settings = {"pool_share": options.pool_share, "clients": options.clients}
        document = envelope("octavo.orders/1", None, **settings) | {"rows": rows}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
        return
    for row in rows:
        sys.stdout.write(
            f"{row['workload']:9} {row['queue']:8} {row['order']:30} "
            f"{100 * row['hit_share']:6.1f} % hit {row['computed_tokens']:10,} computed "
            f"{row['most_passed']:5} passed {row['plan_ms']:7.3f} ms a plan\n"
        )


if __name__ == "__main__":
    main()
