"""The offline API: prompts in, answers out, with vLLM's names.

What a request needs is imported when it comes, while the weights are packed.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias, cast

from octavo.build import Built, build_engine
from octavo.config import EngineConfig
from octavo.errors import ConfigError, RequestError
from octavo.interrupts import interrupts_wait
from octavo.runs import Run, request_builder

if TYPE_CHECKING:
    from pathlib import Path

    from octavo.cache_hints import Hint
    from octavo.contract.request import Request
    from octavo.contract.sampling import SamplingParams
    from octavo.embeddings import EmbeddingOutput
    from octavo.engine.checker import Checker, Checkup
    from octavo.engine.engine import Engine
    from octavo.progress import Progress
    from octavo.prompts import Prompt, Retentions, Tenants
    from octavo.results import Delta, MemoryReport, Metric, RequestOutput
    from octavo.text.tokenizer import Tokenizer

Messages: TypeAlias = Iterable[Mapping[str, object]]
"""One conversation."""


class LLM:
    """A model with its engine, for use from one thread.

    Raises ConfigError, ModelError or FetchError if it cannot be built; an unknown keyword is a
    TypeError. With neither model nor shape, the embedded default is used, and fetched at first.
    """

    _closed = _handed_over = False
    _checker: Checker | None = None

    def __init__(
        self,
        model: str | None = None,
        *,
        load_format: str = "auto",
        shape: str | None = None,
        dtype: str = "auto",
        kv_cache_dtype: str = "auto",
        device: str = "auto",
        seed: int = 0,
        block_size: int = 16,
        kv_cache_memory_bytes: int | None = None,
        gpu_memory_utilization: float | None = None,
        max_num_seqs: int = 128,
        max_num_batched_tokens: int = 2048,
        max_model_len: int | None = None,
        reservation: str = "on_demand",
        scheduling_policy: str | Mapping[str, str | int | float] = "fcfs",
        eviction_policy: str | Mapping[str, str | int | float] = "lru",
        structured_outputs_backend: str = "auto",
        pooling: str = "auto",
        partial_blocks: bool = True,
        tenants: Mapping[str, Mapping[str, float]] | str | None = None,
        pin_limit: float = 0.0,
        backend: str = "auto",
        cpu_arithmetic: str | None = None,
        threads: int | None = None,
        enforce_eager: bool = False,
        deterministic: bool = False,
        offline: bool = False,
        record: str | Path | None = None,
        report: Callable[[str], None] | None = None,
    ) -> None:
        """Build the engine of an `EngineConfig`. report: told what takes long; None: to stderr."""
        self.config = EngineConfig(
            model=model,
            load_format=load_format,
            shape=shape,
            dtype=dtype,
            kv_cache_dtype=kv_cache_dtype,
            device=device,
            seed=seed,
            block_size=block_size,
            kv_cache_memory_bytes=kv_cache_memory_bytes,
            gpu_memory_utilization=gpu_memory_utilization,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            reservation=reservation,
            scheduling_policy=scheduling_policy,
            eviction_policy=eviction_policy,
            structured_outputs_backend=structured_outputs_backend,
            pooling=pooling,
            partial_blocks=partial_blocks,
            tenants=tenants,
            pin_limit=pin_limit,
            backend=backend,
            cpu_arithmetic=cpu_arithmetic,
            threads=threads,
            enforce_eager=enforce_eager,
            deterministic=deterministic,
            offline=offline,
            record=record,
        )
        self._built: Built = build_engine(self.config, report=report or _to_stderr)
        self._engine: Engine = self._built.engine
        self._runs: dict[str, Run] = {}
        self._lock, self._thread = threading.RLock(), 0  # who is being answered, in runs
        self.requests = request_builder(self._built, self.config, report or _to_stderr)

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: Iterable[int] | None = None,
        tenant: Tenants = None,
        retention: Retentions = None,
        cache_hint: Hint | Iterable[Hint | None] | None = None,
    ) -> list[RequestOutput]:
        """Answer prompts, all together; results come in the order of the prompts.

        sampling_params: one for all, or one per prompt; None: vLLM's defaults. priority: one
        number per prompt, lower first, for scheduling_policy="priority". tenant: on whose account,
        one of `tenants`; one name for all, or one per prompt. retention: how long their KV is
        kept: one `Retention` for all, or per prompt one, several for ranges of it, or None.
        cache_hint: what is known of the further use of a text's KV, one for all or one (or None)
        per prompt. use_tqdm: show progress on stderr if that is a terminal. Raises RequestError
        before anything runs if one of the prompts cannot be answered.
        """
        requests = self.requests.build(
            prompts, sampling_params, priority, cache_hint, tenant=tenant, retention=retention
        )
        answers = sum(len(output.outputs) for _, output in requests)
        with _bar(use_tqdm, answers) as bar:
            for delta in self._run(requests):
                if bar is not None:
                    bar.advance(len(delta.token_ids), finished=delta.finish_reason is not None)
        return [output for _, output in requests]

    def embed(
        self,
        prompts: Prompt | Iterable[Prompt],
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        tenant: Tenants = None,
    ) -> list[EmbeddingOutput]:
        """Return the vectors of prompts, for models that have embeddings, or with `pooling` set.

        normalize: to length 1. dimensions: keep so many numbers, the first. Raises RequestError.
        """
        from octavo.contract.sampling import SamplingParams
        from octavo.embeddings import embed
        from octavo.vectors import pooling_for

        pooling = pooling_for(self._built.pooling, normalize=normalize, dimensions=dimensions)
        requests = self.requests.build(prompts, SamplingParams(max_tokens=1), tenant=tenant)
        return embed(requests, pooling, self._run)

    def chat(
        self,
        messages: Messages | Iterable[Messages],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Iterable[object] | None = None,
        tool_choice: object = "auto",
        parallel_tool_calls: bool = True,
        tool_call_parser: str = "auto",
        reasoning_parser: str = "auto",
        priority: Iterable[int] | None = None,
        tenant: Tenants = None,
        retention: Retentions = None,
        cache_hint: Hint | Iterable[Hint | None] | None = None,
        **template_variables: object,
    ) -> list[RequestOutput]:
        """Answer conversations: each is a list of {"role": …, "content": …}, oldest first.

        tools: functions that may be called, as the OpenAI API writes them, and tool_choice: which
        must be: "auto", "none", "required" or {"function": {"name": …}}; calls come back as
        `tool_calls` of each output, reasoning and the rest of its text beside them. The parsers
        name how the model writes these; auto: as its template says. template_variables are handed
        to the chat template. Otherwise like `generate`.
        """
        from octavo.chats import Chats, tool_use

        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Iterable):
            raise RequestError(f"a conversation is a list of messages, got {messages!r:.80}")
        given = list(cast("Iterable[object]", messages))
        chats = Chats(
            self.get_tokenizer(),
            tool_use(tools, tool_choice, parallel=parallel_tool_calls),
            tool_call_parser=tool_call_parser,
            reasoning_parser=reasoning_parser,
        )
        prompts = [
            chats.prompt(
                one,
                template_variables,
                add_generation_prompt=add_generation_prompt and not continue_final_message,
                continue_final_message=continue_final_message,
            )
            for one in ([given] if given and isinstance(given[0], Mapping) else given)
        ]
        params = chats.held(sampling_params)
        results = self.generate(
            prompts,
            params,
            use_tqdm=use_tqdm,
            priority=priority,
            tenant=tenant,
            retention=retention,
            cache_hint=cache_hint,
        )
        chats.read(results, params)
        return results

    def chat_prompt(
        self, messages: Messages, *, add_generation_prompt: bool = True, **variables: object
    ) -> Prompt:
        """Render a conversation with the model's template, as a prompt of token ids."""
        from octavo.chats import Chats

        return Chats(self.get_tokenizer()).prompt(
            messages,
            variables,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=False,
        )

    def stream(
        self,
        prompts: Prompt | Iterable[Prompt],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        *,
        priority: Iterable[int] | None = None,
        tenant: Tenants = None,
        retention: Retentions = None,
        cache_hint: Hint | Iterable[Hint | None] | None = None,
    ) -> Generator[Delta, None, None]:
        """Answer prompts, all together, and yield each piece of text as it comes.

        Leaving the loop early aborts what is not finished. Otherwise like `generate`.
        """
        return self._run(
            self.requests.build(
                prompts, sampling_params, priority, cache_hint, tenant=tenant, retention=retention
            )
        )

    def abort(self, request_id: str) -> None:
        """End a request that `stream` is answering; nothing more of it will come."""
        with self._lock:
            self._check_usable()
            self._engine.abort(request_id)
            run = self._runs.pop(request_id, None)
        if run is not None:
            run.open = False

    def _run(self, requests: list[tuple[Request, RequestOutput]]) -> Generator[Delta, None, None]:
        """Run requests to their end and keep their results up to date.

        Several runs of one thread may be open at once: each step brings news of all of them, and
        each run yields its own.
        """
        runs = [Run(number, output) for number, (_, output) in enumerate(requests)]
        added: list[str] = []
        refused = True
        try:
            with interrupts_wait(), self._entry():
                for (request, output), run in zip(requests, runs, strict=True):
                    output.effective_max_tokens = self._engine.add(request)
                    added.append(request.id)
                    self._runs[request.id] = run
                refused = False
            while any(run.unread or run.open for run in runs):
                if not any(run.unread for run in runs):
                    self._step()
                for run in runs:
                    while run.unread:
                        yield run.unread.popleft()
        finally:
            # After an error, Ctrl-C or a loop that was left, nothing of this call stays behind. Who
            # was not let in does not wait for the one who is.
            if added:
                with interrupts_wait(), self._lock:
                    for request_id in added:
                        self._runs.pop(request_id, None)
                        self._engine.abort(request_id, withdrawn=refused)

    def _step(self) -> None:
        """Run one step and hand out its news."""
        with interrupts_wait(), self._lock:
            self._check_usable()
            self._thread = threading.get_ident()
            for news in self._engine.step():
                run = self._runs.get(news.request_id)
                if run is not None:
                    run.take_in(news)

    def _check_usable(self) -> None:
        if self._closed:
            raise ConfigError("this LLM has been closed: build another one")
        if self._handed_over:
            raise ConfigError("this LLM belongs to an AsyncLLM: ask that one, or build another LLM")

    @contextmanager
    def _entry(self) -> Generator[None, None, None]:
        """Let a new call in. Raises ConfigError at once if another thread is being answered."""
        me = threading.get_ident()
        free = self._lock.acquire(blocking=False)
        try:
            if not free or (self._runs and self._thread != me):
                raise ConfigError(
                    "this LLM is in use by another thread: give each thread an LLM, or use AsyncLLM"
                )
            self._check_usable()
            self._thread = me
            yield
        finally:
            if free:
                self._lock.release()

    def hand_over(self) -> Engine:
        """Give the engine to an owner who closes it; this object answers nothing from then on.

        Raises ConfigError if it is in use, closed, or has been handed over before.
        """
        with self._lock:
            self._check_usable()
            if self._runs:
                raise ConfigError("this LLM is answering requests: end their streams first")
            self._handed_over = True
        return self._engine

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer. Raises RequestError if it has none."""
        from octavo.prompts import NO_TOKENIZER

        if self._built.tokenizer is None:
            raise RequestError(f"{NO_TOKENIZER}: give prompts as {{'prompt_token_ids': [ids]}}")
        return self._built.tokenizer

    def reset_prefix_cache(self) -> int:
        """Forget cached texts that no sequence uses; returns the number of blocks."""
        with self._lock:
            self._check_usable()
            return self._engine.reset_prefix_cache()

    def check(self) -> Checkup:
        """Recompute every count of the KV memory, and set right what is wrong.

        Suspect blocks are used no more then, cached texts are forgotten, and running requests
        compute theirs again. Raises Corrupted if that does not help.
        """
        from octavo.engine.checker import Checker

        with self._lock:
            self._check_usable()
            self._checker = self._checker or Checker(self._engine.loop)
            return self._checker.check()

    def unpin(self, name: str | None = None, *, tenant: str | None = None) -> int:
        """Let go of what `Retention(pin=name)` keeps; None: of every name, or of every tenant.

        Returns the number of blocks it may have held, 0 if no such pin holds any more. They stay
        cached as any others. Raises RequestError for a tenant that there is not.
        """
        with self._lock:
            self._check_usable()
            return self._engine.unpin(name, tenant)

    def get_metrics(self) -> list[Metric]:
        """Return the engine's counters and gauges, under vLLM's names where it has them."""
        from octavo.results import metrics

        return metrics(self._engine)

    def memory_report(self) -> MemoryReport:
        """Say what KV memory was used for so far."""
        from octavo.results import memory_report

        paged = self.config.reservation == "on_demand"
        return memory_report(
            self._engine.stats,
            self._built.layout,
            num_blocks=self._built.num_blocks,
            block_size=self.config.block_size if paged else None,
        )

    @property
    def built(self) -> Built:
        """The engine and its parts, to be looked at."""
        return self._built

    def close(self) -> None:
        """Give memory back; the object is of no use afterwards.

        Once it has been handed over: no effect.
        """
        with self._lock:
            if not self._handed_over:
                self._closed = True
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


def _bar(wanted: bool, answers: int) -> AbstractContextManager[Progress | None]:
    # A process may have no stderr.
    if not wanted or sys.stderr is None or not sys.stderr.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        return nullcontext()
    from octavo.progress import progress_bar

    return progress_bar(answers)


def _to_stderr(message: str) -> None:
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stderr.write(message + "\n")
