"""What is read from a trace, and what is refused."""

from __future__ import annotations

import gzip

import pytest
from replay_traces import mooncake_rows, trace_of, write_trace

from octavo.errors import ConfigError
from octavo.replay.bounds import endless
from octavo.replay.files import open_trace
from octavo.replay.mooncake import read_mooncake
from octavo.replay.trace import in_blocks

ROW = {"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [0, 1]}


def changed(**fields):
    return ROW | fields


def test_hash_ids_become_keys_of_sixteen_bytes(tmp_path):
    trace = read_mooncake(open_trace(write_trace(tmp_path / "t.jsonl", [ROW])))

    (request,) = trace.requests
    assert request.keys == (bytes(16), b"\x01" + bytes(15))
    assert (request.prompt_tokens, request.output_tokens) == (600, 1)


def test_a_packed_trace_reads_as_a_plain_one(tmp_path):
    plain = read_mooncake(open_trace(write_trace(tmp_path / "t.jsonl", mooncake_rows())))
    packed = read_mooncake(open_trace(write_trace(tmp_path / "t.jsonl.gz", mooncake_rows())))

    assert packed.requests == plain.requests


def test_the_working_set_counts_a_block_once(tmp_path):
    rows = [ROW, changed(hash_ids=[0, 2]), changed(input_length=512, hash_ids=[0])]

    trace = read_mooncake(open_trace(write_trace(tmp_path / "t.jsonl", rows)))

    assert trace.working_set == 3
    assert trace.references == 5


def test_requests_come_in_the_order_of_time(tmp_path):
    rows = [changed(timestamp=3000), changed(timestamp=1000), changed(timestamp=2000)]

    trace = read_mooncake(open_trace(write_trace(tmp_path / "t.jsonl", rows)))

    assert [one.time_s for one in trace.requests] == [1.0, 2.0, 3.0]
    assert trace.middle_s == 2.0


def test_empty_lines_are_passed_over(tmp_path):
    path = write_trace(tmp_path / "t.jsonl", [ROW])
    path.write_bytes(b"\n" + path.read_bytes() + b"\n\n")

    assert len(read_mooncake(open_trace(path)).requests) == 1


def test_larger_blocks_are_known_by_their_last_part():
    trace = in_blocks(trace_of("abc", "abcd", "abx"), 8)

    assert [one.keys for one in trace.requests] == [
        (b"ab", b"abc"), (b"ab", b"abcd"), (b"ab", b"abx"),
    ]  # fmt: skip
    assert trace.block_size == 8


def test_a_prompt_that_ends_inside_a_larger_block_does_not_share_it():
    tally = endless(in_blocks(trace_of("abc", "abcd"), 8))

    assert (tally.hits, tally.hit_tokens, tally.full_references) == (1, 8, 3)


def test_the_same_block_size_changes_nothing():
    trace = trace_of("abc", "ab")

    assert in_blocks(trace, 4) == trace


@pytest.mark.parametrize("size", [0, 2, 6, -4])
def test_a_block_size_that_cuts_blocks_is_refused(size):
    with pytest.raises(ConfigError, match=f"block size {size} is no multiple of 4"):
        in_blocks(trace_of("abc"), size)


BAD = [
    ([changed(input_length="x")], "line 1 is no request of a Mooncake trace: Expected `int`"),
    ([changed(input_length=-1)], "line 1 is no request of a Mooncake trace: Expected `int` >= 0"),
    ([changed(hash_ids=[0, -1])], "line 1 is no request of a Mooncake trace: Expected `int` >= 0"),
    ([changed(output_length=10**400)], "Expected `int` <= 100000000 - at `$.output_length`"),
    ([changed(timestamp=10**400)], "Number out of range - at `$.timestamp`"),
    ([changed(timestamp=1e300)], "Expected `float` <= "),
    ([changed(input_length=9, hash_ids=[2**128])], "a hash id has 129 bits, but at most 128"),
    ([changed(input_length=9, hash_ids=[10**400])], "a hash id has 1329 bits, but at most 128"),
    ([{"prompt": "hello"}], "missing required field `timestamp`"),
    ([ROW, changed(input_length=513 * 2)], "line 2: 2 hash_ids for 1026 tokens"),
    (
        [ROW, changed(input_length=1500, hash_ids=[0, 2, 1])],
        "line 2: hash id 1 comes after 2, but earlier after 0",
    ),
    ([ROW, changed(hash_ids=[1, 2])], "line 2: hash id 1 comes after nothing, but earlier after 0"),
    ([changed(input_length=0, hash_ids=[])], "holds no request with a prompt"),
    ([], "holds no request with a prompt"),
]


@pytest.mark.parametrize(("rows", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_a_trace_that_says_nothing_about_prefixes_is_refused(tmp_path, rows, message):
    path = write_trace(tmp_path / "t.jsonl", rows)

    with pytest.raises(ConfigError) as error:
        read_mooncake(open_trace(path))
    assert message in str(error.value)
    assert str(path) in str(error.value)


def test_the_largest_hash_id_is_read(tmp_path):
    rows = [changed(input_length=9, hash_ids=[2**128 - 1])]

    assert read_mooncake(open_trace(write_trace(tmp_path / "t.jsonl", rows))).working_set == 1


@pytest.mark.parametrize("data", [b"[" * 99_999, b'{"timestamp": "\xff"}', b"\xff"])
def test_a_line_that_cannot_be_decoded_is_named(tmp_path, data):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n" + data)

    with pytest.raises(ConfigError, match="line 2 is no request of a Mooncake trace"):
        read_mooncake(open_trace(path))


@pytest.mark.parametrize("data", [b"no gzip", gzip.compress(b"{}" * 99)[:-9]])
def test_a_damaged_archive_is_refused(tmp_path, data):
    path = tmp_path / "t.jsonl.gz"
    path.write_bytes(data)

    with pytest.raises(ConfigError, match="cannot read"):
        read_mooncake(open_trace(path))
