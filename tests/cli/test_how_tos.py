"""What how-tos of the cache tell a reader to type runs as it stands, on a tiny model."""

from __future__ import annotations

import gzip
import json
import re
import shlex
from pathlib import Path

import pytest

from octavo.cli import run
from tiny_model import write_tiny_gguf

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
NAMES = [
    "choose-an-eviction-policy",
    "choose-an-order",
    "keep-and-share",
    "replay-traffic",
    "say-what-comes-next",
    "why-a-prompt-missed",
]
CONTEXT = 8192


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """A tiny model that takes a prompt of some thousand letters."""
    path = tmp_path_factory.mktemp("gguf") / "long.gguf"
    return write_tiny_gguf(path, metadata={"llama.context_length": CONTEXT})


@pytest.fixture
def reader(long_model, tmp_path, monkeypatch):
    """A folder with the files that the pages speak of; the default model is a tiny one."""
    monkeypatch.setattr("octavo.build.DEFAULT_ALIAS", str(long_model))
    monkeypatch.chdir(tmp_path)
    rows = [
        {"timestamp": 1000 * i, "input_length": 1100, "output_length": 9}
        | {"hash_ids": [i % 4, 100 + i, 200 + i]}
        for i in range(30)
    ]
    data = gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode())
    for name in ("trace", "mooncake_conversation_trace", "mooncake_synthetic_trace"):
        Path(f"{name}.jsonl.gz").write_bytes(data)
    call = {"timestamp": 1e6, "input": "Hello, who are you? " * 9, "output": "A model."}
    Path("agent.jsonl").write_text(json.dumps(call) + "\n")
    Path("prompts.txt").write_text("The sea\nThe sea is\n")


def blocks_of(name, language):
    """Return the fenced blocks of a page in a language; "" is a shell's."""
    text = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
    return [block for marked, block in fences if marked == language]


def commands_of(name):
    """Return what is typed after `octavo`; what needs the repository is left out."""
    lines = "".join(blocks_of(name, "")).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("octavo ")]


@pytest.mark.parametrize("name", NAMES)
def test_the_code_of_a_page_runs_from_top_to_bottom(name, reader, capsys):
    names = {}
    for block in blocks_of(name, "python"):
        exec(compile(block, f"{name}.md", "exec"), names)

    for command in commands_of(name):
        if "--plot" in command:
            pytest.importorskip("matplotlib")
        assert run(command) == 0, (command, capsys.readouterr().err)


def test_no_page_is_without_code():
    for name in NAMES:
        assert blocks_of(name, "python"), name
    assert len(commands_of("replay-traffic")) == 5
