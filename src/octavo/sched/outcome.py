"""What a sequence still has to tell the runner, and what a result means for it."""

from __future__ import annotations

from octavo.contract.batch import Sampled, Score, Slice, StepResult
from octavo.contract.misses import Miss
from octavo.contract.request import FinishReason, Sequence, Update
from octavo.sched.beams import BeamSearch


def past_of(seq: Sequence, start: int) -> tuple[int, ...]:
    """Return the text before a slice that samples, once, for a sequence that looks back."""
    if seq.known_past:
        return ()
    seq.known_past = True
    return tuple(seq.tokens[:start])


def score_of(seq: Sequence, start: int, upto: int) -> Score | None:
    """Ask for what is wanted and not known of the tokens after positions `start` … `upto` - 1."""
    first, end = max(start, len(seq.scores)), min(upto, seq.score_end)
    if first >= end:
        return None
    top = seq.request.sampling.prompt_logprobs
    assert top is not None, f"sequence {seq.id} has no prompt to be scored"
    return Score(first - start, tuple(seq.tokens[first + 1 : end + 1]), top)


def take_scores(seq: Sequence, piece: Slice, result: StepResult) -> None:
    """Keep what a slice's score brought; a slice planned before that was known asks again."""
    assert piece.score is not None, f"sequence {seq.id} asked for no score"
    known = len(seq.scores) - (piece.start + piece.score.first)
    assert known >= 0, f"sequence {seq.id}: the tokens before its score have none"
    seq.scores += result.scored[piece.seq][known:]


def end_of(seq: Sequence) -> tuple[FinishReason | None, int | None]:
    """Say why the last token ends its sequence, and which stop token it is; None: it does not."""
    token, request = seq.tokens[-1], seq.request
    if token in request.eos_token_ids and not request.sampling.ignore_eos:
        return FinishReason.STOP, None
    if token in request.sampling.stop_token_ids:
        return FinishReason.STOP, token
    return (FinishReason.LENGTH if len(seq.tokens) >= seq.limit else None), None


def update_of(
    seq: Sequence, sampled: Sampled, finish: FinishReason | None, stop_token: int | None
) -> Update:
    """Report an appended token; the first one brings what there is to say of the prompt."""
    token, cached = sampled.token, seq.cached_tokens or 0
    request = seq.request
    update = (request.id, seq.index, (token,), sampled.logprob, cached, finish, stop_token, None)
    first = len(seq.tokens) == seq.prompt_length + 1
    if sampled.logprobs is None and not first and not seq.untold_preemptions:
        return Update(*update)
    logprobs = () if sampled.logprobs is None else (sampled.logprobs,)
    preemptions = seq.tell_preemptions()
    if not first:
        return Update(*update, logprobs, preemptions=preemptions)
    return Update(*update, logprobs, tuple(seq.scores), miss_of(seq), preemptions)


def miss_of(seq: Sequence) -> Miss | None:
    """Return why no more of a prompt was in memory, as far as its caller may know."""
    return None if seq.miss is None else seq.miss.for_caller()


def results_of(search: BeamSearch) -> list[Update]:
    """Report the texts that a finished search has found; fewer than asked for are an error."""
    request, cached = search.request, search.leader.cached_tokens or 0
    updates = [
        Update(
            request.id, index, text.tokens, text.logprob, cached, text.finish, text.stop_token,
            prompt_logprobs=() if index else search.scores,
            miss=None if index else miss_of(search.leader),
            preemptions=0 if index else search.leader.preemptions,
        )
        for index, text in enumerate(search.ended)
    ]  # fmt: skip
    return updates + [
        Update(request.id, index, (), finish=FinishReason.ERROR, error=_TOO_FEW, refused=True)
        for index in range(len(search.ended), search.width)
    ]


_TOO_FEW = (
    "fewer texts than beam_width are possible: allow more tokens, or a form of more answers, or "
    "lower beam_width"
)


def search_failures(search: BeamSearch, error: str, *, refused: bool) -> list[Update]:
    """Report an error for every answer of a search. refused: see `Update`."""
    return [
        Update(
            search.request.id, index, (), finish=FinishReason.ERROR, error=error,
            preemptions=0 if index else search.leader.preemptions,
            refused=refused,
        )
        for index in range(search.width)
    ]  # fmt: skip


def failures_of(seq: Sequence, error: str, *, refused: bool) -> list[Update]:
    """Report an error; with a leader end the choices that would have begun at its prompt's end.

    refused: see `Update`.
    """
    return [
        Update(
            seq.request.id, index, (), finish=FinishReason.ERROR, error=error,
            preemptions=seq.tell_preemptions(),
            refused=refused,
        )
        for index in range(seq.index, seq.index + seq.forks + 1)
    ]  # fmt: skip
