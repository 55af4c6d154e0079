"""Which texts a beam search follows: a decision on numbers, made after each of its steps.

The rules are those of transformers' beam search (source: Hugging Face transformers 5, `generate`
with num_beams), with sums in float64 and ties settled: of continuations that are equally likely,
that of the better beam comes first, and of one beam's that with the lower token id; of ended texts
that score the same, the one that ended first.
"""

from __future__ import annotations

from typing import NamedTuple

from octavo.contract.batch import Candidates, Logprobs
from octavo.contract.ids import StepId
from octavo.contract.request import FinishReason, Request, Sequence, ends_of


class Ended(NamedTuple):
    """A text that is complete."""

    score: float
    """Its log-probability over its length to the power of the length penalty."""
    tokens: tuple[int, ...]
    """The output."""
    logprob: float
    finish: FinishReason
    stop_token: int | None


class Successor(NamedTuple):
    """A text that the search goes on with."""

    parent: Sequence
    token: int
    logprob: float
    """Of the whole output."""


class _Continuation(NamedTuple):
    logprob: float
    beam: int
    token: int


class BeamSearch:
    """One request's search; `Roster` keeps its members, this decides who they are."""

    def __init__(self, first: Sequence) -> None:
        self.request: Request = first.request
        self.width = first.request.sampling.choices
        """Texts that are followed at once."""
        self.members = [first]
        """The texts that are followed, best first; at the beginning the prompt alone."""
        self.leader = first
        """The member that waits for memory, on behalf of all."""
        self.logprobs = [0.0]
        """Of each member's output."""
        self.ended: list[Ended] = []
        """The best that are complete, best first; at most `width`."""
        self.scores: tuple[Logprobs, ...] = ()
        """Log-probabilities of the prompt, if they are wanted."""
        self.branches = 0
        """Sequences that have branched off so far."""
        self.failures = 0
        self.sliced: StepId = 0
        """The last step that computes something for a member: it computes nothing more for it."""
        self.done = False
        self.limit = first.limit
        self._ends = ends_of(first.request)

    @property
    def mates(self) -> list[Sequence]:
        """The members without the leader."""
        return [seq for seq in self.members if seq is not self.leader]

    @property
    def ready(self) -> bool:
        """True if all members lack nothing but the step that continues them."""
        return all(seq.pending == 1 and not seq.sampling for seq in self.members)

    def advance(self, candidates: list[Candidates]) -> list[Successor]:
        """Take in each member's likeliest continuations; returns what to go on with, best first.

        Sets `done` if nothing is to go on.
        """
        params = self.request.sampling
        length = self.members[0].length + 1
        best = self._best(candidates, params.candidates(len(self._ends)))
        if length >= self.limit:
            complete, following = best[: self.width], list[_Continuation]()
        else:
            complete = [one for one in best[: self.width] if one.token in self._ends]
            following = [one for one in best if one.token not in self._ends][: self.width]
        self._end(complete)
        full = len(self.ended) == self.width
        self.done = (
            not following
            or (full and params.early_stopping is True)
            or not self._improvable(following[0].logprob, length)
        )
        return [Successor(self.members[o.beam], o.token, o.logprob) for o in following]

    def _best(self, candidates: list[Candidates], count: int) -> list[_Continuation]:
        """Return the likeliest continuations of all members together."""
        every = [
            _Continuation(before + logprob, beam, token)
            for beam, (before, one) in enumerate(zip(self.logprobs, candidates, strict=True))
            for token, logprob in zip(one.tokens, one.logprobs, strict=True)
        ]
        every.sort(key=lambda one: (-one.logprob, one.beam, one.token))
        return every[:count]

    def _end(self, complete: list[_Continuation]) -> None:
        """Keep the best of the texts that have ended so far."""
        params = self.request.sampling
        for one in complete:
            tokens = (*self.members[one.beam].output, one.token)
            score = one.logprob / len(tokens) ** params.length_penalty
            self.ended.append(Ended(score, tokens, one.logprob, *self._reason(one.token)))
        self.ended.sort(key=lambda text: -text.score)
        del self.ended[self.width :]

    def _reason(self, token: int) -> tuple[FinishReason, int | None]:
        """Say why a text ends with this token, and which stop token it is."""
        if token not in self._ends:
            return FinishReason.LENGTH, None
        eos = token in self.request.eos_token_ids and not self.request.sampling.ignore_eos
        return FinishReason.STOP, None if eos else token

    def _improvable(self, best: float, length: int) -> bool:
        """Say whether the best open text may still displace an ended one."""
        params = self.request.sampling
        if len(self.ended) < self.width:
            return True
        output = length - len(self.request.prompt)
        if params.early_stopping == "never" and params.length_penalty > 0:
            output = self.limit - len(self.request.prompt)
        return best / output**params.length_penalty > self.ended[-1].score
