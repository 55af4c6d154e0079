"""The last hour in numbers, in bounded memory."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest

from octavo.engine.histogram import Histogram
from octavo.server.metrics.requests import RequestMeters
from octavo.server.watch.history import History, Moment, keep_history, quantile, totals_of
from octavo.testing.near_server import served

PROMPT = list(range(1, 20))


def test_old_points_make_room_and_an_hour_stays_small():
    history, meters = History(), RequestMeters()
    for second in range(5000):
        meters.output("default", 7)
        history.note(Moment(float(second), None, 2, totals_of(meters)), 1e9 + second)

    lately, hour = history.series(1), history.series(10)

    assert (len(lately), len(hour)) == (300, 360)
    told = hour.told(0.0)
    assert told["wall_s"][-1] - told["wall_s"][0] == 3590
    assert set(told["output_tokens_per_s"]) == {7.0}
    assert set(told["waiting"]) == {2}
    assert len(json.dumps(told)) + len(json.dumps(lately.told(0.0))) < 150_000
    assert lately.told(1e9 + 4996)["points"] == 3
    assert {len(column) for column in told.values() if isinstance(column, tuple)} == {360}


def test_what_requests_and_engine_did_is_told_for_the_time_in_which_they_did_it():
    async def test(server):
        parts = server.parts
        task = asyncio.create_task(keep_history(parts, 0.02))
        moments = []
        note = parts.history.note
        parts.history.note = lambda now, wall_s: moments.append(now)
        try:
            await asyncio.sleep(0.05)
            for _ in range(2):
                await server.post("/v1/completions", prompt=PROMPT, max_tokens=5)
            await asyncio.sleep(0.1)
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        first, last = moments[0], moments[-1]
        for seconds, moment in ((0.0, first), (2.0, last)):
            note(Moment(seconds, moment.engine, moment.waiting, moment.totals), 1e9 + seconds)
        told = (await server.get("/v1/debug/memory/history?step=1")).json()
        assert told["points"] == 1
        assert told["output_tokens_per_s"] == [5.0]
        assert told["requests_ended"] == [2]
        assert told["computed_prompt_tokens_per_s"] == [pytest.approx((19 + 1) / 2)]
        assert told["hit_rate"] == [pytest.approx(18 / 38, abs=1e-6)]
        assert told["ttft_p50_s"][0] > 0
        assert sum(told[name][0] for name in ("free", "cached", "in_use")) == 200

    served(test, meters=RequestMeters())


def test_an_engine_with_nothing_to_do_is_left_alone():
    async def test(server):
        asked = 0
        snapshot = server.core.snapshot
        await snapshot()

        async def counting():
            nonlocal asked
            asked += 1
            return await snapshot()

        server.core.snapshot = counting
        task = asyncio.create_task(keep_history(server.parts, 0.01))
        await asyncio.sleep(0.15)
        task.cancel()
        assert asked <= 2

    served(test)


@pytest.mark.parametrize(
    ("counts", "share", "true"),
    [([0, 0, 0], 0.5, None), ([4, 0, 0], 0.5, 0.5), ([2, 2, 0], 0.75, 1.5), ([0, 0, 3], 0.5, 2.0)],
)
def test_a_quantile_lies_where_its_bucket_says(counts, share, true):
    assert quantile(Histogram((1.0, 2.0), counts), share) == true
