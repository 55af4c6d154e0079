"""The loop, and from its tokens to text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import cast

import msgspec

from octavo.contract.misses import Miss
from octavo.contract.numbers import shown
from octavo.contract.request import FinishReason, Request, Update
from octavo.contract.usage import Usage
from octavo.engine.answer import AnswerText, Logprob, Speller, stop_table
from octavo.engine.loop import Loop, ModelRunner, Observer
from octavo.errors import RequestError
from octavo.sched.cache import Cache
from octavo.sched.scheduler import Scheduler
from octavo.sched.stats import Stats
from octavo.text.tokenizer import Tokenizer


class Output(msgspec.Struct, frozen=True):
    """News of one choice of a request."""

    request_id: str
    index: int
    text: str
    """New text, whole characters only; held back while it may begin a stop string."""
    token_ids: tuple[int, ...]
    logprob: float
    """Sum of the log-probabilities of `token_ids`."""
    cached_tokens: int
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or stop token that ended the text, if the caller asked for it."""
    error: str | None = None
    logprobs: tuple[dict[int, Logprob], ...] = ()
    """One for each of `token_ids`, if the request asks for them."""
    prompt_logprobs: tuple[dict[int, Logprob], ...] = ()
    """With the first token of choice 0: one for each token of the prompt but the first."""
    miss: Miss | None = None
    """With the first token of a choice: why the rest of its prompt was not in memory."""
    embedding: bytes = b""
    """As in `Update.embedding`."""


class Engine:
    """Runs requests; knows tokens and text, never tensors.

    tokenizer: None: answers are token ids without text. depth: steps in flight, 1 or 2. Not for
    use from several threads at once.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache: Cache,
        runner: ModelRunner,
        tokenizer: Tokenizer | None,
        *,
        depth: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.loop = Loop(scheduler, cache, runner, depth=depth, clock=clock)
        """Requests in, tokens out; to be used by itself, or through this engine, not both."""
        self._tokenizer = tokenizer
        self._texts: dict[tuple[str, int], AnswerText] = {}
        self._speller = Speller(tokenizer)

    def watch(self, observer: Observer) -> None:
        """Tell an observer of every request from now on."""
        self.loop.watch(observer)

    def add(self, request: Request) -> int:
        """Queue a request; returns its effective maximum of output tokens.

        Raises RequestError, changing nothing, if it can never be served.
        """
        effective = self.loop.add(request)
        params = request.sampling
        stops = stop_table(params)
        for index in range(params.choices):
            self._texts[request.id, index] = AnswerText(self._tokenizer, params, stops)
        return effective

    def abort(self, request_id: str, *, withdrawn: bool = False) -> None:
        """End a request now; nothing more will be heard of it. Unknown: no effect.

        withdrawn: it has not run, and its pins are taken back.
        """
        self.loop.abort(request_id, withdrawn=withdrawn)
        for key in [key for key in self._texts if key[0] == request_id]:
            del self._texts[key]

    @property
    def busy(self) -> bool:
        """True while a request is not finished or a step is in flight."""
        return self.loop.busy

    @property
    def stats(self) -> Stats:
        """Counters since the start, to be read only."""
        return self.loop.stats

    @property
    def queue_lengths(self) -> tuple[int, int]:
        """Sequences (running or loading, waiting)."""
        return self.loop.queue_lengths

    def usage(self) -> Usage:
        """How full the KV memory is."""
        return self.loop.usage()

    def reset_prefix_cache(self) -> int:
        """Forget cached texts that no sequence uses; returns the number of blocks."""
        return self.loop.reset_prefix_cache()

    def unpin(self, name: str | None = None, tenant: str | None = None) -> int:
        """Let go of pins, None: of any name or tenant; returns the blocks they held.

        Raises RequestError for a tenant that there is not, and for what cannot be a name.
        """
        for what, one in (("name", cast("object", name)), ("tenant", cast("object", tenant))):
            if not (one is None or isinstance(one, str)):
                raise RequestError(
                    f"unpin: {what} must be a text, or None for all, got {shown(one)}"
                )
        return self.loop.unpin(name, tenant)

    def check(self) -> None:
        """Recompute every count of the memory plane. Raises Corrupted."""
        self.loop.check()

    def step(self) -> list[Output]:
        """Submit one step if there is work, and take in one result if it is time."""
        # After an interrupt there may be more of a text than up to where it stops.
        return [
            self._output(update)
            for update in self.loop.step()
            if (update.request_id, update.index) in self._texts
        ]

    def close(self) -> None:
        """Stop the runner; requests that are not finished are lost."""
        self.loop.close()

    def _output(self, update: Update) -> Output:
        """Turn tokens into text; a stop string that appears ends the sequence."""
        key = (update.request_id, update.index)
        answer = self._texts[key]
        finish, stop_reason = update.finish, update.stop_token
        text = answer.push(update)
        if answer.stopped is not None:
            if finish is None:
                self.loop.finish(update.request_id, update.index)
            finish, stop_reason = FinishReason.STOP, answer.stopped
        if finish is not None:
            del self._texts[key]
        return Output(
            update.request_id,
            update.index,
            text,
            update.tokens,
            update.logprob,
            update.cached_tokens,
            finish,
            stop_reason,
            update.error,
            self._speller.name(update.logprobs, decode=answer.decodes),
            self._speller.name(update.prompt_logprobs, decode=answer.decodes),
            update.miss,
            update.embedding,
        )
