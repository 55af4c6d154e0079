"""Prompts that are embedded: what their slices ask for, and what is told at their end."""

from __future__ import annotations

from octavo.contract.batch import Pool
from octavo.contract.request import FinishReason, Sequence, Update
from octavo.sched.outcome import miss_of


def pool_of(seq: Sequence, *, last: bool) -> Pool | None:
    """Return what a slice asks for; of the last token's state nothing before the last slice."""
    pooling = seq.request.pooling
    if pooling is None or not (last or pooling.how == "mean"):
        return None
    return Pool(pooling.how, last)


def embedded(seq: Sequence, vector: bytes) -> Update:
    """Report the vector of a prompt, which is all there is to say of it."""
    request = seq.request
    return Update(
        request.id,
        seq.index,
        (),
        cached_tokens=seq.cached_tokens or 0,
        finish=FinishReason.STOP,
        miss=miss_of(seq),
        preemptions=seq.tell_preemptions(),
        embedding=vector,
    )
