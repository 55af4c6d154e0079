"""Flags of `octavo serve` about HTTP: addresses, keys, limits, chats and reports."""

from __future__ import annotations

from octavo.cli.serve_flags import Flag, Kind, idle, only
from octavo.engine.scheduling import CoreScheduling

FRONT: tuple[Flag, ...] = (
    Flag(
        name="host",
        kind=Kind.TEXT,
        default="127.0.0.1",
        help="Address to listen at; 0.0.0.0: all that this machine has.",
    ),
    Flag(name="port", kind=Kind.COUNT, default=8000, help="Port; 0: any that is free."),
    Flag(name="uds", kind=Kind.TEXT, help="Listen at this Unix socket instead."),
    Flag(
        name="root-path",
        kind=Kind.TEXT,
        default="",
        help="Path under which a proxy shows the server, such as /llm.",
    ),
    Flag(
        name="api-key",
        kind=Kind.TEXTS,
        help="A key that requests must bring; each is a tenant by itself. All routes but /health "
        "need one. Also from OCTAVO_API_KEY, so that it stays out of the list of processes.",
    ),
    Flag(name="api-key-file", kind=Kind.TEXT, help="YAML file of tenants and their keys."),
    Flag(
        name="admin-api-key",
        kind=Kind.TEXTS,
        help="A key for the administrator's routes, which are off without one. Also from "
        "OCTAVO_ADMIN_API_KEY.",
    ),
    Flag(
        name="share-prefix-cache",
        kind=Kind.SWITCH,
        default=False,
        help="Tenants share what is in memory. They can then tell, by the time an answer takes, "
        "what others have asked.",
    ),
    Flag(
        name="tenant-max-running",
        kind=Kind.COUNT,
        help="Answers to a tenant that the engine gives at once; more wait.",
    ),
    Flag(
        name="tenant-max-queued",
        kind=Kind.COUNT,
        help="Answers to a tenant that wait; more get 429.",
    ),
    Flag(
        name="tenant-tokens-per-minute",
        kind=Kind.COUNT,
        help="Tokens of prompts and answers of a tenant; beyond them, 429.",
    ),
    Flag(
        name="tenants",
        kind=Kind.JSON,
        help="Shares of the KV memory by tenant, beside those of the key file: "
        '\'{"a": {"guaranteed": 0.2, "maximum": 0.6}}\'.',
    ),
    Flag(
        name="open-metrics", kind=Kind.SWITCH, default=False, help="/metrics needs no key either."
    ),
    Flag(
        name="show-block-texts",
        kind=Kind.SWITCH,
        default=False,
        help="Whoever reaches a server without keys may read the texts in its memory.",
    ),
    Flag(
        name="disable-page",
        kind=Kind.SWITCH,
        default=False,
        help="No page at /: the memory is shown by /v1/debug/memory and `octavo top` alone.",
    ),
    Flag(
        name="open-page",
        kind=Kind.SWITCH,
        default=False,
        help="The page at / needs no key, so that a browser can open it and it can ask for one; "
        "what it shows needs keys as ever.",
    ),
    Flag(name="ssl-keyfile", kind=Kind.TEXT, help="Private key of the server's certificate."),
    Flag(name="ssl-certfile", kind=Kind.TEXT, help="The server's certificate; HTTPS from then on."),
    Flag(
        name="ssl-ca-certs", kind=Kind.TEXT, help="Certificates that clients are checked against."
    ),
    Flag(
        name="ssl-cert-reqs",
        kind=Kind.COUNT,
        default=0,
        help="Whether clients need a certificate: 0 no, 1 if they have one, 2 yes.",
    ),
    Flag(
        name="allowed-origins",
        kind=Kind.JSON,
        default=[],
        help="Web pages that may call the server: a JSON list of origins.",
    ),
    Flag(name="allowed-methods", kind=Kind.JSON, default=["*"], help="Their methods."),
    Flag(name="allowed-headers", kind=Kind.JSON, default=["*"], help="Their headers."),
    Flag(name="allow-credentials", kind=Kind.SWITCH, default=False, help="They may send cookies."),
    Flag(
        name="enable-request-id-headers",
        kind=Kind.SWITCH,
        default=True,
        help="Answers carry X-Request-Id: the request's, or a new one.",
    ),
    Flag(
        name="disable-fastapi-docs",
        kind=Kind.SWITCH,
        default=False,
        help="No /openapi.json; pages that show it there are none.",
    ),
    Flag(
        name="max-body-bytes",
        kind=Kind.COUNT,
        default=16 << 20,
        help="Longest body of a request, such as 16MiB.",
    ),
    Flag(name="max-n", kind=Kind.COUNT, default=128, help="Answers to one prompt."),
    Flag(name="max-stop", kind=Kind.COUNT, default=16, help="Stop strings of a request."),
    Flag(
        name="max-logit-bias",
        kind=Kind.COUNT,
        default=1024,
        help="Tokens of a request that are biased, allowed or banned.",
    ),
    Flag(
        name="header-timeout",
        kind=Kind.NUMBER,
        default=30.0,
        help="Seconds in which a request's headers must have come; 0: no limit.",
    ),
    Flag(
        name="body-timeout",
        kind=Kind.NUMBER,
        default=60.0,
        help="Seconds in which a request's whole body must have come after them; 0: no limit.",
    ),
    Flag(
        name="send-timeout",
        kind=Kind.NUMBER,
        default=60.0,
        help="Seconds after which a client that takes nothing of its answer is cut off; one that "
        "is slow is not; 0: no limit.",
    ),
    Flag(
        name="drain-timeout",
        kind=Kind.NUMBER,
        default=30.0,
        help="Seconds that requests may go on once the server is told to end.",
    ),
    Flag(
        name="core-timeout",
        kind=Kind.NUMBER,
        default=300.0,
        help="Seconds after which an engine that has work and says nothing is started again; "
        "0: never.",
    ),
    Flag(
        name="core-restart-limit",
        kind=Kind.COUNT,
        default=0,
        help="An engine that ends is started again so often, and then the server ends with status "
        "1; 0: always.",
    ),
    Flag(
        name="core-scheduling",
        kind=Kind.TEXT,
        default=CoreScheduling.BATCH.value,
        choices=tuple(word.value for word in CoreScheduling),
        help="batch: where all cores compute, what speaks HTTP goes ahead of the engine.",
    ),
    Flag(
        name="sse-keep-alive",
        kind=Kind.NUMBER,
        default=10.0,
        help="Seconds of silence after which a stream gets a comment.",
    ),
    only("middleware", Kind.TEXTS, reason="no code from outside runs in the server"),
    idle("api-server-count", Kind.COUNT, "one process speaks HTTP, another one computes"),
)

