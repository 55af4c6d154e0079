"""What the works of a GPU are compared with: another engine's figures, and the goals set on them.

They hold for one card and one shape, in bfloat16; on another card a comparison would say nothing.
"""

from __future__ import annotations

import msgspec

SHAPE = "llama-3.1-8b"
DTYPE = "bfloat16"
_CARD = "H200"

PEER = "vLLM 0.26.0"
SOURCE = (
    "measured by us on one NVIDIA H200 with the same requests and dummy weights: torch 2.11, "
    "FlashAttention 3, 256 sequences at most, prefix caching on, second of two runs"
)


class PeerFigure(msgspec.Struct, frozen=True, kw_only=True):
    """What another engine did with the same work."""

    seconds: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    engine: str = PEER
    source: str = SOURCE


class Goal(msgspec.Struct, frozen=True):
    """What we want to reach."""

    measure: str
    """seconds, output_tokens_per_s or total_tokens_per_s."""
    value: float

    @property
    def is_met_below(self) -> bool:
        """True if less is better."""
        return self.measure == "seconds"

    def met_by(self, value: float) -> bool:
        """Tell whether a measured value reaches it."""
        return value <= self.value if self.is_met_below else value >= self.value


class Comparison(msgspec.Struct, frozen=True):
    """How one work is judged."""

    peer: PeerFigure
    goal: Goal


class StartGoal(msgspec.Struct, frozen=True, kw_only=True):
    """How long an engine may take until it answers: from the start of its process, in seconds.

    The peer's figure begins when its engine is built, after its imports.
    """

    peer_s: float = 93.9
    warm_s: float = 20.0
    """With kernels that were compiled before."""
    cold_s: float = 60.0
    engine: str = PEER
    source: str = SOURCE

    def met_by(self, start_s: float) -> str:
        """Tell whether a start was quick enough: yes, no, or on what that depends."""
        if start_s <= self.warm_s:
            return "yes"
        return "yes, if kernels had to be compiled" if start_s <= self.cold_s else "no"


def _row(figures: tuple[float, float, float], measure: str, goal: float) -> Comparison:
    seconds, output, total = figures
    peer = PeerFigure(seconds=seconds, output_tokens_per_s=output, total_tokens_per_s=total)
    return Comparison(peer, Goal(measure, goal))


COMPARISONS = {
    "decode_b1": _row((1.340, 191, 956), "output_tokens_per_s", 218),
    "decode_b64": _row((3.512, 4665, 23_326), "output_tokens_per_s", 4950),
    "decode_b256": _row((10.932, 5995, 29_974), "output_tokens_per_s", 6400),
    "prefill_32x4k": _row((3.227, 10, 40_625), "total_tokens_per_s", 42_000),
    "prefix_64x8k": _row((1.520, 2696, 350_419), "seconds", 0.90),
    "chat_1000": _row((27.082, 11_461, 17_495), "output_tokens_per_s", 14_500),
}
"""By work."""


def comparable(shape: str | None, dtype: str, card: str | None) -> bool:
    """Tell whether the figures were set for what was measured.

    dtype: of the weights. card: the name of the GPU; None: there is none.
    """
    return shape == SHAPE and dtype in ("auto", DTYPE) and card is not None and _CARD in card
