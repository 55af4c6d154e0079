"""Counts of requests, kept where they are answered."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.histogram import Histogram
from octavo.server.meters import RequestRecord
from octavo.server.metrics.exposition import Page
from octavo.server.metrics.values import MetricsSettings, Tally, TenantLabels

_SECONDS = {
    "queue": "Seconds from a request's arrival to its first step.",
    "prefill": "Seconds from a request's first step to its first token.",
    "decode": "Seconds from a request's first token to its last.",
    "inference": "Seconds from a request's first step to its last token.",
}
_REFUSALS = {401: "key", 403: "key", 413: "body", 429: "limit", 503: "full"}


@dataclass(frozen=True, slots=True)
class Totals:
    """What has been counted so far, for whoever looks at differences."""

    output: int
    """Tokens."""
    ended: int
    """Prompts."""
    first_token: Histogram
    next_token: Histogram
    """Seconds; copies."""


class RequestMeters:
    """The `Meters` of a server. For use on one event loop.

    Tokens are counted as they come, and add up to what replies say; those of a prompt that ended
    before its first step are not, since nobody computed them.
    """

    def __init__(self, settings: MetricsSettings | None = None) -> None:
        self.settings = settings or MetricsSettings()
        self._tenants = TenantLabels()
        self._ended = Tally()
        self._refused = Tally()
        self._tokens = Tally()
        make = self.settings.histogram
        self._first_token = make("time_to_first_token")
        self._next_token = make("inter_token_latency")
        self._mean_token = make("inter_token_latency")
        self._e2e = make("request_latency")
        self._seconds = {part: make("request_latency") for part in _SECONDS}
        self._prompt = make("request_tokens")
        self._output = make("request_tokens")
        self._longest = make("request_tokens")
        self._computed = make("request_tokens")
        self._max_tokens = make("request_tokens")
        self._n = make("request_params_n")
        self._preemptions = make("request_num_preemptions")

    def first_token(self, tenant: str, seconds: float) -> None:
        """An answer has its first token, so long after its request came."""
        self._first_token.add(seconds)

    def next_tokens(self, seconds: float, count: int) -> None:
        """A choice has so many more tokens, so long after those before them."""
        if count > 0:
            self._next_token.add(seconds / count, count)

    def refused(self, tenant: str, status: int) -> None:
        """A request was answered with an error, before the engine took it."""
        self._refused.add(self._tenants.label(tenant), _REFUSALS.get(status, "bad_request"))

    def prompt(self, tenant: str, *, cached: int, computed: int) -> None:
        """So many tokens of a prompt were in memory, and so many computed."""
        label = self._tenants.label(tenant)
        self._tokens.add(label, "cached", amount=cached)
        self._tokens.add(label, "computed", amount=computed)

    def output(self, tenant: str, tokens: int) -> None:
        """Answers have so many more tokens."""
        self._tokens.add(self._tenants.label(tenant), "output", amount=tokens)

    def ended(self, record: RequestRecord) -> None:
        """A prompt is done with."""
        self._ended.add(record.finish)
        self._prompt.add(record.prompt_tokens)
        if record.queue_s is not None:
            self._computed.add(record.prompt_tokens - record.cached_tokens)
        self._output.add(record.output_tokens)
        self._n.add(record.n)
        self._longest.add(record.longest_output)
        if record.max_tokens:
            self._max_tokens.add(record.max_tokens)
        self._preemptions.add(record.preemptions)
        self._take_times(record)

    def totals(self) -> Totals:
        """Return what has been counted so far."""
        output = sum(tokens for (_, kind), tokens in self._tokens if kind == "output")
        ended = sum(count for _, count in self._ended)
        first, later = self._first_token, self._next_token
        return Totals(
            int(output),
            int(ended),
            Histogram(first.bounds, first.counts.copy(), first.total),
            Histogram(later.bounds, later.counts.copy(), later.total),
        )

    def _take_times(self, record: RequestRecord) -> None:
        prefill_s, decode_s = record.prefill_s, record.decode_s
        inference_s = None if prefill_s is None or decode_s is None else prefill_s + decode_s
        for part, seconds in (
            ("queue", record.queue_s),
            ("prefill", prefill_s),
            ("decode", decode_s),
            ("inference", inference_s),
        ):
            if seconds is not None:
                self._seconds[part].add(seconds)
        self._e2e.add(record.e2e_s)
        later = record.output_tokens - record.n
        if decode_s is not None and later > 0:
            self._mean_token.add(decode_s * record.n / later)

    # ── telling ───────────────────────────────────────────────────────────────────────────

    def write(self, page: Page) -> None:
        """Tell all of it."""
        page.counters(
            "octavo_tenant_tokens",
            "Tokens so far: of prompts found in memory, of prompts computed, of answers.",
            ("tenant", "kind"),
            self._tokens,
        )
        page.counters(
            "octavo_tenant_refused",
            "Requests answered with an error before the engine took them.",
            ("tenant", "reason"),
            self._refused,
        )
        if self.settings.vllm_names:
            self._write_counts(page)
            self._write_histograms(page)

    def _write_counts(self, page: Page) -> None:
        by_kind = Tally()
        for (_, kind), tokens in self._tokens:
            by_kind.add(kind, amount=tokens)
        page.counter(
            "vllm:prompt_tokens",
            "Prompt tokens of requests that have their first token.",
            by_kind["cached",] + by_kind["computed",],
        )
        page.counter(
            "vllm:generation_tokens",
            "Tokens of answers.",
            by_kind["output",],
        )
        known = {(reason,): 0.0 for reason in ("stop", "length", "abort", "error")}
        page.counters(
            "vllm:request_success",
            "Requests that have ended, by reason.",
            ("finished_reason",),
            (known | dict(self._ended)).items(),
        )
        page.counter(
            "vllm:corrupted_requests",
            "Requests whose answer ended in an error of the engine.",
            self._ended["error",],
        )

    def _write_histograms(self, page: Page) -> None:
        for name, help, histogram in self._histograms():
            page.histogram(f"vllm:{name}", help, histogram)

    def _histograms(self) -> list[tuple[str, str, Histogram]]:
        next_token = "Seconds from a token to the next."
        return [
            ("time_to_first_token_seconds", "Seconds to the first token.", self._first_token),
            ("inter_token_latency_seconds", next_token, self._next_token),
            ("time_per_output_token_seconds", f"{next_token} The old name.", self._next_token),
            (
                "request_time_per_output_token_seconds",
                "Seconds from token to token, the mean of a request.",
                self._mean_token,
            ),
            ("e2e_request_latency_seconds", "Seconds from arrival to end.", self._e2e),
            *(
                (f"request_{part}_time_seconds", help, self._seconds[part])
                for part, help in _SECONDS.items()
            ),
            ("request_prompt_tokens", "Tokens of a prompt.", self._prompt),
            ("request_generation_tokens", "Tokens of all answers to a prompt.", self._output),
            (
                "request_max_num_generation_tokens",
                "Tokens of the longest answer to a prompt.",
                self._longest,
            ),
            ("request_params_n", "Answers asked for.", self._n),
            ("request_params_max_tokens", "Effective maximum of an answer.", self._max_tokens),
            ("request_num_preemptions", "Preemptions of a request.", self._preemptions),
            (
                "request_prefill_kv_computed_tokens",
                "Prompt tokens of a request that were not in memory.",
                self._computed,
            ),
        ]
