"""Small traces of our own for the replay tests."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.replay.mooncake import MOONCAKE_BLOCK
from octavo.replay.trace import RecordedRequest, Trace

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"


def trace_of(*prompts: str, block_size: int = 4, partial: int = 0) -> Trace:
    """A request a second; each letter of a prompt is a block, known by all letters up to it.

    partial: tokens of every last block; 0: it is full.
    """
    requests = [
        RecordedRequest(
            time_s=float(second),
            prompt_tokens=len(prompt) * block_size - (block_size - partial if partial else 0),
            output_tokens=1,
            keys=tuple(prompt[: end + 1].encode() for end in range(len(prompt))),
        )
        for second, prompt in enumerate(prompts)
    ]
    return Trace("letters", block_size, tuple(requests))


def with_answers(trace: Trace) -> Trace:
    """Let every second prompt of two blocks or more be cut: its last block is its answer."""
    requests = [
        replace(
            one,
            prompt_tokens=one.prompt_tokens - trace.block_size,
            output_tokens=trace.block_size + 1,
            keys=one.keys[:-1],
            answer_keys=one.keys[-1:],
        )
        if number % 2 and len(one.keys) > 1
        else one
        for number, one in enumerate(trace.requests)
    ]
    return replace(trace, requests=tuple(requests), partial=False)


def random_prompts(seed: int, count: int, *, letters: str = "abc", longest: int = 3) -> list[str]:
    """Prompts that often begin alike."""
    draw = random.Random(seed)
    return ["".join(draw.choices(letters, k=draw.randint(1, longest))) for _ in range(count)]


def mooncake_rows(count: int = 60, seed: int = 0) -> list[dict[str, object]]:
    """Conversations that grow by turns, in the format of Mooncake's traces."""
    draw = random.Random(seed)
    chats: list[list[int]] = []
    rows: list[dict[str, object]] = []
    new_id = 1
    for number in range(count):
        if chats and draw.random() < 0.6:
            ids = draw.choice(chats)
        else:
            chats.append(ids := [0])
        for _ in range(draw.randint(1, 4)):
            ids.append(new_id)
            new_id += 1
        # The last block is partial, so that its id is no prefix of a longer text.
        tokens = len(ids) * MOONCAKE_BLOCK + draw.randint(1, MOONCAKE_BLOCK - 1)
        rows.append(
            {
                "timestamp": 1000 * (number // 2),
                "input_length": tokens,
                "output_length": 10,
                "hash_ids": [*ids, new_id],
            }
        )
        new_id += 1
    return rows


def write_trace(path: Path, rows: list[dict[str, object]]) -> Path:
    """Write rows as JSON lines, packed if the name ends in .gz."""
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def public_trace(name: str) -> Path:
    """A published trace; tests that need it are skipped where it is not."""
    path = PUBLIC / f"mooncake_{name}_trace.jsonl.gz"
    if not path.exists():
        pytest.skip(f"{path.name} is not in ../shared/data/traces")
    return path
