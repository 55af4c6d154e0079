"""What partial blocks cost and bring where memory is short: kept ends, and hits with and without.

The real manager, one request at a time. Of a transcript's calls prompts and answers are written; a
tokenizer has cut them. Of a trace of hash ids only full blocks are known by their text: each is
spelled by two tokens, and an end by one that no other text has, so that kept ends cost room there
and never bring anything.

    python benchmarks/kept_ends.py lmcache_miniswe.jsonl.gz --block-size 16 128
    python benchmarks/kept_ends.py mooncake_conversation_trace.jsonl.gz --json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import NamedTuple

from octavo.build import EVICTION_POLICIES
from octavo.cli.recorded import Source
from octavo.contract.ids import BlockKey
from octavo.envelope import envelope
from octavo.errors import ConfigError
from octavo.replay.trace import Trace
from octavo.replay.transcripts import Transcript
from octavo.testing.desk import Desk

LOOK_EVERY = 10
"""Requests."""


class Text(NamedTuple):
    """One request, as far as it is written."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]


def texts_of(source: Transcript | Trace) -> list[Text]:
    """Return the requests in the order of time."""
    if isinstance(source, Transcript):
        return [Text(tuple(one.prompt), tuple(one.answer[:-1])) for one in source.requests]
    unused = count(1)
    names: defaultdict[BlockKey, int] = defaultdict(lambda: next(unused))
    texts: list[Text] = []
    for one in source.requests:
        full, rest = divmod(one.prompt_tokens, source.block_size)
        tokens = [token for key in one.keys[:full] for token in (names[key], 0)]
        texts.append(Text((*tokens, *((next(unused),) if rest else ())), ()))
    return texts


def distinct_blocks(texts: Iterable[Text], size: int) -> int:
    """Full blocks of all texts, equal ones counted once."""
    known: set[int] = set()
    for one in texts:
        key, text = 0, one.prompt + one.answer
        for start in range(0, len(text) - size + 1, size):
            key = hash((key, text[start : start + size]))
            known.add(key)
    return len(known)


def serve(
    texts: list[Text], size: int, blocks: int, policy: str, *, partial: bool
) -> dict[str, float]:
    """Serve all texts; returns shares of prompt tokens that hit, and of cached blocks not full."""
    make = EVICTION_POLICIES[policy]
    desk = Desk.paged(blocks, (size,), policy=make, partial_blocks=partial)
    hit, ends, cached = 0, 0, 0
    for number, one in enumerate(texts):
        if len(one.prompt) + 1 > blocks * size:
            continue  # counts as computed, and is not kept
        seq = desk.written(one.prompt)
        hit += seq.cached_tokens or 0
        if one.answer and desk.extend(seq, *one.answer):
            desk.commit()
        desk.release(seq)
        if number % LOOK_EVERY == 0:
            keyed = desk.tiers[0].keyed()
            cached += len(keyed)
            ends += sum(block.filled < size for block in keyed)
    total = sum(len(one.prompt) for one in texts)
    return {"hit": hit / total, "ends": ends / cached, "evictions": desk.tiers[0].pool.evictions}


def main() -> None:
    """Measure, and print a table or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path, nargs="+")
    parser.add_argument("--block-size", type=int, nargs="+", default=[16], help="of transcripts")
    parser.add_argument("--shares", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.5])
    parser.add_argument("--policy", default="lru", choices=EVICTION_POLICIES)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows: list[dict[str, object]] = []
    for path in options.traces:
        source = Source(path, None, None)
        try:
            read, sizes = source.transcript(), options.block_size
        except ConfigError:
            read, sizes = source.read(None), [2]
        texts = texts_of(read)
        for size in sizes:
            distinct = distinct_blocks(texts, size)
            for share in options.shares:
                blocks = int(distinct * share)
                row: dict[str, object] = {"trace": path.name, "tokens": size, "share": share}
                for partial, name in ((False, "whole"), (True, "partial")):
                    row[name] = serve(texts, size, blocks, options.policy, partial=partial)
                rows.append(row)
                sys.stderr.write(f"{row}\n")
    if options.json:
        settings = {"policy": options.policy, "shares": options.shares}
        document = envelope("octavo.kept-ends/1", None, **settings) | {"rows": rows}
        sys.stdout.write(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
