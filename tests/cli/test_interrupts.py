"""Ctrl-C at any moment ends a command with exit status 130 and without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

MEMORY = ["--kv-cache-memory-bytes", str(1 << 20)]
LONG = ["--n", "600", "--temperature", "1", "--max-tokens", "480", "--ignore-eos"]
BEGIN = """
import signal
from octavo.cli import main

watch = signal.signal

def once(*given):
    signal.signal = watch
    watch(*given)
    print("here", flush=True)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    print("here", flush=True)
else:
    signal.signal = once
main()
"""
"""What the script `octavo` does, and a word as soon as it looks out for Ctrl-C."""


def listen():
    """Look out for Ctrl-C, also where the tests themselves run in a shell's background."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def begin(tiny_gguf, preexec_fn=listen) -> subprocess.Popen[str]:
    """Start a command that would run for a long time; returns once it is ours to be stopped."""
    command = [sys.executable, "-c", BEGIN, "generate", "x", "--model", str(tiny_gguf)]
    process = subprocess.Popen(
        [*command, *MEMORY, *LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        preexec_fn=preexec_fn,
    )
    assert process.stdout.readline() == "here\n"
    return process


@pytest.mark.parametrize("delay_s", [0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.3, 0.5, 0.8, 1.2])
def test_ctrl_c_while_modules_are_imported_is_quiet(tiny_gguf, delay_s):
    process = begin(tiny_gguf)
    time.sleep(delay_s)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert err.strip() in ("", "interrupted")
    assert out == ""


def test_ctrl_c_in_the_middle_ends_cleanly(tiny_gguf):
    process = begin(tiny_gguf)
    time.sleep(3.0)
    assert process.poll() is None, process.communicate()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)

    assert process.returncode == 130
    assert err.strip() == "interrupted"
    assert out == ""


def test_where_ctrl_c_is_ignored_it_stays_so(tiny_gguf):
    process = begin(tiny_gguf, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)

    assert process.poll() is None
    process.kill()
    process.communicate(timeout=30)
