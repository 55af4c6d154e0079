"""`LLM(record=…)`: what it answers can be replayed."""

from __future__ import annotations

import json

import pytest

from octavo import LLM, ConfigError
from octavo.cli import run
from octavo.contract.sampling import SamplingParams


def test_what_an_llm_has_recorded_can_be_replayed(tiny_gguf, tmp_path, capsys):
    path = tmp_path / "traffic.jsonl"
    head = "one two three four five six seven eight nine ten eleven twelve "
    prompts = [f"{head}{end}" for end in ("a", "b", "c")]
    with LLM(str(tiny_gguf), block_size=4, record=path) as llm:
        for prompt in prompts:
            llm.generate(prompt, SamplingParams(max_tokens=5), use_tqdm=False)
        metrics = {one.name: one for one in llm.get_metrics()}

    asked = ["--capacity-share", "1", "--jobs", "1", "--json"]
    assert run(["replay", str(path), *asked]) == 0
    got = json.loads(capsys.readouterr().out)
    assert got["config"]["format"] == "recording"
    assert got["trace"]["requests"] == 3
    # The engine finds parts of blocks too, of which a recording tells nothing.
    parts = metrics["vllm:prefix_cache_hits"].value - got["rows"][0]["hit_tokens"]
    assert got["rows"][0]["hit_tokens"] > 0
    assert 0 <= parts < 3 * 4
    assert run(["replay", str(path), "--mode", "engine", "--rate", "2", *asked]) == 0


@pytest.mark.parametrize("path", ["", 7, "a\0b", "half \ud800"])
def test_a_recording_needs_the_path_of_a_file(tiny_gguf, path):
    with pytest.raises(ConfigError, match="record must be the path of a file"):
        LLM(str(tiny_gguf), record=path)


def test_two_llms_do_not_record_into_one_file(tiny_gguf, tmp_path):
    path = tmp_path / "traffic.jsonl"

    with LLM(str(tiny_gguf), record=path):
        before = path.read_bytes()
        with pytest.raises(ConfigError, match=r"another engine is recording into .*traffic"):
            LLM(str(tiny_gguf), record=path)
        assert path.read_bytes() == before
    with LLM(str(tiny_gguf), record=path):
        assert len(path.read_bytes().splitlines()) == 3  # two headers and an empty line


def test_an_llm_is_not_built_if_its_recording_cannot_be(tiny_gguf, tmp_path):
    with pytest.raises(ConfigError, match="record: cannot write to"):
        LLM(str(tiny_gguf), record=tmp_path)
