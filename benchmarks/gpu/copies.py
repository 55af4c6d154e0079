"""Speed of copies of KV blocks between a GPU and the host's memory, in both directions.

Blocks are taken as they lie, scattered on the device alone, or scattered on both sides. `raw` is
one large pinned copy: what the bus gives.

    python benchmarks/gpu/copies.py --block-bytes 65536 2097152
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time

import torch

from octavo.contract.layout import plain_layout
from octavo.envelope import envelope
from octavo.pages.arena import Arena
from octavo.pages.transfer import BlockCopies

ORDERS = ("contiguous", "scattered", "both scattered")
HEAD_DIM, BLOCK_SIZE, ITEM = 128, 16, 2
ONE_LAYER = 2 * BLOCK_SIZE * HEAD_DIM * ITEM
"""Bytes of a block of one layer with one KV head."""
GIGA = 1e9


def main() -> None:
    """Measure, and print a table or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--block-bytes", type=int, nargs="+", default=[65_536, 524_288, 2_097_152])
    parser.add_argument("--mebibytes", type=int, default=512, help="copied at once")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("copies.py: torch sees no CUDA device")

    rows = [row for size in options.block_bytes for row in measure(size, options)]
    if options.json:
        settings = {"mebibytes": options.mebibytes, "rounds": options.rounds}
        device = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        document = envelope("octavo.gpu.copies/1", None, **settings) | device | {"rows": rows}
        sys.stdout.write(json.dumps(document, indent=2, default=str) + "\n")
        return
    for row in rows:
        sys.stdout.write(
            f"{row['block_bytes']:>9,} bytes  {row['order']:<14}  {row['direction']:<5}  "
            f"{row['gb_per_s']:6.1f} GB/s ({row['least_gb_per_s']:.1f} to "
            f"{row['most_gb_per_s']:.1f}), raw {row['raw_gb_per_s']:.1f}\n"
        )


def measure(block_bytes: int, options: argparse.Namespace) -> list[dict]:
    """Measure one size of block, in all orders and both directions."""
    layers, rest = divmod(block_bytes, ONE_LAYER)
    if rest or not layers:
        sys.exit(f"copies.py: --block-bytes must be multiples of {ONE_LAYER}, got {block_bytes}")
    count = max(1, (options.mebibytes << 20) // block_bytes)
    layout = plain_layout(
        layers=layers, kv_heads=1, head_dim=HEAD_DIM, block_size=BLOCK_SIZE, dtype="bfloat16"
    )
    # Every second block at most is copied, so that scattered ones have no neighbours by chance.
    arena = Arena(layout, 2 * count, device="cuda")
    copies = BlockCopies(arena, 2 * count)
    raw = {name: raw_speed(arena, copies, name, count, options) for name in ("store", "load")}
    rows = []
    for order in ORDERS:
        device, host = places(order, count)
        for name, pairs in (
            ("store", list(zip(device, host, strict=True))),
            ("load", list(zip(host, device, strict=True))),
        ):
            start = getattr(copies, name)
            speeds = [count * block_bytes / GIGA / s for s in timed(start, pairs, options.rounds)]
            rows.append(
                {
                    "block_bytes": block_bytes,
                    "blocks": count,
                    "order": order,
                    "direction": name,
                    "gb_per_s": statistics.median(speeds),
                    "least_gb_per_s": min(speeds),
                    "most_gb_per_s": max(speeds),
                    "raw_gb_per_s": raw[name],
                }
            )
    copies.close()
    del arena, copies
    torch.cuda.empty_cache()
    return rows


def places(order: str, count: int) -> tuple[list[int], list[int]]:
    """Return the device blocks and the host blocks of an order."""
    draw = random.Random(0)
    scattered = draw.sample(range(0, 2 * count, 2), count)
    device = list(range(count)) if order == "contiguous" else scattered
    host = draw.sample(range(0, 2 * count, 2), count) if order == "both scattered" else None
    return device, list(range(count)) if host is None else host


def timed(start, pairs: list[tuple[int, int]], rounds: int) -> list[float]:
    """Time calls from their start to the end of their copies, in seconds; the first is left out."""
    seconds = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        start(pairs).join()
        seconds.append(time.perf_counter() - begin)
    return seconds[1:]


def raw_speed(arena: Arena, copies: BlockCopies, name: str, count: int, options) -> float:
    """Return what one large copy of the same bytes reaches, in GB/s."""
    device, host = arena.raw[:count], copies.host[:count]
    target, source = (host, device) if name == "store" else (device, host)

    def start(_: object) -> _Joined:
        target.copy_(source, non_blocking=True)
        return _Joined(torch.cuda.current_stream().record_event())

    size = count * arena.layout.block_bytes
    return statistics.median(size / GIGA / s for s in timed(start, [], options.rounds))


class _Joined:
    """An event with the verb of a ticket."""

    def __init__(self, event: torch.cuda.Event) -> None:
        self.join = event.synchronize


if __name__ == "__main__":
    main()
