"""From the body of a request to sampling options, within a server's bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from octavo.contract.sampling import SamplingParams
from octavo.contract.structured import StructuredOutputs
from octavo.server.failures import ApiError
from octavo.server.forms_of_answers import form_of
from octavo.server.schemas.chat import ChatBody
from octavo.server.schemas.common import SamplingBody
from octavo.server.schemas.completions import CompletionBody
from octavo.server.schemas.drawn import DRAWN, DrawnBody
from octavo.server.settings import RequestBounds

_SAME = (
    "n",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "allowed_token_ids",
    "bad_words",
    "seed",
    "stop",
    "stop_token_ids",
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "detokenize",
    "use_beam_search",
    "beam_width",
    "length_penalty",
    "early_stopping",
    "prompt_logprobs",
)
"""Fields whose name and meaning are those of `SamplingParams`."""

_DRAWN = ("n", "temperature", "top_p", "top_k", "min_p")
"""What a beam search has no use for, where the model's defaults name it."""

COMPLETION_TOKENS = 16
"""Most tokens of a completion that names no maximum, as the API has it."""


def completion_sampling(
    body: CompletionBody, defaults: Mapping[str, object], bounds: RequestBounds
) -> SamplingParams:
    """Return the options of a completion. Raises ApiError or RequestError, naming the field."""
    if body.best_of is not None and body.best_of != (1 if body.n is None else body.n):
        raise ApiError(
            400, "best_of: answers are not compared, so that it must equal n", param="best_of"
        )
    options = _options(body, defaults, bounds)
    options["max_tokens"] = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    if body.echo and body.max_tokens == 0:
        # One token is computed, and nobody hears of it.
        options["max_tokens"] = 1
    if body.logprobs is not None:
        options["logprobs"] = _likely("logprobs", body.logprobs, bounds)
        if body.echo:
            options.setdefault("prompt_logprobs", body.logprobs)
    return _params(options)


def chat_sampling(
    body: ChatBody, defaults: Mapping[str, object], bounds: RequestBounds
) -> SamplingParams:
    """Return the options of a chat. Raises ApiError or RequestError, naming the field."""
    options = _options(body, defaults, bounds)
    most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
    options["max_tokens"] = defaults.get("max_tokens") if most is None else most
    if body.top_logprobs is not None:
        count = _likely("top_logprobs", body.top_logprobs, bounds)
        if not body.logprobs and count:
            raise ApiError(
                400, "top_logprobs: it needs logprobs, which is not true", param="top_logprobs"
            )
    if body.logprobs:
        options["logprobs"] = body.top_logprobs or 0
    return _params(options)


def _params(options: dict[str, object]) -> SamplingParams:
    return SamplingParams(**cast("dict[str, Any]", options))


def drawn_sampling(
    body: DrawnBody,
    stop: str | list[str] | None,
    most: int | None,
    defaults: Mapping[str, object],
    bounds: RequestBounds,
    form: StructuredOutputs | None = None,
    *,
    likely: int | None = None,
) -> SamplingParams:
    """Return the options of one answer of another API. Raises ApiError or RequestError.

    stop: texts that end it. most: its tokens. form: what form it must have. likely: tokens told
    beside each; None: nothing is told of how likely they are.
    """
    options = {name: value for name, value in defaults.items() if name not in ("n", "stop")}
    known = SamplingParams.__struct_fields__
    options = {name: value for name, value in options.items() if name in known}
    for name in DRAWN:
        value: object = getattr(body, name)
        if value is not None:
            options[name] = value
    _check_stops(stop, bounds)
    if stop:
        options["stop"] = stop
    options["max_tokens"] = defaults.get("max_tokens") if most is None else most
    options["structured_outputs"] = form
    if likely is not None:
        options["logprobs"] = _likely("top_logprobs", likely, bounds)
    return _params(options)


def _options(
    body: SamplingBody, defaults: Mapping[str, object], bounds: RequestBounds
) -> dict[str, object]:
    known = SamplingParams.__struct_fields__
    options = {name: value for name, value in defaults.items() if name in known}
    if body.use_beam_search:
        options = {name: value for name, value in options.items() if name not in _DRAWN}
    for name in _SAME:
        value: object = getattr(body, name)
        if value is not None:
            options[name] = value
    if body.use_beam_search:
        width = options.pop("n", None)
        if width is not None:
            options.setdefault("beam_width", width)
    if body.logit_bias is not None:
        options["logit_bias"] = _bias(body.logit_bias)
    if body.prompt_logprobs is not None:
        _likely("prompt_logprobs", body.prompt_logprobs, bounds)
    options["structured_outputs"] = form_of(body)
    _check_bounds(body, bounds)
    return options


def _bias(given: dict[str, float]) -> dict[int, float]:
    for token in given:
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise ApiError(
                400, f"logit_bias: its keys are token ids, got {token!r:.40}", param="logit_bias"
            )
    return {int(token): bias for token, bias in given.items()}


def _likely(name: str, count: int, bounds: RequestBounds) -> int:
    if not 0 <= count <= bounds.max_logprobs:
        raise ApiError(
            400, f"{name}: must be from 0 to {bounds.max_logprobs}, got {count}", param=name
        )
    return count


def _check_bounds(body: SamplingBody, bounds: RequestBounds) -> None:
    for name in ("n", "beam_width"):
        value = getattr(body, name)
        if value is not None and value > bounds.max_n:
            raise ApiError(
                400,
                f"{name}: must be at most {bounds.max_n} on this server, got {value}",
                param=name,
            )
    _check_stops(body.stop, bounds)
    most = bounds.max_stop * bounds.max_stop_chars
    if sum(map(len, body.bad_words or ())) > most:
        raise ApiError(400, f"bad_words: at most {most} characters all together", param="bad_words")


def _check_stops(stop: str | list[str] | None, bounds: RequestBounds) -> None:
    stops = [stop] if isinstance(stop, str) else stop or []
    if any(len(one) > bounds.max_stop_chars for one in stops):
        raise ApiError(
            400, f"stop: each text has at most {bounds.max_stop_chars} characters", param="stop"
        )
