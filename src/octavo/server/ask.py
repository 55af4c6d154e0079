"""One prompt at the engine: hears of it, and keeps what has to be sent."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from octavo.contract.batch import Logprobs
from octavo.contract.misses import Miss, MissReason
from octavo.contract.request import FinishReason, Request, Update
from octavo.engine.answer import AnswerText
from octavo.errors import EngineGone, OverLimit, RequestError
from octavo.server.choice import Choice
from octavo.server.core import CoreClient
from octavo.server.gate import Place
from octavo.server.meters import Meters, RequestRecord
from octavo.server.prompting import Prompt
from octavo.server.scored_text import ScoredText
from octavo.text.parsing import AnswerParser
from octavo.text.stops import StopTable
from octavo.text.tokenizer import Tokenizer

log = logging.getLogger("octavo.server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Telling:
    """What is told of answers, and how much at once."""

    silent: bool = False
    """Nothing but the prompt."""
    interval: int = 1
    """Tokens that are told together; if they never are so many, at the end."""
    kept: bool = False
    """Whole texts are kept for the log."""
    stops: StopTable | None = None
    """What ends them; made once, since it may be larger than the answers."""
    parser: Callable[[], AnswerParser] | None = None
    """Makes what reads reasoning and calls out of one answer; None: all of it is content."""
    shown: frozenset[int] = frozenset()
    """Special tokens that are text all the same, for the parser to see."""
    scored: bool = False
    """Tokens are told with the text that they are of."""
    cache: bool = False
    """Usage tells of memory."""


class Ask:
    """A `Listener` for one prompt of an HTTP request, and its answers.

    first: index of its first answer among all of the HTTP request. ring: called with an answer
    that has something to send, and without one when the ask itself has changed.
    """

    def __init__(
        self,
        request: Request,
        prompt: Prompt,
        tokenizer: Tokenizer | None,
        *,
        first: int,
        telling: Telling,
        ring: Callable[[Choice | None], None],
    ) -> None:
        self.request = request
        self.prompt = prompt
        params = request.sampling
        spell = _speller(tokenizer, telling.shown) if tokenizer and telling.scored else None
        self.choices = [
            Choice(
                first + index,
                AnswerText(tokenizer, params, telling.stops, telling.shown),
                silent=telling.silent,
                kept=telling.kept,
                parser=None if telling.parser is None else telling.parser(),
                scores=None if spell is None else ScoredText(spell),
            )
            for index in range(params.choices)
        ]
        self.max_tokens: int | None = None
        """The effective maximum of each answer; None: the engine has not taken it yet."""
        self.prompt_logprobs: list[Logprobs] | None = None
        """Once known, if asked for."""
        self.tells_cache = telling.cache
        self.miss: Miss | None = None
        """Why a part of the prompt was not in memory, once known."""
        self.embedding = b""
        """As in `Update.embedding`, once known."""
        self.error: Exception | None = None
        """Why it has no answer."""
        self.open = len(self.choices)
        """Answers that have not ended."""
        self._changed: tuple[str | None] | None = None
        """Once somebody has asked."""
        self._scores = params.prompt_logprobs is not None
        self._interval = telling.interval
        self._ring = ring
        self._core: CoreClient | None = None
        self._place: Place | None = None
        self._meters: Meters | None = None
        self._came_s = request.arrival_s
        self._preemptions = 0
        self._prompt_told = False
        self._begun_s: float | None = None
        self._first_s: float | None = None
        self._last_s: float | None = None

    @property
    def id(self) -> str:
        """As the engine knows it."""
        return self.request.id

    @property
    def submitted(self) -> bool:
        """True once the engine has been asked."""
        return self._core is not None

    @property
    def refused(self) -> bool:
        """True if the engine did not take it."""
        return isinstance(self.error, RequestError)

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that were in memory."""
        return self.choices[0].cached_tokens or 0

    @property
    def changed(self) -> str | None:
        """What of a conversation is not as it stands in memory; None: that is not known."""
        miss, places = self.miss, self.prompt.places
        if miss is None or places is None or miss.reason is not MissReason.DIVERGED:
            return None
        if self._changed is None:
            self._changed = (places.changed(self.prompt.ids, miss.position),)
        return self._changed[0]

    @property
    def output_tokens(self) -> int:
        """Of all its answers."""
        return sum(choice.tokens for choice in self.choices)

    @property
    def scored_tokens(self) -> int:
        """Tokens whose log-probabilities are told, those of the prompt with each answer."""
        told = self.output_tokens if self.request.sampling.logprobs is not None else 0
        return told + len(self.prompt_logprobs or ()) * len(self.choices)

    def submit(self, core: CoreClient, place: Place, meters: Meters, came_s: float) -> None:
        """Hand it to the engine. came_s: when its HTTP request came. Raises EngineGone."""
        core.submit(self.request, self)
        self._core, self._place, self._meters, self._came_s = core, place, meters, came_s

    def accepted(self, max_tokens: int) -> None:
        """It is in the engine's queue."""
        self.max_tokens = max_tokens
        self._ring(None)

    def begun(self, at_s: float) -> None:
        """Its first step has been planned."""
        self._begun_s = at_s

    def take_in(self, update: Update, applied_s: float) -> None:
        """Turn news into text; what comes after a stop string counts for nothing."""
        try:
            self._take_in(update, applied_s)
        except Exception as error:
            # Others hear of the same step: what is wrong here is this request's alone.
            log.exception("news of request %s could not be read", self.id)
            self._break(error)

    def lose(self, error: RequestError | OverLimit | EngineGone) -> None:
        """It was refused, or the engine is gone."""
        if self.open:
            self.error = error
            self._cut("error")

    def leave(self) -> None:
        """End what has not ended: nobody waits for it any more."""
        if self.open and self._core is not None:
            self._core.abort(self.id)
            self._cut("abort")

    def record(self, route: str) -> RequestRecord:
        """Return what is told of it once it has ended."""
        begun, first, last = self._begun_s, self._first_s, self._last_s
        return RequestRecord(
            tenant=self.request.tenant,
            route=route,
            finish=self.choices[0].finish or "abort",
            prompt_tokens=len(self.request.prompt),
            cached_tokens=self.cached_tokens,
            output_tokens=self.output_tokens,
            longest_output=max(choice.tokens for choice in self.choices),
            n=len(self.choices),
            max_tokens=self.max_tokens or 0,
            preemptions=self._preemptions,
            queue_s=None if begun is None else max(0.0, begun - self._came_s),
            prefill_s=None if begun is None or first is None else max(0.0, first - begun),
            decode_s=None if first is None or last is None else last - first,
            e2e_s=time.monotonic() - self._came_s,
        )

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _take_in(self, update: Update, applied_s: float) -> None:
        if update.finish is FinishReason.ABORT:
            self._cut("abort")
            return
        choice = self.choices[update.index]
        self._preemptions += update.preemptions
        self.embedding += update.embedding
        if self.miss is None:
            self.miss = update.miss
        if choice.finish is not None:
            return
        before = choice.tokens
        if choice.push(update, applied_s) and self._core is not None:
            self._core.finish(self.id, update.index)
        self._count(choice, len(update.tokens), told=choice.tokens - before)
        if self._scores and update.index == 0 and self.prompt_logprobs is None:
            self._score(update)
        if choice.finish is not None:
            self.open -= 1
        if not self._scores or self.prompt_logprobs is not None:
            self._offer(choice)

    def _break(self, error: Exception) -> None:
        self.error = error
        if self._core is not None:
            self._core.abort(self.id)
        self._cut("error")

    def _cut(self, finish: str) -> None:
        for choice in self.choices:
            if choice.finish is None:
                choice.end(finish)
                self._offer(choice)
        self.open = 0
        if self._begun_s is not None:
            self._count_prompt()  # of one that has no token yet, as much as there is to know
        self._ring(None)

    def _score(self, update: Update) -> None:
        self.prompt_logprobs = list(update.prompt_logprobs)
        # Others had to wait for it, as they may begin with it.
        for other in self.choices:
            self._offer(other)

    def _offer(self, choice: Choice) -> None:
        if choice.finish is not None or choice.unsent >= self._interval:
            self._ring(choice)

    def _count_prompt(self) -> None:
        if self._meters is not None and not self._prompt_told:
            self._prompt_told = True
            computed = len(self.request.prompt) - self.cached_tokens
            self._meters.prompt(self.request.tenant, cached=self.cached_tokens, computed=computed)

    def _count(self, choice: Choice, tokens: int, *, told: int) -> None:
        """Count tokens of an answer, and how many of them it tells."""
        if choice is self.choices[0]:
            self._count_prompt()
        if not tokens or self._meters is None or self._place is None:
            return
        self._meters.output(self.request.tenant, told)
        now = time.monotonic()
        if self._first_s is None:
            self._first_s = now
            self._meters.first_token(self.request.tenant, now - self._came_s)
        elif choice.last_s is not None:
            self._meters.next_tokens(now - choice.last_s, tokens)
        self._last_s = choice.last_s = now
        self._place.spend(tokens)


def _speller(tokenizer: Tokenizer, shown: frozenset[int]) -> Callable[[int], bytes]:
    """Return what gives the bytes that a token has in the text of an answer."""
    hidden = tokenizer.special_ids - shown

    def spell(token: int) -> bytes:
        return b"" if token in hidden else tokenizer.token_bytes(token)

    return spell
