"""An engine that says what a test has written, for everything that is made of answers."""

from __future__ import annotations

import asyncio
import contextlib
import time

from tiny_served import VOCABULARY

from octavo.contract.batch import Logprobs
from octavo.contract.request import FinishReason, Update
from octavo.server.parts import Parts, ServedModel
from octavo.server.settings import ServerSettings
from octavo.testing.near_core import NearCore, fake_loop
from octavo.testing.near_server import NearServer
from octavo.text.tokenizer import Tokenizer

END = 2
"""The tiny model's <|im_end|>."""


class ScriptedCore(NearCore):
    """Answers every request by one text, a token at a time, and then by an end of its own choice.

    It waits before its last token until `go` is set.
    """

    def __init__(self, build, says: list[int], finish: FinishReason) -> None:
        super().__init__(build)
        self.says = says
        self.finish_as = finish
        self.go = asyncio.Event()
        self.go.set()
        self.asked = []
        self._telling = dict[str, asyncio.Task]()
        self._heard_by = []

    def lose(self, error: Exception) -> None:
        """Let all requests end as if the engine had."""
        for listener in self._heard_by:
            listener.lose(error)

    def submit(self, request, listener) -> None:
        self.asked.append(request)
        self._heard_by.append(listener)
        self._telling[request.id] = asyncio.create_task(self._tell(request, listener))

    def abort(self, request_id: str) -> None:
        if request_id in self._telling:
            self._telling.pop(request_id).cancel()

    def finish(self, request_id: str, index: int) -> None:
        self.abort(request_id)

    async def _tell(self, request, listener) -> None:
        listener.accepted(request.sampling.max_tokens or 100)
        listener.begun(time.monotonic())
        for place, token in enumerate(self.says, 1):
            last = place == len(self.says)
            if last:
                await self.go.wait()
            await asyncio.sleep(0)
            finish = self.finish_as if last else None
            scores = ()
            if request.sampling.logprobs is not None:
                scores = (Logprobs((token, END), (-place / 8, -9.0), (1, 2)),)
            update = Update(
                request.id, 0, (token,), finish=finish, cached_tokens=2, logprobs=scores
            )
            listener.take_in(update, time.monotonic())


FORMATS = ServerSettings(tool_call_parser="hermes", reasoning_parser="qwen3")
"""Of a model that writes what `SAYS` holds, whose template does not tell."""

SAYS = (
    "<think>they ask</think>well"
    '<tool_call>{"name": "look", "arguments": {"at": "a"}}</tool_call>'
    '<tool_call>{"name": "look", "arguments": {}}</tool_call>'
)
"""A thought, a text, and two calls."""


@contextlib.asynccontextmanager
async def scripted(tokenizer: Tokenizer, says: str, *, cut: bool = False, **parts):
    """Serve an engine that says so, and is cut behind it or ends; yields the server."""
    ids = tokenizer.encode(says, add_special_tokens=False)
    core = ScriptedCore(
        lambda: fake_loop(vocab_size=VOCABULARY, max_model_len=4000),
        ids if cut else [*ids, END],
        FinishReason.LENGTH if cut else FinishReason.STOP,
    )
    await core.start()
    await asyncio.sleep(0)
    model = ServedModel(names=("tiny",), root="tiny.gguf", tokenizer=tokenizer, created_s=1)
    server = NearServer(core, Parts(**{"core": core, "model": model, "settings": FORMATS, **parts}))
    try:
        yield server
    finally:
        await server.client.aclose()
        await core.stop()
