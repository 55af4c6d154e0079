"""What no cache can exceed: an endless one, and the best one that knows the future.

Worked out from the trace alone, without the pool, the index or a policy of the engine.
"""

from __future__ import annotations

import heapq
import math

from octavo.contract.ids import BlockKey
from octavo.replay.tally import Tally
from octavo.replay.trace import RecordedRequest, Trace


def endless(trace: Trace, *, judged_from_s: float = -math.inf) -> Tally:
    """Count the hits of a cache that never evicts."""
    seen: set[BlockKey] = set()
    tally = Tally()
    for request in trace.requests:
        if request.time_s >= judged_from_s:
            tally.count(request, _leading(request, seen), trace.block_size)
        seen.update(key for _, key in request.blocks())
    return tally


def optimum(
    trace: Trace, capacity: int, *, judged_from_s: float = -math.inf, tail_first: bool = True
) -> Tally:
    """Count the hits of a cache of `capacity` blocks that is told the future.

    After each request it keeps, of the blocks it had and those of the request, the ones that are
    needed again soonest. A block that is needed later than all others, or never, is not taken in;
    of blocks that are needed by one request again, the deepest goes first, so that what is kept
    are always prefixes. O(log n) per reference. Evictions are not counted.

    No policy has more hits over the whole trace. With `judged_from_s` it is still the best of the
    whole, of which the judged part is counted. tail_first=False: the shallowest goes first, as
    where prefixes are not thought of; some of what is kept is then of no use.

    Source: Belady 1966, "A study of replacement algorithms for a virtual-storage computer"; with
    bypass.
    """
    next_uses = _next_uses(trace)
    kept: dict[BlockKey, float] = {}
    """By key: the number of the request that needs it next."""
    latest: list[tuple[float, int, BlockKey]] = []
    """Heap of (-next use, rank, key), latest first; entries of blocks used since are stale."""
    rank = -1 if tail_first else 1
    tally = Tally()
    for request, uses in zip(trace.requests, next_uses, strict=True):
        if request.time_s >= judged_from_s:
            tally.count(request, _leading(request, kept), trace.block_size)
        for (depth, key), use in zip(request.blocks(), uses, strict=True):
            if use == math.inf:
                kept.pop(key, None)
            else:
                kept[key] = use
                heapq.heappush(latest, (-use, rank * depth, key))
        while len(kept) > capacity:
            use, _, key = heapq.heappop(latest)
            if kept.get(key) == -use:
                del kept[key]
    return tally


def _leading(request: RecordedRequest, known: set[BlockKey] | dict[BlockKey, float]) -> int:
    for number, key in enumerate(request.keys):
        if key not in known:
            return number
    return len(request.keys)


def _next_uses(trace: Trace) -> list[list[float]]:
    """For each request and block, the number of the next prompt with this block, or inf."""
    coming: dict[BlockKey, int] = {}
    uses: list[list[float]] = []
    for number in range(len(trace.requests) - 1, -1, -1):
        one = trace.requests[number]
        uses.append([coming.get(key, math.inf) for _, key in one.blocks()])
        for key in one.keys:
            coming[key] = number
    uses.reverse()
    return uses
