"""What the backend cpu refuses: one line that names the value, the limit and the way out."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from octavo import LLM, ConfigError, cpu
from octavo.config import EngineConfig
from octavo.errors import ModelError
from octavo.executors.native import choose_native
from octavo.models.checkpoint import open_checkpoint
from octavo.testing.tiny import tiny_spec
from tiny_families import make_model
from tiny_model import TOKENS, write_tiny_gguf, write_tokenizer

if cpu.native() is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

from native_hand import StoredRandomWeights, native_hand

REFUSED = {
    "another device": (
        {"device": "cuda"},
        "device is 'cuda', but the backend cpu runs on the CPU: leave device out",
    ),
    "a dtype that it does not compute in": (
        {"dtype": "float16"},
        "dtype is 'float16', but the backend cpu computes in float32, bfloat16 or",
    ),
    "KV of 8 bits": (
        {"kv_cache_dtype": "int8"},
        "kv_cache_dtype is 'int8', but with int8 arithmetic the backend cpu stores KV as bfloat16",
    ),
    "exact KV with rounded arithmetic": (
        {"kv_cache_dtype": "float32", "cpu_arithmetic": "bf16"},
        "kv_cache_dtype is 'float32', but with bf16 arithmetic .* as bfloat16: leave it out",
    ),
    "rounded KV with exact arithmetic": (
        {"kv_cache_dtype": "bfloat16", "dtype": "float32"},
        "kv_cache_dtype is 'bfloat16', but with float32 arithmetic .* as float32: leave it out",
    ),
    "blocks that are not whole tiles": (
        {"block_size": 8},
        "block_size is 8, but the backend cpu needs a multiple of 16: change it",
    ),
    "two arithmetics": (
        {"dtype": "float32", "cpu_arithmetic": "int8"},
        "dtype 'float32' means float32 arithmetic, but cpu_arithmetic is 'int8': leave one of them",
    ),
    "two arithmetics, one of them bfloat16": (
        {"dtype": "bfloat16", "cpu_arithmetic": "float32"},
        "dtype 'bfloat16' means bf16 arithmetic, but cpu_arithmetic is 'float32'",
    ),
    "an arithmetic that there is not": (
        {"cpu_arithmetic": "int4"},
        "cpu_arithmetic 'int4' is not one of int8, bf16, float32",
    ),
    "no threads": ({"threads": 0}, "threads must be at least 1, got 0"),
    "half a thread": ({"threads": 1.5}, "threads must be a whole number, got 1.5"),
    "too many threads": ({"threads": 5000}, "threads must be at most 1024, got 5000"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_option_that_cannot_be_honoured_is_refused_in_one_line(tiny_gguf, case):
    options, message = REFUSED[case]

    with pytest.raises(ConfigError, match=message) as error:
        LLM(str(tiny_gguf), backend="cpu", kv_cache_memory_bytes=1 << 20, **options)

    assert "\n" not in str(error.value)


def test_another_backend_has_no_arithmetic_to_choose(tiny_gguf):
    with pytest.raises(ConfigError, match="only the backend cpu has it") as error:
        LLM(str(tiny_gguf), backend="reference", cpu_arithmetic="int8")

    assert "\n" not in str(error.value)


def test_another_backend_has_no_threads_to_choose(tiny_gguf):
    with pytest.raises(ConfigError, match="threads is 2, but the backend is 'reference'") as error:
        LLM(str(tiny_gguf), backend="reference", threads=2)

    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "arithmetic", "kv"),
    [
        ({}, "int8", "bfloat16"),
        ({"dtype": "bfloat16"}, "bf16", "bfloat16"),
        ({"dtype": "float32"}, "float32", "float32"),
        ({"dtype": "float32", "cpu_arithmetic": "float32", "device": "cpu"}, "float32", "float32"),
        ({"dtype": "bfloat16", "cpu_arithmetic": "bf16"}, "bf16", "bfloat16"),
        ({"cpu_arithmetic": "float32", "kv_cache_dtype": "float32"}, "float32", "float32"),
        ({"cpu_arithmetic": "int8", "kv_cache_dtype": "bfloat16"}, "int8", "bfloat16"),
    ],
)
def test_an_arithmetic_is_asked_for_or_follows_from_the_dtype(tiny_gguf, options, arithmetic, kv):
    config = EngineConfig(model=str(tiny_gguf), backend="cpu", **options)

    choice = choose_native(config, open_checkpoint(tiny_gguf))

    assert choice.arithmetic == arithmetic
    assert choice.layout.dtype == kv
    assert choice.lossy == ("" if arithmetic == "float32" else f"cpu_arithmetic={arithmetic}")


def test_a_type_of_weights_that_is_not_read_is_refused():
    class Coarse(StoredRandomWeights):
        def stored_rows(self, name):
            return "Q2_K", np.zeros((1, 84), np.uint8)

    with pytest.raises(ConfigError, match=r"not read weights of type Q2_K \(embedding\): choose"):
        native_hand(Coarse(tiny_spec()))


# ── broken weights ────────────────────────────────────────────────────────────────────────


def build(path):
    return LLM(str(path), backend="cpu", kv_cache_memory_bytes=1 << 20, report=lambda _: None)


@pytest.mark.parametrize("kept", [0.3, 0.9])
def test_a_file_cut_short_is_a_model_error(tmp_path, tiny_gguf, kept):
    data = tiny_gguf.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * kept)])

    with pytest.raises(ModelError, match="cut"):
        build(path)


def test_a_folder_cut_short_is_a_model_error(tmp_path):
    make_model("llama", tmp_path, vocab_size=len(TOKENS))
    write_tokenizer(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])

    with pytest.raises(ModelError):
        build(tmp_path)


def test_weights_of_another_size_are_a_model_error(tmp_path):
    path = write_tiny_gguf(tmp_path / "wrong.gguf", metadata={"llama.feed_forward_length": 128})

    with pytest.raises(ModelError, match=r"ffn_.*has shape \[.*96.*\]; a llama model of this size"):
        build(path)


def test_a_missing_tensor_is_a_model_error(tmp_path):
    path = write_tiny_gguf(tmp_path / "hole.gguf", drop="blk.1.ffn_down.weight")

    with pytest.raises(ModelError, match=r"'blk\.1\.ffn_down\.weight' is missing"):
        build(path)


@pytest.mark.parametrize("matrix", ["q", "gate", "down", "embedding"])
def test_a_source_that_gives_other_rows_than_it_says_is_a_model_error(matrix):
    class Wrong(StoredRandomWeights):
        def stored_rows(self, name):
            kind, rows = super().stored_rows(name)
            return kind, rows[:-1] if name.rpartition(".")[2] == matrix else rows

    with pytest.raises(ModelError, match=f"tensor .*{matrix} has [0-9]+ rows, a llama model of"):
        native_hand(Wrong(tiny_spec()))


def test_an_unknown_instruction_set_is_refused_in_one_line(tiny_gguf):
    code = "import sys; from octavo.cli import run; sys.exit(run(sys.argv[1:]))"
    arguments = ["generate", "x", "--raw", "--model", str(tiny_gguf), "--backend", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "OCTAVO_CPU_ISA": "bogus"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "OCTAVO_CPU_ISA: this machine has no instruction set 'bogus'" in done.stderr


def test_the_backends_that_there_are_include_cpu(tiny_gguf):
    with pytest.raises(ConfigError, match=r"backend 'foo' is not one of reference.*cpu"):
        LLM(str(tiny_gguf), backend="foo", kv_cache_memory_bytes=2**20)
