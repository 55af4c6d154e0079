"""From what a caller writes, prompts and sampling options, to requests."""

from __future__ import annotations

import itertools
import operator
import time
from collections.abc import Callable, Iterable, Mapping
from typing import SupportsIndex, TypeAlias, cast

from octavo.cache_hints import Hint, check_hints, is_one_hint
from octavo.contract.hint import CacheHint
from octavo.contract.namespace import Namespace
from octavo.contract.request import Request, choice_seed
from octavo.contract.retention import DEFAULT_TENANT, Retention
from octavo.contract.sampling import SamplingParams
from octavo.errors import RequestError
from octavo.results import CompletionOutput, RequestOutput
from octavo.text.tokenizer import Tokenizer
from octavo.text.unicode import check_unicode

Prompt: TypeAlias = str | Mapping[str, object]
"""A text, `{"prompt": text}` or `{"prompt_token_ids": [ids]}`."""

Tenants: TypeAlias = str | Iterable[str] | None
"""One tenant for all prompts, or one per prompt."""

Retentions: TypeAlias = Retention | Iterable[Retention | Iterable[Retention] | None] | None
"""One wish for all prompts; or per prompt one, several for ranges of it, or None."""

NO_TOKENIZER = "this engine has no tokenizer, since its model is a shape without one"


