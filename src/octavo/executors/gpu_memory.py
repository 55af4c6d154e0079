"""The memory of a GPU as a sum, worked out before anything is loaded: plain numbers, no torch.

KV is what the card's share leaves beside what is in use already, weights, workspace and graphs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from octavo.config import EngineConfig
from octavo.contract.formats import FORMATS, ITEM_BYTES, find_formats
from octavo.contract.layout import ANY_LENGTH, KVLayout, kv_layout
from octavo.contract.model import ModelSpec

GIB = 2**30

UTILIZATION = 0.9
"""Share of a GPU that an engine uses unless a setting says otherwise: vLLM's."""

LIBRARY_BYTES = 256 << 20
"""What libraries keep once they have computed: 32 MiB of cuBLAS for each stream on Hopper, compiled
kernels, what torch's allocator loses to rounding. An estimate."""

SAMPLING_BYTES = 256 << 20
"""What a sampler on the device works out of logits at once."""

ATTENTION_PARTS = 4096
"""Parts of attention that are kept at once, besides two for each sequence."""

CONTEXT_BYTES = 512 << 20
"""What the driver takes of a card for one process, where no card is there to be asked."""

GRAPH_LAYER_BYTES = 512 << 10
"""What one captured graph takes for each layer, about ten kernels: 447 KiB on an H200."""

GRAPH_KINDS = 3
"""Graphs for each size: for texts of one chunk of keys each, of several, and with shared ones."""

FLASHINFER_BYTES = 128 << 20
"""What FlashInfer recommends for its partial results."""

SCORED_ROWS = 64
"""Rows of a prompt that are scored at once, where log-probabilities of prompts are asked for."""

_FULL = 4
_KEY_TILE, _QUERY_TILE, _PASS_PAIRS = 64, 16, 128


@dataclass(frozen=True, slots=True)
class Card:
    """The memory of one GPU."""

    name: str
    """Of the device: cuda:0, …."""
    total_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        """Bytes that are in use already: by others, by the driver, by this process."""
        return self.total_bytes - self.free_bytes


@dataclass(frozen=True, slots=True)
class Way:
    """How an executor computes, as far as its memory goes."""

    wide_rows: bool
    """Rows between two matrices may be in float32, whatever the weights are in."""
    gathers: bool
    """Attention copies the keys and values that it reads."""
    captures: bool
    """Decode steps are captured as graphs."""
    reads: tuple[str, ...]
    """Ways to store KV that it could be asked for."""
    library_bytes: int = 0
    """What a library of its own holds."""


GATHERING = Way(wide_rows=True, gathers=True, captures=False, reads=tuple(FORMATS))
"""The reference backend; others are taken to be no worse."""

FUSED = Way(wide_rows=False, gathers=False, captures=True, reads=tuple(ITEM_BYTES))
"""Kernels that read pages in place, and captured steps."""


def fused_dtype(stored: str) -> str:
    """Return the dtype in which `FUSED` holds weights if nobody says; stored: of the files.

    Matrices of low-bit files are expanded: twice the numbers fit, at many times the speed.
    """
    return "bfloat16" if stored == "float32" else stored


@dataclass(frozen=True, slots=True)
class Part:
    """One line of a sum."""

    name: str
    num_bytes: int


