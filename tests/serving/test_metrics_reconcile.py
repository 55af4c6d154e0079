"""What `/metrics` says is what the block tables hold, and what replies said."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families

from octavo.contract.request import Request
from octavo.contract.sampling import SamplingParams
from octavo.engine.loop import Loop
from octavo.memory.groups import Groups
from octavo.sched.limits import Limits
from octavo.sched.order import Fcfs
from octavo.sched.scheduler import Scheduler
from octavo.server.limits import TenantGate
from octavo.server.meters import RequestRecord
from octavo.server.metrics.requests import RequestMeters
from octavo.server.metrics.values import OTHER, MetricsSettings, TenantLabels, read_bounds
from octavo.server.parts import Parts, ServedModel
from octavo.server.routes import metrics
from octavo.server.tenants import Tenant, TenantLimits
from octavo.testing.driver import make_cache
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.near_core import Heard, NearCore, fake_loop

MODEL = ServedModel(names=("fake",), root="fake", tokenizer=None, created_s=0)


class Scrape:
    """One answer of /metrics."""

    def __init__(self, text):
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self.samples = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name, **labels):
        every = {"model_name": "fake", "engine": "0"} | labels
        return self.samples[name, frozenset(every.items())]


class Rig:
    """An engine over a cache that the test may look into, and the route."""

    def __init__(self, num_blocks=60, settings=None):
        self.cache = make_cache(num_blocks, Groups((4,)))
        self.meters = RequestMeters(settings)

        def build():
            limits = Limits(16, 64, 400, 4 * num_blocks)
            scheduler = Scheduler(self.cache, Fcfs(), limits)
            loop = Loop(scheduler, self.cache, FakeRunner((4,), vocab_size=50), depth=2)
            return loop, fake_loop(num_blocks)[1]

        self.core = NearCore(build)
        self.app = FastAPI()
        parts = Parts(core=self.core, model=MODEL, meters=self.meters)
        self.app.include_router(metrics.router(parts))

    async def scrape(self):
        transport = httpx2.ASGITransport(app=self.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://octavo") as client:
            answer = await client.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        return Scrape(answer.text)

    async def fresh_scrape(self):
        """Scrape until the engine was quick enough to be asked: a busy machine may need several."""
        while True:
            before_s = time.monotonic()
            scrape = await self.scrape()
            if scrape("octavo_snapshot_age_seconds") <= time.monotonic() - before_s:
                return scrape

    def ask(self, name, prompt, **options):
        sampling = SamplingParams(**{"max_tokens": 8, "ignore_eos": True, **options})
        heard = Heard(sampling.choices)
        self.core.submit(Request(id=name, prompt=prompt, sampling=sampling, seed=1), heard)
        return heard

    def tables(self):
        """Count the tables that hold each block."""
        held = Counter()
        for table in self.cache._tables.values():
            held.update(table.blocks())
        return held


def with_rig(test, **options):
    async def run():
        rig = Rig(**options)
        await rig.core.start()
        try:
            await asyncio.wait_for(test(rig), 10)
        finally:
            await rig.core.stop()

    asyncio.run(run())


def prompt(start, length=10):
    return tuple(range(start, start + length))


def test_gauges_are_those_of_the_tables_in_the_middle_of_the_work():
    async def test(rig):
        first = rig.ask("first", prompt(1, 12))
        await first.ended.wait()
        for number in range(6):
            rig.ask(str(number), prompt(1 + 5 * (number % 2), 12), max_tokens=30, n=2)
        most = 0
        for steps in range(6):
            for _ in range(steps):
                await asyncio.sleep(0)
            await rig.core.pause()
            held, scrape = rig.tables(), await rig.fresh_scrape()
            blocks = [block for block in rig.cache._pool.blocks if block.refs]
            states = {
                state: scrape("octavo_blocks", state=state)
                for state in ("free", "cached", "in_use", "quarantined", "shared", "pinned")
            }
            assert states["in_use"] == len(held) == len(blocks)
            assert states["shared"] == sum(count > 1 for count in held.values())
            assert states["free"] + states["cached"] + states["in_use"] == 60
            filled = sum(block.filled for block in blocks)
            assert scrape("octavo_tokens_share") == pytest.approx(filled / 240)
            assert scrape("vllm:kv_cache_usage_perc") == pytest.approx(len(held) / 60)
            assert scrape("vllm:engine_sleep_state") == 1
            most = max(most, states["shared"])
            await rig.core.resume()
        assert most > 0

    with_rig(test)


def test_hits_are_the_cached_tokens_of_all_answers():
    async def test(rig):
        cached = 0
        for number, start in enumerate((1, 1, 20, 1, 20, 1)):
            heard = rig.ask(str(number), prompt(start, 10 + number))
            await heard.ended.wait()
            cached += heard.updates[0].cached_tokens
        scrape = await rig.scrape()
        assert cached > 0
        assert scrape("vllm:prefix_cache_hits_total") == cached
        assert scrape("octavo_prefix_hit_tokens_total") == cached
        assert scrape("vllm:prefix_cache_queries_total") == sum(10 + n for n in range(6))
        assert scrape("octavo_computed_prompt_tokens_total") == 75 - cached
        reasons = scrape.families["octavo_missed_tokens"].samples
        assert sum(sample.value for sample in reasons) > 0

    with_rig(test)


def test_when_all_have_ended_every_block_is_free_or_cached():
    async def test(rig):
        asked = [rig.ask(str(n), prompt(n), n=1 + n % 3) for n in range(8)]
        for heard in asked:
            await heard.ended.wait()
        scrape = await rig.scrape()
        assert scrape("octavo_blocks", state="in_use") == 0
        free, cached = (scrape("octavo_blocks", state=state) for state in ("free", "cached"))
        assert free + cached == scrape("octavo_blocks_total") == 60
        assert scrape("octavo_waste_share") == 0
        tenant = scrape("octavo_tenant_blocks", tenant="default")
        assert tenant == cached

    with_rig(test)


def test_what_had_to_make_room_is_counted():
    async def test(rig):
        asked = [rig.ask(str(n), prompt(n, 20), max_tokens=40) for n in range(10)]
        for heard in asked:
            await heard.ended.wait()
        scrape = await rig.scrape()
        preempted = sum(news.preemptions for heard in asked for news in heard.updates)
        assert preempted > 0
        assert scrape("octavo_preemptions_total", reason="no_room") == preempted
        assert scrape("octavo_preemptions_total", reason="displaced") == 0
        assert scrape("vllm:num_preemptions_total") == preempted
        assert scrape("octavo_evictions_total") == rig.cache._pool.evictions > 0
        assert scrape("octavo_recomputed_tokens_total") > 0

    with_rig(test, num_blocks=30)


def test_steps_are_timed_in_their_parts():
    async def test(rig):
        await rig.ask("a", prompt(1), max_tokens=9).ended.wait()
        scrape = await rig.scrape()
        steps = scrape("octavo_steps_total")
        for part in ("plan", "run", "apply"):
            assert scrape("octavo_step_seconds_count", part=part) == steps
            assert scrape("octavo_step_seconds_sum", part=part) > 0
        assert scrape("octavo_step_tokens_sum") >= 10 + 8
        assert scrape("vllm:iteration_tokens_total_count") == steps

    with_rig(test)


def test_the_rate_of_tokens_that_were_found_is_over_time_between_scrapes():
    async def test(rig):
        await rig.ask("a", prompt(1)).ended.wait()
        assert (await rig.scrape())("octavo_cached_prompt_tokens_per_second") == 0
        await asyncio.sleep(0.05)
        heard = rig.ask("b", prompt(1))
        await heard.ended.wait()
        rate = (await rig.scrape())("octavo_cached_prompt_tokens_per_second")
        assert 0 < rate <= heard.updates[0].cached_tokens / 0.05

    with_rig(test)


def test_an_engine_that_is_gone_leaves_its_last_counts_and_their_age():
    async def test(rig):
        await rig.ask("a", prompt(1)).ended.wait()
        assert (await rig.scrape())("octavo_core_up") == 1
        rig.core.die()
        await asyncio.sleep(0.02)
        scrape = await rig.scrape()
        assert scrape("octavo_core_up") == 0
        assert scrape("octavo_snapshot_age_seconds") >= 0.02
        assert scrape("octavo_blocks_total") == 60

    with_rig(test)


def test_requests_of_a_tenant_that_run_and_wait_are_those_of_the_gate():
    async def test(rig):
        gate = TenantGate(10)
        app = FastAPI()
        parts = Parts(core=rig.core, model=MODEL, gate=gate)
        app.include_router(metrics.router(parts))
        rig.app = app
        alice = Tenant(name="alice", limits=TenantLimits(max_running=1))
        places = [gate.enter(alice, 1) for _ in range(3)]
        scrape = await rig.scrape()
        assert scrape("octavo_tenant_running", tenant="alice") == 1
        assert scrape("octavo_tenant_queued", tenant="alice") == 2
        assert scrape("vllm:num_requests_waiting") == 2
        for place in places:
            place.leave()

    with_rig(test)


def record(**changes):
    values = {
        "tenant": "a", "route": "/v1/completions", "finish": "stop", "prompt_tokens": 10,
        "cached_tokens": 4, "output_tokens": 6, "longest_output": 6, "n": 1, "max_tokens": 16,
        "queue_s": 0.5, "prefill_s": 0.25, "decode_s": 1.0, "e2e_s": 1.75,
    }  # fmt: skip
    return RequestRecord(**(values | changes))


def test_what_ended_before_its_first_step_has_computed_nothing():
    async def test(rig):
        rig.meters.ended(
            record(finish="abort", cached_tokens=0, output_tokens=0, longest_output=0,
                   queue_s=None, prefill_s=None, decode_s=None)
        )  # fmt: skip
        scrape = await rig.scrape()
        assert scrape("vllm:request_success_total", finished_reason="abort") == 1
        assert scrape("vllm:prompt_tokens_total") == 0
        assert scrape("vllm:request_prefill_kv_computed_tokens_count") == 0

    with_rig(test)


def test_counts_of_requests_add_up_to_what_replies_said():
    async def test(rig):
        meters = rig.meters
        meters.first_token("a", 0.05)
        meters.next_tokens(0.4, 4)
        meters.prompt("a", cached=4, computed=6)
        meters.output("a", 6)
        meters.ended(record())
        meters.prompt("b", cached=0, computed=10)
        meters.output("b", 6)
        meters.ended(record(tenant="b", finish="length", cached_tokens=0))
        meters.refused("b", 429)
        scrape = await rig.scrape()
        assert scrape("vllm:prompt_tokens_total") == 20
        assert scrape("vllm:generation_tokens_total") == 12
        assert scrape("vllm:request_success_total", finished_reason="length") == 1
        assert scrape("vllm:request_success_total", finished_reason="error") == 0
        assert scrape("octavo_tenant_tokens_total", tenant="a", kind="cached") == 4
        assert scrape("octavo_tenant_tokens_total", tenant="b", kind="computed") == 10
        assert scrape("octavo_tenant_refused_total", tenant="b", reason="limit") == 1
        assert scrape("vllm:time_to_first_token_seconds_bucket", le="0.06") == 1
        assert scrape("vllm:time_to_first_token_seconds_bucket", le="0.04") == 0
        assert scrape("vllm:inter_token_latency_seconds_count") == 4
        assert scrape("vllm:inter_token_latency_seconds_sum") == pytest.approx(0.4)
        assert scrape("vllm:request_inference_time_seconds_sum") == 2.5
        assert scrape("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(0.4)
        assert scrape("vllm:e2e_request_latency_seconds_count") == 2

    with_rig(test)


def test_a_time_that_never_came_is_not_counted():
    async def test(rig):
        rig.meters.ended(record(finish="abort", queue_s=None, prefill_s=None, decode_s=None))
        scrape = await rig.scrape()
        assert scrape("vllm:request_queue_time_seconds_count") == 0
        assert scrape("vllm:request_inference_time_seconds_count") == 0
        assert scrape("vllm:e2e_request_latency_seconds_count") == 1

    with_rig(test)


def test_without_vllms_names_only_ours_are_told():
    async def test(rig):
        names = (await rig.scrape()).families
        assert names
        assert all(name.startswith("octavo_") for name in names)

    with_rig(test, settings=MetricsSettings(vllm_names=False))


def test_bounds_of_histograms_can_be_chosen():
    async def test(rig):
        rig.meters.first_token("a", 0.2)
        scrape = await rig.scrape()
        assert scrape("vllm:time_to_first_token_seconds_bucket", le="0.3") == 1
        assert scrape("vllm:time_to_first_token_seconds_bucket", le="0.1") == 0

    bounds = read_bounds('{"time_to_first_token": [0.1, 0.3]}')
    with_rig(test, settings=MetricsSettings(bounds=bounds))


def test_tenants_beyond_the_bound_are_summed_up():
    labels = TenantLabels(2)

    sums = dict(labels.sums([("a", 1), ("b", 2), ("c", 3), ("d", 4), ("a", 5)]))

    assert sums == {("a",): 6, ("b",): 2, (OTHER,): 7}


def test_names_of_vllm_that_dashboards_use_are_all_there():
    path = Path(__file__).parent / "vllm_metric_names.txt"
    names = path.read_text().split()

    async def test(rig):
        samples = {name for name, _ in (await rig.scrape()).samples}
        missing = [
            name
            for name in names
            if not {f"vllm:{name}", f"vllm:{name}_total", f"vllm:{name}_bucket"} & samples
        ]
        assert missing == []

    with_rig(test)
