"""Flags of `octavo serve` about the engine: model, memory, scheduler, and what there is not yet."""

from __future__ import annotations

from octavo.cli.options import BACKEND_HELP, DEVICE_HELP
from octavo.cli.serve_flags import Flag, Kind, idle, only
from octavo.config import (
    LONG_PREFILL_ON_CPU,
    LONG_PREFILL_ON_GPU,
    LONG_PREFILLS_ON_CPU,
    LONG_PREFILLS_ON_GPU,
)

_ONE_DEVICE = "one engine uses one device"
_NO_ADAPTERS = "there are no LoRA adapters yet"
_NO_OFFLOAD = "KV stays on the device: there is no other tier to serve from yet"

MODEL: tuple[Flag, ...] = (
    Flag(
        name="model",
        kind=Kind.TEXT,
        help="A path, a known name or a hub id; without it, the embedded default.",
    ),
    Flag(
        name="tokenizer",
        kind=Kind.TEXT,
        help="Folder or GGUF file with another tokenizer than the model's own.",
    ),
    Flag(
        name="served-model-name",
        kind=Kind.NAMES,
        help="What requests call the model; replies use the first. Without it, the model's name.",
    ),
    only(
        "revision",
        Kind.TEXT,
        "main",
        reason="a model of the hub is fetched as it is now; name a folder to serve another state",
    ),
    Flag(name="dtype", kind=Kind.TEXT, default="auto", help="What weights are multiplied in."),
    Flag(name="max-model-len", kind=Kind.COUNT, help="Longest text, in tokens."),
    Flag(
        name="load-format",
        kind=Kind.TEXT,
        default="auto",
        help="auto, or dummy: made-up weights, for measuring.",
    ),
    Flag(
        name="shape",
        kind=Kind.TEXT,
        help="With dummy weights, in place of a model: llama-3.1-8b and others.",
    ),
    Flag(
        name="seed",
        kind=Kind.COUNT,
        default=0,
        help="Requests without a seed derive theirs from it.",
    ),
    Flag(
        name="generation-config",
        kind=Kind.TEXT,
        default="auto",
        help="Sampling defaults: auto (the model's generation_config.json), vllm (none of them), "
        "or a folder with such a file.",
    ),
    Flag(
        name="offline",
        kind=Kind.SWITCH,
        default=False,
        help="Never fetch a model: it must be here.",
    ),
    Flag(name="device", kind=Kind.TEXT, default="auto", help=DEVICE_HELP),
    Flag(name="backend", kind=Kind.TEXT, default="auto", help=BACKEND_HELP),
    Flag(name="threads", kind=Kind.COUNT, help="Of the backend cpu; without it, one a core."),
    Flag(
        name="give-way-ms",
        kind=Kind.COUNT,
        default=5,
        help="Of the backend cpu: for so long after a step begins, its threads let what sends the "
        "last one's tokens have their cores; 0: it waits for the system's clock.",
    ),
    Flag(
        name="touch-ahead-mb",
        kind=Kind.COUNT,
        default=256,
        help="Of the backend cpu: so much KV memory is taken from the system before it is written, "
        "so that no step waits for it; 0: when it is written.",
    ),
    Flag(
        name="cpu-arithmetic",
        kind=Kind.TEXT,
        help="Of the backend cpu: int8 (default), bf16 or float32.",
    ),
    Flag(
        name="deterministic",
        kind=Kind.SWITCH,
        default=False,
        help="The same bits in any company; cpu: always so.",
    ),
    Flag(
        name="enforce-eager",
        kind=Kind.SWITCH,
        default=False,
        help="On a GPU: no captured graphs. Off a GPU: no effect.",
    ),
    only(
        "quantization",
        Kind.TEXT,
        "gguf",
        "none",
        letters=("-q",),
        reason="weights are computed as their file has them; there is no other quantization",
    ),
    only(
        "hf-overrides", Kind.JSON, {}, None, reason="a model is read as its own files describe it"
    ),
    idle("trust-remote-code", Kind.SWITCH, "no code of a model is ever run"),
)

