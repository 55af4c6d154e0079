"""What a caller may ask of sampling, checked once when the value is made."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import msgspec

from octavo.contract.numbers import is_number, is_whole, plain, shown
from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError

_WHOLE = ("n", "top_k", "min_tokens")
_WHOLE_OR_NONE = ("seed", "max_tokens", "logprobs", "prompt_logprobs")
_NUMBERS = (
    "temperature",
    "top_p",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)
_FLAGS = (
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "detokenize",
    "use_beam_search",
)


MAX_N = 16_384
"""Most answers to one prompt, as in vLLM."""

DEFAULT_BEAM_WIDTH = 4
MAX_BEAM_WIDTH = 256
MAX_LENGTH_PENALTY = 16

_INSTEAD = {
    "n": "the answers are the best beam_width texts",
    "top_k": "nothing is drawn; leave it out",
    "top_p": "nothing is drawn; leave it out",
    "min_p": "nothing is drawn; leave it out",
    "stop": "beams are compared token by token; give stop_token_ids, or cut the text yourself",
    "logprobs": "cumulative_logprob tells how likely each text is",
}


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to choose the tokens of one request; names and defaults are vLLM's.

    An unknown option is a `TypeError`, an impossible value a `RequestError`. The order in which
    options act is that of `runner.sampler`, whatever order they are given in.
    """

    n: int = 1
    """Number of independent answers to the prompt."""
    temperature: float = 1.0
    """0 is greedy; otherwise logits are divided by it."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 or -1 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probabilities sum to at least this."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely token's probability."""
    presence_penalty: float = 0.0
    """Taken off the logit of each token that the answer holds already; from -2 to 2."""
    frequency_penalty: float = 0.0
    """Taken off the logit of a token once for each time the answer holds it; from -2 to 2."""
    repetition_penalty: float = 1.0
    """Tokens of the prompt and the answer: positive logits are divided by it, negative ones
    multiplied."""
    logit_bias: dict[int, float] | None = None
    """Added to the logits of these tokens."""
    allowed_token_ids: tuple[int, ...] | None = None
    """Only these tokens may be chosen; None: all."""
    bad_words: tuple[str, ...] = ()
    """Texts whose last token is banned where the tokens before it stand already."""
    structured_outputs: StructuredOutputs | None = None
    """The form that the answer must have."""
    seed: int | None = None
    """None: derived from the engine's seed and the number of the request."""
    stop: tuple[str, ...] = ()
    """Texts that end the answer; given as one string or several, not part of the answer."""
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    """The stop text, or the text of the stop token, is part of the answer."""
    ignore_eos: bool = False
    """Emit the end token like any other and go on; it is not banned."""
    max_tokens: int | None = 16
    """None: as many as context and memory allow."""
    min_tokens: int = 0
    """Before so many tokens end and stop tokens are banned and no stop text counts."""
    logprobs: int | None = None
    """For each token of the answer, log-probabilities of so many most likely tokens and of the
    token itself, as the model gives them, before any option; -1: of the whole vocabulary."""
    prompt_logprobs: int | None = None
    """The same for each token of the prompt but the first."""
    skip_special_tokens: bool = True
    """Special tokens are in the ids but not in the text."""
    detokenize: bool = True
    """False: token ids only, no text."""
    use_beam_search: bool = False
    """Look for the most likely texts instead of sampling; the answers are the best `beam_width`,
    best first."""
    beam_width: int | None = None
    """Texts that are followed at once; None: 4."""
    length_penalty: float = 1.0
    """A text's log-probability is divided by its number of tokens to this power before texts
    are compared: above 0 favours long ones, below 0 short ones."""
    early_stopping: bool | str = False
    """When to stop: True: as soon as `beam_width` texts have ended; False: when the best open
    text at its present length is no better than the worst of these; "never": when no open text
    can become better. As in transformers."""

    def __post_init__(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._settle("stop", _tuple("stop", stop, "texts"))
        for name in ("stop_token_ids", "bad_words"):
            self._settle(name, _tuple(name, getattr(self, name), "a list"))
        if self.allowed_token_ids is not None:
            allowed = _tuple("allowed_token_ids", self.allowed_token_ids, "a list")
            self._settle("allowed_token_ids", allowed)
        self._settle_numbers()
        self._check_types()
        self._check_members()
        self._check_choice()
        self._check_lengths()
        self._check_penalties()
        self._check_bias()
        self._check_lists()
        self._check_form()
        self._check_beams()

    def _settle(self, name: str, value: object) -> None:
        msgspec.structs.force_setattr(self, name, value)

    def _settle_numbers(self) -> None:
        for name in (*_WHOLE, *_WHOLE_OR_NONE, *_NUMBERS, "beam_width", "length_penalty"):
            self._settle(name, plain(getattr(self, name)))
        self._settle("stop_token_ids", tuple(map(plain, self.stop_token_ids)))
        if self.allowed_token_ids is not None:
            self._settle("allowed_token_ids", tuple(map(plain, self.allowed_token_ids)))
        if isinstance(self.logit_bias, dict):
            biases = self.logit_bias.items()
            self._settle("logit_bias", {plain(token): plain(bias) for token, bias in biases})

    def _check_types(self) -> None:
        for name in _WHOLE + _WHOLE_OR_NONE:
            value = getattr(self, name)
            if value is None and name in _WHOLE_OR_NONE:
                continue
            if not is_whole(value):
                raise RequestError(f"{name} must be a whole number, got {value!r}")
        for name in _NUMBERS:
            if not is_number(getattr(self, name)):
                raise RequestError(f"{name} must be a number, got {getattr(self, name)!r}")
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise RequestError(f"{name} must be true or false, got {getattr(self, name)!r}")

    def _check_members(self) -> None:
        for name in ("stop", "bad_words"):
            for text in getattr(self, name):
                if not isinstance(text, str):
                    raise RequestError(f"{name} must be a text or several, got {text!r}")
        for name in ("stop_token_ids", "allowed_token_ids"):
            for token in getattr(self, name) or ():
                if not is_whole(token):
                    raise RequestError(f"{name} must be token ids, got {token!r}")

    def _check_choice(self) -> None:
        if not 1 <= self.n <= MAX_N:
            raise RequestError(f"n must be at least 1 and at most {MAX_N}, got {self.n}")
        if not 0 <= self.temperature <= sys.float_info.max:
            raise RequestError(f"temperature must be 0 or more and finite, got {self.temperature}")
        if self.n > 1 and self.greedy and not self.use_beam_search:
            raise RequestError(
                f"n must be 1 when sampling is greedy (temperature 0), got {self.n}: "
                "all answers would be the same; raise temperature"
            )
        if self.top_k < -1:
            raise RequestError(f"top_k must be -1 or 0 (all) or at least 1, got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise RequestError(f"top_p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise RequestError(f"min_p must be from 0 (keep all) to 1, got {self.min_p}")
        if self.seed is not None and not -(2**63) <= self.seed < 2**64:
            raise RequestError(f"seed must fit 64 bits, got {self.seed}")

    def _check_lengths(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise RequestError(f"max_tokens must be at least 1, got {self.max_tokens}")
        if self.min_tokens < 0:
            raise RequestError(f"min_tokens must be 0 or more, got {self.min_tokens}")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {self.min_tokens}, but max_tokens is {self.max_tokens}: "
                "lower the one or raise the other"
            )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and value < -1:
                raise RequestError(
                    f"{name} must be -1 (the whole vocabulary) or 0 or more, got {value}"
                )

    def _check_penalties(self) -> None:
        for name in ("presence_penalty", "frequency_penalty"):
            if not -2 <= getattr(self, name) <= 2:
                raise RequestError(
                    f"{name} must be from -2 to 2 (0: none), got {getattr(self, name)}"
                )
        if not 0 < self.repetition_penalty <= sys.float_info.max:
            raise RequestError(
                "repetition_penalty must be above 0 (1: none) and finite, got "
                f"{shown(self.repetition_penalty)}"
            )

    def _check_bias(self) -> None:
        if self.logit_bias is None:
            return
        if not isinstance(self.logit_bias, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(
                f"logit_bias must be a dict of token id to number, got {self.logit_bias!r}"
            )
        for token, bias in self.logit_bias.items():
            if not is_whole(token):
                raise RequestError(f"logit_bias must be keyed by token ids, got {token!r}")
            if not (is_number(bias) and abs(bias) <= sys.float_info.max):
                raise RequestError(
                    f"logit_bias of token {token} must be a finite number, got {shown(bias)}; "
                    "allowed_token_ids and bad_words ban tokens"
                )

    def _check_lists(self) -> None:
        if "" in self.stop:
            raise RequestError("stop must not hold an empty text: it would match at once")
        if self.stop and not self.detokenize:
            raise RequestError(
                f"stop is {list(self.stop)}, but detokenize is False: there is no text to find it "
                "in; set detokenize, or give stop_token_ids"
            )
        if not all(word.strip() for word in self.bad_words):
            raise RequestError(
                f"bad_words must not hold an empty text, got {list(self.bad_words)}: leave it out"
            )
        if self.allowed_token_ids == ():
            raise RequestError(
                "allowed_token_ids is empty, so that no token could be chosen: "
                "name at least one, or leave the option out"
            )

    def _check_form(self) -> None:
        form = self.structured_outputs
        if form is None:
            return
        if not isinstance(form, StructuredOutputs):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"structured_outputs must be StructuredOutputs, got {shown(form)}")
        if self.ignore_eos:
            raise RequestError(
                "ignore_eos cannot be combined with structured_outputs: nothing may follow a "
                "complete answer but its end; leave one of them out"
            )

    def _check_beams(self) -> None:
        if not self.use_beam_search:
            self._refuse_beam_options()
            return
        width = DEFAULT_BEAM_WIDTH if self.beam_width is None else self.beam_width
        if not is_whole(width) or not 1 <= width <= MAX_BEAM_WIDTH:
            raise RequestError(
                f"beam_width must be a whole number from 1 to {MAX_BEAM_WIDTH}, got {width!r}"
            )
        self._settle("beam_width", width)
        if not (is_number(self.length_penalty) and abs(self.length_penalty) <= MAX_LENGTH_PENALTY):
            raise RequestError(
                f"length_penalty must be a number from -{MAX_LENGTH_PENALTY} to "
                f"{MAX_LENGTH_PENALTY}, got {self.length_penalty!r}"
            )
        early = self.early_stopping
        if not (isinstance(early, bool) or (isinstance(early, str) and early == "never")):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(
                f"early_stopping must be true, false or 'never', got {self.early_stopping!r}"
            )
        if self.temperature not in (0, 1):
            raise RequestError(
                f"temperature is {self.temperature}, but beam search draws nothing: leave it out"
            )
        plain = SamplingParams()
        for name in ("n", "top_k", "top_p", "min_p", "stop", "logprobs"):
            value = getattr(self, name)
            if value != getattr(plain, name) and (name, value) != ("top_k", -1):
                raise RequestError(
                    f"{name} cannot be combined with use_beam_search: {_INSTEAD[name]}"
                )

    def _refuse_beam_options(self) -> None:
        plain = (("beam_width", None), ("length_penalty", 1.0), ("early_stopping", False))
        for name, value in plain:
            given = getattr(self, name)
            # An array compares number by number.
            if not isinstance(given, (int, float, str, type(None))) or given != value:
                raise RequestError(
                    f"{name} is {getattr(self, name)!r}, but use_beam_search is false: set it, or "
                    f"leave {name} out"
                )

    @property
    def choices(self) -> int:
        """Answers to the prompt."""
        return self.beam_width or 1 if self.use_beam_search else self.n

    def candidates(self, ends: int) -> int:
        """Return how many continuations of a beam are looked at, if so many tokens end a text.

        Enough to go on with `beam_width` texts even if all of the likeliest end.
        """
        return max(2, 1 + ends) * self.choices

    @property
    def greedy(self) -> bool:
        """True if the most likely token is always taken."""
        return self.temperature == 0

    @property
    def penalizes(self) -> bool:
        """True if a token's chance depends on whether the text holds it."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def looks_back(self) -> bool:
        """True if the choice of a token depends on the text before it, logits apart."""
        return self.penalizes or bool(self.bad_words) or self.structured_outputs is not None


def _tuple(name: str, value: Iterable[object] | None, what: str) -> tuple[object, ...]:
    """Return several values as a tuple; None: none."""
    if value is None:
        return ()
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise RequestError(f"{name} must be {what}, got {value!r}")
    return tuple(value)
