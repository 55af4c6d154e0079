"""A server that answers as any that speaks OpenAI's API, without a model: words at a pace."""

from __future__ import annotations

import asyncio
import json
import re
from contextlib import asynccontextmanager


class Stub:
    """Answers `max_tokens` words; remembers prompts, and which of their first words it has seen."""

    def __init__(self, *, tokenizes=True, tells_cache=True, gap_s=0.0, breaks_after=None):
        self.tokenizes, self.tells_cache = tokenizes, tells_cache
        self.gap_s, self.breaks_after = gap_s, breaks_after
        self.bodies, self.headers, self.paths = [], [], []
        self.cached = set()
        self.resets = 0
        self.connections = self.running = self.most_running = 0
        self.hits = self.queries = 0
        self.status = 200
        self.max_model_len = 2000

    async def connected(self, reader, writer):
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                await self._serve(head, reader, writer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _serve(self, head, reader, writer):
        method, path, _ = head.split(b" ", 2)
        length = int(re.search(rb"content-length: (\d+)", head)[1])
        body = json.loads(await reader.readexactly(length)) if length else None
        self.paths.append((method.decode(), path.decode()))
        self.headers.append(head.decode())
        if path == b"/v1/models":
            reply(writer, {"data": [{"id": "stub", "max_model_len": self.max_model_len}]})
        elif path == b"/tokenize" and self.tokenizes:
            words = body["prompt"].split()
            if len(words) > self.max_model_len:
                reply(writer, {"error": {"message": "too long"}}, 400)
                return
            reply(writer, {"tokens": [1] * len(words), "token_strs": [f"Ġ{w}" for w in words]})
        elif path == b"/metrics":
            text = f'vllm:prefix_cache_hits_total{{engine="0"}} {self.hits}\n'
            reply(writer, text + f"vllm:prefix_cache_queries_total {self.queries}.0\n")
        elif path == b"/reset_prefix_cache":
            ok = b"Bearer admin" in head
            self.resets += ok
            self.cached.clear()
            reply(writer, {} if ok else {"error": {"message": "no key"}}, 200 if ok else 403)
        elif path.startswith(b"/v1/") and self.status == 200:
            self.bodies.append(body)
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            try:
                await self._stream(body, writer)
            finally:
                self.running -= 1
        else:
            status = self.status if self.status != 200 else 404
            reply(writer, {"error": {"message": "not today", "type": "overloaded_error"}}, status)

    async def _stream(self, body, writer):
        chat = "messages" in body
        prompt = body["messages"][0]["content"] if chat else body["prompt"]
        words = prompt.split()
        start = " ".join(words[:8])
        cached = len(words) // 2 if start in self.cached else 0
        self.cached.add(start)
        self.hits += cached
        self.queries += len(words)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        chunk(writer, ": keep-alive\n\n")
        if chat:
            event(writer, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        count = body.get("max_tokens") or body.get("max_completion_tokens")
        for number in range(count):
            if number == self.breaks_after:
                writer.transport.abort()
                return
            await asyncio.sleep(self.gap_s)
            piece = {"delta": {"content": " w"}} if chat else {"text": " w"}
            end = "length" if number == count - 1 else None
            event(writer, {"choices": [{"index": 0, **piece, "finish_reason": end}]})
        usage = {"prompt_tokens": len(words), "completion_tokens": count}
        if self.tells_cache:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        event(writer, {"choices": [], "usage": usage})
        chunk(writer, "data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")


def reply(writer, value, status=200):
    body = value.encode() if isinstance(value, str) else json.dumps(value).encode()
    writer.write(b"HTTP/1.1 %d X\r\ncontent-length: %d\r\n\r\n%s" % (status, len(body), body))


def event(writer, value):
    chunk(writer, f"data: {json.dumps(value)}\n\n")


def chunk(writer, text):
    data = text.encode()
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


@asynccontextmanager
async def listening(stub):
    """Let it listen on a free port; yields its address."""
    server = await asyncio.start_server(stub.connected, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        # Those that keep a connection open are let go.
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)
