"""Whatever happens to the engine, an answer ends in a way that a client can tell."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field

import pytest
from tiny_served import HELLO, VOCABULARY, events, joined, worded

from octavo.errors import OverLimit
from octavo.server.choice import Choice
from octavo.server.gate import OpenGate
from octavo.server.meters import NoMeters
from octavo.server.metrics.exposition import Page
from octavo.server.metrics.requests import RequestMeters
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.near_server import served

PATH = "/v1/completions"
LONG = {"prompt": "hello", "max_tokens": 300, "ignore_eos": True}


@pytest.fixture
def options(tiny_tokenizer):
    return worded(tiny_tokenizer)


@dataclass
class Records(NoMeters):
    """Keeps what is told."""

    records: list = field(default_factory=list)
    refusals: list = field(default_factory=list)
    first: list = field(default_factory=list)
    more: list = field(default_factory=list)

    def ended(self, record):
        self.records.append(record)

    def refused(self, tenant, status):
        self.refusals.append((tenant, status))

    def first_token(self, tenant, seconds):
        self.first.append(seconds)

    def next_tokens(self, seconds, count):
        self.more.append(count)


async def under_way(server, **body):
    """Ask, and return the task of the reply once the engine is at it."""
    task = asyncio.create_task(server.post(PATH, **{**LONG, **body}))
    while server.core.loop.stats.steps < 5:
        await asyncio.sleep(0)
    return task


def test_a_stream_that_loses_its_engine_ends_in_an_error(options):
    async def test(server):
        task = await under_way(server, stream=True)
        server.core.die("the engine's process ended (signal 9)")
        reply = await task
        assert reply.status_code == 200
        error = events(reply.text)[-1]["error"]
        assert error["code"] == "engine_gone"
        assert "engine" in error["message"]

    served(test, **options)


def test_an_answer_in_one_piece_that_loses_its_engine_is_a_503(options):
    async def test(server):
        task = await under_way(server)
        server.core.die()
        reply = await task
        assert reply.status_code == 503
        assert reply.json()["error"]["type"] == "overloaded_error"
        assert int(reply.headers["retry-after"]) >= 1

    served(test, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_what_an_engine_said_last_is_not_for_clients(options, stream):
    async def test(server):
        task = await under_way(server, stream=stream)
        server.core.die("the engine's process ended (status 1): KeyError: '/secret/path'")
        for reply in (await task, await server.post(PATH, **LONG, stream=stream)):
            assert "engine_gone" in reply.text
            assert "status 1" not in reply.text
            assert "secret" not in reply.text

    served(test, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_without_an_engine_requests_are_refused_until_there_is_one(options, stream):
    async def test(server):
        server.core.die()
        reply = await server.post(PATH, **LONG, stream=stream)
        assert reply.status_code == 503
        assert reply.json()["error"]["code"] == "engine_gone"
        await server.core.revive()
        await asyncio.sleep(0)
        assert (await server.post(PATH, **LONG, stream=stream)).status_code == 200

    served(test, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_alone_can_refuse_is_refused_before_a_stream_begins(options, stream):
    async def test(server):
        reply = await server.post(
            PATH, prompt="hello", use_beam_search=True, beam_width=20, stream=stream
        )
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "beam_width"
        assert server.core.loop.queue_lengths == (0, 0)

    served(test, **options)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, {"prompt": "hello"}),
        ("/v1/chat/completions", {"messages": HELLO}),
        ("/v1/responses", {"input": "hello"}),
        ("/v1/messages", {"messages": HELLO, "max_tokens": 9}),
    ],
)
@pytest.mark.parametrize(
    "why",
    [
        "every token is banned for output token 3 by bad_words: allow more tokens or ban fewer",
        "structured_outputs: too much work",
    ],
)
def test_options_that_leave_no_answer_are_named_to_whoever_sent_them(
    tiny_tokenizer, path, body, why
):
    runner = FakeRunner((4,), vocab_size=VOCABULARY, refusal=lambda *_: why)

    async def test(server):
        whole = await server.post(path, **body)
        assert whole.status_code == 400
        assert why in whole.json()["error"]["message"]
        streamed = await server.post(path, **body, stream=True)
        assert why in streamed.text
        assert "server_error" not in streamed.text

    served(test, **worded(tiny_tokenizer, runner=runner))


def test_one_prompt_that_is_refused_takes_the_others_with_it(options):
    async def test(server):
        reply = await server.post(PATH, prompt=["hello", ""], max_tokens=300)
        assert reply.status_code == 400
        assert server.core.loop.queue_lengths == (0, 0)

    served(test, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_requests_that_an_administrator_ends_say_so(options, stream):
    async def test(server):
        task = await under_way(server, stream=stream, n=2)
        await server.core.pause(abort=True)
        reply = await task
        if stream:
            ends = [one for chunk in events(reply.text) for one in chunk["choices"]]
            reasons = [one["finish_reason"] for one in ends if one["finish_reason"]]
        else:
            reasons = [one["finish_reason"] for one in reply.json()["choices"]]
        assert reasons == ["abort", "abort"]

    served(test, **options)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 5])
def test_an_echo_that_ends_before_its_first_token_tells_its_tokens_alone(
    options, stream, max_tokens
):
    async def test(server):
        await server.core.pause()
        body = {"prompt": "hello the world", "echo": True, "logprobs": 2, "stream": stream}
        task = asyncio.create_task(server.post(PATH, **body, max_tokens=max_tokens))
        while server.core.loop.queue_lengths == (0, 0):
            await asyncio.sleep(0)
        await server.core.pause(abort=True)
        reply = await task
        assert reply.status_code == 200
        choice = (events(reply.text) if stream else [reply.json()])[0]["choices"][0]
        assert choice["text"] == "hello the world"
        assert choice["finish_reason"] == "abort"
        told = choice["logprobs"]
        assert "".join(told["tokens"]) == choice["text"]
        assert set(told["token_logprobs"]) == set(told["top_logprobs"]) == {None}

    served(test, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_what_goes_wrong_in_a_step_ends_the_answer_and_is_told_to_the_log(
    tiny_tokenizer, stream, caplog
):
    def fail(batch):
        return "KeyError: /secret/path" if batch.step > 6 else None

    vocabulary = tiny_tokenizer.vocab_size
    runner = FakeRunner((4,), vocab_size=vocabulary, fate=fail)
    options = worded(tiny_tokenizer, runner=runner)

    async def test(server):
        reply = await server.post(PATH, **LONG, stream=stream)
        if stream:
            told = events(reply.text)
            assert joined(told[:-1])
            error = told[-1]["error"]
        else:
            assert reply.status_code == 500
            error = reply.json()["error"]
        assert "secret" not in reply.text
        (said,) = [one for one in caplog.messages if "secret" in one]
        request_id = error["message"].rpartition(" ")[2]
        assert request_id in said, "the client can name what the log has"

    served(test, **options)


@pytest.mark.parametrize(("of_server", "status"), [(False, 429), (True, 503)])
def test_who_is_over_a_limit_is_told_when_to_come_again(options, of_server, status):
    class Full(OpenGate):
        def enter(self, tenant, tokens, priority=0, *, answers=1):
            raise OverLimit("it is full", retry_after_s=2.5, of_server=of_server)

    meters = Records()

    async def test(server):
        reply = await server.post(PATH, **LONG)
        assert reply.status_code == status
        assert reply.headers["retry-after"] == "3"
        assert reply.json()["error"]["message"] == "it is full"
        assert meters.refusals == [("default", status)]
        assert meters.records == []
        assert server.parts.doors.inside == 0

    served(test, **options, gate=Full(), meters=meters)


def test_what_became_of_each_prompt_is_told_to_the_meters(options):
    meters = Records()

    async def test(server):
        await server.post(PATH, prompt=["hello", "the"], max_tokens=5, n=2, ignore_eos=True)
        first, second = meters.records
        assert (first.route, first.finish, first.tenant) == (PATH, "length", "default")
        assert (first.prompt_tokens, first.output_tokens, first.n) == (1, 10, 2)
        assert first.max_tokens == 5
        assert first.e2e_s >= first.queue_s + first.prefill_s + first.decode_s >= 0
        assert second.output_tokens == 10
        assert len(meters.first) == 2
        assert sum(meters.more) + len(meters.first) <= 20
        assert meters.refusals == []
        await server.post(PATH, prompt="hello", temperature=-1)
        assert meters.refusals == [("default", 400)]

    served(test, **options, meters=meters)


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_counts_as_refused_and_not_as_ended(options, stream):
    meters = Records()

    async def test(server):
        for body in ({"beam_width": 20}, {"beam_width": 20, "prompt": ["hello", "the"]}):
            asked = {"prompt": "hello", "use_beam_search": True, "stream": stream, **body}
            assert (await server.post(PATH, **asked)).status_code == 400
        assert meters.refusals == [("default", 400)] * 2, "once for each HTTP request"
        assert meters.records == []

    served(test, **options, meters=meters)


def test_how_often_a_request_had_to_begin_again_is_told(tiny_tokenizer):
    meters = Records()

    async def test(server):
        asked = [{"prompt": [20 + one], "max_tokens": 100, "ignore_eos": True} for one in range(6)]
        await asyncio.gather(*(server.post(PATH, **body) for body in asked))
        total = server.core.loop.stats.preemptions
        assert total > 0, "the pool is too large for this test"
        assert sum(record.preemptions for record in meters.records) == total

    served(test, **worded(tiny_tokenizer, num_blocks=60), meters=meters)


def test_what_ends_by_its_text_tells_how_often_it_had_to_begin_again(tiny_tokenizer):
    meters = Records()

    async def test(server):
        asked = [{"prompt": [20 + one], "max_tokens": 100, "ignore_eos": True} for one in range(6)]
        free = await asyncio.gather(*(server.post(PATH, **body, seed=1) for body in asked))
        texts = [reply.json()["choices"][0]["text"] for reply in free]
        before, told = server.core.loop.stats.preemptions, len(meters.records)
        await asyncio.gather(
            *(
                server.post(PATH, **body, seed=1, stop=[text[90:94]])
                for body, text in zip(asked, texts, strict=True)
            )
        )
        records = meters.records[told:]
        assert "stop" in {record.finish for record in records}
        assert sum(record.preemptions for record in records) > 0
        total = server.core.loop.stats.preemptions - before
        assert sum(record.preemptions for record in records) == total

    served(test, **worded(tiny_tokenizer, num_blocks=60), meters=meters)


def test_tokens_are_counted_as_they_come_and_add_up_to_the_usage(options):
    meters = RequestMeters()

    def counted():
        page = Page({})
        meters.write(page)
        lines = (line.split() for line in page.write().decode().splitlines() if line[0] != "#")
        tokens = dict(lines)
        names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total")
        return tuple(float(tokens[name]) for name in names)

    async def test(server):
        body = {"prompt": list(range(20, 40)), "max_tokens": 200, "ignore_eos": True, "n": 2}
        asking = asyncio.create_task(server.post(PATH, **body))
        seen = set()
        while not asking.done():
            seen.add(counted())
            await asyncio.sleep(0)
        assert {prompt for prompt, _ in seen} == {0, 20}
        assert len(seen) > 50, "they go up step by step"
        usage = (await asking).json()["usage"]
        assert counted() == (usage["prompt_tokens"], usage["completion_tokens"]) == (20, 400)
        await server.post(PATH, prompt="hello", echo=True, max_tokens=0, logprobs=1)
        assert counted() == (21, 400)

    served(test, **options, meters=meters)


def test_text_after_a_stop_string_is_neither_told_nor_counted(options):
    async def test(server):
        body = {"prompt": "hello", "seed": 11, "max_tokens": 60, "ignore_eos": True}
        free = (await server.post(PATH, **body)).json()["choices"][0]["text"]
        stop = free[20]
        reply = (await server.post(PATH, **body, stop=[stop])).json()
        choice = reply["choices"][0]
        assert choice["text"] == free[: free.index(stop)]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
        streamed = events((await server.post(PATH, **body, stop=[stop], stream=True)).text)
        assert joined(streamed) == choice["text"]
        assert server.core.loop.queue_lengths == (0, 0)
        assert reply["usage"]["completion_tokens"] < 60

    served(test, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_news_that_cannot_be_read_end_their_own_request_alone(options, stream, monkeypatch, caplog):
    async def test(server):
        read, seen = Choice.push, []

        def fail(choice, update, applied_s):
            seen.append(update.request_id)
            if update.request_id == seen[0]:
                raise KeyError("secret")
            return read(choice, update, applied_s)

        monkeypatch.setattr(Choice, "push", fail)
        replies = await asyncio.gather(*(server.post(PATH, **LONG, stream=stream) for _ in "ab"))
        broken, whole = (one.text for one in replies)
        assert "internal error" in broken
        assert "secret" not in broken
        assert "error" not in whole.replace("finish_reason", "")
        assert [one.status_code for one in replies] == ([200, 200] if stream else [500, 200])
        assert server.core.loop.queue_lengths == (0, 0)
        assert "secret" in caplog.text

    served(test, **options)


def test_the_doors_count_a_request_from_its_first_moment_to_its_last(options):
    async def test(server):
        reply = await server.post(PATH, prompt="a" * 5000, max_tokens=3)
        assert reply.status_code == 400
        task = await under_way(server)
        assert server.parts.doors.inside == 1
        await task
        assert server.parts.doors.inside == 0

    served(test, **options)


def test_lower_priorities_go_first(tiny_tokenizer):
    options = worded(tiny_tokenizer, by_priority=True, max_num_seqs=1)
    ended = []

    async def test(server):
        async def ask(priority):
            reply = await server.post(
                PATH, prompt=[priority + 9], max_tokens=20, priority=priority, ignore_eos=True
            )
            assert reply.status_code == 200
            ended.append(priority)

        await asyncio.gather(ask(5), ask(3), ask(1))
        assert ended == [1, 3, 5]

    served(test, **options)


def test_what_is_streamed_is_what_comes_in_one_piece(options):
    async def test(server):
        body = {"prompt": "in the", "n": 2, "seed": 3, "max_tokens": 40}
        whole = (await server.post(PATH, **body)).json()
        chunks = events((await server.post(PATH, **body, stream=True)).text)
        for one in whole["choices"]:
            assert joined(chunks, one["index"]) == one["text"]
        shared = {"id", "created"}
        for chunk in chunks:
            assert {k: v for k, v in chunk.items() if k in whole and k not in shared} == {
                key: chunk["choices"] if key == "choices" else whole[key]
                for key in chunk
                if key in whole and key not in shared
            }
        json.dumps(whole)

    served(test, **options)
