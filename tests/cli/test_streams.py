"""The command between other programs: closed, full and odd streams are one line, no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest


def shell(tiny_gguf, line: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run a shell line in which $GENERATE stands for the command with the tiny model."""
    command = f"{sys.executable} -m octavo generate --model {tiny_gguf} --max-tokens 3"
    line = line.replace("$GENERATE", command)
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, env=os.environ | environment, check=False
    )


@pytest.mark.parametrize(
    ("line", "status", "message"),
    [
        ("$GENERATE hi --json >&-", 1, b"stdout is closed"),
        ("$GENERATE hi >&-", 1, b"stdout is closed"),
        ("$GENERATE hi >/dev/full", 1, b"cannot write to stdout: No space left"),
        ("$GENERATE hi --json >/dev/full", 1, b"cannot write to stdout: No space left"),
        ("$GENERATE --file - <&-", 2, b"stdin is closed"),
        ("$GENERATE $'\\xff' --json", 2, b"not valid Unicode"),
        ("$GENERATE $'\\xff' --raw", 2, b"not valid Unicode"),
    ],
)
def test_a_stream_that_cannot_be_used_is_one_line(tiny_gguf, line, status, message):
    done = shell(tiny_gguf, line)

    assert done.returncode == status
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_bad_input_is_bad_input_without_stderr_too(tiny_gguf):
    assert shell(tiny_gguf, "$GENERATE hi --n 0 2>&-").returncode == 2


def test_a_reader_that_has_seen_enough_is_no_error(tiny_gguf):
    done = shell(tiny_gguf, "$GENERATE hi hi hi | head -c 1 >/dev/null; exit ${PIPESTATUS[0]}")

    assert (done.returncode, done.stderr) == (0, b"")


def test_json_is_utf8_whatever_the_terminal_speaks(tiny_gguf):
    done = shell(tiny_gguf, "$GENERATE hü --json", PYTHONIOENCODING="ascii", LC_ALL="C.UTF-8")

    assert json.loads(done.stdout)["results"][0]["prompt"] == "hü"


def test_prompts_from_a_file_are_cut_at_line_ends_alone(tiny_gguf, tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_bytes("\ufeffone\r\ntwo\x0cstill two\u2028and more\n".encode())

    done = shell(tiny_gguf, f"$GENERATE --file {path} --json")

    prompts = [result["prompt"] for result in json.loads(done.stdout)["results"]]
    assert prompts == ["one", "two\x0cstill two\u2028and more"]


def test_memory_that_cannot_be_had_is_named(tiny_gguf):
    done = shell(tiny_gguf, "ulimit -v 2500000; $GENERATE hi --kv-cache-memory-bytes 8000000000")

    assert done.returncode == 2
    assert b"kv_cache_memory_bytes" in done.stderr
