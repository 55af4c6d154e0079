"""`octavo chat` and `octavo doctor` as a user meets them."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from octavo.cli import run


def chat(tiny_gguf, lines: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "octavo", "chat", "--model", str(tiny_gguf), *options]
    return subprocess.run(
        command, input=lines, capture_output=True, text=True, timeout=60, check=False
    )


def test_each_line_is_answered_until_the_end_of_input(tiny_gguf):
    done = chat(tiny_gguf, "hello\n\nand again\n", "--max-tokens", "4", "--seed", "1")

    assert done.returncode == 0, done.stderr
    assert "/reset forgets" in done.stderr
    assert done.stdout.count("\n") >= 2


def test_where_and_how_a_chat_runs_can_be_said(tiny_gguf):
    flags = ("--device", "cpu", "--kv-cache-dtype", "int8", "--scheduling-policy", "fcfs")
    done = chat(tiny_gguf, "hello\n", "--max-tokens", "4", *flags)

    assert done.returncode == 0, done.stderr


def test_exit_ends_the_chat_and_reset_forgets(tiny_gguf):
    options = ("--max-tokens", "6", "--temperature", "0")
    once = chat(tiny_gguf, "hello\n/exit\nnot read\n", *options)
    twice = chat(tiny_gguf, "hello\n/reset\nhello\n", *options)

    assert once.returncode == 0
    assert twice.stdout == once.stdout * 2


def test_a_full_context_ends_no_chat(tiny_gguf):
    lines = "".join(f"hello {number} " + "hello " * 60 + "\n" for number in range(8))
    done = chat(tiny_gguf, lines + "/reset\nhello\n", "--max-tokens", "4", "--seed", "1")

    assert done.returncode == 0
    assert "/reset forgets the conversation" in done.stderr
    assert "the context 512" in done.stderr


def test_an_unknown_command_is_no_message_to_the_model(tiny_gguf):
    done = chat(tiny_gguf, "/rest\n", "--max-tokens", "4")

    assert "/rest is no command" in done.stderr
    assert done.stdout == ""


def test_a_bad_option_is_one_line_and_exit_status_2(tiny_gguf):
    done = chat(tiny_gguf, "hello\n", "--top-p", "3")

    assert done.returncode == 2
    assert "top_p must be above 0" in done.stderr


@pytest.mark.weights
def test_ctrl_c_stops_the_answer_and_the_chat_goes_on(smollm2_path):
    """In a real terminal: answers come token by token, Ctrl-C cuts one, /exit ends."""
    command = [sys.executable, "-m", "octavo", "chat", "--model", str(smollm2_path)]
    command += ["--max-tokens", "2000", "--temperature", "0"]
    pid, terminal = pty.fork()
    if pid == 0:
        # Where the tests run in a shell's background, Ctrl-C is ignored from the start.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.execv(sys.executable, command)
    seen = read_until(terminal, lambda text: text.endswith(b"> "), 60)
    os.write(terminal, b"Tell me a very long story about the sea.\n")
    seen = read_until(terminal, lambda text: len(text.partition(b"sea.\r\n")[2]) > 20, 90)
    os.write(terminal, b"\x03")
    seen = read_until(terminal, lambda text: text.endswith(b"> "), 60)
    assert b"^C" in seen
    assert len(seen) < 1000, "2,000 tokens are several thousand characters"
    os.write(terminal, b"/exit\n")
    deadline = time.monotonic() + 30
    while (status := os.waitpid(pid, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.1)
    if status == (0, 0):
        os.kill(pid, signal.SIGKILL)
    assert status != (0, 0), seen
    assert os.waitstatus_to_exitcode(status[1]) == 0


def read_until(terminal: int, enough: Callable[[bytes], bool], seconds: float) -> bytes:
    """Read a terminal until it has shown enough."""
    seen, deadline = b"", time.monotonic() + seconds
    while not enough(seen):
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"the terminal shows only {seen!r}"
        seen += os.read(terminal, 4096)
    return seen


def test_doctor_says_what_is_usable(capsys):
    assert run(["doctor"]) == 0

    out = capsys.readouterr().out
    assert "ok        torch executor" in out
    assert "memory" in out
    assert "ok        backend auto" in out


def test_doctor_json_names_each_check_with_its_remedy(capsys):
    assert run(["doctor", "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert document["schema"] == "octavo.doctor/1"
    checks = {check["name"]: check for check in document["checks"]}
    assert checks["torch executor"]["usable"]
    assert all(check["usable"] or check["remedy"] for check in checks.values())


def test_doctor_without_torch_says_how_to_get_it(monkeypatch, capsys):
    from importlib.metadata import PackageNotFoundError

    from octavo.cli import doctor as cli_doctor

    def version(package: str) -> str:
        if package == "torch":
            raise PackageNotFoundError(package)
        return "1.0"

    monkeypatch.setattr(cli_doctor, "version", version)

    run(["doctor"])

    assert "pip install 'octavo[torch]'" in capsys.readouterr().out
