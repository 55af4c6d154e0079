"""What a caller of the offline API gets back."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from octavo.contract.layout import KVLayout
from octavo.contract.misses import Miss
from octavo.engine.answer import Logprob
from octavo.engine.engine import Engine, Output
from octavo.sched.stats import Stats
from octavo.text.conversation import ToolCall


@dataclass(slots=True)
class CompletionOutput:
    """One answer to a prompt."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list[int])
    cumulative_logprob: float = 0.0
    logprobs: list[dict[int, Logprob]] | None = None
    """If asked for: for each token, the log-probabilities of the most likely ones and its own."""
    finish_reason: str | None = None
    """"stop", "length", "abort" or "error"."""
    stop_reason: str | int | None = None
    """The stop string or stop token that ended the answer; after an error, what went wrong."""
    content: str | None = None
    """Of a chat: the text without reasoning and calls."""
    reasoning: str | None = None
    """Of a chat: what the model thought before it answered."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of a chat: what it calls."""


@dataclass(slots=True)
class RequestOutput:
    """Everything about one prompt."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """If asked for: the same for each token of the prompt; None for the first one."""
    num_cached_tokens: int = 0
    """Prompt tokens that were in memory, or being written, already."""
    miss: Miss | None = None
    """Why no more of them were; None: all but one were that can be, or nothing is looked for."""
    effective_max_tokens: int = 0
    """Output tokens that were possible: max_tokens, cut to context and memory."""
    ttft_s: float | None = None
    """Seconds from the call to the first token."""
    e2e_s: float | None = None
    """Seconds from the call to the last token."""
    finished: bool = False
    embedding: bytes = b""
    """Of a prompt that was to be embedded: its vector, as the engine tells it."""

    def take_in(self, news: Output, seconds: float) -> None:
        """Add what a step brought. seconds: since the request was added."""
        answer = self.outputs[news.index]
        self.embedding += news.embedding
        answer.text += news.text
        answer.token_ids += news.token_ids
        answer.cumulative_logprob += news.logprob
        if answer.logprobs is not None:
            answer.logprobs += news.logprobs
        if self.prompt_logprobs is not None:
            self.prompt_logprobs += news.prompt_logprobs
        if self.ttft_s is None and news.token_ids:
            self.ttft_s = seconds
        if news.index == 0 and len(answer.token_ids) == len(news.token_ids):
            self.num_cached_tokens, self.miss = news.cached_tokens, news.miss
        if news.finish is not None:
            answer.finish_reason = news.finish.value
            answer.stop_reason = news.error if news.error is not None else news.stop_reason
            self.e2e_s = seconds
            self.finished = all(one.finish_reason is not None for one in self.outputs)


class GroupReport(msgspec.Struct, frozen=True):
    """What one KV group used."""

    name: str
    layers: int
    window: int | None
    """Positions that a query sees; None: all up to its own."""
    blocks_used_peak: int


class MemoryReport(msgspec.Struct, frozen=True):
    """What KV memory was used for, since the engine started."""

    block_size: int | None
    """None for the contiguous baselines."""
    blocks_total: int
    blocks_used_peak: int
    logical_blocks_peak: int
    """What would have been used without sharing."""
    blocks_shared_peak: int
    token_share_of_allocated: float | None
    """Share of allocated slots that held a token, averaged over steps."""
    waste_share: float | None
    prefix_query_tokens: int
    prefix_hit_tokens: int
    missed_tokens: dict[str, int]
    """The others by reason, as `octavo.contract.misses` names them."""
    copies: int
    preemptions: int
    recomputed_tokens: int
    groups: tuple[GroupReport, ...]
    """One per KV group; empty for the contiguous baselines."""


class Delta(msgspec.Struct, frozen=True):
    """A piece of one answer, as it comes."""

    request_id: str
    prompt: int
    """Which of the prompts, from 0."""
    index: int
    """Which of its answers."""
    text: str
    """New text; empty while it may begin a stop string or half a character."""
    token_ids: tuple[int, ...]
    finish_reason: str | None = None
    stop_reason: str | int | None = None

    @classmethod
    def of(cls, news: Output, prompt: int) -> Delta:
        """Make the piece of news of prompt number `prompt`."""
        return cls(
            news.request_id,
            prompt,
            news.index,
            news.text,
            news.token_ids,
            None if news.finish is None else news.finish.value,
            news.error if news.error is not None else news.stop_reason,
        )


class Metric(msgspec.Struct, frozen=True):
    """One counter or gauge."""

    name: str
    value: float


def metrics(engine: Engine) -> list[Metric]:
    """Read an engine's counters and gauges, under vLLM's names where it has them."""
    stats, usage = engine.stats, engine.usage()
    running, waiting = engine.queue_lengths
    values = {
        "vllm:num_requests_running": running,
        "vllm:num_requests_waiting": waiting,
        "vllm:kv_cache_usage_perc": usage.allocated / usage.slots,
        "vllm:prefix_cache_queries": stats.prefix_query_tokens,
        "vllm:prefix_cache_hits": stats.prefix_hit_tokens,
        "vllm:num_preemptions": stats.preemptions,
        "octavo:steps": stats.steps,
        "octavo:failed_steps": stats.failed_steps,
        "octavo:computed_prompt_tokens": stats.computed_prompt_tokens,
        "octavo:recomputed_tokens": stats.recomputed_tokens,
        "octavo:copies": stats.copies,
        "octavo:blocks_used": usage.blocks_used,
        "octavo:blocks_shared": usage.blocks_shared,
        "octavo:blocks_cached": usage.blocks_cached,
        "octavo:blocks_pinned": usage.blocks_pinned,
    } | {f'octavo:blocks{{tenant="{name}"}}': count for name, count in usage.tenant_blocks}
    for name, counts in (("misses", stats.misses), ("missed_tokens", stats.missed_tokens)):
        values |= {f"octavo:{name}_{label}": count for label, count in counts.items()}
    return [Metric(name, float(value)) for name, value in values.items()]


def memory_report(
    stats: Stats, layout: KVLayout, *, num_blocks: int, block_size: int | None
) -> MemoryReport:
    """Sum up what memory was used for. block_size: None for contiguous baselines."""
    peaks = stats.group_blocks_peak
    share = stats.token_share_of_allocated
    return MemoryReport(
        block_size=block_size,
        blocks_total=num_blocks,
        blocks_used_peak=stats.blocks_used_peak,
        logical_blocks_peak=stats.blocks_logical_peak,
        blocks_shared_peak=stats.blocks_shared_peak,
        token_share_of_allocated=share,
        waste_share=None if share is None else 1 - share,
        prefix_query_tokens=stats.prefix_query_tokens,
        prefix_hit_tokens=stats.prefix_hit_tokens,
        missed_tokens=dict(stats.missed_tokens),
        copies=stats.copies,
        preemptions=stats.preemptions,
        recomputed_tokens=stats.recomputed_tokens,
        groups=tuple(
            GroupReport(group.name, len(group.layers), group.window, peak)
            for group, peak in zip(layout.groups, peaks, strict=False)
        ),
    )
