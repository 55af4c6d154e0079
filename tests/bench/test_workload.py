"""Lengths: drawn from a seed, read from traces, never beyond the longest text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from octavo.bench.trace import read_trace
from octavo.bench.workload import DISTRIBUTIONS, draw
from octavo.errors import ConfigError

TRACES = Path(__file__).resolve().parents[3] / "shared" / "data" / "traces"


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_same_seed_gives_the_same_lengths(name):
    first, again, other = (draw(name, requests=50, max_length=2048, seed=s) for s in (1, 1, 2))

    assert first == again
    assert first.lengths != other.lengths


def test_more_requests_begin_with_the_same_lengths():
    few, many = (draw("sharegpt-lognormal", requests=n, max_length=2048, seed=0) for n in (9, 90))

    assert many.lengths[:9] == few.lengths


@pytest.mark.parametrize("max_length", [2, 3, 100, 2048])
def test_prompt_and_answer_are_at_least_a_token_and_together_at_most_the_longest(max_length):
    work = draw("sharegpt-lognormal", requests=500, max_length=max_length, seed=0)

    assert all(p >= 1 and o >= 1 and p + o <= max_length for p, o in work.lengths)


def test_the_means_are_those_of_the_paper():
    work = draw("sharegpt-lognormal", requests=20_000, max_length=2048, seed=0)

    assert work.mean_input == pytest.approx(161.31, rel=0.03)
    assert work.mean_output == pytest.approx(337.99, rel=0.03)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023,374,44\n2023,9000,5\n"),
        ("p.csv", "prompt_tokens,output_tokens\n374,44\n9000,5\n"),
        ("i.csv", "id,input_tokens,output_tokens\n1,374,44\n2,9000,5\n"),
        ("i.jsonl", '{"input_tokens":374,"output_tokens":44}\n'
                    '{"input_tokens":9000,"output_tokens":5}\n'),
        ("v.csv", "num_prefill_tokens,num_decode_tokens\n374,44\n9000,5\n"),
        ("s.jsonl", '{"input_toks":374,"output_toks":44}\n\n{"input_toks":9000,"output_toks":5}'),
        ("m.jsonl", '{"input_length":374,"output_length":44}\n'
                    '{"input_length":9000,"output_length":5}\n'),
        ("b.jsonl", json.dumps({"timestamp": 1, "requests": [
            {"Prompt Length": 374, "Output Length": 44, "prompt": "x"},
            {"Prompt Length": 9000, "Output Length": 5, "prompt": "y"}]})),
    ],
)  # fmt: skip
@pytest.mark.parametrize("zipped", [False, True])
def test_every_known_format_gives_its_lengths(tmp_path, name, text, zipped):
    path = tmp_path / (name + ".gz" * zipped)
    path.write_bytes(gzip.compress(text.encode()) if zipped else text.encode())

    work = read_trace(path, requests=None, max_length=2048)

    assert work.lengths == ((374, 44), (2047, 1))
    assert "2 rows of a trace, 1 of them clipped" in work.distribution


def test_a_short_trace_is_repeated_and_a_long_one_cut(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text('{"input_toks": 1, "output_toks": 2}\n{"input_toks": 3, "output_toks": 4}\n')

    assert read_trace(path, requests=3, max_length=9).lengths == ((1, 2), (3, 4), (1, 2))
    assert read_trace(path, requests=1, max_length=9).lengths == ((1, 2),)


BROKEN = [
    ("e.csv", b"", "holds no request"),
    ("h.csv", b"ContextTokens,GeneratedTokens\n", "holds no request"),
    ("e.jsonl", b"\n\n", "holds no request"),
    ("x.csv", b"a,b\n1,2\n", "line 2 has no lengths: the names found are 'a', 'b'; rename"),
    ("n.csv", b"ContextTokens,GeneratedTokens\n3,many\n", "GeneratedTokens must be a whole number"),
    ("m.csv", b"ContextTokens,GeneratedTokens\n3,-1\n", "GeneratedTokens must be a whole number"),
    ("s.csv", b"ContextTokens,GeneratedTokens\n3\n", "GeneratedTokens must be a whole number"),
    ("j.jsonl", b'{"input_toks": 1', "line 1 is not JSON"),
    ("i.jsonl", b'{"input_toks": 1e999, "output_toks": 1}', "input_toks must be a whole number"),
    ("l.jsonl", b"[1, 2]", "line 1 has no lengths"),
    ("o.jsonl", b"{}", "the names found are none; .*ContextTokens and GeneratedTokens"),
    ("w.csv", b",".join(b"c%d" % i for i in range(99)) + b"\n1\n", "'c11', …; rename"),
    ("z.csv.gz", b"no gzip", "cannot read"),
    ("t.csv.gz", gzip.compress(b"ContextTokens" * 99)[:20], "cannot read"),
    ("u.csv", "früh".encode("latin-1"), "is not UTF-8 at byte 2"),
]


@pytest.mark.parametrize(("name", "data", "message"), BROKEN)
def test_a_broken_trace_says_what_is_wrong(tmp_path, name, data, message):
    path = tmp_path / name
    path.write_bytes(data)

    with pytest.raises(ConfigError, match=message):
        read_trace(path, requests=None, max_length=2048)


def test_an_absent_trace_and_a_folder_are_errors(tmp_path):
    for path in (tmp_path / "nothing.csv", tmp_path):
        with pytest.raises(ConfigError, match="cannot read"):
            read_trace(path, requests=None, max_length=2048)


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("sharegpt_tokens_qwen3.jsonl.gz", 292),
        ("azure_llm_2023_code.csv.gz", 8819),
        ("azure_llm_2023_conv.csv.gz", 19366),
        ("lengths_arxiv_summarization.csv.gz", 28257),
        ("mooncake_conversation_trace.jsonl.gz", 12031),
    ],
)
def test_the_public_traces_are_read_whole(name, rows):
    path = TRACES / name
    if not path.is_file():
        pytest.skip(f"{name} is not at {TRACES}")

    assert len(read_trace(path, requests=None, max_length=200_000).lengths) == rows
