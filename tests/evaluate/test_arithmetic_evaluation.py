"""`octavo eval arithmetic`: what it measures, and what a user sees and is refused."""

from __future__ import annotations

import gzip
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from octavo import cpu
from octavo.cli import run
from octavo.errors import ConfigError
from octavo.evaluate.arithmetic import compare, windows
from octavo.evaluate.peer import PeerScorer

VOCAB = 40
WORKER = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "logits_worker.py"
needs_extension = pytest.mark.skipif(
    cpu.native() is None, reason="the native extension octavo._cpu was not built"
)


class Table:
    """A side whose logits are known: a row for each token of the vocabulary."""

    def __init__(self, name: str, rows: np.ndarray) -> None:
        self.name, self._rows = name, rows.astype(np.float32)
        self._text: tuple[int, ...] = ()

    def compute(self, tokens: tuple[int, ...]) -> None:
        self._text = tokens

    def logits(self, first: int, count: int) -> np.ndarray:
        return self._rows[list(self._text[first : first + count])]


def random_rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(VOCAB, VOCAB)) * 3


def log_softmax(rows: np.ndarray) -> np.ndarray:
    return rows - np.log(np.exp(rows).sum(axis=1, keepdims=True))


def texts_of(count: int, length: int) -> list[tuple[int, ...]]:
    drawn = np.random.default_rng(5).integers(0, VOCAB, (count, length))
    return [tuple(row) for row in drawn.tolist()]


# ── what is measured ──────────────────────────────────────────────────────────────────────


def test_figures_are_those_of_their_definitions():
    exact, other = random_rows(0), random_rows(0) + random_rows(1) / 10
    texts = texts_of(3, 150)  # more than the rows that are held at once
    told: list[float] = []

    first, second = compare(
        Table("float32", exact), [Table("other", other)], texts, advance=told.append
    )

    seen = [token for text in texts for token in text[:-1]]
    targets = [token for text in texts for token in text[1:]]
    p, q = log_softmax(exact)[seen], log_softmax(other)[seen]
    divergence = (np.exp(p) * (p - q)).sum(axis=1)
    picked = np.arange(len(seen)), targets
    assert second.side == "other"
    assert first.positions == second.positions == 3 * 149
    assert second.mean_kl == pytest.approx(divergence.mean(), rel=1e-4)
    assert second.largest_kl == pytest.approx(divergence.max(), rel=1e-4)
    assert second.kl_99 == pytest.approx(np.quantile(divergence, 0.99), rel=1e-4)
    assert second.kl_error == pytest.approx(
        divergence.reshape(3, -1).mean(axis=1).std(ddof=1) / math.sqrt(3), rel=1e-3
    )
    assert second.top1_agreement == (p.argmax(axis=1) == q.argmax(axis=1)).mean()
    assert first.perplexity == pytest.approx(np.exp(-p[picked].mean()), rel=1e-5)
    assert second.perplexity == pytest.approx(np.exp(-q[picked].mean()), rel=1e-5)
    assert sum(told) == 3 * 150


def test_a_side_that_only_shifts_all_logits_is_equal():
    exact = random_rows(0)

    row = compare(
        Table("float32", exact), [Table("shifted", exact + 5)], texts_of(2, 20), advance=len_of
    )[1]

    assert row.mean_kl == pytest.approx(0, abs=1e-6)
    assert row.top1_agreement == 1


def len_of(_amount: float) -> None:
    """Take in progress that nobody watches."""


def test_a_logit_that_is_not_a_number_stops_the_comparison():
    broken = random_rows(0)
    broken[:, 3] = np.nan

    with pytest.raises(ConfigError, match="broken gave a logit that is not a number after token 0"):
        compare(
            Table("float32", random_rows(0)),
            [Table("broken", broken)],
            texts_of(1, 9),
            advance=len_of,
        )


def test_windows_cover_a_text_once_and_begin_with_what_the_model_wants():
    text = list(range(100, 130))

    assert windows(text, length=10, count=20, bos=None, where="it") == [
        tuple(range(100, 110)),
        tuple(range(110, 120)),
    ]
    assert windows(text, length=10, count=11, bos=7, where="it") == [
        (7, *range(100, 109)),
        (7, *range(109, 118)),
    ]


def test_a_text_that_is_too_short_is_refused_with_the_way_out():
    with pytest.raises(ConfigError, match=r"it has 30 tokens, but 4 windows of 10 need 40: give a"):
        windows(list(range(30)), length=10, count=31, bos=None, where="it")


# ── another engine ────────────────────────────────────────────────────────────────────────

PEER = """
import json, struct, sys
settings = json.loads(sys.stdin.readline())
say = lambda document: (sys.stdout.write(json.dumps(document) + chr(10)), sys.stdout.flush())
say(settings["answer"])
for line in sys.stdin:
    tokens = json.loads(line)["tokens"]
    if settings.get("dies"):
        sys.exit("out of ideas")
    say({"rows": len(tokens) - 1})
    for token in tokens[:-1]:
        sys.stdout.buffer.write(struct.pack("<3f", token, 2 * token, 0.5))
    sys.stdout.flush()
"""


