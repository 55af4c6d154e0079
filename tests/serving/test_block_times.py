"""How long blocks stay stands among the metrics, if it is measured."""

from __future__ import annotations

import pytest

from octavo.engine.messages import BlockTimes
from octavo.memory.residency import Residency
from octavo.testing.near_core import fake_loop
from octavo.testing.near_server import served

NAMES = [f"vllm:kv_block_{name}_seconds" for name in ("lifetime", "idle_before_evict", "reuse_gap")]


@pytest.mark.parametrize("measured", [True, False])
def test_metrics_tell_how_long_blocks_stay_if_it_is_measured(measured):
    def build():
        loop, facts = fake_loop(20)
        if measured:
            times = loop.block_times = BlockTimes()
            loop._cache.device.pool.residency = Residency(
                1.0, lifetime=times.lifetime.add, idle=times.idle.add, gap=times.gap.add
            )
        return loop, facts

    async def test(server):
        for first in (1, 2, 1, 3, 4, 1):
            body = {"prompt": [first, *range(5, 20)], "max_tokens": 20, "ignore_eos": True}
            assert (await server.post("/v1/completions", **body)).status_code == 200
        page = (await server.get("/metrics")).text
        counts = {
            line.split("{")[0]: float(line.split()[-1])
            for line in page.splitlines()
            if line.startswith("vllm:kv_block") and "_count{" in line
        }
        assert set(counts) == ({f"{name}_count" for name in NAMES} if measured else set())
        assert all(count > 0 for count in counts.values()), counts

    served(test, build=build)
