"""The offline API: prompts in, answers out, with vLLM's names."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeAlias, cast

import msgspec

from octavo.build import Built, build_engine
from octavo.config import EngineConfig
from octavo.contract.request import Request, choice_seed
from octavo.contract.sampling import SamplingParams
from octavo.engine.engine import Engine, Output
from octavo.errors import RequestError
from octavo.progress import Progress, progress_bar
from octavo.text.tokenizer import Tokenizer

Prompt: TypeAlias = str | Mapping[str, object]
"""A text, `{"prompt": text}` or `{"prompt_token_ids": [ids]}`."""


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    cumulative_logprob: float = 0.0
    finish_reason: str | None = None
    """"stop", "length", "abort" or "error"."""
    stop_reason: str | int | None = None
    """The stop string or stop token that ended the answer; after an error, what went wrong."""


@dataclass(slots=True)
class RequestOutput:
    """Everything about one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    num_cached_tokens: int = 0
    """Prompt tokens that were in memory, or being written, already."""
    effective_max_tokens: int = 0
    """Output tokens that were possible: max_tokens, cut to context and memory."""
    ttft_s: float | None = None
    """Seconds from the call to the first token."""
    e2e_s: float | None = None
    """Seconds from the call to the last token."""
    finished: bool = False


class MemoryReport(msgspec.Struct, frozen=True):
    """What KV memory was used for, since the engine started."""

    block_size: int | None
    """None for the contiguous baselines."""
    blocks_total: int
    blocks_used_peak: int
    logical_blocks_peak: int
    """What would have been used without sharing."""
    blocks_shared_peak: int
    token_share_of_allocated: float | None
    """Share of allocated slots that held a token, averaged over steps."""
    waste_share: float | None
    prefix_query_tokens: int
    prefix_hit_tokens: int
    copies: int
    preemptions: int
    recomputed_tokens: int


class LLM:
    """A model with its engine, for use from one thread.

    Raises ConfigError, ModelError or FetchError if it cannot be built; an unknown keyword is a
    TypeError. With no model named, the embedded default is used, and fetched at first.
    """

    def __init__(
        self,
        model: str | None = None,
        *,
        dtype: str = "auto",
        seed: int = 0,
        block_size: int = 16,
        kv_cache_memory_bytes: int | None = None,
        max_num_seqs: int = 128,
        max_num_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        reservation: str = "on_demand",
        scheduling_policy: str = "fcfs",
        deterministic: bool = False,
        offline: bool = False,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Build the engine. What each setting means stands beside it in `EngineConfig`.

        report: told in words what takes long; None: to stderr.
        """
        self.config = EngineConfig(
            model=model,
            dtype=dtype,
            seed=seed,
            block_size=block_size,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            reservation=reservation,
            scheduling_policy=scheduling_policy,
            deterministic=deterministic,
            offline=offline,
        )
        self._built: Built = build_engine(self.config, report=report or _to_stderr)
        self._engine: Engine = self._built.engine
        self._requests = 0

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Iterable[int] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, all together; results come in the order of the prompts.

        sampling_params: one for all, or one per prompt; None: vLLM's defaults. priority: one
        number per prompt, lower first, for scheduling_policy="priority". use_tqdm: show progress
        on stderr if that is a terminal. Raises RequestError before anything runs if one of the
        prompts cannot be answered.
        """
        requests = self._requests_for(prompts, sampling_params, priority)
        results = {request.id: output for request, output in requests}
        start = time.monotonic()
        try:
            for request, output in requests:
                output.effective_max_tokens = self._engine.add(request)
            with _bar(use_tqdm, sum(len(output.outputs) for output in results.values())) as bar:
                while self._engine.busy:
                    for news in self._engine.step():
                        _take_in(results[news.request_id], news, time.monotonic() - start, bar)
        finally:
            # After an error or Ctrl-C nothing of this call stays behind.
            for request_id in results:
                self._engine.abort(request_id)
        return [output for _, output in requests]

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._built.tokenizer

    def reset_prefix_cache(self) -> int:
        """Forget cached texts that no sequence uses; returns the number of blocks."""
        return self._engine.reset_prefix_cache()

    def memory_report(self) -> MemoryReport:
        """Say what KV memory was used for so far."""
        stats = self._engine.stats
        share = stats.token_share_of_allocated
        paged = self.config.reservation == "on_demand"
        return MemoryReport(
            block_size=self.config.block_size if paged else None,
            blocks_total=self._built.num_blocks,
            blocks_used_peak=stats.blocks_used_peak,
            logical_blocks_peak=stats.blocks_logical_peak,
            blocks_shared_peak=stats.blocks_shared_peak,
            token_share_of_allocated=share,
            waste_share=None if share is None else 1 - share,
            prefix_query_tokens=stats.prefix_query_tokens,
            prefix_hit_tokens=stats.prefix_hit_tokens,
            copies=stats.copies,
            preemptions=stats.preemptions,
            recomputed_tokens=stats.recomputed_tokens,
        )

    @property
    def built(self) -> Built:
        """The engine and its parts, to be looked at."""
        return self._built

    def close(self) -> None:
        """Give memory back; the object is of no use afterwards."""
        self._engine.close()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _requests_for(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None,
        priority: Iterable[int] | None,
    ) -> list[tuple[Request, RequestOutput]]:
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
        seed = choice_seed(self.config.seed, number) if params.seed is None else params.seed
        request = Request(
            id=f"request-{number}",
            prompt=tuple(ids),
            sampling=params,
            seed=seed,
            namespace=self._built.namespace,
            priority=priority,
            arrival_s=time.monotonic(),
            eos_token_ids=self._built.tokenizer.eos_token_ids,
        )
        outputs = [CompletionOutput(index) for index in range(params.n)]
        return request, RequestOutput(request.id, text, ids, outputs)

    def _token_ids(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """Return text, if there is one, and checked token ids of a prompt."""
        tokenizer = self._built.tokenizer
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
        size = self._built.spec.vocab_size
        if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < size:
            raise RequestError(f"token id {token!r} is out of range: the vocabulary has {size}")
        return token


def _take_in(result: RequestOutput, news: Output, now_s: float, bar: Progress | None) -> None:
    answer = result.outputs[news.index]
    answer.text += news.text
    answer.token_ids += news.token_ids
    answer.cumulative_logprob += news.logprob
    if news.index == 0 and result.ttft_s is None:
        result.num_cached_tokens = news.cached_tokens
    if result.ttft_s is None and news.token_ids:
        result.ttft_s = now_s
    if news.finish is not None:
        answer.finish_reason = news.finish.value
        answer.stop_reason = news.error if news.error is not None else news.stop_reason
        result.e2e_s = now_s
        result.finished = all(one.finish_reason is not None for one in result.outputs)
    if bar is not None:
        bar.advance(len(news.token_ids), finished=news.finish is not None)


def _bar(wanted: bool, answers: int) -> AbstractContextManager[Progress | None]:
    return progress_bar(answers) if wanted and sys.stderr.isatty() else nullcontext()


def _to_stderr(message: str) -> None:
    sys.stderr.write(message + "\n")
