"""The plain way to replay a trace in an engine: every token of every text, one step at a time."""

from __future__ import annotations

import math
from itertools import count

from octavo.contract.batch import Sampled, StepResult
from octavo.contract.request import Request
from octavo.contract.sampling import SamplingParams
from octavo.memory.groups import Groups
from octavo.memory.manager import KVCacheManager
from octavo.memory.policies.lru import Lru
from octavo.memory.tier import Tier
from octavo.replay.engine import EngineSettings, EngineTally
from octavo.replay.trace import Trace
from octavo.sched.limits import Limits
from octavo.sched.order import Fcfs
from octavo.sched.scheduler import Scheduler


def replay_token_by_token(trace: Trace, capacity: int, settings: EngineSettings) -> EngineTally:
    """Answer a trace with LRU, as `replay_engine` does, without any of its shortcuts.

    All answers to one prompt must have the same length; what they say is in no later prompt.
    """
    size, cost, tally = trace.block_size, settings.cost, EngineTally()
    tier = Tier("plain", capacity, Lru())
    step_tokens = settings.max_num_batched_tokens
    limits = Limits(settings.max_num_seqs, step_tokens, 2**31, capacity * size)
    cache = KVCacheManager(Groups((size,), step_tokens=step_tokens), (tier,))
    scheduler = Scheduler(cache, Fcfs(), limits)
    fresh, names = count(1), {}
    now, coming, requests = trace.requests[0].time_s, 0, trace.requests
    admitted, first, last, cached, done = {}, {}, {}, {}, {}
    preempted, ids = {}, {}

    def prompt(one):
        tokens = []
        for key in one.keys[: one.prompt_tokens // size]:
            tokens += [names.setdefault(key, next(fresh))] * size
        return (*tokens, *(next(fresh) for _ in range(one.prompt_tokens % size)))

    while coming < len(requests) or scheduler.busy:
        while coming < len(requests) and requests[coming].time_s <= now:
            one = requests[coming]
            n = 1 + len(one.more)
            params = SamplingParams(max_tokens=one.output_tokens, ignore_eos=True, n=n)
            scheduler.add(Request(id=str(coming), prompt=prompt(one), sampling=params, seed=0))
            coming += 1
        batch = scheduler.plan(now)
        if batch is None:
            now = requests[coming].time_s
            continue
        rows = context = pairs = 0
        for piece in batch.slices:
            seq = scheduler.sequence(piece.seq)
            assert seq is not None
            number = ids.setdefault(piece.seq, (int(seq.request.id), seq.index))
            admitted.setdefault(number, now)
            preempted[number] = seq.preemptions
            tokens = len(piece.tokens)
            rows += tokens
            if tokens == 1 and done.get(number):
                context += piece.start + 1
            else:
                pairs += tokens * piece.start + tokens * (tokens + 1) // 2
        now += cost.step(rows, context, pairs)
        tally.steps += 1
        sampled = {s.seq: Sampled(next(fresh), 0.0) for p in batch.slices for s in p.samples}
        for update in scheduler.apply(batch, StepResult(batch.step, sampled)):
            number = int(update.request_id), update.index
            done[number] = done.get(number, 0) + 1
            first.setdefault(number, now)
            cached.setdefault(number, update.cached_tokens)
            if update.finish is not None:
                last[number] = now
    for number, one in enumerate(requests):
        answers = [(number, index) for index in range(1 + len(one.more))]
        tally.cache.count(one, cached[number, 0] // size, size)
        tally.first_token_s.append(first[number, 0] - one.time_s)
        tally.queueing_s.append(admitted[number, 0] - one.time_s)
        tally.answer_s.append(max(last[answer] for answer in answers) - one.time_s)
        tally.preempted.append(sum(preempted.get(answer, 0) for answer in answers))
        tally.output_tokens += len(answers) * one.output_tokens
    tally.seconds = now - requests[0].time_s
    tally.cache.evictions = tier.pool.evictions
    assert not math.isnan(now)
    return tally
