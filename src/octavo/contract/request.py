"""What a caller asks (`Request`) and what the engine knows about it (`Sequence`)."""

from __future__ import annotations

from array import array
from enum import Enum
from hashlib import blake2b

import msgspec

from octavo.contract.batch import Logprobs, Sample
from octavo.contract.hint import CacheHint
from octavo.contract.ids import BlockKey, SeqId, StepId
from octavo.contract.misses import Miss
from octavo.contract.namespace import Namespace
from octavo.contract.pooling import Pooling
from octavo.contract.retention import DEFAULT_TENANT, Retention
from octavo.contract.sampling import SamplingParams


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What the caller asked; never changes."""

    id: str
    prompt: tuple[int, ...]
    """Token ids, at least one."""
    sampling: SamplingParams
    seed: int
    """Resolved seed of the request; each choice derives its own from it."""
    namespace: Namespace = Namespace()
    priority: int = 0
    """Lower runs first."""
    tenant: str = DEFAULT_TENANT
    """On whose account its blocks are. It is no part of the namespace: tenants may share."""
    retention: tuple[Retention, ...] = ()
    """How ranges of its text are kept after it; they do not overlap."""
    arrival_s: float = 0.0
    """Seconds on the engine's clock."""
    eos_token_ids: frozenset[int] = frozenset()
    bad_words: tuple[tuple[int, ...], ...] = ()
    """`sampling.bad_words` as tokens."""
    expected_output_tokens: int | None = None
    """For reservation rules that need it; None: the effective maximum."""
    cache_hints: tuple[CacheHint, ...] = ()
    """What is said of the further use of its KV, from the beginning of the text on."""
    pooling: Pooling | None = None
    """Set: the prompt is embedded, and no token follows it."""


class Phase(Enum):
    """Where a sequence stands; written by the scheduler alone."""

    WAITING = "waiting"
    LOADING = "loading"
    """Holds blocks that moves from a slower tier are filling."""
    RUNNING = "running"
    PARKED = "parked"
    """A beam that waits for the first of its search, without blocks and in no queue."""
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a sequence ended; values are those of the OpenAI API where it has one."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


def choice_seed(seed: int, index: int) -> int:
    """Return the 64-bit seed of choice `index` of a request: a hash, stable when n grows."""
    data = (seed % 2**64).to_bytes(8, "little") + index.to_bytes(8, "little")
    return int.from_bytes(blake2b(data, digest_size=8, person=b"octavo.seed").digest(), "little")


def ends_of(request: Request) -> frozenset[int]:
    """Return the tokens that end a text of a request."""
    stops = frozenset(request.sampling.stop_token_ids)
    return stops if request.sampling.ignore_eos else stops | request.eos_token_ids


def _sample(seq_id: SeqId, request: Request, index: int) -> Sample:
    params, ends = request.sampling, tuple[int, ...]()
    if params.min_tokens:
        ends = tuple(sorted({*request.eos_token_ids, *params.stop_token_ids}))
    return Sample(
        seq_id,
        choice_seed(request.seed, index),
        params,
        len(request.prompt),
        ends,
        request.bad_words,
        params.candidates(len(ends_of(request))) if params.use_beam_search else 0,
    )


