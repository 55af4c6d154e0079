"""How long a step of a real engine would take: from figures of a GPU, or from measurements."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step: products by rows, KV that decoding reads, pairs that prompts compare.

    Each part is added to the others; nothing overlaps.
    """

    products: tuple[tuple[int, float], ...]
    """(rows, seconds) by ascending rows, straight lines between; the last goes on at its rate."""
    kv_token_s: float
    """Reading the KV of one token of context."""
    pair_s: float
    """One token of a prompt that attends to one position."""
    step_s: float = 0.0
    """What every step takes beside that."""
    kv_token_bytes: int | None = None
    """Of all layers; None: not known."""

    def step(self, rows: int, kv_tokens: int, pairs: int) -> float:
        """Return the seconds of one step.

        rows: tokens computed, of prompts and of decoding. kv_tokens: context of all that decode.
        pairs: of a prompt's tokens and the positions that each sees, its own included.
        """
        fixed = self.step_s + self._products(rows)
        return fixed + kv_tokens * self.kv_token_s + pairs * self.pair_s

    def decoding(self, rows: int, kv_tokens: int, steps: int) -> float:
        """Return the seconds of consecutive steps in which the same sequences decode.

        kv_tokens: context in the first of them; each sequence then grows by a token a step.
        """
        read = kv_tokens * steps + rows * (steps * (steps - 1) // 2)
        return steps * (self.step_s + self._products(rows)) + read * self.kv_token_s

    def steps_within(self, rows: int, kv_tokens: int, seconds: float, most: int) -> int:
        """Return how many such steps have begun by then: at least one, at most `most`."""
        low, high = 0, most
        while high - low > 1:
            middle = (low + high) // 2
            if self.decoding(rows, kv_tokens, middle) < seconds:
                low = middle
            else:
                high = middle
        return high

    def _products(self, rows: int) -> float:
        points = self.products
        at = bisect_left(points, (rows, -math.inf))
        if at == len(points):
            last, seconds = points[-1]
            return seconds * rows / last
        if at == 0:
            return points[0][1]
        (low, below), (high, above) = points[at - 1], points[at]
        return below + (above - below) * (rows - low) / (high - low)


_H200_READ = 4.1e12
"""Bytes of KV a second."""
_LLAMA_8B_KV = 131_072
"""Bytes of a token: 32 layers, 8 KV heads of 128, keys and values, bfloat16."""
_LLAMA_8B_PAIR = 4 * 32 * 4096
"""Floating-point operations of one query and one key: 32 layers, 32 heads of 128."""
_LLAMA_8B_ROW_S = 174e3 * 32 / _H200_READ
"""Norms, rotations and gates of one token."""

_MOST_MEASURED = 10**9
"""Tokens that a record can speak of."""

NAMED_COSTS = {
    "h200-llama-3.1-8b": StepCost(
        # Products alone were timed; what moves with each row beside them is added.
        products=tuple(
            (rows, seconds + rows * _LLAMA_8B_ROW_S)
            for rows, seconds in ((1, 3.98e-3), (64, 4.32e-3), (256, 6.49e-3), (8192, 169e-3))
        ),
        kv_token_s=_LLAMA_8B_KV / _H200_READ,
        pair_s=_LLAMA_8B_PAIR / 500e12,
        step_s=0.5e-3,
        kv_token_bytes=_LLAMA_8B_KV,
    ),
}
"""Measured GPUs, by name. Source: docs/performance/gpu.md, floors and what is missing."""


def find_cost(name: str) -> StepCost:
    """Return a named cost, or one fitted to a record of `octavo bench latency --json`.

    Raises ConfigError.
    """
    if name in NAMED_COSTS:
        return NAMED_COSTS[name]
    try:
        record = json.loads(Path(name).read_bytes())
        return _fit(record)
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        reason = "is no record of `octavo bench latency --json` with lines and requests"
    raise ConfigError(
        f"--cost takes the path of a record or one of {', '.join(NAMED_COSTS)}; {name!r} {reason}"
    )


def _fit(record: dict[str, Any]) -> StepCost:
    """Fit a cost to straight lines of decoding over context, and to prompts that came alone."""
    step_tokens = _count(record["config"]["max_num_batched_tokens"])
    lines = sorted(record["lines"], key=lambda line: line["rows"])
    decoding = [(_count(line["rows"]), _seconds(line["fixed_s"])) for line in lines]
    alone = [
        (_count(row["context"]), _seconds(row["first_token_s"]["median"]))
        for row in record["requests"]
        if row["batch"] == 1
    ]
    if not (decoding and alone):
        raise ValueError("nothing to fit to")
    per_token = sum(_seconds(line["per_token_s"], low=-math.inf) for line in lines) / len(lines)
    row_s, pair_s = _fit_prompts(sorted(alone), decoding[0][1], step_tokens)
    least = max(decoding[-1][0] + 1, step_tokens)
    return StepCost(
        products=(*decoding, (least, max(decoding[-1][1], decoding[0][1] + row_s * least))),
        kv_token_s=max(0.0, per_token),
        pair_s=pair_s,
    )


def _count(value: float) -> int:
    if not 1 <= value <= _MOST_MEASURED:
        raise ValueError(f"{value!r:.40} tokens")
    return int(value)


def _seconds(value: float, *, low: float = 0.0) -> float:
    if not low < value < math.inf:
        raise ValueError(f"{value!r:.40} seconds")
    return float(value)


def _fit_prompts(
    prompts: list[tuple[int, float]], step_s: float, step_tokens: int
) -> tuple[float, float]:
    """Return seconds per prompt token and per pair, by least squares of relative errors.

    With prompts of one length, pairs are free.
    """
    # seconds - steps * step_s = tokens * row_s + tokens² / 2 * pair_s
    xx = xy = yy = xz = yz = 0.0
    for tokens, seconds in prompts:
        rest = seconds - math.ceil(tokens / step_tokens) * step_s
        x, y = tokens / seconds, tokens * tokens / 2 / seconds
        z = rest / seconds
        xx, xy, yy = xx + x * x, xy + x * y, yy + y * y
        xz, yz = xz + x * z, yz + y * z
    determinant = xx * yy - xy * xy
    if determinant > 1e-9 * xx * yy:
        row_s, pair_s = (xz * yy - yz * xy) / determinant, (yz * xx - xz * xy) / determinant
        if row_s >= 0 and pair_s >= 0:
            return row_s, pair_s
    return max(0.0, xz / xx), 0.0
