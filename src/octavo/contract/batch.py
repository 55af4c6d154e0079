"""What goes down to a runner (`Batch`) and what comes back (`StepResult`).

Values only: printable, comparable, ready to be sent to another process.
"""

from __future__ import annotations

import msgspec

from octavo.contract.ids import BlockId, BlockKey, MoveId, SeqId, StepId
from octavo.contract.pooling import HowPooled
from octavo.contract.sampling import SamplingParams


class Sample(msgspec.Struct, frozen=True):
    """Ask for one token after the last position of a slice."""

    seq: SeqId
    """Whom the token belongs to: the slice's sequence, or a fork of it that starts here."""
    seed: int
    """64-bit key of the random numbers; the counter is the position of the new token."""
    params: SamplingParams
    prompt_length: int = 0
    """Position at which the output begins; what counts the output counts from here."""
    ends: tuple[int, ...] = ()
    """Tokens that are banned until the output has `params.min_tokens` tokens."""
    bad_words: tuple[tuple[int, ...], ...] = ()
    """Texts of one token or more whose last token is banned after the others."""
    candidates: int = 0
    """Not 0: choose nothing, and return so many of the likeliest tokens."""

    @property
    def looks_back(self) -> bool:
        """True if the token depends on the text before it, logits apart."""
        return (
            self.params.penalizes
            or any(len(word) > 1 for word in self.bad_words)
            or self.constrained
        )

    @property
    def constrained(self) -> bool:
        """True if a grammar says which tokens may come: it has to know the token before."""
        return self.params.structured_outputs is not None


class Score(msgspec.Struct, frozen=True, gc=False):
    """Ask how likely the tokens of a prompt are, each after the text before it."""

    first: int
    """Position, within the slice, of the token after which the first target stands."""
    targets: tuple[int, ...]
    """The tokens at positions first + 1, first + 2, …; the last may lie behind the slice."""
    top: int
    """How many of the most likely tokens to name beside each target; -1: all."""


class Pool(msgspec.Struct, frozen=True, gc=False):
    """Ask for one vector of all tokens of a prompt, which may come in several slices."""

    how: HowPooled
    last: bool
    """The prompt ends with this slice: its vector is told."""


class Slice(msgspec.Struct, frozen=True, gc=False):
    """One sequence's share of one step.

    A runner writes the KV of `tokens` at positions `start`, `start + 1`, … and lets each
    of them attend to every position up to its own. Every layer writes before it attends, so
    a slice may read what another slice of the same step writes.
    """

    seq: SeqId
    start: int
    """Position of the first token. Positions before it are in memory already."""
    tokens: tuple[int, ...]
    """Never empty. The last one may be `PENDING`: sampled by a step still in flight."""
    kept: tuple[int, ...]
    """Per KV group, how many leading entries of the table known for this sequence stay valid:
    all of them as a rule, one less after copy-on-write, 0 for a table sent whole."""
    blocks: tuple[tuple[BlockId, ...], ...]
    """Per KV group, the blocks that follow the kept ones."""
    samples: tuple[Sample, ...]
    """Empty while the prompt is not yet complete."""
    past: tuple[int, ...] = ()
    """All tokens before `start`, with the first slice that samples for this sequence since the
    runner last forgot it, and only if a sample looks back; empty otherwise. From then on each
    slice begins where the one before it ended."""
    score: Score | None = None
    """Set while log-probabilities of the prompt are wanted and not known."""
    pool: Pool | None = None
    """Set for a prompt that is to be embedded: it has no samples. With mean in each of its slices,
    of which the first starts at position 0, and each begins where the one before it ended."""


class Copy(msgspec.Struct, frozen=True, gc=False):
    """Copy a whole block inside the device, before the step's first write.

    So that two texts that share a part of it go on differently: forks, and partial hits.
    """

    src: BlockId
    dst: BlockId


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a block lies."""

    tier: str
    block: BlockId


class Move(msgspec.Struct, frozen=True, gc=False):
    """Copy one block between tiers, asynchronously; it may fail."""

    id: MoveId
    key: BlockKey
    src: Place
    dst: Place
    after: StepId = 0
    """Start only when this step has been collected: until then the device may still write
    a block at either end."""


class Batch(msgspec.Struct, frozen=True):
    """One planned step."""

    step: StepId
    slices: tuple[Slice, ...] = ()
    copies: tuple[Copy, ...] = ()
    """To run in this order, before the first write."""
    moves: tuple[Move, ...] = ()
    """To start now, unless they name a step to wait for."""
    ended: tuple[SeqId, ...] = ()
    """Sequences whose state in the runner can go, before the slices run."""

    @property
    def empty(self) -> bool:
        """True if there is nothing to submit."""
        return not (self.slices or self.moves or self.ended)


class Logprobs(msgspec.Struct, frozen=True, gc=False):
    """How likely some tokens were at one position, before any sampling option."""

    ids: tuple[int, ...]
    """As many of the most likely tokens as were asked for, best first; then the token that
    stands there, unless it is among them."""
    values: tuple[float, ...]
    """Natural logarithms of their probabilities."""
    ranks: tuple[int, ...]
    """From 1, over the whole vocabulary; equally likely tokens rank by ascending id."""


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """One sampled token."""

    token: int
    logprob: float
    """Natural logarithm of the token's probability before any sampling option."""
    logprobs: Logprobs | None = None
    """Set if the sample's params ask for it."""


class Candidates(msgspec.Struct, frozen=True, gc=False):
    """The likeliest tokens after one text, best first; equally likely ones by ascending id.

    Banned tokens are left out, so that there may be fewer than were asked for.
    """

    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Natural logarithms of their probabilities, with bias and penalties applied to these."""


class StepResult(msgspec.Struct, frozen=True):
    """What became of one step."""

    step: StepId
    sampled: dict[SeqId, Sampled] = msgspec.field(default_factory=dict[SeqId, Sampled])
    candidates: dict[SeqId, Candidates] = msgspec.field(default_factory=dict[SeqId, Candidates])
    """For each sample that asks for candidates."""
    refused: dict[SeqId, str] = msgspec.field(default_factory=dict[SeqId, str])
    """Sequences for which no token could be chosen, and which of their own options is why."""
    scored: dict[SeqId, tuple[Logprobs, ...]] = msgspec.field(
        default_factory=dict[SeqId, tuple[Logprobs, ...]]
    )
    """For each slice with a score, one entry for each of its targets."""
    pooled: dict[SeqId, bytes] = msgspec.field(default_factory=dict[SeqId, bytes])
    """For each slice that ends a prompt to be embedded: its vector, float32, little-endian."""
    moved: tuple[MoveId, ...] = ()
    """Moves completed since the last result, of any step."""
    failed: tuple[MoveId, ...] = ()
    """Moves that did not happen."""
    error: str | None = None
    """Set: nothing that this step should have written may be relied upon."""
    interrupted: bool = False
    """The error came from outside: it is no fault of the step's sequences."""
