"""Files of other kinds than Mooncake's: found out by their first line, read as blocks."""

from __future__ import annotations

import gzip
import json
import time

import pytest

from octavo.errors import ConfigError
from octavo.replay.endings import block_size_rows
from octavo.replay.files import open_trace
from octavo.replay.formats import FORMATS, find_format
from octavo.replay.lengths import read_azure, read_vidur
from octavo.replay.transcripts import read_transcript

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:47.6805900,300,44
2023-11-16 18:15:46.6805900,374,9
"""
LENGTHS = """num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio
3772,54,3826,69.8
2015,156,2171,12.9
"""


def letters(text: str) -> list[int]:
    """A tokenizer of one token a letter."""
    return [ord(letter) for letter in text]


def calls(*rows: tuple[float, str, str]) -> str:
    return "".join(
        json.dumps({"timestamp": 1e6 * when, "input": text, "output": answer, "session_id": "s"})
        + "\n"
        for when, text, answer in rows
    )


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "trace.jsonl"):
        path = tmp_path / name
        path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
        return path

    return write


# ── which format ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mooncake", '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}'),
        ("recording", '{"schema": "octavo.recording/1", "block_size": 16, "started_s": 1.5}'),
        ("transcript", calls((0, "a", "b"))),
        ("azure", AZURE),
        ("lengths", LENGTHS),
    ],
)
@pytest.mark.parametrize("packed", ["", ".gz"])
def test_a_format_is_known_by_the_first_line(write, name, text, packed):
    assert find_format(open_trace(write(text, f"any{packed}"))).name == name


def test_a_format_can_be_named(write):
    assert find_format(open_trace(write("what?")), "azure") is FORMATS["azure"]


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_file_is_told(write, text):
    with pytest.raises(ConfigError, match=r"trace\.jsonl is empty: there is nothing to replay"):
        find_format(open_trace(write(text)))


@pytest.mark.parametrize("text", ["hello\n", "[1, 2]", '{"prompt": "x"}'])
def test_an_unknown_file_is_refused_with_the_names_that_are_known(write, text):
    with pytest.raises(ConfigError, match=r"none of the known formats.*mooncake: hash_ids"):
        find_format(open_trace(write(text)))


def test_a_file_that_is_not_utf8_is_told(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(AZURE.encode("utf-16"))

    with pytest.raises(ConfigError, match="is not UTF-8 at byte 0 of its first line"):
        find_format(open_trace(path))


def test_a_mark_of_utf8_is_no_part_of_a_file(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_bytes(AZURE.encode("utf-8-sig"))

    assert find_format(open_trace(path)) is FORMATS["azure"]


def test_an_unknown_format_is_refused(write):
    with pytest.raises(ConfigError, match="--format 'x' is not one of mooncake, recording"):
        find_format(open_trace(write(AZURE)), "x")


# ── lengths ───────────────────────────────────────────────────────────────────────────────


def test_azures_requests_come_at_their_times_and_share_nothing(write):
    trace = read_azure(open_trace(write(AZURE, "azure.csv")), 100)

    assert [(one.time_s, one.prompt_tokens, one.output_tokens) for one in trace.requests] == [
        (0.0, 374, 9), (1.0, 300, 44),
    ]  # fmt: skip
    assert [len(one.keys) for one in trace.requests] == [4, 3]
    assert trace.working_set == trace.references == 7


def test_lengths_without_times_come_one_a_second(write):
    trace = read_vidur(open_trace(write(LENGTHS, "lengths.csv.gz")), None)

    assert [one.time_s for one in trace.requests] == [0.0, 1.0]
    assert trace.requests[0].prompt_tokens == 3772
    assert trace.block_size == 128


@pytest.mark.parametrize(
    ("times", "apart"),
    [
        (("2023-11-16 18:15:46", "2023-11-16 18:15:46.9951690"), 0.995169),
        (("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01+00:00"), 0.99007),
        (("2024-05-10T00:00:00Z", "2024-05-10T02:00:01.5+02:00"), 1.5),
        # An hour that a clock of summer time passes over, or twice.
        (("2024-03-31 01:30:00", "2024-03-31 03:30:00"), 7200.0),
    ],
)
def test_times_may_have_a_fraction_and_a_zone_or_not(write, monkeypatch, times, apart):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    rows = "".join(f"{one},3,4\n" for one in times)

    trace = read_azure(open_trace(write(AZURE.split("\n")[0] + "\n" + rows)), None)

    assert [one.time_s for one in trace.requests] == [0.0, pytest.approx(apart, abs=1e-6)]
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "row", ["2023-11-16 18:15:46.68,x,9", "yesterday,3,9", "2023-11-16 18:15:46.68,3", "1,2,-3",
     "2023-11-16 18:15:46,999999999999999999,9", "0001-01-01 00:00:00+05:00,3," + "9" * 5000]
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_named(write, row):
    with pytest.raises(ConfigError, match=r"row 2: TIMESTAMP, ContextTokens"):
        read_azure(open_trace(write(AZURE.split("\n2023-11-16 18:15:46")[0] + "\n" + row)), None)


def test_a_file_without_the_columns_of_its_format_is_told_which_are_missing(write):
    with pytest.raises(ConfigError, match="no column ContextTokens, GeneratedTokens: its first"):
        read_azure(open_trace(write("TIMESTAMP,n\n2023-11-16 18:15:46,3\n")), None)


# ── transcripts ───────────────────────────────────────────────────────────────────────────


def test_calls_come_in_the_order_of_time_with_the_keys_of_what_they_say(write):
    path = write(calls((9, "abcdefgh", "ij"), (2, "abcdefg", "hxy"), (5, "", "nothing")))

    trace = read_transcript(open_trace(path), letters).in_blocks(4)

    first, second = trace.requests
    assert (first.time_s, second.time_s) == (0.0, 7.0)
    assert len(first.keys) == 1
    assert first.answer_keys == second.keys[1:]  # abcd efgh, though h was an answer's first
    assert (second.prompt_tokens, second.output_tokens) == (8, 2)
    assert trace.working_set == 2


def test_the_last_token_of_an_answer_is_in_no_block(write):
    trace = read_transcript(open_trace(write(calls((0, "abc", "d")))), letters).in_blocks(4)

    assert trace.requests[0].answer_keys == ()


@pytest.mark.parametrize("text", ['{"timestamp": 1, "input": 2, "output": ""}', "{", "[" * 99_999])
def test_what_is_no_call_is_refused(write, text):
    with pytest.raises(ConfigError, match="line 1 is no call of a transcript"):
        read_transcript(open_trace(write(text)), letters)


# ── what block sizes lose ─────────────────────────────────────────────────────────────────


def rows_of(write, sizes, *texts):
    path = write(calls(*((when, text, answer) for when, (text, answer) in enumerate(texts))))
    return block_size_rows(read_transcript(open_trace(path), letters), sizes)


def test_whole_blocks_hit_up_to_the_last_boundary(write):
    one, four = rows_of(write, [1, 4], ("abcdefg", "-----"), ("abcdefgh", "."))

    assert (one.hit_tokens, one.lost) == (7, 0.0)
    assert four.hit_tokens == 4
    assert four.lost == pytest.approx(3 / 15)


def test_partial_blocks_bring_back_what_is_in_common_with_a_block_that_is_full(write):
    (row,) = rows_of(write, [4], ("abcdefg", "-----"), ("abcdefgh", "."))

    assert row.partial_hit_tokens == 7  # efg of efg-
    assert row.partial_lost == 0.0


def test_a_block_that_was_never_filled_brings_nothing_back(write):
    (row,) = rows_of(write, [4], ("abcdef", "-"), ("abcdefgh", "."))

    assert row.partial_hit_tokens == row.hit_tokens == 4


def test_a_repeated_prompt_computes_its_last_token(write):
    one, four = rows_of(write, [1, 4], ("abcdefgh", "--"), ("abcdefgh", "--"))

    assert (one.hit_tokens, four.hit_tokens, four.partial_hit_tokens) == (7, 4, 7)


def test_the_best_of_several_blocks_is_taken(write):
    texts = [("abxxxxxx", "-"), ("abcdxxxx", "-"), ("axxxxxxx", "-"), ("abcdefgh", "-")]
    *_, row = rows_of(write, [8], *texts)

    assert row.partial_hit_tokens == 2 + 1 + 4