class Sequence:
    """One text being written: a prompt and one choice of its continuation.

    Written by the scheduler (tokens, phase, progress) and by the cache manager (keys).
    """

    __slots__ = (
        "beam",
        "cached_tokens",
        "counts_hits",
        "failures",
        "forks",
        "gives_way",
        "held_back",
        "id",
        "index",
        "keys",
        "known_past",
        "limit",
        "load_deadline_s",
        "looks_back",
        "lost_tokens",
        "miss",
        "paused",
        "phase",
        "pooled",
        "preemptions",
        "prompt_length",
        "rank",
        "request",
        "revoked_step",
        "root",
        "samples",
        "sampling",
        "scheduled",
        "score_end",
        "scores",
        "spared_until",
        "stepwise",
        "tokens",
        "units",
        "untold_preemptions",
    )

    def __init__(
        self, seq_id: SeqId, request: Request, *, index: int, limit: int, rank: tuple[int, ...]
    ) -> None:
        self.id = seq_id
        self.request = request
        self.index = index
        """Which of the request's choices this is."""
        self.limit = limit
        """Longest text, prompt included."""
        self.rank = rank
        """Lower runs first; the first number is the class that may displace a worse one."""
        self.beam = request.sampling.use_beam_search
        """One of the texts of a beam search, which are decided together."""
        self.forks = 0
        """Further choices that begin where the prompt ends."""
        self.tokens = array("i", request.prompt)
        """Prompt and known output."""
        self.prompt_length = len(request.prompt)
        self.phase = Phase.WAITING
        self.scheduled = 0
        """Leading tokens whose KV is in memory, or being written by a step in flight."""
        self.sampling = 0
        """Steps in flight that sample a token for this sequence."""
        self.root = request.namespace.root()
        self.keys: list[BlockKey] = []
        """Chained keys of the leading full hash units of `tokens`."""
        self.units: list[bytes] = []
        """The text of each unit that has a key: int32, little-endian."""
        self.samples = (_sample(seq_id, request, index),)
        """What a slice that reaches the end of the text asks for."""
        self.looks_back = self.samples[0].looks_back
        """Its samples depend on the text, which the runner has to be told."""
        self.pooled = request.pooling.how if request.pooling is not None else None
        """Not None: nothing is sampled, and the text ends once its vector is known."""
        self.stepwise = self.samples[0].constrained or self.pooled is not None
        """Its next token is decided once the last one is known: it has one step in flight."""
        self.known_past = False
        """The runner has been told the text before the last slice."""
        asks = index == 0 and request.sampling.prompt_logprobs is not None
        self.score_end = len(request.prompt) - 1 if asks else 0
        """The tokens after positions before this one are to be scored."""
        self.scores: list[Logprobs] = []
        """What is known of them, in order."""
        self.cached_tokens: int | None = None
        """Prompt tokens found in memory when the sequence was first admitted."""
        self.counts_hits = False
        """It runs since then, so that what it takes over is found too; never true of a fork."""
        self.miss: Miss | None = None
        """Why no more of them was found; also what only the operator may know."""
        self.load_deadline_s = 0.0
        """Phase LOADING ends at this time of the engine's clock."""
        self.lost_tokens = 0
        """Tokens whose KV was given up by the last preemption."""
        self.paused = False
        """It is given no tokens for now."""
        self.gives_way = False
        """Paused, and whoever can go on may have its blocks, whatever the ranks."""
        self.held_back = False
        """It waits behind others that are as long as it was when last looked at."""
        self.preemptions = 0
        self.untold_preemptions = 0
        """Those since the last news of it."""
        self.failures = 0
        self.spared_until = 0
        """A victim of preemption, admitted again, has room for a text of this length and is no
        victim before its text is that long."""
        self.revoked_step: StepId = 0
        """Tokens sampled by steps up to this one do not count."""

    def preempt(self) -> None:
        """Count that it has lost its blocks."""
        self.preemptions += 1
        self.untold_preemptions += 1

    def tell_preemptions(self) -> int:
        """Return those that nobody has been told of, once."""
        count, self.untold_preemptions = self.untold_preemptions, 0
        return count

    @property
    def length(self) -> int:
        """Known tokens, prompt included."""
        return len(self.tokens)

    @property
    def reusable(self) -> int:
        """Leading tokens whose KV need not be computed if it is in memory already.

        At least one token is computed, to sample the next; and so is what is not scored yet. Of a
        mean, every token's state is needed.
        """
        if self.pooled == "mean":
            return 0
        known = len(self.scores)
        return len(self.tokens) - 1 if known >= self.score_end else known

    @property
    def output(self) -> list[int]:
        """Known output tokens."""
        return self.tokens[self.prompt_length :].tolist()

    @property
    def pending(self) -> int:
        """Tokens, known or being sampled, whose KV no step has been given yet."""
        return len(self.tokens) + self.sampling - self.scheduled


class Update(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """News of one choice of a request after a step."""

    request_id: str
    index: int
    tokens: tuple[int, ...]
    """Tokens appended to the output by this step."""
    logprob: float = 0.0
    """Sum of their log-probabilities."""
    cached_tokens: int = 0
    """Prompt tokens that were in memory already when the choice began."""
    finish: FinishReason | None = None
    stop_token: int | None = None
    """The stop token asked for by the caller that ended the sequence."""
    error: str | None = None
    logprobs: tuple[Logprobs, ...] = ()
    """One for each of `tokens`, if the request asks for them."""
    prompt_logprobs: tuple[Logprobs, ...] = ()
    """With the first token of choice 0, if the request asks for them: one for each token of the
    prompt but the first."""
    miss: Miss | None = None
    """With the first token: why the rest of the prompt was not in memory."""
    preemptions: int = 0
    """How often it has given back its blocks, to compute its text again, since the last news."""
    embedding: bytes = b""
    """With the end of a request that asks for it: the vector of its prompt, float32, little-endian;
    neither cut nor divided by its length."""
    refused: bool = False
    """The error is the fault of its own options: its words are for its caller."""
