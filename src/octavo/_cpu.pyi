"""Native kernels for the CPU; bound in csrc/bindings.cpp.

Arrays are C-contiguous and never converted: TypeError for another dtype or number of dimensions,
ValueError for another shape or order. `isa` names an instruction set instead of the fastest; an
unknown one is a ValueError. `pool`: None computes on the calling thread.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

def isa() -> str:
    """Name the instruction set in use: avx512, avx2 or plain."""

def available_isas() -> list[str]:
    """Name what this machine can run, the fastest first."""

def read_strings(data: Any, position: int, count: int) -> tuple[list[str], int]:
    """Read strings that each follow their length in 8 bytes; return them and the end.

    data: a buffer of bytes. ValueError if one passes the end of `data` or is not UTF-8.
    """

def skip_strings(data: Any, position: int, count: int) -> int:
    """Return where the strings of `read_strings` end; they may hold anything."""

class ThreadPool:
    """Threads that compute together; the caller is the first. RuntimeError if used at once."""

    def __init__(self, threads: int) -> None: ...
    @property
    def size(self) -> int: ...
    def wake(self) -> None:
        """Let parked threads spin for a moment: work is about to come."""

class PackedMatrix:
    """A matrix [out, in] in the order in which the kernels read it."""

    @property
    def format(self) -> str: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def nbytes(self) -> int: ...
    def unpack(self) -> NDArray[np.float32]:
        """Return all weights."""

def pack(
    parts: list[tuple[int, NDArray[np.uint8]]],
    in_features: int,
    *,
    format: str | None = None,
    paired: bool = False,
    pool: ThreadPool | None = None,
) -> PackedMatrix:
    """Pack matrices, each given as its GGUF type and its bytes [out, row bytes].

    format: q4, q8, bf16 or f32; None chooses what holds the parts. paired: 32 rows of the first,
    32 of the second, and so on, instead of one after the other.
    """

def quantize_rows(
    values: NDArray[np.float32], *, isa: str | None = None
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]:
    """Return codes [rows, in], and scales, sums and offsets [rows, in / 32]."""

def linear(
    matrix: PackedMatrix,
    values: NDArray[np.float32],
    *,
    pool: ThreadPool | None = None,
    isa: str | None = None,
) -> NDArray[np.float32]:
    """Multiply rows [rows, in] with a matrix, in the arithmetic of its format; [rows, out]."""

class KvPages:
    """The keys and values of one layer, in blocks. What was not written is not a number."""

    def __init__(
        self, blocks: int, *, block_tokens: int, kv_heads: int, dim: int, format: str
    ) -> None: ...
    def write(
        self,
        slots: NDArray[np.int64],
        keys: NDArray[np.float32],
        values: NDArray[np.float32],
        *,
        isa: str | None = None,
    ) -> None:
        """Write tokens' keys and values [tokens, kv_heads, dim].

        slots: for each token its block * block_tokens + its place in the block.
        """

def attention(
    pages: KvPages,
    queries: NDArray[np.float32],
    sequences: list[tuple[int, int, NDArray[np.int32]]],
    *,
    scale: float,
    window: int = 0,
    pool: ThreadPool | None = None,
    isa: str | None = None,
) -> NDArray[np.float32]:
    """Attend with queries [tokens, heads, dim] of all sequences; returns the same shape.

    sequences: for each its new tokens, the position of the first of them, and its block table.
    window: positions that a query sees, its own included; 0 is all.
    """

class Model:
    """A decoder that is being described; becomes part of an `Engine`. See `ModelSpec`."""

    def __init__(
        self,
        *,
        vocab: int,
        hidden: int,
        intermediate: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        norm_eps: float,
        embedding_scale: float,
        gelu: bool,
        experts: int,
        experts_per_token: int,
        normalized_experts: bool,
    ) -> None: ...
    def set_ends(
        self, embedding: PackedMatrix, norm: NDArray[np.float32], output: PackedMatrix
    ) -> None: ...
    def add_frequencies(self, frequencies: NDArray[np.float32], scale: float) -> None:
        """Add a set of rotary frequencies [head_dim / 2]; at most two."""

    def add_layer(
        self, parts: dict[str, Any], *, rotary: int, group: int, index_in_group: int
    ) -> None:
        """Add the next layer.

        parts: attn_norm, qkv, o, ffn_norm and feed_forward, a list of (gate_up, down); and, where
        a model has them, qkv_bias, q_norm, k_norm, attn_post_norm, ffn_post_norm and router.
        """

class Engine:
    """A decoder with its KV memory. Takes the model: it can be used once."""

    def __init__(
        self,
        model: Model,
        *,
        groups: list[tuple[int, int, int]],
        blocks: int,
        page_format: str,
        pool: ThreadPool,
        isa: str | None = None,
    ) -> None:
        """groups: tokens per block, window (0: none) and pages per block of each KV group."""

    @property
    def block_bytes(self) -> int: ...
    def run(
        self,
        ids: NDArray[np.int32],
        positions: NDArray[np.int32],
        starts: NDArray[np.int32],
        lengths: NDArray[np.int32],
        groups: list[
            tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]
        ],
        sample_rows: NDArray[np.int32],
    ) -> None:
        """Compute a step: write the KV of all rows, keep the last states of the sampled ones.

        groups: tables, where each slice's table starts, the block and the slot of each token.
        """

    def score(self, first: int, logits: NDArray[np.float32]) -> None:
        """Write the logits after some sampled rows of the last step: [count, vocab]."""

    def copy(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """Copy whole blocks, in order."""
