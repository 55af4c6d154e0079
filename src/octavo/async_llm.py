"""The offline API for asyncio: many tasks share one engine."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from types import TracebackType
from typing import TypeAlias, TypeVar

from octavo.cache_hints import Hint
from octavo.chats import Chats, Reading, tool_use
from octavo.contract.retention import Retention
from octavo.contract.sampling import SamplingParams
from octavo.engine.checker import Checker, Checkup
from octavo.engine.engine import Engine, Output
from octavo.engine.thread import Accepted, EngineThread
from octavo.errors import ConfigError
from octavo.llm import LLM, Messages
from octavo.prompts import Prompt
from octavo.results import RequestOutput
from octavo.text.tokenizer import Tokenizer

_Item: TypeAlias = Accepted | Output | Exception
Found = TypeVar("Found")


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
        engine = llm.hand_over()
        self._checker = Checker(engine.loop)
        self._thread = EngineThread(engine)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        priority: int = 0,
        tenant: str | None = None,
        retention: Retention | Iterable[Retention] | None = None,
        cache_hint: Hint | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
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

    async def chat(
        self,
        messages: Messages,
        sampling_params: SamplingParams | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Iterable[object] | None = None,
        tool_choice: object = "auto",
        parallel_tool_calls: bool = True,
        tool_call_parser: str = "auto",
        reasoning_parser: str = "auto",
        priority: int = 0,
        tenant: str | None = None,
        retention: Retention | Iterable[Retention] | None = None,
        cache_hint: Hint | None = None,
        **template_variables: object,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield the answer to one conversation, as `generate` does.

        What is certain of content, reasoning and calls stands in each output: none of it changes
        any more. The options are those of `LLM.chat`, for one conversation.
        """
        chats = Chats(
            self.get_tokenizer(),
            tool_use(tools, tool_choice, parallel=parallel_tool_calls),
            tool_call_parser=tool_call_parser,
            reasoning_parser=reasoning_parser,
        )
        prompt = chats.prompt(
            messages,
            template_variables,
            add_generation_prompt=add_generation_prompt and not continue_final_message,
            continue_final_message=continue_final_message,
        )
        (params,) = chats.held(None if sampling_params is None else [sampling_params])
        answers = self.generate(
            prompt,
            params,
            priority=priority,
            tenant=tenant,
            retention=retention,
            cache_hint=cache_hint,
        )
        reading: Reading | None = None
        async with aclosing(answers):
            async for result in answers:
                reading = reading or chats.reading(0, result, params)
                reading.read(result)
                yield result

    def get_tokenizer(self) -> Tokenizer:
        """Return the model's tokenizer."""
        return self._llm.get_tokenizer()

    async def reset_prefix_cache(self) -> int:
        """Forget cached texts that no sequence uses; returns the number of blocks."""
        return await self._between_steps(Engine.reset_prefix_cache)

    async def check(self) -> Checkup:
        """Recompute every count of the KV memory, as `LLM.check` does."""
        return await self._between_steps(lambda _: self._checker.check())

    async def unpin(self, name: str | None = None, *, tenant: str | None = None) -> int:
        """Let go of pins, as `LLM.unpin` does."""
        return await self._between_steps(lambda engine: engine.unpin(name, tenant))

    async def close(self) -> None:
        """Stop the engine; tasks that still wait get an error."""
        await asyncio.to_thread(self._thread.close)

    async def _between_steps(self, ask: Callable[[Engine], Found]) -> Found:
        """Ask the engine something in its own thread; returns what it says."""
        found: list[Found] = []
        await asyncio.to_thread(self._thread.call, lambda engine: found.append(ask(engine)))
        return found[0]

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