class RequestBuilder:
    """Numbers requests, tokenizes and checks them; the same engine seed gives the same seeds.

    tokenizer: None: prompts are token ids. unheard: called when a request says what comes next for
    the first time, if nothing heeds it. Several threads may build at once.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        *,
        vocab_size: int,
        namespace: Namespace,
        seed: int,
        unheard: Callable[[], None] | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._namespace = namespace
        self._seed = seed
        self._numbers = itertools.count()
        self._unheard = unheard
        self._words: tuple[tuple[str, ...], tuple[tuple[int, ...], ...]] = ((), ())
        """The bad words that were read last, and their tokens: many prompts have the same."""

    def build(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None,
        priority: Iterable[int] | None = None,
        cache_hint: Hint | Iterable[Hint | None] | None = None,
        *,
        tenant: Tenants = None,
        retention: Retentions = None,
    ) -> list[tuple[Request, RequestOutput]]:
        """Check prompts and options; returns a request and its empty result for each prompt.

        Raises RequestError, naming what cannot work, before anything is queued.
        """
        many = [prompts] if isinstance(prompts, (str, Mapping)) else several(prompts, "prompts")
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params: list[object] = [sampling_params or SamplingParams()] * len(many)
        else:
            params = several(sampling_params, "sampling_params")
        ranks = [0] * len(many) if priority is None else several(priority, "priority")
        one_hint = is_one_hint(cache_hint)
        hints = [cache_hint] * len(many) if one_hint else several(cache_hint, "cache_hint")
        names = _one_each(tenant, str, len(many), "tenant")
        wishes = _one_each(retention, Retention, len(many), "retention")
        for what, values in (
            ("sampling_params", params),
            ("priority", ranks),
            ("cache_hint", hints),
            ("tenant", names),
            ("retention", wishes),
        ):
            if len(values) != len(many):
                raise RequestError(f"{len(many)} prompts, but {len(values)} {what}: give one each")
        checked = [self._checked(*each) for each in zip(many, params, ranks, hints, strict=True)]
        after = [(_tenant(name), _ranges(one)) for name, one in zip(names, wishes, strict=True)]
        if self._unheard is not None and any(hints for *_, hints in checked):
            self._unheard()
            self._unheard = None
        # Only now are numbers used up: a call that is refused changes no seed of a later one.
        return [self._request(*each, *kept) for each, kept in zip(checked, after, strict=True)]

    def _checked(
        self, prompt: object, params: object, priority: object, cache_hint: object
    ) -> tuple[str | None, list[int], SamplingParams, int, tuple[CacheHint, ...]]:
        if not isinstance(params, SamplingParams):
            raise RequestError(f"sampling_params must be SamplingParams, got {params!r}")
        rank = _whole(priority)
        if rank is None or not -(2**63) <= rank < 2**63:
            raise RequestError(f"priority must be a whole number of 64 bits, got {priority!r}")
        self._check_options(params)
        hints = check_hints(cache_hint, source=self._namespace.salt)
        return (*self._token_ids(prompt), params, rank, hints)

    def _request(
        self,
        text: str | None,
        ids: list[int],
        params: SamplingParams,
        priority: int,
        hints: tuple[CacheHint, ...],
        tenant: str,
        retention: tuple[Retention, ...],
    ) -> tuple[Request, RequestOutput]:
        number = next(self._numbers)
        seed = choice_seed(self._seed, number) if params.seed is None else params.seed
        request = Request(
            id=f"request-{number}",
            prompt=tuple(ids),
            sampling=params,
            seed=seed,
            namespace=self._namespace,
            priority=priority,
            cache_hints=hints,
            tenant=tenant,
            retention=retention,
            arrival_s=time.monotonic(),
            eos_token_ids=self._eos_token_ids,
            bad_words=self._bad_words(params.bad_words),
        )
        outputs = [
            CompletionOutput(index, logprobs=None if params.logprobs is None else [])
            for index in range(params.choices)
        ]
        result = RequestOutput(request.id, text, ids, outputs)
        if params.prompt_logprobs is not None:
            result.prompt_logprobs = [None]
        return request, result

    @property
    def _eos_token_ids(self) -> frozenset[int]:
        return frozenset() if self._tokenizer is None else self._tokenizer.eos_token_ids

    def _check_options(self, params: SamplingParams) -> None:
        """Raise RequestError for what only the vocabulary can tell to be impossible."""
        size = self._vocab_size
        if params.stop and self._tokenizer is None:
            raise RequestError(
                f"stop is {list(params.stop)!r:.80}, but {NO_TOKENIZER}: give stop_token_ids"
            )
        for name in ("logit_bias", "allowed_token_ids", "stop_token_ids"):
            for token in getattr(params, name) or ():
                if not 0 <= token < size:
                    raise RequestError(
                        f"{name} names token id {token}, but the vocabulary has {size}: "
                        f"ids are from 0 to {size - 1}"
                    )
        for name in ("logprobs", "prompt_logprobs"):
            count = getattr(params, name)
            if count is not None and count > size:
                raise RequestError(
                    f"{name} is {count}, but the vocabulary has {size} tokens: "
                    f"ask for at most {size}, or for all with -1"
                )
        if params.use_beam_search and 2 * params.choices > size:
            raise RequestError(
                f"beam_width is {params.choices}, but the vocabulary has {size} tokens, and a "
                f"search needs two for each beam: lower beam_width to {size // 2} or less"
            )
        self._check_some_token_is_left(params)

    def _check_some_token_is_left(self, params: SamplingParams) -> None:
        words = self._bad_words(params.bad_words)
        if params.allowed_token_ids is None:
            return
        allowed = f"allowed_token_ids is {list(params.allowed_token_ids)!r:.80}"
        left = set(params.allowed_token_ids) - {word[0] for word in words if len(word) == 1}
        if not left:
            raise RequestError(
                f"{allowed}, but bad_words bans every one: allow another token, or leave words out"
            )
        if params.min_tokens and left <= {*self._eos_token_ids, *params.stop_token_ids}:
            raise RequestError(
                f"{allowed}, but each of these ends the answer, and min_tokens is "
                f"{params.min_tokens}: allow another token, or leave min_tokens out"
            )

    def _bad_words(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        known = self._words
        if words != known[0]:
            known = self._words = (words, self._tokens_of(words))
        return known[1]

    def _tokens_of(self, words: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        """Return each word as tokens, as it stands at the start of a text and after a space.

        The second is left out where the space is a token of its own: then the word itself is
        the same tokens.
        """
        found: list[tuple[int, ...]] = []
        tokenizer = self._tokenizer
        for word in words:
            if tokenizer is None:
                raise RequestError(
                    f"bad_words holds {word!r:.80}, but {NO_TOKENIZER}: ban tokens with logit_bias"
                )
            plain, spaced = (
                tuple(tokenizer.encode(head + word.lstrip(), add_special_tokens=False))
                for head in ("", " ")
            )
            if not plain:
                raise RequestError(f"bad_words holds {word!r}, which has no token: leave it out")
            found.append(plain)
            if len(spaced) == len(plain) and spaced[0] != plain[0]:
                found.append(spaced)
        return tuple(dict.fromkeys(found))

    def _token_ids(self, prompt: object) -> tuple[str | None, list[int]]:
        """Return text, if there is one, and checked token ids of a prompt."""
        if isinstance(prompt, str):
            return prompt, self._encode(prompt)
        if not isinstance(prompt, Mapping):
            raise RequestError(
                f"a prompt is a text, {{'prompt': text}} or {{'prompt_token_ids': [ids]}}, got "
                f"{prompt!r:.80}; token ids alone go into {{'prompt_token_ids': ...}}"
            )
        given = cast("Mapping[object, object]", prompt)
        if len(given) != 1 or not given.keys() <= {"prompt", "prompt_token_ids"}:
            raise RequestError(
                "a prompt is a text, {'prompt': text} or {'prompt_token_ids': [ids]}, "
                f"got a dict with {list(given)!r:.80}"
            )
        if "prompt" in given:
            text = given["prompt"]
            if not isinstance(text, str):
                raise RequestError(f"'prompt' must be a text, got {text!r:.80}")
            return text, self._encode(text)
        ids = given["prompt_token_ids"]
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable):
            raise RequestError(f"prompt_token_ids must be a list of token ids, got {ids!r:.80}")
        return None, self._checked_ids(list(cast("Iterable[object]", ids)))

    def _encode(self, text: str) -> list[int]:
        if self._tokenizer is None:
            raise RequestError(
                f"the prompt is a text, but {NO_TOKENIZER}: give {{'prompt_token_ids': [ids]}}"
            )
        check_unicode(text, "the prompt")
        return self._tokenizer.encode(text)

    def _checked_ids(self, ids: list[object]) -> list[int]:
        # A prompt may have many thousand ids: plain numbers are looked at all at once.
        if set(map(type, ids)) == {int}:
            plain = cast("list[int]", ids)
            if min(plain) >= 0 and max(plain) < self._vocab_size:
                return plain
        return [self._token_id(token) for token in ids]

    def _token_id(self, token: object) -> int:
        whole, size = _whole(token), self._vocab_size
        if whole is None:
            raise RequestError(f"a token id must be a whole number, got {token!r}")
        if not 0 <= whole < size:
            raise RequestError(f"token id {whole} is out of range: the vocabulary has {size}")
        return whole


def _one_each(values: object, kind: type, count: int, what: str) -> list[object]:
    """Return one value for each of so many prompts; one of its kind, or None, is for all."""
    if values is None or isinstance(values, kind):
        return [values] * count
    return several(values, what)


def _tenant(name: object) -> str:
    if name is None:
        return DEFAULT_TENANT
    if not isinstance(name, str):
        raise RequestError(f"tenant must be a name, got {name!r}")
    return name


def _ranges(wish: object) -> tuple[Retention, ...]:
    ranges = () if wish is None else (wish,) if isinstance(wish, Retention) else wish
    if isinstance(ranges, (str, bytes, Mapping)) or not isinstance(ranges, Iterable):
        raise RequestError(f"retention must be a Retention, or several, got {wish!r:.80}")
    several = tuple(cast("Iterable[object]", ranges))
    for one in several:
        if not isinstance(one, Retention):
            raise RequestError(f"retention must be a Retention, or several, got {one!r:.80}")
    return cast("tuple[Retention, ...]", several)


def several(values: object, what: str) -> list[object]:
    """Return some values as a list. Raises RequestError for what is one value, or none.

    what: to call them by.
    """
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        raise RequestError(f"{what} cannot be {values!r:.80}: give one, or a list of them")
    return list(cast("Iterable[object]", values))


def _whole(value: object) -> int | None:
    """Return a whole number of any kind, numpy's included, as an int; None: it is none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(cast("SupportsIndex", value))
    except TypeError:
        return None
