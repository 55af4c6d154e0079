"""A client that leaves ends its request; one that reads slowly keeps only itself waiting."""

from __future__ import annotations

import asyncio
import re
import threading
import time

import pytest
from sockets import Line, listening
from tiny_served import HELLO, worded

from octavo.server.gate import OpenGate
from octavo.server.prompting import TOKENIZING
from octavo.server.settings import ConnectionTimes
from octavo.testing.near_server import served

PATH = "/v1/completions"
LONG = {"max_tokens": 300, "ignore_eos": True}


async def idle(core) -> None:
    """Return once nothing runs and nothing waits."""
    while core.loop.queue_lengths != (0, 0):
        await asyncio.sleep(0.001)


async def running(core, count: int = 1) -> None:
    while core.loop.queue_lengths[0] < count:
        await asyncio.sleep(0.001)


def all_free_or_cached(core) -> bool:
    usage = core.loop.usage()
    return usage.blocks_used == 0 and usage.tokens == 0


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("n", [1, 3])
def test_a_client_that_leaves_ends_its_request_within_two_steps(tiny_tokenizer, stream, n):
    async def test(server):
        async with listening(server.app) as port:
            line = await Line.post(port, PATH, prompt=["hello", "the"], n=n, stream=stream, **LONG)
            await running(server.core, 2 * n)
            if stream:
                await line.piece()
            steps = server.core.loop.stats.steps
            line.leave()
            await idle(server.core)
            assert server.core.loop.stats.steps - steps <= 2
            assert all_free_or_cached(server.core)
            while server.parts.doors.inside:
                await asyncio.sleep(0.001)

    served(test, **worded(tiny_tokenizer), step_s=0.02)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_client_that_has_sent_its_next_request_and_leaves_ends_both(tiny_tokenizer, stream):
    async def test(server):
        async with listening(server.app) as port:
            asked = {"prompt": "hello", "stream": stream, **LONG}
            line = await Line.post(port, PATH, keep=True, **asked)
            await running(server.core)
            await line.send(PATH, keep=True, **asked)
            await asyncio.sleep(0.05)
            steps = server.core.loop.stats.steps
            line.leave()
            await idle(server.core)
            assert server.core.loop.stats.steps - steps <= 2
            while server.parts.doors.inside:
                await asyncio.sleep(0.001)

    served(test, **worded(tiny_tokenizer), step_s=0.02)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_request_sent_before_the_answer_to_another_is_not_taken(tiny_tokenizer, stream):
    async def test(server):
        async with listening(server.app) as port:
            asked = {"prompt": "hello", "max_tokens": 20, "ignore_eos": True, "stream": stream}
            line = await Line.post(port, PATH, keep=True, **asked)
            await running(server.core)
            await line.send(PATH, keep=True, **asked)
            text = (await line.rest()).decode()
            assert text.count("HTTP/1.1 200 OK") == 1
            assert '"finish_reason":"length"' in text
            assert server.core.loop.stats.steps < 30

    served(test, **worded(tiny_tokenizer), step_s=0.005)


def test_a_connection_that_is_kept_takes_request_after_request(tiny_tokenizer):
    async def test(server):
        async with listening(server.app) as port:
            asked = {"prompt": "hello", "max_tokens": 2, "keep": True}
            line = await Line.post(port, PATH, **asked)
            for _ in range(3):
                assert b"HTTP/1.1 200 OK" in await line.reader.readuntil(b"}}}")
                await line.send(PATH, **asked)
            line.leave()

    served(test, **worded(tiny_tokenizer))


def test_a_client_that_leaves_before_its_turn_gives_its_place_back(tiny_tokenizer):
    class Never(OpenGate):
        left = 0

        def enter(self, tenant, tokens, priority=0, *, answers=1):
            return self

        async def turn(self):
            await asyncio.Event().wait()

        def leave(self):
            self.left += 1

    gate = Never()

    async def test(server):
        async with listening(server.app) as port:
            line = await Line.post(port, PATH, prompt="hello", **LONG)
            while not server.parts.doors.inside:
                await asyncio.sleep(0.001)
            line.leave()
            while server.parts.doors.inside:
                await asyncio.sleep(0.001)
            assert gate.left == 1
            assert server.core.loop.stats.steps == 0

    served(test, **worded(tiny_tokenizer), gate=gate)


