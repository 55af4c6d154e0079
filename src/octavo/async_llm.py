"""The offline API for asyncio: many tasks share one engine."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Iterable
from types import TracebackType
from typing import TypeAlias

from octavo.cache_hints import Hint
from octavo.contract.retention import Retention
from octavo.contract.sampling import SamplingParams
from octavo.engine.engine import Output
from octavo.engine.thread import Accepted, EngineThread
from octavo.errors import ConfigError
from octavo.llm import LLM
from octavo.prompts import Prompt
from octavo.results import RequestOutput
from octavo.text.tokenizer import Tokenizer

_Item: TypeAlias = Accepted | Output | Exception


class AsyncLLM:
    """An `LLM` whose engine runs in a thread of its own.

    Made from a built one: `AsyncLLM(LLM(...))`. `generate` may be called from any number of tasks
    at once; their requests run in one batch and share prefixes. A process that is forked has no
    such thread and builds its own; an `LLM` itself goes on there, on a copy of its memory.
    """

    def __init__(self, llm: LLM) -> None:
        """Take over a built `LLM`, which answers nothing itself from then on.

        Raises ConfigError if it is in use, closed, or another's.
        """
        if not isinstance(llm, LLM):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"AsyncLLM is made from an LLM, got {llm!r:.80}")
        self._llm = llm
        self._thread = EngineThread(llm.hand_over())

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        tenant: str | None = None,
        retention: Retention | Iterable[Retention] | None = None,
        cache_hint: Hint | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Yield the answer so far, each time it has grown; the last one is `finished`.

        Leaving the loop early, or cancelling the task, aborts the request and frees its memory.
        Raises RequestError if the prompt cannot be answered. The options are those of
        `LLM.generate`, for one prompt.
        """
        ((request, result),) = self._llm.requests.build(
            [prompt],
            sampling_params,
            [priority],
            [cache_hint],
            tenant=tenant,
            retention=[retention],
        )
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[_Item] = asyncio.Queue()
        start = time.monotonic()

        def listen(news: _Item) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(inbox.put_nowait, news)

        form = request.sampling.structured_outputs
        if form is not None:
            await asyncio.wrap_future(self._thread.begin(form))
        self._thread.add(request, listen)
        try:
            while not result.finished:
                items = [await inbox.get()]
                while not inbox.empty():
                    items.append(inbox.get_nowait())
                for item in items:
                    _take_in(result, item, time.monotonic() - start)
                if result.ttft_s is not None or result.finished:
                    yield copy.deepcopy(result)
        finally:
            self._thread.abort(request.id)

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._llm.get_tokenizer()

    async def reset_prefix_cache(self) -> int:
        """Forget cached texts that no sequence uses; returns the number of blocks."""
        counts: list[int] = []
        await asyncio.to_thread(
            self._thread.call, lambda engine: counts.append(engine.reset_prefix_cache())
        )
        return counts[0]

    async def unpin(self, name: str | None = None, *, tenant: str | None = None) -> int:
        """Let go of pins, as `LLM.unpin` does."""
        counts: list[int] = []
        await asyncio.to_thread(
            self._thread.call, lambda engine: counts.append(engine.unpin(name, tenant))
        )
        return counts[0]

    async def close(self) -> None:
        """Stop the engine; tasks that still wait get an error."""
        await asyncio.to_thread(self._thread.close)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


def _take_in(result: RequestOutput, item: _Item, seconds: float) -> None:
    match item:
        case Exception():
            raise item
        case Accepted():
            result.effective_max_tokens = item.effective_max_tokens
        case Output():
            result.take_in(item, seconds)
