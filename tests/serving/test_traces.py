"""Requests are spans: below the client's own, with counts and times and without text."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest
from tiny_served import worded

from octavo.errors import ConfigError
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.tenants import Tenant
from octavo.server.traces import RequestTraces, open_traces
from octavo.testing.near_server import served

needs_otel = pytest.mark.skipif(
    importlib.util.find_spec("opentelemetry.sdk") is None, reason="the extra otel is not installed"
)
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def exporter():
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    return InMemorySpanExporter()


@pytest.fixture
def traces(exporter):
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return RequestTraces(provider, "fake")


@needs_otel
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_span_below_its_client_s_with_one_for_each_prompt(
    traces, exporter, tiny_tokenizer, stream
):
    async def test(server):
        await server.client.post(
            "/v1/completions",
            json={
                "prompt": ["hello", "the world"],
                "max_tokens": 4,
                "ignore_eos": True,
                "stream": stream,
            },
            headers={"traceparent": f"00-{TRACE}-{PARENT}-01", "X-Request-Id": "mine"},
        )
        first, second, request = exporter.get_finished_spans()
        assert request.name == "POST /v1/completions"
        assert f"{request.context.trace_id:032x}" == TRACE
        assert f"{request.parent.span_id:016x}" == PARENT
        assert request.attributes["gen_ai.request.id"] == "mine"
        for span in (first, second):
            assert span.name == "llm_request"
            assert span.parent.span_id == request.context.span_id
            assert span.attributes["gen_ai.usage.completion_tokens"] == 4
            assert span.attributes["octavo.tenant"] == "default"
            waited = span.attributes["gen_ai.latency.time_in_queue"]
            first_token = span.attributes["gen_ai.latency.time_to_first_token"]
            assert 0 <= waited <= first_token <= span.attributes["gen_ai.latency.e2e"]
            assert [event.name for event in span.events] == ["first step", "first token"]
            moments = [span.start_time, *(e.timestamp for e in span.events), span.end_time]
            assert moments == sorted(moments)
        assert "hello" not in "".join(one.to_json() for one in (first, second, request))

    served(test, traces=traces, **worded(tiny_tokenizer))


@needs_otel
def test_a_request_that_is_refused_at_the_door_is_no_span(traces, exporter):
    async def test(server):
        await server.post("/v1/completions", prompt=[1])
        await server.get("/health")
        assert not exporter.get_finished_spans()

    served(test, traces=traces, keys=KeyTable([KeyHolder(Tenant(name="a"), ("k",))]))


@needs_otel
def test_a_broken_parent_is_no_parent(traces, exporter):
    async def test(server):
        headers = {"traceparent": "nonsense", "tracestate": "x" * 1000}
        await server.client.post("/v1/completions", json={"prompt": [1]}, headers=headers)
        assert exporter.get_finished_spans()[-1].parent is None

    served(test, traces=traces)


@pytest.mark.parametrize("endpoint", ["localhost:4317", "grpc://collector", "", "http://"])
def test_what_is_no_address_of_a_collector_is_refused(endpoint):
    with pytest.raises(ConfigError, match="--otlp-traces-endpoint must be an address"):
        open_traces(endpoint, "m")


def test_without_the_extra_the_way_to_it_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    with pytest.raises(ConfigError, match=r"pip install 'octavo\[otel\]'"):
        open_traces("http://localhost:4318", "m")


def test_a_server_without_traces_does_not_load_what_makes_them():
    code = "import octavo.server.app, sys; print('opentelemetry.sdk' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"
