"""The offline API for asyncio: many tasks share one engine."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator
from types import TracebackType

from octavo.contract.sampling import SamplingParams
from octavo.engine.engine import Output
from octavo.engine.thread import EngineThread
from octavo.llm import LLM
from octavo.prompts import Prompt
from octavo.results import RequestOutput
from octavo.text.tokenizer import Tokenizer


class AsyncLLM:
    """An `LLM` whose engine runs in a thread of its own.

    Made from a built one: `AsyncLLM(LLM(...))`. `generate` may be called from any number of tasks
    at once; their requests run in one batch and share prefixes.
    """

    def __init__(self, llm: LLM) -> None:
        """Take over a built `LLM`, which must not be used directly any more."""
        self._llm = llm
        self._thread = EngineThread(llm.built.engine)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Yield the answer so far, each time it has grown; the last one is `finished`.

        Leaving the loop early, or cancelling the task, aborts the request and frees its memory.
        Raises RequestError if the prompt cannot be answered.
        """
        ((request, result),) = self._llm.requests.build(prompt, sampling_params, [priority])
        loop = asyncio.get_running_loop()
        inbox: asyncio.Queue[Output | Exception] = asyncio.Queue()
        start = time.monotonic()

        def listen(news: Output | Exception) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(inbox.put_nowait, news)

        self._thread.add(request, listen)
        try:
            while not result.finished:
                result.take_in(_news(await inbox.get()), time.monotonic() - start)
                while not inbox.empty():
                    result.take_in(_news(inbox.get_nowait()), time.monotonic() - start)
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


def _news(item: Output | Exception) -> Output:
    if isinstance(item, Exception):
        raise item
    return item
