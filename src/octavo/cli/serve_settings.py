"""From the flags of `octavo serve` to settings of the engine, of the server and of its tenants."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from octavo.cli.serve_table import Options
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.executors.select import gpu_may_be_there
from octavo.server.key_file import read_key_file
from octavo.server.keys import KeyHolder, KeyTable, holders_of_flags
from octavo.server.listen import Tls
from octavo.server.settings import ConnectionTimes, CorsSettings, RequestBounds, ServerSettings
from octavo.server.tenants import ANYBODY, SHARED, Tenant, TenantLimits
from octavo.tenants import read_tenants, write_tenants

_ENGINE = tuple(field.name for field in fields(EngineConfig))
_STATS_EVERY_S = 10.0
_SECRET = ("api-key", "admin-api-key")


def engine_config(options: Options, tenants: Iterable[Tenant]) -> tuple[EngineConfig, list[str]]:
    """Return the engine's settings, and which flags mean nothing on this machine.

    Raises ConfigError.
    """
    given: dict[str, Any] = {}
    for name in _ENGINE:
        flag = name.replace("_", "-")
        if flag in options.values and flag != "tenants":
            given[name] = options.values[flag]
    given["num_gpu_blocks_override"] = _blocks(options)
    notes: list[str] = []
    if not _may_use_gpu(given):
        for name, instead in (
            ("gpu_memory_utilization", ": give --kv-cache-memory-bytes"),
            ("enforce_eager", ""),
        ):
            if given.pop(name):
                flag = name.replace("_", "-")
                notes.append(f"--{flag} has no effect: there is no GPU here{instead}")
    return EngineConfig(**given, tenants=_shares(tenants)), notes


def _blocks(options: Options) -> int | None:
    """Return how many KV blocks were asked for; SGLang counts tokens."""
    blocks, tokens = (
        options.open_count("num-gpu-blocks-override"),
        options.open_count("max-total-tokens"),
    )
    if tokens is None:
        return blocks
    if blocks is not None:
        raise ConfigError(
            f"--max-total-tokens {tokens} and --num-gpu-blocks-override {blocks} are the same "
            "setting: give one of them"
        )
    if tokens < 1:
        raise ConfigError(f"--max-total-tokens must be at least 1, got {tokens}")
    return -(-tokens // max(1, options.count("block-size")))


def _may_use_gpu(given: dict[str, Any]) -> bool:
    if given["backend"] == "cpu" or str(given["device"]).startswith("cpu"):
        return False
    return given["device"] != "auto" or gpu_may_be_there()


def _shares(tenants: Iterable[Tenant]) -> dict[str, dict[str, float]] | None:
    """Name all tenants to the engine, which knows no others."""
    shares = {
        tenant.name: {"guaranteed": tenant.guaranteed, "maximum": tenant.maximum}
        for tenant in tenants
    }
    return None if list(shares) == [ANYBODY.name] and _plain(shares) else shares


def _plain(shares: dict[str, dict[str, float]]) -> bool:
    return all(share == {"guaranteed": 0.0, "maximum": 1.0} for share in shares.values())


def key_table(options: Options) -> KeyTable:
    """Return who may send requests. Raises ConfigError."""
    limits = TenantLimits(
        max_running=options.open_count("tenant-max-running"),
        max_queued=options.open_count("tenant-max-queued"),
        tokens_per_minute=options.open_count("tenant-tokens-per-minute"),
    )
    like = Tenant(
        name=ANYBODY.name,
        namespace=SHARED if options.switch("share-prefix-cache") else None,
        limits=limits,
    )
    path = options.open_text("api-key-file")
    holders = [] if path is None else read_key_file(Path(path), like)
    holders += holders_of_flags(
        options.texts("api-key"), {holder.tenant.name: holder.tenant for holder in holders}, like
    )
    # Without keys there is one tenant, who shares with nobody in any case.
    anybody = replace(like, namespace=SHARED)
    if options.values["tenants"] is not None:
        holders, anybody = _with_shares(options, holders, anybody)
    return KeyTable(holders, options.texts("admin-api-key"), anybody=anybody)


def _with_shares(
    options: Options, holders: list[KeyHolder], anybody: Tenant
) -> tuple[list[KeyHolder], Tenant]:
    """Give tenants the shares that --tenants names."""
    shares = {one.name: one for one in read_tenants(write_tenants(options.mapping("tenants")))}
    known = [holder.tenant.name for holder in holders] or [anybody.name]
    for name in shares:
        if name not in known:
            raise ConfigError(
                f"--tenants names {name!r}, who has no key; tenants are: {', '.join(known)}"
            )

    def give(tenant: Tenant) -> Tenant:
        share = shares.get(tenant.name)
        if share is None:
            return tenant
        return replace(tenant, guaranteed=share.guaranteed, maximum=share.maximum)

    given = [KeyHolder(give(holder.tenant), holder.keys) for holder in holders]
    return given, give(anybody)


def server_settings(options: Options) -> ServerSettings:
    """Return the server's settings. Raises ConfigError."""
    quiet = options.texts("disable-access-log-for-endpoints")
    return ServerSettings(
        bounds=RequestBounds(
            max_body_bytes=options.count("max-body-bytes"),
            max_n=options.count("max-n"),
            max_stop=options.count("max-stop"),
            max_logit_bias=options.count("max-logit-bias"),
        ),
        times=ConnectionTimes(
            header_s=options.number("header-timeout"),
            body_s=options.number("body-timeout"),
            send_s=options.number("send-timeout"),
        ),
        max_queued_requests=options.count("max-queued-requests"),
        prefix_caching=options.switch("enable-prefix-caching"),
        force_usage=options.switch("enable-force-include-usage"),
        stream_interval=options.count("stream-interval"),
        keep_alive_s=options.number("sse-keep-alive"),
        drain_timeout_s=options.number("drain-timeout"),
        core_timeout_s=options.number("core-timeout"),
        log_requests=options.switch("enable-log-requests"),
        log_outputs=options.switch("enable-log-outputs"),
        log_chars=options.open_count("max-log-len"),
        log_access=not options.switch("disable-uvicorn-access-log"),
        quiet_paths=frozenset(path for one in quiet for path in one.split(",") if path),
        stats_every_s=0.0 if options.switch("disable-log-stats") else _STATS_EVERY_S,
        request_id_headers=options.switch("enable-request-id-headers"),
        open_metrics=options.switch("open-metrics"),
        show_block_texts=options.switch("show-block-texts"),
        page=not options.switch("disable-page"),
        open_page=options.switch("open-page"),
        document=not options.switch("disable-fastapi-docs"),
        cors=_cors(options),
        tool_call_parser=options.text("tool-call-parser"),
        reasoning_parser=options.text("reasoning-parser"),
        chat_variables=options.mapping("default-chat-template-kwargs"),
        response_role=options.text("response-role"),
    )


