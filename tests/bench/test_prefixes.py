"""`octavo bench prefixes`: the same answers with the prefix cache as without, and more of them."""

from __future__ import annotations

import json

import pytest

from octavo import LLM
from octavo.bench.prefixes import GOAL, SharedPrefix, measure_prefixes
from octavo.cli import run
from octavo.models import catalog

FEW = ["--requests", "6", "--shared", "70", "--own", "9", "--max-tokens", "5", "--rounds", "1"]


def figures(llm: LLM, work: SharedPrefix):
    built = llm.built
    return measure_prefixes(
        built.engine,
        work,
        built.namespace,
        vocab_size=built.spec.vocab_size,
        rounds=1,
        bandwidth=lambda: 1e9,
        advance=lambda amount: None,
    )


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_answers_are_the_same_with_and_without_the_cache(tiny_gguf, backend):
    pytest.importorskip("octavo._cpu" if backend == "cpu" else "torch")
    work = SharedPrefix(requests=6, shared=70, own=9, output=5)
    with LLM(str(tiny_gguf), backend=backend, deterministic=True) as llm:
        found = figures(llm, work)

    assert found.same_answers
    off, on = found.rows
    assert (off.cache, off.computed_prompt_tokens) == (False, 6 * 79)
    assert (on.cache, on.computed_prompt_tokens) == (True, 79 + 5 * (79 - 64))


@pytest.mark.slow
@pytest.mark.weights
def test_the_embedded_model_serves_five_times_as_many_with_the_same_answers():
    pytest.importorskip("octavo._cpu")
    path = catalog.find(catalog.DEFAULT_ALIAS)
    if path is None:
        pytest.skip("the embedded model is not in the cache: octavo pull")
    with LLM(str(path), backend="cpu", kv_cache_memory_bytes=2**30) as llm:
        found = figures(llm, SharedPrefix(requests=16))

    assert found.same_answers
    assert found.times_as_many >= GOAL


def test_the_command_prints_the_documented_keys(tiny_gguf, capsys):
    assert run(["bench", "prefixes", "--model", str(tiny_gguf), *FEW, "--json"]) == 0

    got = json.loads(capsys.readouterr().out)
    assert got["schema"] == "octavo.bench.prefixes/1"
    assert got["work"] == {"requests": 6, "shared": 70, "own": 9, "output": 5}
    assert [row["cache"] for row in got["rows"]] == [False, True]
    assert got["same_answers"] is True
    assert got["goal"] == GOAL
    assert (
        got["times_as_many"] == got["rows"][1]["requests_per_s"] / got["rows"][0]["requests_per_s"]
    )


def test_the_command_has_a_table_for_people(tiny_gguf, capsys):
    assert run(["bench", "prefixes", "--model", str(tiny_gguf), *FEW]) == 0

    out = " ".join(capsys.readouterr().out.split())
    assert "the same answers" in out
    assert "prompt tokens computed" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--requests", "0"], "--requests must be from 1 to 100000, got 0"),
        (["--shared", "5000"], "but the model's context is"),
        (["--rounds", "0"], "--rounds must be from 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(tiny_gguf, arguments, message, capsys):
    assert run(["bench", "prefixes", "--model", str(tiny_gguf), *arguments]) == 2
    assert message in capsys.readouterr().err
