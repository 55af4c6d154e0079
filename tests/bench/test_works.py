"""The works that engines are compared on."""

from __future__ import annotations

import importlib.util
import json
from hashlib import blake2b
from pathlib import Path

import pytest

from octavo.bench.works import WORKS, draw_work, find_works
from octavo.errors import ConfigError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "peers" / "workloads.py"

# (prompt tokens, output tokens, longest text, digest of all ids and lengths)
EXPECTED = {
    "single": (64, 128, 192, "58c46a1d7410848e"),
    "batch8": (512, 512, 128, "7a1d848d84ba31b6"),
    "batch32": (2048, 2048, 128, "3be4c6b92195ff45"),
    "mixed64": (16384, 8192, 384, "a74e0e43c19ebccf"),
    "chat200": (32788, 15614, 1110, "ca32c64ba7349c00"),
    "prefix32": (33792, 1024, 1088, "842b872ffb0f692b"),
    "prefill512": (512, 1, 513, "42b9a33b7156717e"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_work_never_changes(name):
    work = draw_work(name)

    digest = blake2b(json.dumps(work.requests).encode(), digest_size=8).hexdigest()
    assert (work.prompt_tokens, work.output_tokens, work.longest, digest) == EXPECTED[name]


@pytest.mark.skipif(not SHARED.is_file(), reason=f"there is no {SHARED}")
def test_the_works_are_those_that_the_goals_were_set_on():
    spec = importlib.util.spec_from_file_location("workloads", SHARED)
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)

    assert list(WORKS) == theirs.NAMES
    for name in WORKS:
        assert [tuple(request) for request in draw_work(name).requests] == theirs.workload(name)


def test_only_a_prefill_is_counted_in_prompt_tokens():
    assert [name for name in WORKS if draw_work(name).counts_prompts] == ["prefill512"]
    assert draw_work("prefill512").counted_tokens == 512
    assert draw_work("prefix32").counted_tokens == 1024


def test_a_small_vocabulary_gets_ids_that_it_has():
    work = draw_work("batch8", vocab_size=272)

    assert max(max(request.prompt) for request in work.requests) < 272
    assert work.prompt_tokens == draw_work("batch8").prompt_tokens


def test_works_come_in_the_order_of_the_table():
    works = find_works("batch32, single", vocab_size=49152, context=2048)

    assert [work.name for work in works] == ["single", "batch32"]
    assert [work.name for work in find_works(None, vocab_size=49152, context=2048)] == list(WORKS)


@pytest.mark.parametrize(
    ("names", "vocab_size", "context", "message"),
    [
        ("batch7", 49152, 2048, "--work 'batch7' is not one of single, batch8"),
        ("", 49152, 2048, "--work '' is not one of"),
        ("mixed64", 49152, 200, "has a text of 384 tokens, .* 200: give --work single,batch8,"),
        ("single", 90, 2048, "take token ids from 100, but the vocabulary has 90"),
    ],
)
def test_what_a_model_cannot_run_is_refused(names, vocab_size, context, message):
    with pytest.raises(ConfigError, match=message):
        find_works(names, vocab_size=vocab_size, context=context)