MEMORY: tuple[Flag, ...] = (
    Flag(
        name="gpu-memory-utilization",
        kind=Kind.NUMBER,
        help="Share of a GPU's memory that may be used; without it, 0.9. Off a GPU: no effect; "
        "give --kv-cache-memory-bytes.",
    ),
    Flag(name="kv-cache-memory-bytes", kind=Kind.COUNT, help="Size of the KV pool, such as 2GiB."),
    Flag(name="block-size", kind=Kind.COUNT, default=16, help="Tokens per KV block."),
    Flag(
        name="kv-cache-dtype",
        kind=Kind.TEXT,
        default="auto",
        help="How KV is stored: auto (as the backend computes), int8, …, or KEYS/VALUES.",
    ),
    Flag(
        name="num-gpu-blocks-override",
        kind=Kind.COUNT,
        help="KV blocks, in place of what fits; on any device.",
    ),
    Flag(
        name="enable-prefix-caching",
        kind=Kind.SWITCH,
        default=True,
        help="Off: no prompt finds anything in memory.",
    ),
    Flag(
        name="eviction-policy",
        kind=Kind.TEXT,
        default="lru",
        help="Which cached block goes first: lru, lfu, fifo, s3fifo, arc, bonus, gittins, cost, "
        "hotprefix or a plug-in's; with parameters: '{name: lfu, remember: 4}'.",
    ),
    Flag(
        name="structured-outputs-backend",
        kind=Kind.TEXT,
        default="auto",
        help="What makes the grammars that answers are held to: auto, llguidance or xgrammar.",
    ),
    Flag(
        name="pooling",
        kind=Kind.TEXT,
        default="auto",
        help="How prompts are embedded: mean, last or none; auto: as the model's files say.",
    ),
    Flag(
        name="reservation",
        kind=Kind.TEXT,
        default="on_demand",
        help="on_demand, or a baseline: max, pow2, oracle, static.",
    ),
    Flag(
        name="partial-blocks",
        kind=Kind.SWITCH,
        default=True,
        help="Copy what a prompt shares with the beginning of a cached block.",
    ),
    Flag(
        name="pin-limit",
        kind=Kind.NUMBER,
        default=0.0,
        help="Share of the KV memory that requests may pin.",
    ),
    Flag(
        name="kv-cache-metrics",
        kind=Kind.SWITCH,
        default=False,
        help="Measure how long blocks stay, lie idle and wait to be used again.",
    ),
    Flag(
        name="kv-cache-metrics-sample",
        kind=Kind.NUMBER,
        default=0.01,
        help="Of the blocks given out, the share that is measured.",
    ),
    idle("prefix-caching-hash-algo", Kind.TEXT, "keys are blake2b digests of the tokens"),
    only(
        "prefix-match-unit",
        Kind.COUNT,
        1,
        reason="prompts match to the token: whole blocks, and what begins one",
    ),
    only("kv-offloading-size", Kind.NUMBER, 0.0, reason=_NO_OFFLOAD),
    only("kv-offloading-backend", Kind.TEXT, reason=_NO_OFFLOAD),
    only("kv-transfer-config", Kind.JSON, None, {}, reason="KV is not moved between machines yet"),
    only("kv-events-config", Kind.JSON, None, {}, reason="there are no KV events yet"),
    only(
        "kv-cache-dtype-skip-layers",
        Kind.NAMES,
        reason="all layers store KV alike: give --kv-cache-dtype",
    ),
    only("kv-sharing-fast-prefill", Kind.SWITCH, False, reason="no layers share KV"),
)

