"""Index mode: the real pool, index and eviction policy, one request at a time, no engine."""

from __future__ import annotations

import math
from collections.abc import Callable

from octavo.contract.hint import CacheHint
from octavo.contract.ids import BlockId, BlockKey
from octavo.memory.eviction import EvictionPolicy
from octavo.memory.tier import Text, Tier
from octavo.replay.tally import Tally
from octavo.replay.trace import RecordedRequest, Trace

_ADVANCE_EVERY = 256
"""Requests between two signs of life."""


class PrefixCache:
    """A tier of `capacity` blocks that serves whole prompts, one after the other.

    What an engine does over many steps happens at once: look up, admit, write, release. Blocks
    that are written once more, since a block before them was evicted, stay private as they do
    in an engine, and are free again after the request.
    """

    def __init__(self, capacity: int, policy: EvictionPolicy, block_size: int) -> None:
        self._tier = Tier("replay", capacity, policy)
        self._block_size = block_size

    @property
    def evictions(self) -> int:
        """Cached blocks that were given up for others."""
        return self._tier.pool.evictions

    def serve(self, request: RecordedRequest, hints: list[CacheHint] | None = None) -> int:
        """Return how many leading blocks were known; then all are, as far as they fit.

        Of a prompt longer than the cache, the beginning is kept. Known answers are written behind
        it, all before any of them ends. hints: what is said of each block of prompt and first
        answer at the end. O(blocks), times what the policy takes.
        """
        pool = self._tier.pool
        texts = _texts(request.keys + request.answer_keys)
        prompt = len(request.keys)
        table = self._known(texts[:prompt])
        hits = len(table)
        pool.reuse(table)
        new = pool.take(min(len(texts) - hits, pool.available))
        tokens = request.prompt_tokens + (request.output_tokens if request.answer_keys else 0)
        self._write(new, texts[hits:], tokens - hits * self._block_size)
        table += new
        held = set(table)
        others = [
            self._branch(one.keys, request, held) for one in request.more if len(table) >= prompt
        ]
        if hints is not None:
            for block_id, hint in zip(table, hints, strict=False):
                pool.hint([block_id], hint)
        # Tail first: a suffix is useless without its prefix, so it should be evicted earlier.
        for own in others:
            pool.drop(reversed(own))
        pool.drop(reversed(table))
        return hits

    def _branch(
        self, keys: tuple[BlockKey, ...], request: RecordedRequest, held: set[BlockId]
    ) -> list[BlockId]:
        """Write one more answer behind a prompt that is held; returns blocks of its own.

        held: by answers to this prompt so far, with which it may share a beginning; updated.
        """
        pool, prompt = self._tier.pool, len(request.keys)
        texts = _texts(request.keys + keys)[prompt:]
        known = self._known(texts)
        own = [block_id for block_id in known if block_id not in held]
        pool.reuse(own)
        rest = texts[len(known) :]
        new = pool.take(min(len(rest), pool.available))
        self._write(new, rest, len(rest) * self._block_size)
        own += new
        held.update(own)
        return own

    def _known(self, texts: list[Text]) -> list[BlockId]:
        found: list[BlockId] = []
        for text in texts:
            block = self._tier.find(0, text)
            if block is None:
                break
            found.append(block.id)
        return found

    def _write(self, new: list[BlockId], texts: list[Text], tokens: int) -> None:
        tier, size = self._tier, self._block_size
        pool = tier.pool
        for block_id, text in zip(new, texts, strict=False):
            pool.fill(block_id, min(size, tokens))
            tokens -= size
            tier.publish(pool.blocks[block_id], text)


def replay_index(
    trace: Trace,
    policy: EvictionPolicy,
    capacity: int,
    *,
    judged_from_s: float = -math.inf,
    hints: list[list[CacheHint]] | None = None,
    advance: Callable[[float], None] | None = None,
) -> Tally:
    """Serve a trace from an empty cache and count what hits.

    judged_from_s: requests before it warm the cache and do not count. hints: for each request,
    what is said of each of its blocks. advance: told how many
    requests are done since the last call.
    """
    cache = PrefixCache(capacity, policy, trace.block_size)
    tally = Tally()
    warm_evictions = 0
    for number, request in enumerate(trace.requests, 1):
        judged = request.time_s >= judged_from_s
        hits = cache.serve(request, None if hints is None else hints[number - 1])
        if judged:
            tally.count(request, hits, trace.block_size)
        else:
            warm_evictions = cache.evictions
        if advance is not None and number % _ADVANCE_EVERY == 0:
            advance(_ADVANCE_EVERY)
    if advance is not None:
        advance(len(trace.requests) % _ADVANCE_EVERY)
    tally.evictions = cache.evictions - warm_evictions
    return tally


def _texts(keys: tuple[BlockKey, ...]) -> list[Text]:
    """Return what blocks hold, told by their keys alone: a trace has no tokens."""
    parents = (b"", *keys)
    return [Text(key, parents[depth], b"", depth) for depth, key in enumerate(keys)]
