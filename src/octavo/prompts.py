"""From what a caller writes, prompts and sampling options, to requests."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TypeAlias, cast

from octavo.contract.namespace import Namespace
from octavo.contract.request import Request, choice_seed
from octavo.contract.sampling import SamplingParams
from octavo.errors import RequestError
from octavo.results import CompletionOutput, RequestOutput
from octavo.text.tokenizer import Tokenizer

Prompt: TypeAlias = str | Mapping[str, object]
"""A text, `{"prompt": text}` or `{"prompt_token_ids": [ids]}`."""


class RequestBuilder:
    """Numbers requests, tokenizes and checks them; the same engine seed gives the same seeds."""

    def __init__(
        self, tokenizer: Tokenizer, *, vocab_size: int, namespace: Namespace, seed: int
    ) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._namespace = namespace
        self._seed = seed
        self._requests = 0

    def build(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None,
        priority: Iterable[int] | None = None,
    ) -> list[tuple[Request, RequestOutput]]:
        """Check prompts and options; returns a request and its empty result for each prompt.

        Raises RequestError, naming what cannot work, before anything is queued.
        """
        alone = isinstance(prompts, (str, Mapping))
        many = [cast("Prompt", prompts)] if alone else list(cast("Iterable[Prompt]", prompts))
        if sampling_params is None or isinstance(sampling_params, SamplingParams):
            params = [sampling_params or SamplingParams()] * len(many)
        else:
            params = list(sampling_params)
        ranks = [0] * len(many) if priority is None else list(priority)
        for what, values in (("sampling_params", params), ("priority", ranks)):
            if len(values) != len(many):
                raise RequestError(f"{len(many)} prompts, but {len(values)} {what}: give one each")
        return [self._request(*each) for each in zip(many, params, ranks, strict=True)]

    def _request(
        self, prompt: Prompt, params: SamplingParams, priority: int
    ) -> tuple[Request, RequestOutput]:
        text, ids = self._token_ids(prompt)
        number = self._requests
        self._requests += 1
        seed = choice_seed(self._seed, number) if params.seed is None else params.seed
        request = Request(
            id=f"request-{number}",
            prompt=tuple(ids),
            sampling=params,
            seed=seed,
            namespace=self._namespace,
            priority=priority,
            arrival_s=time.monotonic(),
            eos_token_ids=self._tokenizer.eos_token_ids,
        )
        outputs = [CompletionOutput(index) for index in range(params.n)]
        return request, RequestOutput(request.id, text, ids, outputs)

    def _token_ids(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Return text, if there is one, and checked token ids of a prompt."""
        tokenizer = self._tokenizer
        if isinstance(prompt, str):
            return prompt, tokenizer.encode(prompt)
        unknown = set(prompt) - {"prompt", "prompt_token_ids"}
        if unknown or len(prompt) != 1:
            raise RequestError(
                "a prompt is a text, {'prompt': text} or {'prompt_token_ids': [ids]}, "
                f"got a dict with {sorted(prompt)}"
            )
        text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
        if isinstance(text, str):
            return text, tokenizer.encode(text)
        if not isinstance(ids, (list, tuple)):
            raise RequestError(f"prompt_token_ids must be a list of token ids, got {ids!r}")
        return None, [self._token_id(token) for token in ids]

    def _token_id(self, token: object) -> int:
        size = self._vocab_size
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < size:
            raise RequestError(f"token id {token!r} is out of range: the vocabulary has {size}")
        return token
