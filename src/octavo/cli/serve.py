"""The command `octavo serve`: from flags to a server that runs."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import logging
import os
import tempfile
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from octavo.cli.flags import TableCommand
from octavo.cli.output import note
from octavo.cli.serve_table import GROUPS, Options, settle
from octavo.errors import ConfigError, OctavoError

if TYPE_CHECKING:
    import socket

    from octavo.config import EngineConfig
    from octavo.server.keys import KeyTable
    from octavo.server.lifecycle import Place
    from octavo.server.metrics.values import MetricsSettings
    from octavo.server.parts import Parts
    from octavo.server.settings import ServerSettings

_NEEDED = ("fastapi", "uvicorn", "uvloop", "httptools", "zmq", "prometheus_client", "yaml")
EXTRA = "pip install 'octavo[serve]'"
"""How to get it."""
_SHOW_APPLIED = "OCTAVO_SHOW_APPLIED"
"""Variable: streams tell when their steps were applied. For measuring."""
FAILED = 1
"""Exit status for what nobody foresaw."""
LOG = logging.getLogger("octavo.serve")


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is known of a server before anything of it is started."""

    options: Options
    config: EngineConfig
    settings: ServerSettings
    metrics: MetricsSettings
    keys: KeyTable
    restart_limit: int
    place: Place
    notes: tuple[str, ...]

    @property
    def asked(self) -> str | None:
        """The model as it was asked for."""
        return self.options.open_text("model")


def _serve(given: dict[str, Any]) -> int:
    options = settle(given, os.environ)
    _need_extra()
    from octavo.server.logs import set_up_log

    set_up_log()
    plan = _plan(options)
    for words in plan.notes:
        LOG.warning(words)
    try:
        return _run(plan)
    except Exception as error:
        trace = _trace_of(error)
        if not trace:
            raise
        note(f"octavo: error: the server has failed: {_words_of(error)}{_kept(trace)}")
        return FAILED
    finally:
        plan.place.socket.close()
        uds = options.open_text("uds")
        if uds is not None:
            Path(uds).unlink(missing_ok=True)


def _trace_of(error: Exception) -> str:
    """Return where something was raised; empty: on purpose, so that its words are enough."""
    if isinstance(error, OctavoError):
        return "\n".join(getattr(error, "__notes__", ()))
    return "".join(traceback.format_exception(error))


def _words_of(error: Exception) -> str:
    return str(error) if isinstance(error, OctavoError) else f"{type(error).__name__}: {error}"


def _kept(trace: str) -> str:
    """Write a trace into a file of its own; returns, in words, where it is."""
    try:
        handle, path = tempfile.mkstemp(prefix="octavo-serve-", suffix=".log")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(trace)
    except OSError as error:
        LOG.error(trace)
        return f"; where is in the log, since it cannot be written to a file: {error.strerror}"
    return f"; where is in {path}"


serve = TableCommand(
    "serve",
    "Answer requests over HTTP, with the API that clients of OpenAI's use.\n\n"
    "The model is MODEL, --model, or the embedded default. Flags are vLLM's where it has the same "
    "setting; several of SGLang's are understood.",
    GROUPS,
    _serve,
)


def missing_packages() -> list[str]:
    """Return what the command needs and is not installed here."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def _need_extra() -> None:
    missing = missing_packages()
    if missing:
        raise ConfigError(
            f"octavo serve needs what is not installed here ({', '.join(missing)}): {EXTRA}"
        )


def _plan(options: Options) -> Plan:
    """Check all that can be checked, and take the address. Raises ConfigError."""
    from octavo.cli.serve_parts import metrics_settings
    from octavo.cli.serve_settings import engine_config, key_table, server_settings, tls_of
    from octavo.server.lifecycle import Place
    from octavo.server.listen import allow_many_files

    keys = key_table(options)
    settings = replace(server_settings(options), tell_applied=bool(os.environ.get(_SHOW_APPLIED)))
    config, notes = engine_config(options, keys.tenants)
    tls = tls_of(options)
    root_path = _root_path(options)
    if not all(options.texts("served-model-name")):
        raise ConfigError("--served-model-name: a name must not be empty")
    allow_many_files()
    return Plan(
        options=options,
        config=config,
        settings=settings,
        metrics=metrics_settings(options),
        keys=keys,
        restart_limit=_restart_limit(options),
        place=Place(socket=_listen(options), tls=tls, root_path=root_path),
        notes=(*options.notes, *notes),
    )


def _root_path(options: Options) -> str:
    path = options.text("root-path")
    if path and (not path.startswith("/") or path.endswith("/")):
        raise ConfigError(f"--root-path {path} must begin with / and not end with it, as /llm")
    return path


def _listen(options: Options) -> socket.socket:
    from octavo.server.listen import listen, listen_at_path

    uds = options.open_text("uds")
    if uds is None:
        return listen(options.text("host"), options.count("port"))
    for name in ("host", "port"):
        if name in options.given:
            raise ConfigError(f"--uds and --{name} are two places: give one of them")
    return listen_at_path(uds)


def _run(plan: Plan) -> int:
    """Serve until the end; returns the exit status."""
    import uvloop

    from octavo.cli.core import core_spec
    from octavo.cli.serve_parts import parts_of
    from octavo.server.lifecycle import Ending
    from octavo.server.lifecycle import serve as serve_until_end
    from octavo.server.remote.client import ProcessCore

    config, path = _found(plan.config)

    async def live() -> int:
        ending = Ending()
        with ending.listening():
            core = ProcessCore(
                core_spec(config),
                report=LOG.info,
                timeout_s=plan.settings.core_timeout_s,
                restart_limit=plan.restart_limit,
                scheduling=plan.options.text("core-scheduling"),
            )
            return await serve_until_end(
                core,
                lambda: parts_of(plan, core, path),
                plan.place,
                ready=lambda parts: _ready(plan, parts),
                ending=ending,
            )

    return _run_on_uvloop(live, uvloop.new_event_loop)


def _restart_limit(options: Options) -> int:
    limit = options.count("core-restart-limit")
    if limit < 0:
        raise ConfigError(f"--core-restart-limit must be 0 or more, got {limit}")
    return limit


def _ready(plan: Plan, parts: Parts) -> None:
    from octavo.cli.serve_parts import say_ready

    # What is there now stays: to look through it again would hold up every stream.
    gc.collect()
    gc.freeze()
    say_ready(plan, parts)


def _run_on_uvloop(
    main: Callable[[], Coroutine[Any, Any, int]],
    make: Callable[[], asyncio.AbstractEventLoop],
) -> int:
    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(main())


def _found(config: EngineConfig) -> tuple[EngineConfig, Path | None]:
    """Fetch the model here, so that the engine's process finds it however often it is started.

    Returns its path too, None: a shape has none. Raises ModelError or FetchError.
    """
    if config.shape is not None:
        return config, None
    from octavo.build import resolve_model

    path = resolve_model(config.model, offline=config.offline, report=LOG.info)
    return replace(config, model=str(path), offline=True), path