def _cors(options: Options) -> CorsSettings | None:
    origins = options.names("allowed-origins")
    if not origins:
        return None
    return CorsSettings(
        origins=tuple(origins),
        methods=tuple(options.names("allowed-methods")),
        headers=tuple(options.names("allowed-headers")),
        credentials=options.switch("allow-credentials"),
    )


def tls_of(options: Options) -> Tls | None:
    """Return how HTTPS is spoken; None: it is not. Raises ConfigError."""
    certfile = options.open_text("ssl-certfile")
    if certfile is None:
        for name in ("ssl-keyfile", "ssl-ca-certs"):
            if options.values[name] is not None:
                raise ConfigError(f"--{name} needs a certificate: give --ssl-certfile")
        return None
    return Tls(
        certfile=certfile,
        keyfile=options.open_text("ssl-keyfile"),
        ca_certs=options.open_text("ssl-ca-certs"),
        cert_reqs=options.count("ssl-cert-reqs"),
    )


def told_of(options: Options) -> dict[str, object]:
    """Return what administrators are told of the flags; of keys, only that there are some."""
    flags = {
        f"--{name}": "(given)" if name in _SECRET else options.values[name]
        for name in sorted(options.given)
    }
    return {"flags": flags, "ignored": dict(options.ignored)}
