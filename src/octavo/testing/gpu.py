"""A hand before the GPU runner, on a GPU or, in Triton's interpreter, on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from octavo.attention.paged import PagedAttention, TritonAttention
from octavo.contract.batch import Batch
from octavo.contract.layout import kv_layout
from octavo.executors.gpu_memory import captured_sizes
from octavo.models.decoder import Decoder
from octavo.models.fused import FusedDecoder
from octavo.pages.arena import Arena
from octavo.runner.gpu_graphs import GraphSizes, StepGraphs
from octavo.runner.gpu_runner import GpuRunner, Newest
from octavo.runner.gpu_step import StepCutter
from octavo.runner.masks import Matchers
from octavo.testing.tiny import GARBAGE, Hand

_PARTS = 512
_ROWS = 16


def gpu_hand(
    decoder: Decoder,
    *,
    num_blocks: int = 64,
    block_size: int = 16,
    dtype: str = "float32",
    graphs: bool = False,
    exact: bool = False,
    attend: Callable[[TritonAttention], PagedAttention] | None = None,
    matchers: Matchers | None = None,
) -> Hand:
    """Put a decoder behind the GPU runner, and a hand before it; untouched memory reads as NaN.

    graphs: capture steps of decoding of up to 16 sequences, and steps of up to 32 rows, if the
    model allows it. attend: puts other attention before our kernels.
    """
    layout = kv_layout(decoder.spec, block_size=block_size, dtype=dtype)
    arena = Arena(layout, num_blocks, device=decoder.device)
    arena.raw.fill_(GARBAGE)
    newest = Newest(64, decoder.device)
    fused = FusedDecoder(decoder, positions=decoder.spec.context, newest=newest.tokens, exact=exact)
    single = TritonAttention(
        arena, num_heads=decoder.spec.num_heads, most_parts=_PARTS, most_entries=64
    )
    attention = single if attend is None else attend(single)
    cutter = StepCutter(layout, single.shapes, most_parts=_PARTS, exact=exact)
    captured = None
    if graphs and fused.capturable:
        blocks = tuple(_ROWS * -(-decoder.spec.context // size) for size in layout.block_sizes)
        sizes = GraphSizes(
            single=captured_sizes(_ROWS),
            mixed=(8, 32),
            parts=_PARTS,
            blocks=blocks,
            exact=exact,
        )
        captured = StepGraphs(fused, attention, layout, newest.chosen, sizes)
        captured.capture_all()
    hand: Hand

    def observe(batch: Batch, logits: Tensor) -> None:
        hand.observe(batch, logits)

    runner = GpuRunner(
        fused,
        arena,
        attention,
        cutter,
        newest,
        graphs=captured,
        matchers=matchers,
        on_logits=observe,
    )
    hand = Hand(runner, layout, list(range(num_blocks)))
    return hand
