"""What watching the memory takes from a server: 10,000 blocks, ten frames a second.

Two measurements. The frames by themselves: the processor time of the thread that decides, for each
frame, over a runner that computes nothing. And all of it: output tokens a second with somebody who
watches and without, in turns on one server, a round of one beside a round of the other; no round's
prompts begin like another's. The second needs an idle machine, since one part in a hundred is less
than what others take.

    python benchmarks/serving/watching.py --json docs/performance/records/serving-watching.json
"""

from __future__ import annotations

import json
import socket
import statistics
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from rig import Goal, load_once, parser, report, server_flags, serving, site_of

from octavo.bench.serve.datasets import Lengths, random_asks
from octavo.bench.serve.load import Chain, Pace
from octavo.bench.serve.words import Words
from octavo.testing.driver import Driver, make_request

BLOCKS = 10_000
HZ = 10
GOAL = 0.99
MOST = 0.01
PATH = f"/v1/debug/memory/events?hz={HZ}"


def main() -> int:
    made = parser(__doc__)
    made.set_defaults(memory="3600MiB")  # of the embedded model, a little more than 10,000 blocks
    made.add_argument("--streams", type=int, default=32)
    made.add_argument("--requests", type=int, default=64)
    made.add_argument("--prompt", type=int, default=512, help="tokens")
    made.add_argument("--output", type=int, default=128, help="tokens")
    made.add_argument("--rounds", type=int, default=7)
    made.add_argument("--frames-only", action="store_true", help="no server")
    options = made.parse_args()

    rows = [frames(sequences) for sequences in (32, 256)]
    goals = [
        Goal(f"frames of {row['sequences']} sequences, share of a core", row["share"], MOST)
        for row in rows
    ]
    if options.frames_only:
        return report("octavo.serving.watching/1", options, rows, goals)
    rounds = server_rounds(options)
    share = statistics.median(row["share"] for row in rounds)
    goals.append(Goal("watched, as a share of unwatched", share, GOAL, at_least=True))
    for row in rows:
        sys.stdout.write(json.dumps(row) + "\n")
    return report("octavo.serving.watching/1", options, rounds, goals)


# ── frames by themselves ──────────────────────────────────────────────────────────────────────


def frames(sequences: int, *, steps_a_frame: int = 4, count: int = 100) -> dict[str, object]:
    """Time frames of so many sequences that decode, in a pool that others have filled."""
    driver = Driver.paged(
        BLOCKS, (16,), max_num_seqs=sequences, budget=8192, max_model_len=9000, vocab_size=50
    )
    for number in range(60):
        driver.add(make_request(f"old{number}", [number + 1] * 1500, max_tokens=1))
    driver.run()
    for number in range(sequences):
        prompt = [number % 40 + 1, number // 40 + 1] * 150
        driver.add(make_request(f"r{number}", prompt, max_tokens=4000, seed=number))
    while driver.scheduler.queue_lengths[1]:
        driver.step()
    lookout, seconds = driver.scheduler.lookout, list[float]()
    seen = lookout.frame(0.0, 0).number
    for number in range(count):
        for _ in range(steps_a_frame):
            driver.step()
        began_s = time.thread_time()
        seen = lookout.frame(number / HZ, seen).number
        seconds.append(time.thread_time() - began_s)
    mean_s = statistics.fmean(seconds)
    return {
        "sequences": sequences,
        "blocks": BLOCKS,
        "frame_ms": 1000 * mean_s,
        "most_ms": 1000 * max(seconds),
        "share": HZ * mean_s,
    }


# ── all of it ─────────────────────────────────────────────────────────────────────────────────


class Watcher:
    """Reads a stream of the memory while the block runs."""

    def __init__(self, address: str) -> None:
        self._address = address
        self.frames = self.bytes = 0
        self._ends = False
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._thread.join()

    def _read(self) -> None:
        parts = urlsplit(self._address)
        with socket.create_connection((parts.hostname, parts.port)) as sock:
            sock.sendall(f"GET {PATH} HTTP/1.1\r\nhost: {parts.netloc}\r\n\r\n".encode())
            while not self._ends and (data := sock.recv(1 << 20)):
                self.frames += data.count(b"event: ")
                self.bytes += len(data)


def server_rounds(options: object) -> list[dict[str, object]]:
    flags = [*server_flags(options), "--max-num-seqs", str(options.streams)]
    rows: list[dict[str, object]] = []
    with serving(*flags) as server:
        words = site_of(server.address).words
        rate(server.address, chains_of(words, options, -1), options)
        for number in range(options.rounds):
            watched = unwatched = 0.0
            # Who comes first takes turns too: a machine may grow slower while it works.
            for first in (number % 2, 1 - number % 2):
                chains = chains_of(words, options, 2 * number + first)
                if first:
                    began_s = time.monotonic()
                    with Watcher(server.address) as watcher:
                        watched = rate(server.address, chains, options)
                    seconds = time.monotonic() - began_s
                else:
                    unwatched = rate(server.address, chains, options)
            rows.append({
                "round": number, "unwatched_tokens_per_s": unwatched,
                "watched_tokens_per_s": watched, "share": watched / unwatched,
                "frames_per_s": watcher.frames / seconds,
                "kb_per_s": watcher.bytes / seconds / 1000, "server_mb": resident_mb(server.pid),
            })  # fmt: skip
    return rows


def chains_of(words: Words, options: object, seed: int) -> list[Chain]:
    lengths = Lengths(input=options.prompt, output=options.output)
    return random_asks(words, options.requests, lengths, seed)


def rate(address: str, chains: list[Chain], options: object) -> float:
    run = load_once(address, chains, Pace(max_concurrency=options.streams))
    return sum(one.output_tokens for one in run.outcomes) / run.duration_s


def resident_mb(pid: int) -> float:
    """Return what a process has in memory, its engine's not counted; 0: not known."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * 4096 / 1e6


if __name__ == "__main__":
    sys.exit(main())