def test_a_client_that_leaves_before_its_text_is_read_is_not_waited_for(
    tiny_tokenizer, monkeypatch
):
    begun, go_on = threading.Semaphore(0), threading.Event()
    real = tiny_tokenizer.encode_beside

    def encode(*args, **options):
        begun.release()
        go_on.wait(10)
        return real(*args, **options)

    async def test(server):
        async with listening(server.app) as port:
            lines = [await Line.post(port, PATH, prompt="hello " * 99, **LONG) for _ in range(4)]
            for _ in range(TOKENIZING):
                await asyncio.to_thread(begun.acquire)
            for line in lines:
                line.leave()
            while server.parts.doors.inside:
                await asyncio.sleep(0.001)
            go_on.set()
            reply = await server.post(PATH, prompt="hello " * 9, max_tokens=1)
            assert reply.status_code == 200
            assert not begun.acquire(blocking=False), "those behind them were not even begun"
            assert server.core.loop.stats.steps <= 3

    monkeypatch.setattr(tiny_tokenizer, "encode_beside", encode)
    served(test, **worded(tiny_tokenizer))


class Counted(OpenGate):
    """Counts who has a place."""

    inside = 0

    def enter(self, tenant, tokens, priority=0, *, answers=1):
        self.inside += 1
        return _Counted(self)


class _Counted:
    def __init__(self, gate):
        self.gate = gate

    async def turn(self):
        pass

    def spend(self, tokens):
        pass

    def leave(self):
        if self.gate is not None:
            self.gate.inside -= 1
            self.gate = None


def test_who_does_not_read_keeps_nobody_waiting_and_gets_everything_later(tiny_tokenizer):
    gate = Counted()

    async def test(server):
        async with listening(server.app, send_buffer=4096) as port:
            wanted = {"prompt": "hello", "n": 8, "seed": 5, "return_token_ids": True}
            slow = await Line.post(port, PATH, limit=4096, stream=True, **wanted, **LONG)
            slow.writer.transport.pause_reading()
            others = await asyncio.gather(
                *(server.post(PATH, prompt=f"the {i}", **LONG) for i in range(4))
            )
            assert {one.status_code for one in others} == {200}
            await idle(server.core)
            assert all_free_or_cached(server.core), "what is unsent is text, not memory"
            assert server.parts.doors.inside == 1, "it has not been told everything"
            assert gate.inside == 0, "the engine is done with it"
            slow.writer.transport.resume_reading()
            text = (await slow.rest()).decode()
            assert "data: [DONE]" in text
            told = [
                int(token)
                for found in re.findall(r'"token_ids":\[([^\]]*)\]', text)
                for token in found.split(",")
                if token
            ]
            assert len(told) == 8 * 300

    served(test, **worded(tiny_tokenizer), gate=gate)


MUCH = {"prompt": "hello", "n": 8, "return_token_ids": True, "ignore_eos": True}
"""More than the buffers of a connection hold."""


def test_who_takes_nothing_for_too_long_is_cut_off_and_its_blocks_are_free(tiny_tokenizer):
    async def test(server):
        async with listening(
            server.app, send_buffer=4096, times=ConnectionTimes(send_s=0.2)
        ) as port:
            dead = await Line.post(port, PATH, limit=4096, stream=True, max_tokens=450, **MUCH)
            dead.writer.transport.pause_reading()
            await running(server.core, 8)
            await idle(server.core)
            assert server.core.loop.stats.steps < 400, "it was ended before its end"
            assert all_free_or_cached(server.core)
            while server.parts.doors.inside:
                await asyncio.sleep(0.001)
            dead.leave()

    served(test, **worded(tiny_tokenizer, num_blocks=2000), step_s=0.004)


