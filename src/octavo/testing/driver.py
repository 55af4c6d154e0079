"""Builds the deciding plane over a fake runner and drives it step by step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from octavo.contract.batch import Batch
from octavo.contract.hint import CacheHint
from octavo.contract.ids import SeqId
from octavo.contract.namespace import Namespace
from octavo.contract.pooling import Pooling
from octavo.contract.request import FinishReason, Request, Update, choice_seed
from octavo.contract.retention import DEFAULT_TENANT, Retention, TenantShare
from octavo.contract.sampling import SamplingParams
from octavo.memory.eviction import EvictionPolicy
from octavo.memory.groups import Groups
from octavo.memory.manager import KVCacheManager
from octavo.memory.placement import WriteThrough
from octavo.memory.policies.lru import Lru
from octavo.memory.regions import RegionCache
from octavo.memory.reservation import RESERVATIONS
from octavo.memory.shares import Shares
from octavo.memory.tier import Tier, device_tier
from octavo.sched.cache import Cache
from octavo.sched.limits import Limits
from octavo.sched.order import ORDERS, Order
from octavo.sched.scheduler import Scheduler
from octavo.testing.beam_oracle import expected_beams
from octavo.testing.fake_runner import FakeRunner, Fate, Refusal, expected_output, text_digest

EOS = 0
"""The end token of fake requests that do not ignore it."""

LONGEST_TRIED = 20_000
"""Tokens."""


def make_cache(
    num_blocks: int,
    groups: Groups | None = None,
    *,
    host_blocks: int = 0,
    policy: Callable[[], EvictionPolicy] = Lru,
    partial_blocks: bool = True,
    tenants: Iterable[TenantShare] = (),
    pin_limit: float = 0.0,
) -> KVCacheManager:
    """Build a cache manager; with host blocks, every committed block is copied to the host.

    groups: None means one group of blocks of four tokens.
    """
    groups = groups or Groups((4,))
    shares = Shares(num_blocks, tenants, pin_limit=pin_limit)
    tiers = [device_tier(policy, shares, groups, partial_blocks=partial_blocks)]
    if host_blocks:
        tiers.append(Tier("host", host_blocks, policy(), groups.slot_weights))
    return KVCacheManager(groups, tuple(tiers), WriteThrough() if host_blocks else None)


def make_regions(
    rule: str, num_blocks: int, *, block_size: int = 4, longest: int = 64
) -> RegionCache:
    """Build a contiguous baseline."""
    return RegionCache(RESERVATIONS[rule], num_blocks, block_size=block_size, longest=longest)


def make_request(
    request_id: str,
    prompt: list[int],
    *,
    max_tokens: int | None = 8,
    n: int = 1,
    seed: int = 0,
    priority: int = 0,
    eos: bool = False,
    salt: str = "",
    cache_hints: tuple[CacheHint, ...] = (),
    bad_words: tuple[tuple[int, ...], ...] = (),
    tenant: str = DEFAULT_TENANT,
    retention: tuple[Retention, ...] = (),
    pooling: Pooling | None = None,
    **options: Any,  # a sampling option of any type
) -> Request:
    """Build a request for the fake model, which obeys no option but lets one look back."""
    return Request(
        id=request_id,
        prompt=tuple(prompt),
        sampling=SamplingParams(n=n, max_tokens=max_tokens, seed=seed, **options),
        seed=seed,
        namespace=Namespace(model="fake", salt=salt),
        priority=priority,
        tenant=tenant,
        retention=retention,
        eos_token_ids=frozenset({EOS}) if eos else frozenset(),
        bad_words=bad_words,
        cache_hints=cache_hints,
        pooling=pooling,
    )


@dataclass(slots=True)
class Answer:
    """What became of one choice of one request."""

    tokens: list[int] = field(default_factory=list[int])
    finish: FinishReason | None = None
    error: str | None = None
    logprobs: list[int] = field(default_factory=list[int])
    """Tokens whose log-probabilities have come."""
    embedding: bytes = b""
    prompt_logprobs: list[int] = field(default_factory=list[int])


class Driver:
    """Scheduler, cache and fake runner in one loop, with up to `depth` steps in flight."""

    def __init__(
        self,
        cache: Cache,
        block_sizes: tuple[int, ...] = (4,),
        *,
        limits: Limits,
        order: str | Order = "fcfs",
        depth: int = 1,
        runner: FakeRunner | None = None,
    ) -> None:
        self.cache = cache
        ranking = ORDERS[order]() if isinstance(order, str) else order
        self.scheduler = Scheduler(cache, ranking, limits)
        self.runner = runner or FakeRunner(block_sizes, text=self.text)
        self.depth = depth
        self.requests: dict[str, Request] = {}
        self.answers: dict[tuple[str, int], Answer] = {}
        self.batches: list[Batch] = []
        self.now_s = 0.0
        self._open: deque[Batch] = deque()
        self._beams: dict[str, list[list[int]]] = {}
        self._beam_limits: dict[str, int] = {}
        self._shortened: set[str] = set()
        """Requests whose limit may be lower than when they came."""

    @classmethod
    def paged(
        cls,
        num_blocks: int,
        block_sizes: tuple[int, ...] = (4,),
        *,
        windows: tuple[int | None, ...] | None = None,
        depth: int = 1,
        order: str = "fcfs",
        max_num_seqs: int = 8,
        budget: int = 64,
        host_blocks: int = 0,
        fate: Fate | None = None,
        refusal: Refusal | None = None,
        random: Random | None = None,
        move_failure: float = 0.0,
        vocab_size: int = 50,
        max_model_len: int = 10_000,
        storm_guard_tokens: int = 16,
        long_prefills: tuple[int, int] = (0, 1),
        policy: Callable[[], EvictionPolicy] = Lru,
        partial_blocks: bool = True,
        tenants: Iterable[TenantShare] = (),
        pin_limit: float = 0.0,
    ) -> Driver:
        """Build the paged engine with a pool of `num_blocks`.

        long_prefills: tokens a step of a long text, and how many of these are given some.
        """
        groups = Groups(block_sizes, windows, step_tokens=budget)
        cache = make_cache(
            num_blocks,
            groups,
            host_blocks=host_blocks,
            policy=policy,
            partial_blocks=partial_blocks,
            tenants=tenants,
            pin_limit=pin_limit,
        )
        pool_tokens = capacity(num_blocks, groups)
        limits = Limits(
            max_num_seqs, budget, max_model_len, pool_tokens, storm_guard_tokens, *long_prefills
        )
        driver = cls(cache, block_sizes, limits=limits, order=order, depth=depth)
        driver.runner = FakeRunner(
            block_sizes,
            groups.windows,
            vocab_size=vocab_size,
            text=driver.text,
            fate=fate,
            refusal=refusal,
            random=random,
            move_failure=move_failure,
        )
        return driver

    def add(self, request: Request) -> None:
        """Queue a request."""
        longest = self.scheduler.add(request)
        self._beam_limits[request.id] = len(request.prompt) + longest
        self.requests[request.id] = request
        for index in range(request.sampling.choices):
            self.answers[request.id, index] = Answer()

    def add_all(self, requests: Iterable[Request]) -> None:
        """Queue requests in order."""
        for request in requests:
            self.add(request)

    def step(self) -> list[Update]:
        """Plan and submit, then collect and apply if as many steps are in flight as may be."""
        self.now_s += 1.0
        batch = self.scheduler.plan(self.now_s)
        if batch is not None:
            self.batches.append(batch)
            self.runner.submit(batch)
            self._open.append(batch)
        if self._open and (batch is None or len(self._open) >= self.depth):
            return self._collect()
        return []

    def run(self, max_steps: int = 10_000) -> None:
        """Step until every request has ended and no step is in flight."""
        for _ in range(max_steps):
            if not self.scheduler.busy and not self._open:
                return
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps")

    def check_answers(self) -> None:
        """Assert that every text so far is what the fake model writes, and ends where it must."""
        for (request_id, index), answer in self.answers.items():
            request = self.requests[request_id]
            if request.pooling is not None:
                self._check_vector(request, answer)
                continue
            if request.sampling.use_beam_search:
                self._check_beam(request, index, answer)
                continue
            seed = choice_seed(request.seed, index)
            vocab, count = self.runner.vocab_size, len(answer.tokens)
            form = request.sampling.structured_outputs
            truth = expected_output(list(request.prompt), seed, count, vocab, form)
            assert answer.tokens == truth, f"{request_id}/{index}: {answer.tokens}, not {truth}"
            if request.eos_token_ids:
                assert EOS not in answer.tokens[:-1], f"{request_id}/{index}: text after the end"
            if answer.finish is FinishReason.STOP:
                assert answer.tokens[-1] == EOS, f"{request_id}/{index} stopped without reason"
            most = request.sampling.max_tokens
            assert most is None or count <= most, f"{request_id}/{index}: {count} tokens of {most}"
            if request.sampling.logprobs is not None:
                assert answer.logprobs == answer.tokens, f"{request_id}/{index}: logprobs missing"
            scored = request.sampling.prompt_logprobs is not None and not index and count
            wanted = list(request.prompt[1:]) if scored else []
            assert answer.prompt_logprobs == wanted, f"{request_id}/{index}: prompt logprobs"

    def _check_vector(self, request: Request, answer: Answer) -> None:
        """Assert that an embedded prompt has no text, and the vector of all of it at its end."""
        assert not answer.tokens, f"{request.id}: text beside a vector"
        ended = answer.finish is FinishReason.STOP
        truth = text_digest(list(request.prompt)) if ended else b""
        assert answer.embedding == truth, f"{request.id}: not the vector of its prompt"

    def _check_beam(self, request: Request, index: int, answer: Answer) -> None:
        """Assert that a finished beam is the one that a plain beam search finds."""
        if answer.finish in (None, FinishReason.ERROR, FinishReason.ABORT):
            assert not answer.tokens, f"{request.id}/{index}: text before the end"
            return
        if request.id in self._shortened:
            return
        if request.id not in self._beams:
            limit = self._beam_limits[request.id]
            self._beams[request.id] = expected_beams(request, limit, self.runner.vocab_size)
        truth = self._beams[request.id][index]
        assert answer.tokens == truth, f"{request.id}/{index}: {answer.tokens}, not {truth}"
        if request.sampling.prompt_logprobs is not None and not index:
            assert answer.prompt_logprobs == list(request.prompt[1:]), f"{request.id}: prompt"

    def settle(self) -> None:
        """Collect all steps in flight."""
        while self._open:
            self._collect()

    def quarantine(self) -> int:
        """Let everybody begin again without suspect blocks; no move may be open.

        Returns how many blocks are out.
        """
        self.settle()
        count, ends = self.scheduler.quarantine()
        self._shortened.update(self.scheduler.requests)
        self._note(ends)
        return count

    def _collect(self) -> list[Update]:
        updates = self.scheduler.apply(self._open.popleft(), self.runner.collect())
        self._note(updates)
        return updates

    def _note(self, updates: list[Update]) -> None:
        for update in updates:
            answer = self.answers[update.request_id, update.index]
            assert answer.finish is None, f"news of {update.request_id} after its end"
            answer.tokens += update.tokens
            answer.finish, answer.error = update.finish, update.error
            answer.embedding += update.embedding
            answer.logprobs += [one.ids[-1] for one in update.logprobs]
            answer.prompt_logprobs += [one.ids[-1] for one in update.prompt_logprobs]

    def text(self, seq_id: SeqId) -> list[int] | None:
        """Return the known tokens of a live sequence."""
        seq = self.scheduler.sequence(seq_id)
        return None if seq is None else seq.tokens.tolist()


def capacity(num_blocks: int, groups: Groups) -> int:
    """Longest text that a pool holds: the definition, tried out length by length.

    At most `LONGEST_TRIED`, which stands for any length.
    """
    tokens = 0
    while tokens < LONGEST_TRIED:
        if sum(groups.peak(group, tokens + 1) for group in range(len(groups))) > num_blocks:
            return tokens
        tokens += 1
    return tokens
