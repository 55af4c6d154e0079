"""A server that browsers can reach, over an engine that computes nothing and takes its time."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Coroutine
from typing import Any

import uvicorn

from octavo.server.app import build_app
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.parts import Parts, ServedModel
from octavo.server.settings import ServerSettings
from octavo.server.tenants import Tenant
from octavo.server.watch.history import keep_history
from octavo.testing.near_core import NearCore, fake_loop
from octavo.text.tokenizer import Tokenizer
from tiny_model import TOKENS

ALICE, BOB, ADMIN = "alice-key", "bob-key", "admin-key"
TENANTS = KeyTable(
    [KeyHolder(Tenant(name=name), (f"{name}-key",)) for name in ("alice", "bob")], [ADMIN]
)
STEP_S = 0.01
NO_LOG = ServerSettings(log_access=False, show_block_texts=True, open_page=True)


class ShownServer:
    """A server in a thread of its own, which can be ended and started again at its address."""

    def __init__(
        self, tokenizer: Tokenizer, *, blocks: int = 1500, longest: int = 2000, **parts: Any
    ) -> None:
        self._tokenizer = tokenizer
        self._blocks, self._longest = blocks, longest
        self._parts = {"settings": NO_LOG, **parts}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/"
        self.core: NearCore | None = None
        self.parts: Parts | None = None
        self.server: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None
        self._history: asyncio.Task[None] | None = None

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run something in the server's event loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def start(self) -> None:
        """Serve, with a new engine."""
        self.call(self._start())

    def stop(self) -> None:
        """Let the server go, and all its connections."""
        self.call(self._stop())

    def close(self) -> None:
        """End everything."""
        if self.server is not None:
            self.stop()
        self.call(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    async def _end_tasks(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _start(self) -> None:
        self.core = NearCore(
            lambda: fake_loop(
                self._blocks,
                vocab_size=len(TOKENS),
                max_model_len=self._longest,
                max_num_batched_tokens=2000,
                pin_limit=0.5,
            ),
            step_s=STEP_S,
        )
        await self.core.start()
        model = ServedModel(
            names=("tiny",), root="tiny.gguf", tokenizer=self._tokenizer, created_s=1
        )
        self.parts = Parts(**{"core": self.core, "model": model, **self._parts})
        self._history = asyncio.create_task(keep_history(self.parts))
        config = uvicorn.Config(
            build_app(self.parts),
            host="127.0.0.1",
            port=self.port,
            lifespan="off",
            log_config=None,
            timeout_graceful_shutdown=0,
            ws="none",
        )
        self.server = uvicorn.Server(config)
        self.server.install_signal_handlers = lambda: None
        self._serving = asyncio.create_task(self.server._serve())
        while not self.server.started:
            await asyncio.sleep(0.01)

    async def _stop(self) -> None:
        self.server.should_exit = True
        await self._serving
        self._history.cancel()
        await self.core.stop()
        self.server = None
