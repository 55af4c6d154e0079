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
    """Threads that compute together; the caller is the first. RuntimeError if used at once.

    give_way_s: for so long after a piece of work begins, they let others have their cores.
    """

    def __init__(self, threads: int, give_way_s: float = 0.0) -> None: ...
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

    format: q4, q8, q4s, q5s, q6s, q8s, bf16, f16 or f32 (see csrc/pack.h); None chooses the
    smallest that holds all parts exactly. paired: 32 rows of the first, 32 of the second, and so
    on, instead of one after the other.
    """

class Packer:
    """Packs many matrices at once, and gives back what it has read of files."""

    def __init__(self, pool: ThreadPool) -> None: ...
    def add(
        self,
        parts: list[tuple[int, NDArray[np.uint8], bool]],
        in_features: int,
        *,
        format: str | None = None,
        paired: bool = False,
    ) -> PackedMatrix:
        """Return a matrix that `run` fills; arguments are those of `pack`.

        The third of each part: its bytes are a view of a mapped file, not memory.
        """
    def run(self) -> None:
        """Pack what was added; other Python threads go on meanwhile."""
    def stop(self) -> None:
        """Let `run`, in whichever thread, leave out the rest and return soon."""

def packed_bytes(types: list[int], out: int, in_features: int, *, format: str | None = None) -> int:
    """Count the bytes of the matrix that `pack` makes of parts of these GGUF types."""

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
    def touch_ahead(self, bytes: int) -> None:
        """From now on, make so much memory behind the blocks in use ready before it is written."""

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

    def write_states(self, first: int, rows: NDArray[np.float32]) -> None:
        """Write the last states of some sampled rows of the last step: [count, hidden].

        Before the last norm; hidden is filled up to a whole group.
        """

    def find_likeliest(
        self, first: int, count: int, of_row: NDArray[np.int32], masks: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64], NDArray[np.int32]]:
        """Return the likeliest token after each of some sampled rows, and its log-probability.

        of_row: [count]: which of the masks says what may come after a row, or -1: all may. masks:
        [masks, ceil(vocab / 32)]: a bit for each token, lowest first; 0 bans it.
        Of equally likely tokens the lowest id; -1 if none may come. The log-probability is that
        before the mask. Last: how many logits of each row are not finite; where there are any, the
        other numbers mean nothing.
        """

    def copy(self, sources: NDArray[np.int32], targets: NDArray[np.int32]) -> None:
        """Copy whole blocks, in order."""

class Sampler:
    """Chooses tokens from logits, with every option, on the threads of a pool."""

    def __init__(self, vocab: int, *, pool: ThreadPool, isa: str | None = None) -> None: ...
    def sample(
        self,
        logits: NDArray[np.float32],
        whole: NDArray[np.int64],
        real: NDArray[np.float64],
        ends: NDArray[np.int64],
        ids: NDArray[np.int32],
        values: NDArray[np.float64],
        masks: NDArray[np.int32],
    ) -> tuple[NDArray[Any], ...]:
        """Answer samples, each from one row of logits [rows, vocab].

        whole: [samples, 9]: the row; the position and the seed (its 64 bits) of the draw; top_k;
        how many likeliest tokens to name; 1 if the token's rank is wanted; how many candidates to
        find instead of a token, or 0; a token that is given, or -1; its row of masks, or -1.
        real: [samples, 6]: temperature; top_p; min_p; repetition, frequency and presence penalty.
        ends: [samples, 5]: where the lists of each sample end in ids and values, one list after
        the other: allowed tokens (none: all); banned ones; those with a bias, and it; those of
        prompt and output, each once; those of the output, each once, and how often. The last two
        may be empty if no penalty looks at them.
        masks: [rows, ceil(vocab / 32)]: a bit for each token, lowest first; 0 bans it.

        Returns, for each sample: the token, -1 if none is left; its log-probability before any
        option; how many logits of its row are not finite (then the rest means nothing); its rank;
        how many tokens were named or found; where these begin in the last two, their ids and
        log-probabilities, best first.
        """

def formats() -> list[str]:
    """Name the formats of `pack`."""

def read_memory(data: NDArray[np.uint8], *, pool: ThreadPool, isa: str | None = None) -> int:
    """Read whole megabytes once, as fast as threads can; returns the sum of words of 8 bytes."""

def calculate(arithmetic: str, chunks: int, *, pool: ThreadPool, isa: str | None = None) -> float:
    """Multiply and add in registers alone; returns the number of operations.

    arithmetic: integers (dot products of codes), bf16 or float32. chunks: of some ten thousand
    instructions each, spread over the threads.
    """

class LinearLoad:
    """Linear layers over weights that mean nothing: what is timed is how long they take."""

    def __init__(
        self,
        format: str,
        shapes: list[tuple[int, int]],
        *,
        copies: int,
        most_rows: int,
        pool: ThreadPool,
    ) -> None:
        """shapes: (out, in) of the matrices of one copy; a run goes through all copies."""

    @property
    def arithmetic(self) -> str:
        """What `calculate` calls the arithmetic of the format."""

    @property
    def nbytes(self) -> int:
        """Of the weights of all copies."""

    @property
    def weights(self) -> float:
        """Their number."""

    def run(self, rows: int, *, isa: str | None = None) -> None: ...

class AttentionLoad:
    """Attention of one step over bf16 pages that mean nothing."""

    def __init__(
        self,
        sequences: list[tuple[int, int, NDArray[np.int32]]],
        *,
        shape: tuple[int, int, int, int],
        blocks: int,
        layers: int,
        copies: int,
        pool: ThreadPool,
    ) -> None:
        """Take sequences as `attention` does; a run goes through all layers of all copies.

        shape: heads, KV heads, head dim, tokens of a block. A block holds a page of each layer.
        """

    def run(self, *, isa: str | None = None) -> None: ...
