"""Plays the scheduler for one cache: short verbs for tests of the memory plane."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from octavo.contract.hint import CacheHint
from octavo.contract.ids import BlockId, SeqId, StepId
from octavo.contract.namespace import Namespace
from octavo.contract.request import Request, Sequence
from octavo.contract.retention import DEFAULT_TENANT, Retention, TenantShare
from octavo.contract.sampling import SamplingParams
from octavo.memory.eviction import EvictionPolicy
from octavo.memory.groups import Groups
from octavo.memory.manager import KVCacheManager
from octavo.memory.placement import PlacementPolicy, WriteThrough
from octavo.memory.policies.lru import Lru
from octavo.memory.shares import Shares
from octavo.memory.tier import Tier, device_tier
from octavo.sched.cache import Cache


class Desk:
    """Opens steps, gives out blocks and keeps each table as a runner would know it."""

    def __init__(self, cache: Cache, tiers: tuple[Tier, ...] = ()) -> None:
        self.cache = cache
        self.tiers = tiers
        self.step: StepId = 1
        """The step being planned; `commit` closes it and opens the next."""
        self._tables: dict[SeqId, list[list[BlockId]]] = {}
        self._next_seq: SeqId = 0

    @classmethod
    def paged(
        cls,
        num_blocks: int,
        block_sizes: tuple[int, ...] = (4,),
        *,
        windows: tuple[int | None, ...] | None = None,
        host_blocks: int = 0,
        policy: Callable[[], EvictionPolicy] = Lru,
        placement: PlacementPolicy | None = None,
        partial_blocks: bool = True,
        tenants: Iterable[TenantShare] = (),
        pin_limit: float = 0.0,
    ) -> Desk:
        """Build a paged cache; with host blocks, every committed block is copied to the host."""
        groups = Groups(block_sizes, windows)
        shares = Shares(num_blocks, tenants, pin_limit=pin_limit)
        tiers = [device_tier(policy, shares, groups, partial_blocks=partial_blocks)]
        if host_blocks:
            tiers.append(Tier("host", host_blocks, policy(), groups.slot_weights))
            placement = placement or WriteThrough()
        cache = KVCacheManager(groups, tuple(tiers), placement)
        return cls(cache, tuple(tiers))

    def waiting(
        self,
        prompt: Iterable[int],
        *,
        output: int = 10_000,
        salt: str = "",
        expected: int | None = None,
        tenant: str = DEFAULT_TENANT,
        retention: tuple[Retention, ...] = (),
        hints: tuple[CacheHint, ...] = (),
    ) -> Sequence:
        """Return a sequence that has no blocks. expected: output tokens, for rules that ask.

        Raises RequestError for what can never be.
        """
        request = Request(
            id=f"r{self._next_seq}",
            prompt=tuple(prompt),
            sampling=SamplingParams(max_tokens=None),
            seed=0,
            namespace=Namespace(model="fake", salt=salt),
            expected_output_tokens=expected,
            tenant=tenant,
            retention=retention,
            cache_hints=hints,
        )
        prompt_length = len(request.prompt)
        guess = output if expected is None else expected
        limit = self.cache.limit(prompt_length, guess, prompt_length + output, 1, tenant)
        self.cache.expect(request)
        return self._new(request, limit)

    def admit(self, seq: Sequence, upto: int | None = None) -> bool:
        """Look the sequence up and admit it for its text up to `upto` (None: all of it)."""
        hit = self.cache.lookup(seq)
        loads = hit.loads
        end = hit.tokens if loads else max(hit.tokens, seq.length if upto is None else upto)
        if not self.cache.admit(seq, hit, end, self.step):
            return False
        seq.scheduled = end
        if seq.cached_tokens is None:
            seq.cached_tokens = hit.tokens
        return True

    def running(self, prompt: Iterable[int], **options: Any) -> Sequence:
        """Admit a new sequence with its whole prompt planned in the current step.

        options: as `waiting` has them.
        """
        seq = self.waiting(prompt, **options)
        assert self.admit(seq), f"no room for a prompt of {seq.length} tokens"
        return seq

    def written(self, prompt: Iterable[int], **options: Any) -> Sequence:
        """Admit a new sequence, and commit the step that writes its prompt."""
        seq = self.running(prompt, **options)
        self.commit()
        return seq

    def extend(self, seq: Sequence, *tokens: int) -> bool:
        """Append tokens to the text and plan them, with whatever is pending, in this step."""
        seq.tokens.extend(tokens)
        if not self.cache.extend(seq, seq.length, self.step):
            del seq.tokens[seq.length - len(tokens) :]
            return False
        seq.scheduled = seq.length
        return True

    def fork(self, parent: Sequence) -> Sequence:
        """Return a new sequence that shares all blocks of `parent`."""
        child = self._new(parent.request, parent.limit)
        child.tokens = parent.tokens[:]
        child.scheduled = parent.scheduled
        self.cache.fork(parent, child)
        return child

    def blocks(self, seq: Sequence, group: int = 0) -> list[BlockId]:
        """Return a sequence's table as a runner knows it."""
        kept, blocks = self.cache.growth(seq)
        table = self._tables.setdefault(seq.id, [[] for _ in kept])
        for ids, keep, new in zip(table, kept, blocks, strict=True):
            ids[keep:] = new
        return list(table[group])

    def commit(self) -> None:
        """The current step went well."""
        self.cache.commit(self.step)
        self.step += 1

    def fail(self, *seqs: Sequence) -> set[SeqId]:
        """The current step failed for these sequences; returns who must be released."""
        step = self.step
        self.step += 1
        return self.cache.revoke(step, {seq.id for seq in seqs})

    def release(self, *seqs: Sequence) -> None:
        """Let go of the blocks; no step in flight touches them."""
        for seq in seqs:
            self.cache.release(seq, 0)
            self.cache.part(seq.request)

    def arrive(self, *, failing: bool = False) -> int:
        """Let all fresh moves end, well or not; returns how many there were."""
        moves = tuple(move.id for move in self.cache.take_moves())
        self.cache.settle(() if failing else moves, moves if failing else ())
        return len(moves)

    def snapshot(self) -> tuple[object, ...]:
        """Return every public count, to be compared before and after a call that refuses."""
        self.cache.check()
        pools = [tier.pool for tier in self.tiers]
        counts = [
            (p.held, p.logical, p.shared, p.filled, p.available, p.cached, p.evictions)
            for p in pools
        ]
        keyed = [
            sorted((b.id, b.key or b"", b.refs, b.written_step) for b in tier.keyed())
            for tier in self.tiers
        ]
        blocks = [[(b.refs, b.filled, b.group) for b in p.blocks] for p in pools]
        return self.cache.usage(), self.cache.open_moves, counts, keyed, blocks

    def _new(self, request: Request, limit: int) -> Sequence:
        seq = Sequence(self._next_seq, request, index=0, limit=limit, rank=(0, self._next_seq, 0))
        self._next_seq += 1
        return seq
