"""The page left open for minutes beside a busy server: what it takes, and that it does not grow."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from pathlib import Path

import pytest
from shown_server import ShownServer

from octavo.contract.request import Request
from octavo.contract.sampling import SamplingParams
from octavo.testing.near_core import Heard
from tiny_model import TOKENS

BLOCKS = 10_000
LONGEST = 7_600
SECONDS = float(os.environ.get("OCTAVO_PAGE_SECONDS", "300"))
MOST_BUSY = 0.35
"""Share of one core that the page may take, on a machine that draws without a GPU."""
MOST_GROWTH = 1.15


async def agent(core, number, random):
    """Talk as agents do: each prompt is the last one, its answer, and what a tool says."""
    names = itertools.count()
    while True:
        text = [random.randrange(3, len(TOKENS)) for _ in range(random.randrange(200, 1500))]
        while len(text) < 7_000:
            heard = Heard(1)
            params = SamplingParams(max_tokens=random.randrange(20, 120), ignore_eos=True)
            name = f"a{number}-{next(names)}"
            core.submit(Request(id=name, prompt=tuple(text), sampling=params, seed=1), heard)
            await heard.ended.wait()
            text += heard.tokens()
            text += [random.randrange(3, len(TOKENS)) for _ in range(random.randrange(20, 900))]


async def begin(core):
    return [asyncio.create_task(agent(core, n, random.Random(n))) for n in range(8)]


async def end(tasks):
    for task in tasks:
        task.cancel()


def measured(session):
    """What the browser counts of the page, and this process, in which the server is, of itself."""
    session.send("HeapProfiler.collectGarbage")
    found = session.send("Performance.getMetrics")["metrics"]
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    return {one["name"]: one["value"] for one in found} | {"server": resident}


@pytest.mark.slow
def test_a_page_beside_long_prompts_neither_grows_nor_takes_a_core(page_tokenizer, open_page):
    server = ShownServer(page_tokenizer, blocks=BLOCKS, longest=LONGEST)
    server.start()
    tasks = server.call(begin(server.core))
    try:
        page = open_page(server.url)
        page.wait_for_selector("#status[data-kind=live]")
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable")
        page.wait_for_timeout(1000 * min(60, SECONDS / 5))
        first = measured(session)
        page.wait_for_timeout(1000 * SECONDS)
        last = measured(session)
        steps, said = server.core.loop.stats.steps, page.inner_text("#summary")
        server.call(server.core.check())
    finally:
        server.call(end(tasks))
        server.close()

    busy = (last["TaskDuration"] - first["TaskDuration"]) / (last["Timestamp"] - first["Timestamp"])
    told = {name: (first[name], last[name]) for name in ("JSHeapUsedSize", "Nodes", "server")}
    print(f"{busy:.3f} of a core, {steps} steps, {said}, {told}")  # noqa: T201
    assert busy < MOST_BUSY
    assert last["JSHeapUsedSize"] < MOST_GROWTH * first["JSHeapUsedSize"]
    assert last["server"] < MOST_GROWTH * first["server"]
    assert last["Nodes"] < first["Nodes"] + 500
