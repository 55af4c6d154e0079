"""An engine in a process of its own: how it is told its settings, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import msgspec

from octavo.build import build_engine
from octavo.config import EngineConfig
from octavo.contract.structured import StructuredOutputs
from octavo.engine.messages import CoreFacts, CoreSpec, Setting

if TYPE_CHECKING:
    from octavo.build import Built
    from octavo.engine.loop import Loop


def core_spec(config: EngineConfig) -> CoreSpec:
    """Return how a process builds the engine of these settings."""
    return CoreSpec("octavo.cli.core:build_core", msgspec.msgpack.encode(asdict(config)))


def build_core(settings: bytes, report: Callable[[str], None]) -> tuple[Loop, CoreFacts]:
    """Build an engine without text. Raises ConfigError, ModelError or FetchError.

    settings: as in `core_spec`. report: told in words what takes long.
    """
    config = EngineConfig(**msgspec.msgpack.decode(settings, type=dict[str, Setting]))  # pyright: ignore[reportArgumentType]
    built = build_engine(config, report=report, text=False)
    # Any form: the vocabulary is read while weights are packed. Read with the first form of a
    # request, it would keep everybody's steps waiting for some tenths of a second.
    built.engine.loop.grammars.begin(StructuredOutputs(choice=("a",)))
    return built.engine.loop, _facts(built, config)


def _facts(built: Built, config: EngineConfig) -> CoreFacts:
    return CoreFacts(
        namespace=built.namespace,
        vocab_size=built.spec.vocab_size,
        max_model_len=built.max_model_len,
        longest_text=built.longest_text,
        num_blocks=built.num_blocks,
        block_sizes=built.layout.block_sizes,
        windows=built.layout.windows,
        block_bytes=built.layout.block_bytes,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        long_prefill_token_threshold=built.long_prefill_tokens,
        dtype=config.dtype,
        kv_dtype=built.layout.dtype,
        backend=built.backend,
        device=built.device,
        pooling=built.pooling or "",
        settings=asdict(config),
    )
