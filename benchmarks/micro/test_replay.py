"""How many requests of a published trace `octavo replay --mode engine` answers in a CPU second."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from octavo.build import EVICTION_POLICIES
from octavo.replay.cost import NAMED_COSTS
from octavo.replay.engine import EngineSettings, replay_engine
from octavo.replay.files import open_trace
from octavo.replay.mooncake import read_mooncake

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"
SETTINGS = EngineSettings(NAMED_COSTS["h200-llama-3.1-8b"])


@pytest.mark.benchmark(timer=time.process_time)
@pytest.mark.parametrize("policy", EVICTION_POLICIES)
@pytest.mark.parametrize(("name", "rate"), [("conversation", 0.4), ("synthetic", 0.25)])
def test_replay_in_engine_mode(benchmark, name, rate, policy):
    path = TRACES / f"mooncake_{name}_trace.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in ../shared/data/traces")
    trace = read_mooncake(open_trace(path)).at_rate(rate)
    blocks = trace.working_set // 20

    tally = benchmark.pedantic(
        lambda: replay_engine(trace, EVICTION_POLICIES[policy](), blocks, SETTINGS), rounds=1
    )

    assert tally.cache.requests == len(trace.requests)
    benchmark.extra_info["requests_per_s"] = len(trace.requests) / benchmark.stats["min"]
    benchmark.extra_info["target_requests_per_s"] = 2000