CHAT: tuple[Flag, ...] = (
    Flag(
        name="default-chat-template-kwargs",
        kind=Kind.JSON,
        default={},
        help="Variables of the model's chat template; a request's own go before.",
    ),
    Flag(name="response-role", kind=Kind.TEXT, default="assistant", help="Role of the answers."),
    Flag(
        name="chat-template-content-format",
        kind=Kind.TEXT,
        default="auto",
        choices=("auto", "string"),
        help="How the template gets a message's content: as one text.",
    ),
    Flag(
        name="chat-template",
        kind=Kind.TEXT,
        help="Another chat template: a file, a name among the model's own, or the template itself.",
    ),
    Flag(
        name="tool-call-parser",
        kind=Kind.TEXT,
        default="auto",
        choices=("auto", "none", "mistral", "llama3_json", "qwen3_coder", "qwen", "hermes"),
        help="How the model writes calls of tools; auto: as its template says.",
    ),
    Flag(
        name="reasoning-parser",
        kind=Kind.TEXT,
        default="auto",
        choices=("auto", "none", "mistral", "qwen3", "deepseek_r1"),
        help="How the model writes its reasoning; auto: as its template says.",
    ),
    idle("enable-auto-tool-choice", Kind.SWITCH, "the model may always choose"),
)

REPORTS: tuple[Flag, ...] = (
    only(
        "enable-prompt-tokens-details",
        Kind.SWITCH,
        True,
        reason="usage always says how many tokens of the prompt were in memory",
    ),
    Flag(
        name="enable-force-include-usage",
        kind=Kind.SWITCH,
        default=False,
        help="Streams end in their usage, whether asked to or not.",
    ),
    Flag(
        name="enable-log-requests",
        kind=Kind.SWITCH,
        default=False,
        help="Log prompts and options of requests.",
    ),
    Flag(name="enable-log-outputs", kind=Kind.SWITCH, default=False, help="Log answers."),
    Flag(name="max-log-len", kind=Kind.COUNT, help="Characters of a text that are logged."),
    Flag(
        name="disable-uvicorn-access-log",
        kind=Kind.SWITCH,
        default=False,
        help="No line in the log for each request.",
    ),
    Flag(
        name="disable-access-log-for-endpoints",
        kind=Kind.NAMES,
        default=(),
        help="No such line for these paths, separated by blanks or commas.",
    ),
    Flag(
        name="disable-log-stats",
        kind=Kind.SWITCH,
        default=False,
        help="No line in the log every ten seconds while there is work.",
    ),
    Flag(
        name="otlp-traces-endpoint",
        kind=Kind.TEXT,
        help="Where to send traces by OTLP over HTTP; needs octavo[otel].",
    ),
    Flag(
        name="vllm-metrics",
        kind=Kind.SWITCH,
        default=True,
        help="/metrics has vLLM's names beside ours.",
    ),
    Flag(
        name="custom-histogram-buckets",
        kind=Kind.JSON,
        default={},
        help="Bounds of histograms by family, as vLLM names them: "
        "'{\"time_to_first_token\": [0.1, 1, 10]}'.",
    ),
    idle("enable-per-request-metrics", Kind.SWITCH, "usage has them where a client can read them"),
    idle("show-hidden-metrics-for-version", Kind.TEXT, "no metrics are hidden"),
    idle("fingerprint-mode", Kind.TEXT, "system_fingerprint is of version, model and settings"),
)