def start_peer(tmp_path: Path, **settings: object) -> PeerScorer:
    worker = tmp_path / "worker.py"
    worker.write_text(PEER)
    answer = {"engine": "peer 1.0", "vocab_size": 3}
    return PeerScorer(Path(sys.executable), worker, {"answer": answer} | settings, vocab_size=3)


def test_another_engine_hands_over_its_logits_row_by_row(tmp_path):
    peer = start_peer(tmp_path)
    peer.compute((1, 2, 3, 4))

    first, rest = peer.logits(0, 1), peer.logits(1, 2)
    peer.compute((9, 8))
    again = peer.logits(0, 1)
    peer.close()

    assert peer.name == "peer 1.0"
    np.testing.assert_array_equal(first, [[1, 2, 0.5]])
    np.testing.assert_array_equal(rest, [[2, 4, 0.5], [3, 6, 0.5]])
    np.testing.assert_array_equal(again, [[9, 18, 0.5]])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"error": "no such file"}, "no such file"),
        ({"engine": "peer", "vocab_size": 4}, "peer scores 4 tokens, octavo 3"),
    ],
)
def test_another_engine_that_cannot_be_compared_is_refused(tmp_path, answer, message):
    with pytest.raises(ConfigError, match=message):
        start_peer(tmp_path, answer=answer)


def test_another_engine_that_ends_is_reported_with_its_last_words(tmp_path):
    peer = start_peer(tmp_path, dies=True)

    with pytest.raises(ConfigError, match=r"peer 1\.0 ended with status 1: out of ideas"):
        peer.compute((1, 2))
    peer.close()


def test_an_interpreter_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be started"):
        PeerScorer(tmp_path / "python", WORKER, {}, vocab_size=3)


# ── the command ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt.gz"
    path.write_bytes(gzip.compress(b"the hello in a land reaching on " * 60))
    return path


def evaluate(model: Path, *arguments: str) -> int:
    return run(["eval", "arithmetic", "--model", str(model), "--threads", "1", *arguments])


@needs_extension
def test_the_record_has_the_documented_keys(tiny_gguf, text_file, capsys):
    asked = ("--text", str(text_file), "--tokens", "100", "--window", "64", "--json")

    assert evaluate(tiny_gguf, *asked) == 0

    got = json.loads(capsys.readouterr().out)
    assert list(got) == [
        "schema", "version", "commit", "machine", "config", "versions", "rows", "goals",
    ]  # fmt: skip
    assert got["schema"] == "octavo.eval.arithmetic/1"
    assert got["config"]["tokens"] == 128
    assert [row["side"] for row in got["rows"]] == ["float32", "int8", "bf16"]
    float32, int8, bf16 = got["rows"]
    assert float32["positions"] == 2 * 63
    assert float32["mean_kl"] == 0
    assert float32["top1_agreement"] == 1
    # The tiny model is stored as F32: int8 leaves its weights as they are, bf16 rounds them.
    assert 0 < int8["mean_kl"] < bf16["mean_kl"] < 0.01
    assert list(got["goals"]) == ["mean KL at most 0.005 nats"]


@needs_extension
def test_a_table_and_the_goals_are_for_people(tiny_gguf, capsys):
    assert evaluate(tiny_gguf, "--window", "128", "--cpu-arithmetic", "int8") == 0

    captured = capsys.readouterr()
    assert "against float32 arithmetic" in captured.out
    assert "int8: mean KL at most 0.005 nats: met" in captured.out
    assert "bf16" not in captured.out
    assert "are few: give --text a longer file" in captured.err


REFUSED = {
    "an unknown arithmetic": (("--cpu-arithmetic", "int4"), "'int4' is not one of int8, bf16"),
    "one token a window": (("--window", "1"), "--window must be at least 2, got 1"),
    "a window beyond the context": (("--window", "600"), "--window is 600, but the context of"),
    "no tokens": (("--tokens", "0"), "--tokens must be from 1 to 10000000, got 0"),
    "too many tokens for the text": (("--tokens", "90000"), "lower --tokens or --window"),
    "no threads": (("--threads", "0"), "--threads must be at least 1, got 0"),
    "an unknown engine": (("--peer", "vllm"), "--peer 'vllm' is not one of llamacpp"),
    "an environment without an engine": (("--environments", "x"), "is for --peer: add it"),
    "an engine that is not installed": (
        ("--peer", "llamacpp", "--environments", "/nowhere"),
        "there is no /nowhere/llamacpp/bin/python, which `make bench-peers` makes",
    ),
    "a text that is not there": (("--text", "/nowhere.txt"), "cannot read /nowhere.txt"),
}


@needs_extension
@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_measured_is_refused_in_one_line(tiny_gguf, case, capsys):
    arguments, message = REFUSED[case]

    assert evaluate(tiny_gguf, *arguments) == 2

    captured = capsys.readouterr()
    assert message in captured.err.splitlines()[-1]
