"""`backend="auto"`: the native executor where it fits, else the reference one, with the reason."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from octavo import LLM, ConfigError, SamplingParams, cpu
from octavo.cpu import NativeUnfit
from tiny_model import write_tiny_gguf

if cpu.native() is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


def open_auto(path, **options):
    """Return the backend that was taken and what the user was told."""
    notes: list[str] = []
    with LLM(str(path), kv_cache_memory_bytes=1 << 20, report=notes.append, **options) as llm:
        assert len(llm.generate("Hello", GREEDY)[0].outputs[0].token_ids) == 4
        return llm.built.backend, notes


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"device": "cpu"},
        {"deterministic": True},
        {"dtype": "float32"},
        {"dtype": "bfloat16", "kv_cache_dtype": "bfloat16"},
        {"threads": 1, "cpu_arithmetic": "bf16"},
        {"reservation": "max"},
    ],
)
def test_what_the_native_executor_can_do_it_does_without_a_word(tiny_gguf, options):
    assert open_auto(tiny_gguf, **options) == ("cpu", [])


UNFIT = {
    "KV in 8 bits": ({"kv_cache_dtype": "int8"}, "kv_cache_dtype is 'int8', but with int8"),
    "small blocks": ({"block_size": 8}, "block_size is 8, but the backend cpu needs a multiple"),
    "float16": ({"dtype": "float16"}, "dtype is 'float16', but the backend cpu computes in"),
    "KV of another width": (
        {"dtype": "float32", "kv_cache_dtype": "bfloat16"},
        "kv_cache_dtype is 'bfloat16', but with float32 arithmetic",
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_it_cannot_do_goes_to_the_reference_with_one_note(tiny_gguf, case):
    options, reason = UNFIT[case]

    backend, notes = open_auto(tiny_gguf, **options)

    assert backend == "reference"
    (note,) = notes
    assert note.startswith(f"backend: reference ({reason}")


def test_weights_that_it_does_not_read_go_to_the_reference(tiny_gguf, monkeypatch):
    monkeypatch.delitem(sys.modules["octavo.runner.native_model"]._SOURCE_TYPES, "F32")

    backend, (note,) = open_auto(tiny_gguf)

    assert backend == "reference"
    assert "the backend cpu does not read weights of type F32" in note


@pytest.mark.parametrize("options", [{"threads": 2}, {"cpu_arithmetic": "int8"}])
def test_who_asks_for_threads_or_an_arithmetic_means_the_native_executor(tiny_gguf, options):
    with pytest.raises(ConfigError, match="block_size is 8, but the backend cpu needs a multiple"):
        open_auto(tiny_gguf, block_size=8, **options)


def test_named_it_is_an_error_if_it_does_not_fit(tiny_gguf):
    with pytest.raises(ConfigError, match="change it, or choose the reference backend"):
        open_auto(tiny_gguf, block_size=8, backend="cpu")


def test_a_gpu_is_taken_where_torch_sees_one(tiny_gguf, monkeypatch):
    monkeypatch.setattr("octavo.executors.select.torch_sees_gpu", lambda: True)

    assert open_auto(tiny_gguf) == ("triton", [])  # interpreted, on this CPU
    assert open_auto(tiny_gguf, device="cpu") == ("cpu", [])
    assert open_auto(tiny_gguf, threads=1) == ("cpu", [])


@pytest.fixture
def without_torch(monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else find_spec(name)
    )


def test_without_torch_an_error_names_both_ways_out(tiny_gguf, without_torch):
    with pytest.raises(ConfigError) as error:
        open_auto(tiny_gguf, block_size=8)

    assert str(error.value) == (
        "block_size is 8, but the backend cpu needs a multiple of 16: change it, or install torch "
        "for the reference backend (pip install 'octavo[torch]')"
    )


def lacking():
    raise NativeUnfit("the extension does not load", "install a compiler")


def test_without_the_extension_the_reference_is_taken(tiny_gguf, monkeypatch):
    monkeypatch.setattr("octavo.executors.native.require_native", lacking)

    assert open_auto(tiny_gguf) == (
        "reference",
        ["backend: reference (the extension does not load)"],
    )


def test_without_either_an_error_names_both_ways_out(tiny_gguf, monkeypatch, without_torch):
    monkeypatch.setattr("octavo.executors.native.require_native", lacking)

    with pytest.raises(ConfigError, match="install a compiler, or install torch for the reference"):
        open_auto(tiny_gguf)


def test_an_answer_of_the_default_command_loads_no_torch(tmp_path):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", matrix_type="Q8_0")
    code = (
        "import sys; from octavo.cli import run; "
        "status = run(['generate', 'Hello', '--max-tokens', '4', '--ignore-eos', '--model', "
        "sys.argv[1]]); "
        "print({'torch', 'transformers', 'gguf', 'rich', 'huggingface_hub', 'jinja2'} "
        "& set(sys.modules)); sys.exit(status)"
    )

    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "set()"


# ── threads ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", ["auto", "cpu"])
def test_more_threads_than_cores_are_allowed_with_a_note(tiny_gguf, monkeypatch, backend):
    monkeypatch.setattr("octavo.executors.select.available_cores", lambda: 2)

    assert open_auto(tiny_gguf, backend=backend, threads=2) == ("cpu", [])
    taken, (note,) = open_auto(tiny_gguf, backend=backend, threads=3)
    assert taken == "cpu"
    assert note.startswith("threads is 3, but this process may use 2 cores")


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 4), ("150000 100000", 2), ("50000 100000", 1), ("900000 100000", 4), ("", 4)],
)
def test_cores_are_those_that_a_container_may_use(monkeypatch, tmp_path, limit, cores):
    from octavo import machine

    (tmp_path / "cpu.max").write_text(limit)
    monkeypatch.setattr(machine, "CPU_LIMIT", str(tmp_path / "cpu.max"))
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(4)), raising=False)

    assert machine.available_cores() == cores
