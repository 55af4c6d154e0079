"""Traces of requests by OpenTelemetry, as an extra: nothing of it is loaded unless it is asked for.

A request to the model is a span, below the span that its client names in `traceparent`; each of its
prompts is a span below that one. Names of attributes are vLLM's, ours begin with `octavo.`; no text
is among them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from octavo.errors import ConfigError
from octavo.server.meters import RequestRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

_NS = 1_000_000_000
_CARRIED = ("traceparent", "tracestate")
_PATH = "/v1/traces"
_EXPORT_S = 2.0
"""How long what collects spans may take for some of them, also when the server ends."""


class Traces(Protocol):
    """Makes spans."""

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return an application whose requests are spans."""
        ...

    def ended(self, record: RequestRecord) -> None:
        """A prompt of the request that is being answered is done with."""
        ...

    def close(self) -> None:
        """Send what has not been sent."""
        ...


def open_traces(endpoint: str, model: str) -> Traces:
    """Return what sends spans by OTLP over HTTP. model: as replies call it.

    endpoint: the collector's address; without a path, `/v1/traces`. Raises ConfigError if that is
    no address, or the extra is not installed.
    """
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"--otlp-traces-endpoint must be an address such as http://localhost:4318, got "
            f"{endpoint!r:.200}"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise ConfigError(
            "--otlp-traces-endpoint needs OpenTelemetry, which is not installed here: "
            "pip install 'octavo[otel]'"
        ) from None
    whole = endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _PATH
    # A name in OTEL_SERVICE_NAME goes before ours.
    provider = TracerProvider(resource=Resource.create({"service.name": "octavo"}))
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=whole, timeout=_EXPORT_S))
    )
    return RequestTraces(provider, model)


class RequestTraces:
    """The `Traces` of a server."""

    def __init__(self, provider: TracerProvider, model: str) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("octavo")
        self._model = model

    def around(self, app: ASGIApp) -> ASGIApp:
        """Return an application whose requests are spans."""
        return _Traced(app, self._tracer)

    def ended(self, record: RequestRecord) -> None:
        """A prompt of the request that is being answered is done with."""
        end_s = time.time()
        came_s = end_s - record.e2e_s
        begun_s = None if record.queue_s is None else came_s + record.queue_s
        attributes: dict[str, str | int | float] = {
            "gen_ai.response.model": self._model,
            "gen_ai.request.n": record.n,
            "gen_ai.request.max_tokens": record.max_tokens,
            "gen_ai.usage.prompt_tokens": record.prompt_tokens,
            "gen_ai.usage.completion_tokens": record.output_tokens,
            "gen_ai.latency.e2e": record.e2e_s,
            "octavo.cached_tokens": record.cached_tokens,
            "octavo.preemptions": record.preemptions,
            "octavo.finish": record.finish,
            "octavo.tenant": record.tenant,
        }
        moments: list[tuple[str, float]] = []
        if record.queue_s is not None and begun_s is not None:
            attributes["gen_ai.latency.time_in_queue"] = record.queue_s
            moments.append(("first step", begun_s))
            if record.prefill_s is not None:
                attributes["gen_ai.latency.time_to_first_token"] = record.queue_s + record.prefill_s
                moments.append(("first token", begun_s + record.prefill_s))
        span = self._tracer.start_span(
            "llm_request", start_time=_nanoseconds(came_s), attributes=attributes
        )
        for name, at_s in moments:
            span.add_event(name, timestamp=_nanoseconds(at_s))
        span.end(_nanoseconds(end_s))

    def close(self) -> None:
        """Send what has not been sent."""
        self._provider.shutdown()


class _Traced:
    """Makes a span of each request to the model."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app = app
        self._tracer = tracer
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        from opentelemetry.trace import SpanKind

        parent = self._propagator.extract(dict(_carried(scope["headers"])))
        attributes = {"gen_ai.request.id": scope["state"]["request_id"]}
        with self._tracer.start_as_current_span(
            f"POST {scope['path']}",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=attributes,
            # An exception's text may be a piece of a prompt.
            record_exception=False,
            set_status_on_exception=False,
        ):
            await self._app(scope, receive, send)


def _carried(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[str, str]]:
    for name, value in headers:
        if name.decode("latin-1") in _CARRIED:
            yield name.decode("latin-1"), value.decode("latin-1")


def _nanoseconds(seconds: float) -> int:
    return int(seconds * _NS)
