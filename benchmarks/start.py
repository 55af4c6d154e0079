"""Time from the start of a process to the first token of its answer.

Runs `octavo generate` again and again, each in a process of its own, and prints what it took until
the first token is written. With --cold files are dropped from the page cache before each run: the
model's, and all of the Python environment's.

    python benchmarks/start.py --runs 20
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

PROMPT = "What is the capital of France?"


def main() -> None:
    """Measure, and print a table or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--model", help="a path or a known name; default: the embedded model")
    parser.add_argument("--cold", action="store_true", help="drop files from the page cache first")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    files = cached_files(options.model) if options.cold else []
    first_token(options.model)
    times = []
    for _ in range(options.runs):
        drop(files)
        times.append(first_token(options.model))
    row = {
        "cold": options.cold,
        "runs": options.runs,
        "min_s": min(times),
        "median_s": statistics.median(times),
        "max_s": max(times),
        "load": os.getloadavg()[0],
    }
    words = " ".join(f"{name} {value:.3g}" for name, value in row.items())
    sys.stdout.write((json.dumps(row) if options.json else words) + "\n")


def first_token(model: str | None) -> float:
    """Run one process; returns the seconds until its first token is written."""
    command = [sys.executable, "-m", "octavo", "generate", PROMPT, "--max-tokens", "1"]
    if model is not None:
        command += ["--model", model]
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        written = process.stdout.read(1)
        seconds = time.perf_counter() - start
        process.stdout.read()
    if not written or process.returncode:
        sys.exit(f"{' '.join(command)} ended with status {process.returncode}")
    return seconds


def cached_files(model: str | None) -> list[Path]:
    """Return the files that a start reads: the model, the environment, the standard library."""
    # In another process: what this one maps stays in the cache.
    code = "import sys; from octavo.cli.pull import model_path; print(model_path(*sys.argv[1:]))"
    command = [sys.executable, "-c", code, *([] if model is None else [model])]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    folders = [Path(path), Path(sysconfig.get_path("purelib")), Path(sysconfig.get_path("stdlib"))]
    folders.append(Path(__file__).parent.parent / "src")
    return [
        file
        for folder in folders
        for file in ([folder] if folder.is_file() else folder.rglob("*"))
        if file.is_file()
    ]


def drop(files: list[Path]) -> None:
    """Drop files from the page cache; pages that another process maps stay."""
    for file in files:
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    main()