SCHEDULER: tuple[Flag, ...] = (
    Flag(name="max-num-seqs", kind=Kind.COUNT, default=128, help="Sequences that run at once."),
    Flag(
        name="max-num-batched-tokens",
        kind=Kind.COUNT,
        default=2048,
        help="Tokens computed in one step.",
    ),
    Flag(
        name="scheduling-policy",
        kind=Kind.TEXT,
        default="fcfs",
        help="Who runs first: fcfs, priority (lower numbers first), longest_prefix, depth_first or "
        "a plug-in's; with parameters: '{name: depth_first, max_passed: 50}'.",
    ),
    Flag(
        name="long-prefill-token-threshold",
        kind=Kind.COUNT,
        help="A prompt with more tokens to compute than this gets at most so many in a step, so "
        f"that others need not wait for it; 0: no such limit. Without it, {LONG_PREFILL_ON_CPU} on "
        f"a CPU, {LONG_PREFILL_ON_GPU} on a GPU.",
    ),
    Flag(
        name="max-long-partial-prefills",
        kind=Kind.COUNT,
        help=f"Such prompts that are computed in one step. Without it, {LONG_PREFILLS_ON_CPU} on a "
        f"CPU, {LONG_PREFILLS_ON_GPU} on a GPU.",
    ),
    Flag(
        name="max-queued-requests",
        kind=Kind.COUNT,
        default=4096,
        help="Answers that may wait beside those that are given; beyond them, 503.",
    ),
    Flag(
        name="stream-interval",
        kind=Kind.COUNT,
        default=1,
        help="Tokens of a stream that are sent together.",
    ),
    idle("enable-chunked-prefill", Kind.SWITCH, "prompts are always computed in chunks"),
    idle(
        "max-num-partial-prefills",
        Kind.COUNT,
        "any number of prompts is computed at once; --max-long-partial-prefills bounds long ones",
    ),
    idle("async-scheduling", Kind.SWITCH, "two steps are in flight wherever that is quicker"),
    idle("disable-hybrid-kv-cache-manager", Kind.SWITCH, "layers of all kinds share one pool"),
    only("scheduler-cls", Kind.TEXT, reason="a plug-in brings an order: --scheduling-policy NAME"),
)

NOT_YET: tuple[Flag, ...] = (
    only("tensor-parallel-size", Kind.COUNT, 1, letters=("-tp",), reason=_ONE_DEVICE),
    only("pipeline-parallel-size", Kind.COUNT, 1, letters=("-pp",), reason=_ONE_DEVICE),
    only("data-parallel-size", Kind.COUNT, 1, letters=("-dp",), reason=_ONE_DEVICE),
    only("enable-expert-parallel", Kind.SWITCH, False, reason=_ONE_DEVICE),
    only("enable-lora", Kind.SWITCH, False, reason=_NO_ADAPTERS),
    only("lora-modules", Kind.NAMES, reason=_NO_ADAPTERS),
    only("max-loras", Kind.COUNT, 1, reason=_NO_ADAPTERS),
    only("max-lora-rank", Kind.COUNT, 16, reason=_NO_ADAPTERS),
    only("max-cpu-loras", Kind.COUNT, reason=_NO_ADAPTERS),
    only("speculative-config", Kind.JSON, None, {}, reason="there is no speculative decoding yet"),
)

SGLANG: tuple[Flag, ...] = (
    idle("enable-cache-report", Kind.SWITCH, "usage always has the tokens found in memory"),
    Flag(
        name="max-total-tokens",
        kind=Kind.COUNT,
        help="KV blocks for so many tokens, in place of what fits; of a model whose layers see "
        "windows, a block of each kind of layer counts.",
    ),
    only(
        "schedule-low-priority-values-first",
        Kind.SWITCH,
        True,
        reason="lower numbers always go first",
    ),
)

DEAD: tuple[Flag, ...] = (
    idle("task", Kind.TEXT, "a model continues text, and nothing else"),
    idle("runner", Kind.TEXT, "a model continues text, and nothing else"),
    idle("tokenizer-mode", Kind.TEXT, "there is one way to read a tokenizer"),
    idle("limit-mm-per-prompt", Kind.JSON, "prompts are text alone"),
    idle("distributed-executor-backend", Kind.TEXT, "one engine uses one device"),
    idle("disable-custom-all-reduce", Kind.SWITCH, "one engine uses one device"),
    idle("compilation-config", Kind.JSON, "nothing is compiled by settings: see --enforce-eager"),
    idle("max-seq-len-to-capture", Kind.COUNT, "captured graphs serve texts of any length"),
    idle("uvicorn-log-level", Kind.TEXT, "the log has a line for each request and for what fails"),
    idle("swap-space", Kind.NUMBER, "a sequence that must give way is computed again"),
    idle("preemption-mode", Kind.TEXT, "a sequence that must give way is computed again"),
    idle("use-v2-block-manager", Kind.SWITCH, "there is one block manager"),
    idle("num-scheduler-steps", Kind.COUNT, "every step is planned by itself"),
    idle("disable-log-requests", Kind.SWITCH, "requests are logged without their text anyway"),
)
