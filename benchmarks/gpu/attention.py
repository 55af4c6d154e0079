"""Attention kernels on a GPU: bytes a second of decoding, operations a second of prompts.

Compares octavo's Triton kernels on blocks in shuffled order, on blocks in ascending order and on
one block as long as the text (the price of the block table), and FlashInfer where it is installed.

    python benchmarks/gpu/attention.py --json
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
import torch
import triton

from octavo.attention.schedule import Cut, Runs, schedule_entries, schedule_tiles
from octavo.kernels.triton.decode import Entries, Parts, Shape, attend_decode, count_programs
from octavo.kernels.triton.prefill import QueryTiles, attend_prefill, queries_per_tile

HEADS, KV_HEADS, HEAD_DIM, BLOCK = 32, 8, 128, 16
PARTS = 4608
DECODE = ((64, 4096, 0), (1, 32768, 0), (256, 1152, 0), (64, 8320, 8192))
PROMPTS = ((16, 2048), (8, 4096), (2, 8192))


def main() -> None:
    """Time every case, and print a table or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = [row for case in DECODE for row in decode_rows(*case)]
    rows += [row for case in PROMPTS for row in prompt_rows(*case)]
    card = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
    }
    if options.json:
        sys.stdout.write(json.dumps({**card, "rows": rows}, indent=2) + "\n")
        return
    for row in rows:
        rate = f"{row['rate']:8.0f} {row['unit']}"
        sys.stdout.write(f"{row['case']:32} {row['how']:24} {row['ms']:8.4f} ms {rate}\n")


def decode_rows(count: int, length: int, shared: int) -> list[dict]:
    """Time single queries: `count` texts of `length` keys, of which they share the first."""
    case = f"{count} x {length}" + (f", {shared} shared" if shared else "")
    num_bytes = count * length * KV_HEADS * HEAD_DIM * 4
    rows = []

    def add(how: str, ms: float) -> None:
        rows.append(row(case, how, ms, num_bytes / ms / 1e6, "GB/s"))

    for how, size, shuffled in (
        ("blocks shuffled", BLOCK, True),
        ("blocks ascending", BLOCK, False),
        ("one block a text", length, False),
    ):
        if shared and size != BLOCK:
            continue
        pages, tables = memory(count, length, size, shuffled=shuffled, shared=shared)
        add(how, timed(decode_call(pages, tables, length, size)))
    pages, tables = memory(count, length, BLOCK, shuffled=True, shared=shared)
    other = flashinfer_decode(pages, tables, length)
    if other is not None:
        add("FlashInfer, shuffled", timed(other))
    return rows


def prompt_rows(count: int, length: int) -> list[dict]:
    """Time whole prompts, each of `length` queries."""
    operations = 4 * count * length * length / 2 * HEADS * HEAD_DIM
    rows = []
    pages, tables = memory(count, length, BLOCK, shuffled=True, shared=0)
    calls = {
        "Triton": prompt_call(pages, tables, length),
        "FlashInfer": flashinfer_prompt(pages, tables, length),
    }
    for how, call in calls.items():
        if call is not None:
            ms = timed(call)
            rows.append(
                row(f"{count} x {length} prompt", how, ms, operations / ms / 1e9, "TFLOP/s")
            )
    return rows


def row(case: str, how: str, ms: float, rate: float, unit: str) -> dict:
    return {"case": case, "how": how, "ms": ms, "rate": rate, "unit": unit}


def timed(call) -> float:
    # In a graph: launches from Python take longer than some of these kernels.
    return triton.testing.do_bench_cudagraph(call, rep=50, return_mode="median")


def put(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).to("cuda", torch.int32)


def memory(count: int, length: int, size: int, *, shuffled: bool, shared: int):
    blocks = -(-length // size)
    order = np.arange(count * blocks)
    if shuffled:
        order = np.random.default_rng(0).permutation(order)
    tables = order.reshape(count, blocks)
    tables[:, : shared // size] = tables[0, : shared // size]
    shape = (count * blocks, 2, size, KV_HEADS, HEAD_DIM)
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16), tables


def decode_call(pages, tables, length: int, size: int):
    count = len(tables)
    shape = Shape(HEADS, KV_HEADS, HEAD_DIM, size, None, count_programs(pages.device))
    cut = Cut(
        block_size=size,
        window=None,
        kv_heads=KV_HEADS,
        programs=shape.programs,
        most_parts=PARTS,
        members=shape.shared_members,
    )
    starts = np.arange(count) * tables.shape[1]
    plan = schedule_entries(
        np.arange(count), starts, np.full(count, length), tables.reshape(-1), cut
    )
    entries = Entries(
        rows=put(plan.rows),
        tables=put(tables.reshape(-1)),
        table_starts=put(plan.table_starts),
        lengths=put(plan.lengths),
        first_part=put(plan.first_part),
        items=put(plan.items),
        shared=put(plan.shared),
        members=put(plan.members),
        merged=put(plan.merged),
        counts=put(np.array([len(plan.items), len(plan.shared), plan.chunk, len(plan.merged)])),
    )
    parts = Parts(
        torch.empty(PARTS, HEADS, HEAD_DIM, device="cuda"),
        torch.empty(PARTS, HEADS, device="cuda"),
        torch.zeros(count, KV_HEADS, dtype=torch.int32, device="cuda"),
    )
    q = torch.randn(count, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    how = {"shared": len(plan.shared) > 0, "parted": plan.parted}
    return lambda: attend_decode(q, pages, entries, parts, shape, out, **how)


def prompt_call(pages, tables, length: int):
    count = len(tables)
    shape = Shape(HEADS, KV_HEADS, HEAD_DIM, BLOCK, None, count_programs(pages.device))
    runs = Runs(
        np.arange(count) * length,
        np.full(count, length),
        np.zeros(count, dtype=np.int64),
        np.arange(count) * tables.shape[1],
    )
    tiles = QueryTiles(put(tables.reshape(-1)), put(schedule_tiles(runs, queries_per_tile(shape))))
    q = torch.randn(count * length, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    out = torch.empty_like(q)
    return lambda: attend_prefill(q, pages, tiles, shape, out)


def flashinfer_decode(pages, tables, length: int):
    try:
        import flashinfer
    except ImportError:
        return None
    count, blocks = tables.shape
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    wrapper.plan(
        *(put(np.arange(count + 1) * blocks), put(tables.reshape(-1))),
        put(np.full(count, (length - 1) % BLOCK + 1)),
        *(HEADS, KV_HEADS, HEAD_DIM, BLOCK),
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    q = torch.randn(count, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    return lambda: wrapper.run(q, pages)


def flashinfer_prompt(pages, tables, length: int):
    try:
        import flashinfer
    except ImportError:
        return None
    count, blocks = tables.shape
    workspace = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")
    wrapper.plan(
        put(np.arange(count + 1) * length),
        *(put(np.arange(count + 1) * blocks), put(tables.reshape(-1))),
        put(np.full(count, (length - 1) % BLOCK + 1)),
        *(HEADS, KV_HEADS, HEAD_DIM, BLOCK),
        causal=True,
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    q = torch.randn(count * length, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    return lambda: wrapper.run(q, pages)


if __name__ == "__main__":
    main()
