"""What a choice of a request looks like to its caller: text, and log-probabilities by token."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from octavo.contract.batch import Logprobs
from octavo.contract.request import FinishReason, Update
from octavo.contract.sampling import SamplingParams
from octavo.text.detokenize import Detokenizer
from octavo.text.stops import StopTable
from octavo.text.tokenizer import Tokenizer


class Logprob(msgspec.Struct, frozen=True, gc=False):
    """How likely one token was at one position."""

    logprob: float
    """Natural logarithm of its probability before any sampling option."""
    rank: int | None = None
    """From 1, over the whole vocabulary."""
    decoded_token: str | None = None
    """Its text, by itself; None without detokenizing."""


class Speller:
    """Knows the text of single tokens; each is decoded once.

    tokenizer: None: no token has a text.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def name(self, logprobs: Iterable[Logprobs], *, decode: bool) -> tuple[dict[int, Logprob], ...]:
        """Key log-probabilities by token, position by position."""
        return tuple(
            {
                token: Logprob(value, rank, self._text(token) if decode else None)
                for token, value, rank in zip(one.ids, one.values, one.ranks, strict=True)
            }
            for one in logprobs
        )

    def _text(self, token: int) -> str | None:
        text = self._texts.get(token)
        if text is None and self._tokenizer is not None:
            text = self._tokenizer.decode([token], skip_special_tokens=False)
            self._texts[token] = text
        return text


def stop_table(params: SamplingParams) -> StopTable | None:
    """Return the stop strings of all answers to a request; None: there are none."""
    return StopTable(params.stop) if params.stop else None


class AnswerText:
    """The text of one choice, piece by piece, up to where it stops.

    tokenizer: None: the text stays empty. stops: those of `params`, where several answers share
    them; see `stop_table`. shown: special tokens that are text all the same.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        params: SamplingParams,
        stops: StopTable | None = None,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self.decodes = params.detokenize
        self._keeps_stop = params.include_stop_str_in_output
        self._detokenizer = None
        if params.detokenize and tokenizer is not None:
            self._detokenizer = Detokenizer(
                tokenizer,
                stops or params.stop,
                skip_special_tokens=params.skip_special_tokens,
                shown=shown,
                include_stop=params.include_stop_str_in_output,
                min_tokens=params.min_tokens,
            )

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None so far."""
        return self._detokenizer.stopped if self._detokenizer else None

    def push(self, update: Update) -> str:
        """Take the tokens of an update; return the text that is certain now."""
        if self._detokenizer is None:
            return ""
        # The token that says "stop" is in the ids but not in the text, unless asked for.
        hidden = update.finish is FinishReason.STOP and not self._keeps_stop
        text = self._detokenizer.push(update.tokens[:-1] if hidden else update.tokens)
        return text if update.finish is None else text + self._detokenizer.finish()
