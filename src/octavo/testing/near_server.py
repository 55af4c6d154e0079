"""A server's application in the test's own event loop, and a client that calls it directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from octavo.engine.loop import Loop
from octavo.engine.messages import CoreFacts
from octavo.server.app import build_app
from octavo.server.parts import Parts, ServedModel
from octavo.testing.near_core import NearCore, fake_loop
from octavo.text.tokenizer import Tokenizer

URL = "http://octavo.test"


class NearServer:
    """An application, its parts and a client of it."""

    def __init__(self, core: NearCore, parts: Parts) -> None:
        self.core = core
        self.parts = parts
        self.app = build_app(parts)
        self.client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.app, raise_app_exceptions=False), base_url=URL
        )

    async def post(self, path: str, **body: Any) -> httpx2.Response:
        """Send a JSON body."""
        return await self.client.post(path, json=body)

    async def get(self, path: str) -> httpx2.Response:
        """Ask for a path."""
        return await self.client.get(path)


@asynccontextmanager
async def near_server(
    build: Callable[[], tuple[Loop, CoreFacts]] = fake_loop,
    *,
    tokenizer: Tokenizer | None = None,
    step_s: float = 0.0,
    **parts: Any,  # those of `Parts` that are not the stand-ins
) -> AsyncGenerator[NearServer, None]:
    """Serve an engine whose steps take at least so long; its model is called fake, or alias."""
    core = NearCore(build, step_s=step_s)
    await core.start()
    # Its task must have begun before it can be stopped.
    await asyncio.sleep(0)
    model = ServedModel(
        names=("fake", "alias"), root="fake.gguf", tokenizer=tokenizer, created_s=1_700_000_000
    )
    server = NearServer(core, Parts(**{"core": core, "model": model, **parts}))
    try:
        yield server
    finally:
        await server.client.aclose()
        await core.stop()


def served(
    test: Callable[[NearServer], Coroutine[Any, Any, None]],
    **options: Any,  # those of near_server
) -> None:
    """Run a test with a server of its own, for at most ten seconds."""

    async def run() -> None:
        async with near_server(**options) as server:
            await asyncio.wait_for(test(server), 10)

    asyncio.run(run())