def test_who_takes_nothing_of_a_whole_answer_is_cut_off_too(tiny_tokenizer):
    async def test(server):
        async with listening(
            server.app, send_buffer=4096, times=ConnectionTimes(send_s=0.2)
        ) as port:
            dead = await Line.post(port, PATH, limit=4096, max_tokens=450, logprobs=5, **MUCH)
            dead.writer.transport.pause_reading()
            await running(server.core, 8)
            await idle(server.core)
            await asyncio.sleep(0.5)
            dead.writer.transport.resume_reading()
            assert not (await dead.rest()).endswith(b"}")

    served(test, **worded(tiny_tokenizer, num_blocks=2000))


def test_who_is_slow_gets_everything_however_long_it_takes(tiny_tokenizer):
    async def test(server):
        async with listening(
            server.app, send_buffer=4096, times=ConnectionTimes(send_s=0.1)
        ) as port:
            slow = await Line.post(port, PATH, limit=4096, stream=True, max_tokens=300, **MUCH)
            text, began_s = b"", time.monotonic()
            while piece := await slow.piece():
                text += piece
                await asyncio.sleep(0.01)
            assert time.monotonic() - began_s > 0.4
            assert text.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            slow.leave()

    served(test, **worded(tiny_tokenizer, num_blocks=2000))


@pytest.mark.parametrize("how", ["half", "whole"])
def test_who_leaves_with_much_unsent_is_heard_within_two_steps(tiny_tokenizer, how):
    async def test(server):
        async with listening(server.app, send_buffer=4096) as port:
            much = {**MUCH, "n": 16}
            line = await Line.post(port, PATH, limit=4096, stream=True, max_tokens=450, **much)
            line.writer.transport.pause_reading()
            while server.core.loop.stats.steps < 40:
                await asyncio.sleep(0.001)
            steps = server.core.loop.stats.steps
            if how == "half":
                line.writer.write_eof()
            else:
                line.leave()
            await idle(server.core)
            assert server.core.loop.stats.steps - steps <= 2
            line.leave()

    served(test, **worded(tiny_tokenizer, num_blocks=2000), step_s=0.02)


@pytest.mark.parametrize("where", ["its own", "the next"])
def test_who_leaves_after_a_long_body_is_heard_within_two_steps(tiny_tokenizer, where):
    async def test(server):
        async with listening(server.app) as port:
            long = {"user": "u" * 300_000}
            first = {"prompt": "hello", **LONG, **(long if where == "its own" else {})}
            line = await Line.post(port, PATH, keep=True, **first)
            await running(server.core)
            if where == "the next":
                await line.send(PATH, prompt="hello", **LONG, **long)
            steps = server.core.loop.stats.steps
            line.leave()
            await idle(server.core)
            assert server.core.loop.stats.steps - steps <= 2

    served(test, **worded(tiny_tokenizer), step_s=0.02)


def test_a_silent_stream_says_that_it_lives(tiny_tokenizer):
    from octavo.server.settings import ServerSettings

    async def test(server):
        reply = await server.post(
            "/v1/chat/completions", messages=HELLO, max_tokens=3, stream=True, ignore_eos=True
        )
        assert reply.text.count(": keep-alive\n\n") >= 3
        assert reply.text.endswith("data: [DONE]\n\n")
        beams = await server.post(
            PATH, prompt="hello", use_beam_search=True, max_tokens=3, stream=True
        )
        assert ": keep-alive\n\n" in beams.text

    served(test, **worded(tiny_tokenizer), step_s=0.1, settings=ServerSettings(keep_alive_s=0.02))


def test_a_stream_that_is_never_silent_says_nothing_of_the_kind(tiny_tokenizer):
    async def test(server):
        reply = await server.post(PATH, prompt="hello", stream=True, **LONG)
        assert "keep-alive" not in reply.text

    served(test, **worded(tiny_tokenizer))


def test_pieces_may_say_when_they_were_computed(tiny_tokenizer):
    from octavo.server.settings import ServerSettings

    async def test(server):
        reply = await server.post(PATH, prompt="hello", stream=True, **LONG)
        times = [float(one) for one in re.findall(r": applied ([0-9.]+)\n\n", reply.text)]
        assert times == sorted(times)
        assert times

    served(test, **worded(tiny_tokenizer), settings=ServerSettings(tell_applied=True))
