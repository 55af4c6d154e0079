"""The commands as a user meets them: output, exit status, errors of one line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from octavo.cli import run
from tiny_model import write_tiny_gguf

MEMORY = ["--kv-cache-memory-bytes", str(1 << 20)]


@pytest.fixture
def tiny(tiny_gguf) -> list[str]:
    return ["--model", str(tiny_gguf), *MEMORY]


def test_an_answer_is_printed_and_nothing_else(tiny, capsys):
    assert run(["generate", "Hello", "--max-tokens", "5", "--ignore-eos", *tiny]) == 0

    assert capsys.readouterr().out.strip()


def test_several_answers_say_whose_they_are(tiny, capsys):
    arguments = ["--n", "2", "--temperature", "1", "--max-tokens", "3", *tiny]
    assert run(["generate", "one", "two", *arguments]) == 0

    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("──")] == [
        "── one [0]",
        "── one [1]",
        "── two [0]",
        "── two [1]",
    ]


def test_json_is_one_document_with_the_documented_keys(tiny, capsys):
    assert run(["generate", "Hello", "--max-tokens", "4", "--json", *tiny]) == 0

    document = json.loads(capsys.readouterr().out)
    assert list(document)[:5] == ["schema", "version", "commit", "machine", "config"]
    assert document["schema"] == "octavo.generate/1"
    assert set(document["machine"]) == {"cpu", "cores", "memory_bytes", "gpus"}
    assert set(document) >= {"model", "dtype", "backend", "results", "memory"}
    assert set(document["results"][0]) == {
        "request_id", "prompt", "prompt_token_ids", "num_cached_tokens", "miss",
        "effective_max_tokens", "outputs", "ttft_s", "e2e_s",
    }  # fmt: skip
    assert set(document["results"][0]["outputs"][0]) == {
        "index", "text", "token_ids", "finish_reason", "stop_reason",
        "cumulative_logprob", "logprobs",
    }  # fmt: skip
    assert set(document["memory"]) == {
        "block_size", "blocks_total", "blocks_used_peak", "logical_blocks_peak",
        "blocks_shared_peak", "token_share_of_allocated", "waste_share",
        "prefix_query_tokens", "prefix_hit_tokens", "missed_tokens", "copies", "preemptions",
        "recomputed_tokens", "groups",
    }  # fmt: skip
    assert document["config"]["block_size"] == 16
    assert document["config"]["sampling"]["temperature"] == 0.0


def test_prompts_come_from_a_file_one_a_line(tiny, tmp_path, capsys):
    path = tmp_path / "prompts.txt"
    path.write_text("first\n\nsecond ü\n", encoding="utf-8")

    assert run(["generate", "--file", str(path), "--max-tokens", "2", "--json", *tiny]) == 0

    results = json.loads(capsys.readouterr().out)["results"]
    assert [result["prompt"] for result in results] == ["first", "second ü"]


def test_raw_continues_the_text_without_a_template(tiny, capsys):
    assert run(["generate", "abc", "--raw", "--max-tokens", "2", "--json", *tiny]) == 0
    raw = json.loads(capsys.readouterr().out)["results"][0]["prompt_token_ids"]
    assert run(["generate", "abc", "--max-tokens", "2", "--json", *tiny]) == 0
    chat = json.loads(capsys.readouterr().out)["results"][0]["prompt_token_ids"]

    assert len(chat) > len(raw)


def test_a_model_without_a_template_continues_the_text_and_says_so(tmp_path, capsys):
    path = write_tiny_gguf(tmp_path / "base.gguf", metadata={"tokenizer.chat_template": None})
    flags = ["--model", str(path), "--kv-cache-memory-bytes", str(2**20), "--max-tokens", "2"]

    assert run(["generate", "abc", "--json", *flags]) == 0

    shown = capsys.readouterr()
    assert len(json.loads(shown.out)["results"][0]["prompt_token_ids"]) <= 3
    assert "without a chat template" in shown.err


BAD = [
    ([""], "the prompt is empty"),
    ([], "give prompts as arguments or with --file"),
    (["x", "--n", "0"], "n must be at least 1 and at most 16384, got 0"),
    (["x", "--n", "2"], "n must be 1 when sampling is greedy"),
    (["x", "--temperature", "-1"], "temperature must be 0 or more"),
    (["x", "--top-p", "2"], "top_p must be above 0 and at most 1, got 2.0"),
    (["x", "--max-tokens", "0"], "max_tokens must be at least 1"),
    (["x", "--n", "many"], "argument --n: invalid int value"),
    (["x", "--best-of", "2"], "--best-of"),
    (["x", "--logit-bias", "5"], "--logit-bias must be ID=VALUE, such as 42=-1.5, got '5'"),
    (["x", "--logit-bias", "9999=1"], "logit_bias names token id 9999"),
    (["x", "--allowed-token-id", "9999"], "allowed_token_ids names token id 9999"),
    (
        ["x", "--allowed-token-id", "7", "--stop-token-id", "7", "--min-tokens", "2"],
        "allowed_token_ids is [7], but each of these ends the answer, and min_tokens is 2",
    ),
    (["x", "--early-stopping", "soon", "--use-beam-search"], "early_stopping must be true, false"),
    (["x", "--length-penalty", "3"], "length_penalty is 3.0, but use_beam_search is false"),
    (["x", "--beam-width", "0"], "beam_width must be a whole number from 1 to 256, got 0"),
    (["x", "--beam-width", "4", "--top-k", "3"], "top_k cannot be combined with use_beam_search"),
    (["x", "--scheduling-policy", "lifo"], "scheduling_policy 'lifo' is not one of fcfs"),
    (["x", "--device", "mars"], "device 'mars'"),
    (["x", "--kv-cache-dtype", "int3"], "'int3' is not"),
    (["x", "--min-tokens", "200"], "min_tokens is 200, but max_tokens is 128"),
    (["x", "--bad-word", ""], "bad_words must not hold an empty text"),
    (["x", "--logprobs", "-2"], "logprobs must be -1"),
    (["--file", "no/such/file"], "cannot read no/such/file"),
    (["x", "--file", "prompts.txt"], "one of the two"),
    (["x", "--reservation", "orca"], "reservation 'orca' is not one of"),
    (["x", "--kv-cache-memory-bytes", "0"], "kv_cache_memory_bytes must be at least 1, got 0"),
    (["x", "--model", "no/such/model"], "there is no model at no/such/model"),
    (["x", "--max-model-len", "999999"], "the model's context is 512"),
    (["a b c d e f g " * 100], "tokens and the context 512"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_status_2(arguments, message, tiny, capsys):
    given = ["generate", *tiny, *arguments]

    assert run(given) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


def test_a_file_that_is_not_utf8_names_the_byte(tiny, tmp_path, capsys):
    path = tmp_path / "latin1.txt"
    path.write_bytes("früh".encode("latin-1"))

    assert run(["generate", "--file", str(path), *tiny]) == 2
    assert "is not UTF-8 at byte 2" in capsys.readouterr().err


def test_a_broken_model_file_is_named(tmp_path, capsys):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00")

    assert run(["generate", "x", "--model", str(path)]) == 2
    assert "broken.gguf" in capsys.readouterr().err


def test_offline_without_the_model_says_how_to_get_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))

    assert run(["generate", "x", "--offline"]) == 2
    assert "octavo pull smollm2-135m" in capsys.readouterr().err


def test_the_hub_variable_means_offline_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    assert run(["generate", "x"]) == 2
    assert "octavo pull smollm2-135m" in capsys.readouterr().err


def test_a_cache_folder_that_is_a_file_is_named(tmp_path, monkeypatch, capsys):
    path = tmp_path / "file"
    path.touch()
    message = f"but {path} is not a folder. Set OCTAVO_CACHE to a folder"
    for cache in (path, path / "inside"):
        monkeypatch.setenv("OCTAVO_CACHE", str(cache))
        for command in (["pull", "smollm2-135m"], ["generate", "x"], ["plan", "--offline"]):
            assert run(command) == 2
            err = capsys.readouterr().err
            assert (
                err
                == f"octavo: error: models are kept in {cache}, {message} that can be written.\n"
            )
        assert run(["doctor"]) == 0
        assert message in capsys.readouterr().out


def test_pulling_an_unknown_model_lists_the_known_ones(capsys):
    assert run(["pull", "gpt-5"]) == 2
    assert "smollm2-135m" in capsys.readouterr().err


def test_pull_alone_lists_the_known_models_with_their_licences(capsys):
    assert run(["pull"]) == 0
    assert "Apache-2.0" in capsys.readouterr().out


def test_version_and_help_end_well(capsys):
    assert run(["--version"]) == 0
    assert run(["generate", "--help"]) == 0
    assert "--temperature" in capsys.readouterr().out


@pytest.mark.parametrize("command", [["--help"], ["generate", "--help"], ["bench", "--help"]])
def test_help_comes_without_what_takes_long_to_load(command):
    code = (
        f"import sys; from octavo.cli import run; run({command}); "
        "sys.exit(bool({'torch', 'numpy', 'tokenizers'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


def test_there_is_a_flag_for_every_sampling_option(capsys):
    from octavo import SamplingParams

    run(["generate", "--help"])
    text = capsys.readouterr().out

    for name in SamplingParams.__struct_fields__:
        # What may be given several times is named in the singular.
        one = name.replace("_ids", "_id").replace("bad_words", "bad_word")
        flag = "--" + one.replace("_", "-")
        assert flag in text


@pytest.mark.parametrize(
    ("flags", "width"), [(["--beam-width", "3"], 3), (["--use-beam-search"], 4)]
)
def test_a_beam_width_alone_asks_for_a_search(tiny, capsys, flags, width):
    flags = [*flags, "--length-penalty", "0.5", "--early-stopping", "never", "--max-tokens", "4"]
    assert run(["generate", "x", "--raw", "--json", *flags, *tiny]) == 0

    document = json.loads(capsys.readouterr().out)
    (result,) = document["results"]
    scores = [a["cumulative_logprob"] / len(a["token_ids"]) ** 0.5 for a in result["outputs"]]
    assert len(scores) == width
    assert scores == sorted(scores, reverse=True)
    assert document["config"]["sampling"]["use_beam_search"]
    assert document["config"]["sampling"]["early_stopping"] == "never"


def test_log_probabilities_are_in_the_document(tiny, capsys):
    flags = ["--max-tokens", "3", "--logprobs", "2", "--prompt-logprobs", "0", "--json"]
    assert run(["generate", "Hello", "--raw", "--ignore-eos", *flags, *tiny]) == 0

    (result,) = json.loads(capsys.readouterr().out)["results"]
    (answer,) = result["outputs"]
    for token, named in zip(answer["token_ids"], answer["logprobs"], strict=True):
        assert len(named) == 2
        assert set(named[str(token)]) == {"logprob", "rank", "decoded_token"}
    assert len(result["prompt_logprobs"]) == len(result["prompt_token_ids"])
    assert result["prompt_logprobs"][0] is None


def test_options_that_shape_the_answer_have_flags(tiny, capsys):
    flags = [
        "--logit-bias", "70=1000", "--logit-bias", "71=-2.5", "--bad-word", "he", "--min-tokens",
        "2", "--allowed-token-id", "70", "--allowed-token-id", "71", "--presence-penalty", "0.5",
        "--frequency-penalty", "0.5", "--repetition-penalty", "1.1", "--min-p", "0.1",
        "--no-skip-special-tokens", "--no-detokenize", "--include-stop-str-in-output",
    ]  # fmt: skip
    assert run(["generate", "x", "--max-tokens", "3", "--json", *flags, *tiny]) == 0

    document = json.loads(capsys.readouterr().out)
    sampling = document["config"]["sampling"]
    assert sampling["logit_bias"] == {"70": 1000.0, "71": -2.5}
    assert sampling["allowed_token_ids"] == [70, 71]
    assert sampling["bad_words"] == ["he"]
    assert not sampling["skip_special_tokens"]
    assert not sampling["detokenize"]
    assert sampling["include_stop_str_in_output"]
    assert document["results"][0]["outputs"][0]["token_ids"] == [70, 70, 70]
    assert document["results"][0]["outputs"][0]["text"] == ""


def test_device_kv_dtype_and_policy_reach_the_engine(tiny, capsys):
    flags = ["--device", "cpu", "--kv-cache-dtype", "int8", "--scheduling-policy", "priority"]
    assert run(["generate", "x", "--max-tokens", "2", "--json", *flags, *tiny]) == 0

    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["device"], config["kv_cache_dtype"]) == ("cpu", "int8")
    assert config["scheduling_policy"] == "priority"
