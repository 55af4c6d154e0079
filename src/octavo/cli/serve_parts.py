"""The parts of a server that runs: its model's names and text, its gate, what it counts."""

from __future__ import annotations

import json
import logging
import time
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

from octavo import __version__
from octavo.build import open_tokenizer
from octavo.cli.generation import generation_defaults
from octavo.cli.serve_settings import told_of
from octavo.errors import ConfigError
from octavo.models.catalog import CATALOG, DEFAULT_ALIAS
from octavo.models.checkpoint import Checkpoint, open_checkpoint
from octavo.server.limits import TenantGate
from octavo.server.listen import address_of, is_local
from octavo.server.metrics.requests import RequestMeters
from octavo.server.metrics.values import MetricsSettings, read_bounds
from octavo.server.parts import Parts, ServedModel
from octavo.server.traces import open_traces
from octavo.text.grammars.table import GRAMMAR_BACKENDS

if TYPE_CHECKING:
    from octavo.cli.serve import Plan
    from octavo.cli.serve_table import Options
    from octavo.server.core import CoreClient
    from octavo.text.tokenizer import Tokenizer

LOG = logging.getLogger("octavo.serve")
_FINGERPRINT_BYTES = 4
_MAX_PATH = 4096
"""Characters; what is longer is no path, and asking for it is an error."""


def metrics_settings(options: Options) -> MetricsSettings:
    """Return what /metrics tells. Raises ConfigError."""
    return MetricsSettings(
        vllm_names=options.switch("vllm-metrics"),
        bounds=read_bounds(json.dumps(options.mapping("custom-histogram-buckets"))),
    )


def parts_of(plan: Plan, core: CoreClient, path: Path | None) -> Parts:
    """Return the parts of a server. path: of the model; None: a shape, which has no text.

    Raises ConfigError or ModelError.
    """
    options, settings = plan.options, plan.settings
    endpoint = options.open_text("otlp-traces-endpoint")
    model = _served_model(plan, path)
    most = plan.config.max_num_seqs + settings.max_queued_requests
    return Parts(
        core=core,
        model=model,
        settings=settings,
        keys=plan.keys,
        gate=TenantGate(most, retry_after_s=settings.retry_after_s),
        meters=RequestMeters(plan.metrics),
        traces=None if endpoint is None else open_traces(endpoint, model.name),
        about=told_of(options),
    )


def say_ready(plan: Plan, parts: Parts) -> None:
    """Say where the server is and what it holds."""
    facts, place = parts.core.facts, plan.place
    tokens = ""
    if len(facts.block_sizes) == 1:
        tokens = f", {facts.num_blocks * facts.block_sizes[0]} tokens"
    LOG.info(
        "%s serves %s on %s (%s): %d KV blocks%s, texts of up to %d tokens",
        address_of(place.socket, tls=place.tls is not None) + place.root_path,
        parts.model.name,
        facts.device,
        facts.backend,
        facts.num_blocks,
        tokens,
        facts.longest_text,
    )
    if parts.keys.tenant(None) is not None and not is_local(place.socket):
        LOG.warning(
            "whoever reaches this address may send requests: give --api-key, or listen at 127.0.0.1"
        )


def _served_model(plan: Plan, path: Path | None) -> ServedModel:
    options, config = plan.options, plan.config
    if path is None:
        checkpoint, root = None, config.shape or ""
    else:
        checkpoint, root = _opened(path, dummy=config.load_format == "dummy"), path.name
    named = plan.asked or (DEFAULT_ALIAS if config.shape is None else root)
    names = options.texts("served-model-name") or (_name_of(named),)
    return ServedModel(
        names=names,
        root=root,
        tokenizer=templated(
            options.open_text("chat-template"),
            _tokenizer(options.open_text("tokenizer"), checkpoint),
        ),
        created_s=int(time.time()),
        defaults={}
        if path is None
        else generation_defaults(options.text("generation-config"), path),
        fingerprint=_fingerprint(plan, checkpoint, root),
    )


def _opened(path: Path, *, dummy: bool) -> Checkpoint:
    if dummy:
        from octavo.models.dummy import dummy_model

        return dummy_model(path)
    return open_checkpoint(path)


def _name_of(asked: str) -> str:
    """Return what a model is called: as it was asked for, but never by its path."""
    if asked in CATALOG or not Path(asked).exists():
        return asked
    return Path(asked).absolute().name


def _tokenizer(other: str | None, checkpoint: Checkpoint | None) -> Tokenizer | None:
    if other is not None:
        folder = Path(other)
        if folder.is_dir():
            from octavo.text.tokenizer import Tokenizer

            return Tokenizer.from_folder(folder)
        return open_tokenizer(open_checkpoint(folder))
    if checkpoint is None or checkpoint.tokenizer_source is None:
        return None
    return open_tokenizer(checkpoint)


def templated(given: str | None, tokenizer: Tokenizer | None) -> Tokenizer | None:
    """Return a tokenizer with the chat template that was given. Raises ConfigError."""
    if given is None or tokenizer is None:
        return tokenizer
    file = Path(given)
    if len(given) < _MAX_PATH and file.is_file():
        return tokenizer.with_template(file.read_text(encoding="utf-8"))
    source = tokenizer.template.named(given)
    if source is None and any(mark in given for mark in ("{{", "{%")):
        source = given
    if source is None:
        names = ", ".join(tokenizer.template.names) or "none"
        raise ConfigError(
            f"--chat-template {given!r:.80} is no file, no template, and none of the model's own "
            f"({names})"
        )
    return tokenizer.with_template(source)


def _version_of(library: str) -> str:
    """Return the version of a library that makes grammars: what it lets come may differ."""
    try:
        return version(library)
    except PackageNotFoundError:
        return ""


def _fingerprint(plan: Plan, checkpoint: Checkpoint | None, root: str) -> str:
    """Name all that changes the bits of an answer."""
    config = plan.config
    parts = (
        __version__,
        root if checkpoint is None else checkpoint.identity,
        config.dtype,
        config.kv_cache_dtype,
        config.backend,
        config.device,
        config.cpu_arithmetic,
        config.deterministic,
        config.structured_outputs_backend,
        *(_version_of(library) for library in GRAMMAR_BACKENDS),
    )
    digest = blake2b(repr(parts).encode(), digest_size=_FINGERPRINT_BYTES)
    return f"fp_{digest.hexdigest()}"
