"""Flags of SGLang, and old ones of vLLM, as ours: they are read like any other and then renamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.cli.serve_flags import Flag, Kind, Value
from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Synonym:
    """A flag that is another one under this name."""

    flag: Flag
    target: str
    """Name of ours."""
    convert: Callable[[Value], Value] = lambda value: value
    """Makes its value ours. Raises ConfigError."""
    note: str = ""
    """What who gives it should know."""


_ORDERS = {"fcfs": "fcfs", "lpm": "longest_prefix", "dfs-weight": "depth_first"}


def _order(value: Value) -> Value:
    if not isinstance(value, str) or value not in _ORDERS:
        raise ConfigError(
            f"--schedule-policy {value} is not one of {', '.join(_ORDERS)}: give "
            "--scheduling-policy one of ours"
        )
    return _ORDERS[value]


def _grammars(value: Value) -> Value:
    return "llguidance" if value == "guidance" else value


def _invert(value: Value) -> Value:
    return not value


def _chunk(value: Value) -> Value:
    return 0 if value == -1 else value


def _of(
    name: str,
    target: str,
    kind: Kind = Kind.COUNT,
    convert: Callable[[Value], Value] = lambda value: value,
    note: str = "",
) -> Synonym:
    flag = Flag(name=name, kind=kind, help=f"SGLang's name of --{target}.")
    return Synonym(flag, target, convert, note)


SYNONYMS: tuple[Synonym, ...] = (
    Synonym(
        Flag(
            name="guided-decoding-backend",
            kind=Kind.TEXT,
            help="vLLM's old name of --structured-outputs-backend.",
        ),
        "structured-outputs-backend",
        _grammars,
    ),
    _of("grammar-backend", "structured-outputs-backend", Kind.TEXT, _grammars),
    Synonym(Flag(name="MODEL", kind=Kind.WORD, help="The model, as for --model."), "model"),
    _of("model-path", "model", Kind.TEXT),
    _of("tokenizer-path", "tokenizer", Kind.TEXT),
    _of("tp", "tensor-parallel-size"),
    _of("tp-size", "tensor-parallel-size"),
    _of("dp", "data-parallel-size"),
    _of("dp-size", "data-parallel-size"),
    _of("context-length", "max-model-len"),
    _of("max-running-requests", "max-num-seqs"),
    _of("page-size", "block-size"),
    _of("disable-radix-cache", "enable-prefix-caching", Kind.SWITCH, _invert),
    _of("radix-eviction-policy", "eviction-policy", Kind.TEXT),
    _of(
        "chunked-prefill-size",
        "long-prefill-token-threshold",
        convert=_chunk,
        note="here it bounds what a step computes of one long prompt; a whole step is "
        "--max-num-batched-tokens",
    ),
    _of("schedule-policy", "scheduling-policy", Kind.TEXT, _order),
    _of(
        "mem-fraction-static",
        "gpu-memory-utilization",
        Kind.NUMBER,
        note="there it covers weights and KV, here all that is used of the device",
    ),
)
"""The word without a flag is one too."""
