"""What a measurement of a server sends, when, and what it makes of the answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import math

import pytest
from stub_server import Stub, listening

from octavo.bench.serve.curve import user_row
from octavo.bench.serve.datasets import (
    Lengths,
    Repetition,
    TraceRequest,
    random_asks,
    read_agents,
    read_sharegpt,
    repetition_asks,
    trace_asks,
)
from octavo.bench.serve.http import Client, ConnectionLost, read_address
from octavo.bench.serve.load import Pace, run_load
from octavo.bench.serve.report import Wanted, percentile, read_goodput, summarize
from octavo.bench.serve.site import look_at
from octavo.bench.serve.stream import Ask, Outcome, Sender
from octavo.bench.serve.words import Words
from octavo.errors import ConfigError

WORDS = Words(["one", "two", "three", "four", "five", "six"], exact=True)


def with_stub(test, stub=None):
    stub = stub or Stub()

    async def run():
        async with listening(stub) as address:
            client = Client(read_address(address))
            try:
                return await asyncio.wait_for(test(client, stub), 10)
            finally:
                client.close()

    return asyncio.run(run())


def chains(count, output=3):
    return random_asks(WORDS, count, Lengths(input=20, output=output), 0)


# ── one request ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_an_answer_is_timed_piece_by_piece_and_counted_by_its_usage(backend):
    async def test(client, stub):
        sender = Sender(client, "stub", backend=backend)
        return await sender.send(Ask(text="a b c", output_tokens=4))

    outcome = with_stub(test, Stub(gap_s=0.01))

    assert outcome.error == ""
    assert (outcome.prompt_tokens, outcome.output_tokens, outcome.cached_tokens) == (3, 4, 0)
    assert outcome.text == " w w w w"
    assert outcome.finish == "length"
    assert len(outcome.gaps_s) == 3
    assert 0.01 <= outcome.ttft_s <= outcome.e2e_s
    assert outcome.tpot_s == pytest.approx((outcome.e2e_s - outcome.ttft_s) / 3)


def test_a_connection_is_used_again():
    async def test(client, stub):
        sender = Sender(client, "stub")
        for _ in range(5):
            await sender.send(Ask(text="a", output_tokens=2))
        return stub.connections

    assert with_stub(test) == 1


def test_a_connection_that_the_server_closed_while_idle_is_no_reason_to_fail():
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        await writer.drain()
        await asyncio.sleep(0.01)
        writer.close()

    async def run():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        client = Client(read_address(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        try:
            replies = []
            for _ in range(2):
                replies.append(await client.send("GET", "/"))
                await asyncio.sleep(0.1)
            return [one.status for one in replies]
        finally:
            client.close()
            server.close()

    assert asyncio.run(asyncio.wait_for(run(), 10)) == [200, 200]


def test_a_server_that_refuses_is_quoted():
    async def test(client, stub):
        stub.status = 503
        return await Sender(client, "stub").send(Ask(text="a", output_tokens=2))

    outcome = with_stub(test)

    assert outcome.status == 503
    assert outcome.error == "status 503: not today"


def test_an_answer_that_breaks_off_has_failed():
    async def test(client, stub):
        return await Sender(client, "stub").send(Ask(text="a", output_tokens=9))

    outcome = with_stub(test, Stub(breaks_after=2))

    assert "closed the connection" in outcome.error
    assert outcome.text == " w w"


def test_a_request_without_an_end_is_given_up():
    async def test(client, stub):
        sender = Sender(client, "stub", timeout_s=0.05)
        return await sender.send(Ask(text="a", output_tokens=2))

    assert with_stub(test, Stub(gap_s=1)).error == "no end after 0.05 s"


def test_bytes_may_come_in_any_pieces():
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    events = b'data: {"choices":[{"text":"\xc3\xa9"}]}\n\n', b"data: [DONE]\n\n"
    reply = head + b"".join(b"%x\r\n%s\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"

    async def answer(reader, writer, size):
        await reader.readuntil(b"}}")
        for start in range(0, len(reply), size):
            writer.write(reply[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)
        writer.close()

    async def run(size):
        server = await asyncio.start_server(lambda r, w: answer(r, w, size), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = Client(read_address(f"http://127.0.0.1:{port}"))
        outcome = await Sender(client, "m").send(Ask(text="a", output_tokens=1))
        client.close()
        server.close()
        return outcome

    for size in (1, 7, 1000):
        outcome = asyncio.run(run(size))
        assert (outcome.error, outcome.text) == ("", "é")


def test_a_server_that_is_not_there_is_named():
    client = Client(read_address("http://127.0.0.1:1"))

    with pytest.raises(ConnectionLost, match=r"cannot reach 127\.0\.0\.1:1"):
        asyncio.run(client.send("GET", "/"))


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://x:port"])
def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(ConfigError, match="--base-url"):
        read_address(url)


# ── a load ────────────────────────────────────────────────────────────────────────────────────


def test_so_many_are_on_their_way_at_once():
    async def test(client, stub):
        send = Sender(client, "stub").send
        await run_load(chains(12), send, Pace(max_concurrency=3))
        return stub.most_running

    assert with_stub(test, Stub(gap_s=0.003)) == 3


def test_the_turns_of_a_conversation_follow_each_other():
    async def test(client, stub):
        turns = [tuple(Ask(text=f"{c} {n}", output_tokens=2) for n in range(3)) for c in "ab"]
        await run_load(turns, Sender(client, "stub").send, Pace())
        return stub

    stub = with_stub(test, Stub(gap_s=0.002))

    prompts = [body["prompt"] for body in stub.bodies]
    assert [p for p in prompts if p[0] == "a"] == ["a 0", "a 1", "a 2"]
    assert stub.most_running == 2


def test_requests_come_at_their_rate_whatever_the_burstiness():
    many = [(Ask(text="", output_tokens=1),)] * 4000

    for burstiness in (0.5, 1.0, 4.0):
        starts = Pace(rate_per_s=10, burstiness=burstiness).starts(many)
        gaps = [after - before for before, after in itertools.pairwise(starts)]
        mean = sum(gaps) / len(gaps)
        spread = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean
        assert mean == pytest.approx(0.1, rel=0.1)
        assert spread == pytest.approx(1 / math.sqrt(burstiness), rel=0.15)


def test_a_trace_keeps_its_times():
    asks = [(Ask(text="", output_tokens=1, arrival_s=at),) for at in (0.0, 2.5, 9.0)]

    assert Pace(recorded=True).starts(asks) == [0.0, 2.5, 9.0]


@pytest.mark.parametrize("wrong", [{"rate_per_s": 0}, {"burstiness": 0}, {"max_concurrency": 0}])
def test_a_pace_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError, match="must be"):
        Pace(**wrong)


# ── what is asked ─────────────────────────────────────────────────────────────────────────────


def test_words_are_tokens_that_begin_with_a_space_and_are_followed_by_one():
    strings = [f"Ġ{'abcdefghij'[n % 10]}{chr(97 + n // 10)}" for n in range(60)]

    words = Words.from_tokens([*strings, "Ġsplit", "ting", "Ġend"])

    assert words.exact
    assert not {"split", "ting", "end"} & set(words._words)
    assert Words.from_tokens(["Ġfew", "Ġwords"]) is None


def test_random_prompts_share_their_head_and_no_more():
    asked = random_asks(WORDS, 20, Lengths(input=10, output=4, prefix=6, range_ratio=0.5), 1)

    texts = [chain[0].text.split() for chain in asked]
    assert len({tuple(words[:6]) for words in texts}) == 1
    assert len({tuple(words[6:11]) for words in texts}) > 15
    assert {len(words) for words in texts} <= set(range(11, 22))
    assert all(2 <= chain[0].output_tokens <= 6 for chain in asked)


def test_few_heads_come_back_in_random_order():
    asked = repetition_asks(WORDS, 12, Repetition(prefix=8, suffix=2, prefixes=3, output=1), 0)

    heads = [tuple(chain[0].text.split()[:8]) for chain in asked]
    assert len(set(heads)) == 3
    assert heads != sorted(heads, key=heads.index)


def test_a_trace_is_spelled_so_that_equal_keys_give_equal_words():
    requests = [
        TraceRequest(time_s=0.0, prompt_tokens=10, output_tokens=2, keys=(b"a", b"b", b"c")),
        TraceRequest(time_s=1.0, prompt_tokens=12, output_tokens=2, keys=(b"a", b"b", b"d")),
        TraceRequest(time_s=2.0, prompt_tokens=900, output_tokens=2, keys=()),
        TraceRequest(time_s=3.0, prompt_tokens=5, output_tokens=2, keys=()),
    ]

    asked, left_out = trace_asks(WORDS, requests, 4, longest=100, seed=0)

    first, second, unknown = (chain[0].text.split() for chain in asked)
    assert left_out == 1
    assert (len(first), len(second), len(unknown)) == (10, 12, 5)
    assert first[:8] == second[:8]
    assert asked[1][0].arrival_s == 1.0


def test_sessions_of_agents_are_in_order_and_end_where_they_do_not_fit(tmp_path):
    rows = [
        {"timestamp": 2, "input": "a" * 60, "output": "x" * 8, "session_id": "s"},
        {"timestamp": 1, "input": "a" * 30, "output": "", "session_id": "s"},
        {"timestamp": 3, "input": "a" * 900, "output": "x", "session_id": "s"},
        {"timestamp": 4, "input": "a" * 9, "output": "x", "session_id": "s"},
        {"timestamp": 1, "input": "", "output": "x", "session_id": "t"},
        {"timestamp": 1, "input": "b" * 9, "output": "x", "session_id": "u"},
    ]
    path = tmp_path / "agents.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))

    asked = read_agents(path, 100, None, 100)

    assert [[len(ask.text) for ask in chain] for chain in asked] == [[30, 60], [9]]
    assert [ask.output_tokens for ask in asked[0]] == [1, 2]
    assert [len(chain) for chain in read_agents(path, 2, None, 100)] == [1, 1]
    assert [len(chain) for chain in read_agents(path, 1, None, 100)] == [1]


def test_sharegpt_asks_the_first_turn_and_wants_an_answer_as_long_as_the_second(tmp_path):
    turns = [{"from": "human", "value": "hello there"}, {"from": "gpt", "value": "y" * 40}]
    path = tmp_path / "sharegpt.json"
    path.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}]))

    ((ask,),) = read_sharegpt(path, 5, None, 0)

    assert (ask.text, ask.output_tokens) == ("hello there", 10)


def test_a_server_that_does_not_tokenize_is_asked_with_guessed_words():
    async def test(client, stub):
        return await look_at(client, None)

    exact, guessed = with_stub(test), with_stub(test, Stub(tokenizes=False))

    assert (exact.model, exact.max_model_len, exact.words.exact) == ("stub", 2000, True)
    assert not guessed.words.exact


def test_a_server_of_short_texts_is_asked_for_the_tokens_of_a_short_one():
    async def test(client, stub):
        stub.max_model_len = 400
        return await look_at(client, None)

    assert with_stub(test).words.exact


# ── figures ───────────────────────────────────────────────────────────────────────────────────


def outcome(start, first, end, tokens, cached=0):
    gaps = [(end - first) / max(1, tokens - 1)] * (tokens - 1)
    return Outcome(
        start, end, first, gaps, prompt_tokens=10, output_tokens=tokens, cached_tokens=cached
    )


def figures_of(outcomes, **wanted):
    from octavo.bench.serve.load import Run

    return summarize(Run(outcomes, 0.0, 4.0), Wanted(**wanted), pace=Pace())


def test_figures_are_those_of_the_outcomes():
    failed = Outcome(0.0, 1.5, error="no")
    figures = figures_of([outcome(0, 1, 2, 5), outcome(1, 1.5, 4, 6, cached=5), failed])

    assert (figures["completed"], figures["failed"], figures["num_prompts"]) == (2, 1, 3)
    assert figures["output_throughput"] == 11 / 4
    assert figures["total_token_throughput"] == 31 / 4
    assert figures["mean_ttft_ms"] == 750
    assert figures["median_tpot_ms"] == pytest.approx((250 + 500) / 2)
    assert figures["tokens_per_second_per_user"] == pytest.approx(1000 / 375)
    assert figures["cached_prompt_share"] == 0.25
    assert figures["max_concurrent_requests"] == 3
    assert user_row({**figures, "max_concurrency": 2}).failed == 1


def test_goodput_counts_those_that_keep_to_all_bounds():
    outcomes = [outcome(0, 1, 2, 5), outcome(1, 1.5, 4, 6)]

    def goodput(*texts):
        return figures_of(outcomes, goodput=read_goodput(texts))["request_goodput"]

    assert goodput("ttft:600") == 1 / 4
    assert goodput("ttft:2000 tpot:300") == 1 / 4
    assert goodput("ttft:600", "tpot:300") == 0
    assert goodput("e2el:5000,ttft:2000") == 2 / 4


@pytest.mark.parametrize("text", ["ttft", "ttft:x", "itl:5", "ttft:0", "ttft:nan"])
def test_a_bound_that_is_none_is_refused(text):
    with pytest.raises(ConfigError, match="--goodput"):
        read_goodput([text])


def test_percentiles_lie_between_values():
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile([5.0], 99) == 5
    assert percentile([], 99) == 0


def test_requests_that_all_failed_make_figures_too():
    figures = figures_of([Outcome(0.0, 1.0, error="no")])

    assert figures["completed"] == 0
    assert figures["tokens_per_second_per_user"] is None
    assert figures["cached_prompt_share"] is None