def captured_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Return the numbers of sequences whose decode step is captured, ascending.

    Others are padded to the next one: to a power of two up to 8, by at most 7 rows up to 128 and
    by at most an eighth beyond.
    """
    sizes = [1, 2, 4, 8]
    while sizes[-1] < max_num_seqs:
        last = sizes[-1]
        sizes.append(last + max(8, 1 << (last.bit_length() - 4)))
    return tuple(sorted({min(size, max_num_seqs) for size in sizes}))


def mixed_sizes(max_num_batched_tokens: int) -> tuple[int, ...]:
    """Return the row counts for which steps that compute prompts beside decoding are captured.

    Larger steps take a GPU longer than their kernels take to be started one by one.
    """
    sizes = (*range(32, 513, 32), *range(576, 1025, 64))
    return tuple(size for size in sizes if size <= max_num_batched_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What an executor will hold on a GPU, as far as settings and the model's shape tell."""

    config: EngineConfig
    spec: ModelSpec
    layout: KVLayout
    dtype: str
    """Of the weights."""
    weight_bytes: int
    way: Way = GATHERING

    @property
    def longest(self) -> int:
        """Longest text, in tokens."""
        return self.config.max_model_len or self.spec.context

    @property
    def least_blocks(self) -> int:
        """Blocks without which there is no use in starting.

        Room for one text of the length that was asked for; if none was, or if the size of KV was
        given, for one token and its answer.
        """
        config = self.config
        asked = config.max_model_len if config.kv_cache_memory_bytes is None else None
        return self.layout.peak_blocks(asked or 2, config.max_num_batched_tokens)

    @property
    def most_blocks(self) -> int:
        """Blocks of all sequences that may run at once, each at its longest."""
        config = self.config
        peak = self.layout.peak_blocks(self.longest, config.max_num_batched_tokens)
        return config.max_num_seqs * peak

    @property
    def sampled_rows(self) -> int:
        """Rows of a step whose logits are held at once."""
        rows = self.config.max_num_batched_tokens
        return min(rows, max(SCORED_ROWS, self.config.max_num_seqs))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of sequences for which graphs are captured."""
        config, dense = self.config, self.spec.experts is None
        captures = self.way.captures and dense and not config.enforce_eager
        return captured_sizes(config.max_num_seqs) if captures else ()

    @property
    def parts(self) -> int:
        """Parts of attention that fused kernels keep at once."""
        return ATTENTION_PARTS + 2 * self.config.max_num_seqs

    def workspace(self) -> tuple[Part, ...]:
        """List what the largest step holds beside weights and KV."""
        rows, seqs = self.config.max_num_batched_tokens, self.config.max_num_seqs
        tables = 2 * seqs * self.layout.peak_blocks(self.longest, rows) * _FULL
        return (
            *self._rows(rows),
            Part(f"logits of {self.sampled_rows:,} rows", self._logits(self.sampled_rows)),
            *self._attention(rows),
            Part("block tables", tables),
            Part("buffers of libraries", LIBRARY_BYTES + self.way.library_bytes),
        )

    def graphs(self) -> tuple[Part, ...]:
        """List what captured steps hold: nodes of each, and rows and logits that all share."""
        if not self.sizes:
            return ()
        mixed = mixed_sizes(self.config.max_num_batched_tokens)
        number = GRAPH_KINDS * (len(self.sizes) + len(mixed))
        most, rows = self.sizes[-1], max(self.sizes[-1], *mixed, 0)
        numbers = most * (self.spec.hidden_size + self.spec.vocab_size)
        return (
            Part(
                f"{number} graphs, of up to {rows:,} rows",
                number * self.spec.num_layers * GRAPH_LAYER_BYTES,
            ),
            Part("their states and logits", numbers * ITEM_BYTES[self.dtype]),
            Part("rows that they share", total(self._rows(rows))),
        )

    def changed(self, **settings: Any) -> Demand:  # settings of any type
        """Return the demand with other settings. Raises ConfigError for one that cannot be."""
        config = replace(self.config, **settings)
        dtype = self.dtype if config.dtype == "auto" else config.dtype
        stored: str | None = None
        if "kv_cache_dtype" in settings:
            stored = config.kv_cache_dtype
        elif config.kv_cache_dtype == "auto" and dtype != self.dtype:
            stored = dtype  # KV is stored as weights are, if nobody says
        layout = self.layout
        if stored is not None:
            formats = find_formats(stored)
            layout = kv_layout(self.spec, block_size=config.block_size, dtype=formats)
        weights = self.weight_bytes * ITEM_BYTES[dtype] // ITEM_BYTES[self.dtype]
        return replace(self, config=config, dtype=dtype, layout=layout, weight_bytes=weights)

    @property
    def _item(self) -> int:
        """Bytes of a number between two matrices."""
        return _FULL if self.way.wide_rows else ITEM_BYTES[self.dtype]

    def _rows(self, rows: int) -> tuple[Part, ...]:
        spec, item = self.spec, self._item
        heads = spec.num_heads * spec.head_dim
        inner, routed = spec.intermediate_size, 0
        if spec.experts is not None:
            inner = spec.experts.intermediate_size * spec.experts.per_token
            routed = 2 * spec.hidden_size * spec.experts.per_token
        keys = 2 * spec.num_kv_heads * spec.head_dim
        return (
            # The residual, its norm, and what a layer adds.
            Part(f"{rows:,} rows between layers", rows * 3 * spec.hidden_size * item),
            Part("their queries, keys, values", rows * (heads + keys) * item),
            Part("what attention gives", rows * heads * item),
            Part("gate, up and their product", rows * (3 * inner + routed) * item),
        )

    def _logits(self, rows: int) -> int:
        """Once in the dtype of the weights, once in float32."""
        return rows * self.spec.vocab_size * (ITEM_BYTES[self.dtype] + _FULL)

    def _attention(self, rows: int) -> tuple[Part, ...]:
        """List what attention and sampling hold, each in its way."""
        spec = self.spec
        if not self.way.gathers:
            partial = self.parts * spec.num_heads * (spec.head_dim + 1) * _FULL
            kinds = 1 if spec.local_rope_theta is None else 2
            return (
                Part("attention's partial results", partial),
                Part("turns of all positions", kinds * self.longest * spec.head_dim * _FULL),
                Part("sampling", SAMPLING_BYTES),
            )
        spans = -(-self.longest // _KEY_TILE)
        tiles = min(rows, -(-rows // _QUERY_TILE) + self.config.max_num_seqs)
        # The places of all keys of a step, then the keys and values of one pass in float32.
        places = tiles * spans * _KEY_TILE * (spec.num_kv_heads * 8 + _QUERY_TILE)
        vectors = 2 * _KEY_TILE * spec.num_kv_heads * spec.head_dim * _FULL
        gathered = places + max(_PASS_PAIRS, spans) * vectors
        return (Part("keys and values gathered", gathered),)


def total(parts: Iterable[Part]) -> int:
    """Add parts up, in bytes."""
    return sum(part.num_bytes for part in parts)


@dataclass(frozen=True, slots=True)
class GpuPlan:
    """What goes where on one GPU."""

    card: Card
    demand: Demand

    @property
    def utilization(self) -> float:
        """Share of the card that may be used, by whomever."""
        asked = self.demand.config.gpu_memory_utilization
        return UTILIZATION if asked is None else asked

    @property
    def budget_bytes(self) -> int:
        """That share in bytes."""
        return int(self.utilization * self.card.total_bytes)

    @property
    def fixed_bytes(self) -> int:
        """Bytes of weights, workspace and graphs."""
        demand = self.demand
        return demand.weight_bytes + total(demand.workspace()) + total(demand.graphs())

    @property
    def left_bytes(self) -> int:
        """Bytes that are left for KV; negative: so many are missing.

        Of the budget; or, if the size of KV was given, of all that is free.
        """
        if self.demand.config.kv_cache_memory_bytes is not None:
            return self.card.free_bytes - self.fixed_bytes
        return self.budget_bytes - self.card.used_bytes - self.fixed_bytes

    @property
    def num_blocks(self) -> int:
        """Blocks of KV: what was given, or all that is left; at most what all sequences need."""
        demand = self.demand
        given = demand.config.kv_cache_memory_bytes
        if given is not None:
            return demand.layout.blocks_in(given)
        return min(demand.layout.blocks_in(max(0, self.left_bytes)), demand.most_blocks)

    @property
    def kv_bytes(self) -> int:
        """Bytes of these blocks."""
        return self.num_blocks * self.demand.layout.block_bytes

    @property
    def fits(self) -> bool:
        """True if an engine can start so."""
        wanted = max(self.kv_bytes, self.demand.config.kv_cache_memory_bytes or 0)
        return wanted <= self.left_bytes and self.num_blocks >= self.demand.least_blocks

    def show(self) -> list[str]:
        """Write the sum for people, a line for each part."""
        demand, card = self.demand, self.card
        workspace, graphs = demand.workspace(), demand.graphs()
        given = demand.config.kv_cache_memory_bytes is not None
        lines = [
            (f"{self.utilization:g} of {gib(card.total_bytes)} GiB", self.budget_bytes),
            ("- in use already", card.used_bytes),
            (f"- weights in {demand.dtype}", demand.weight_bytes),
            ("- workspace", total(workspace)),
            *((f"    {part.name}", part.num_bytes) for part in workspace),
            ("- graphs", total(graphs)),
            *((f"    {part.name}", part.num_bytes) for part in graphs),
            (f"= KV in {demand.layout.dtype}", self.kv_bytes),
        ]
        if given:
            lines[0] = (f"{gib(card.total_bytes)} GiB", card.total_bytes)
        width = max(len(name) for name, _ in lines)
        written = [f"  {name:<{width}}  {gib(size):>8} GiB" for name, size in lines]
        written.append(f"    {self._holds()}")
        spare = self.left_bytes - self.kv_bytes
        if spare >= demand.layout.block_bytes:
            written.append(f"    {gib(spare)} GiB stay free{'' if given else _MORE}")
        return [f"memory of {card.name}:", *written]

    def _holds(self) -> str:
        """Say what the KV memory has room for."""
        demand, step = self.demand, self.demand.config.max_num_batched_tokens
        layout = demand.layout
        tokens = layout.capacity_tokens(self.num_blocks, step)
        first = layout.peak_blocks(demand.longest, step)
        many = max(0, (self.num_blocks - first) // layout.peak_blocks(demand.longest, 1) + 1)
        room = "any length" if tokens >= ANY_LENGTH else f"{tokens:,} tokens"
        if many:
            texts = "1 text" if many == 1 else f"{many:,} texts"
            return f"room for {room}: {texts} of {demand.longest:,}, the longest there are"
        return f"room for {room}, less than one text of {demand.longest:,}: longer ones are refused"


_MORE = ": all sequences have room; --kv-cache-memory-bytes gives the cache of prefixes more"


def gib(size: int) -> str:
    """Write bytes in GiB."""
    return f"{size / GIB:,.2f}"
