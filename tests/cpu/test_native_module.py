"""What the native extension says about itself, and what is said where there is none."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from octavo import cpu

MAX_IMPORT_S = 0.02
"""A fault would be to load something large; it takes 2 ms on a quiet machine."""

needs_extension = pytest.mark.skipif(
    cpu.native() is None, reason="the native extension octavo._cpu was not built"
)


def run_fresh(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@needs_extension
def test_the_fastest_instruction_set_is_used_and_the_plain_one_is_always_there():
    native = cpu.require_native()
    names = run_fresh("from octavo import _cpu; print(_cpu.isa())", OCTAVO_CPU_ISA="")

    assert names == native.available_isas()[0]
    assert native.available_isas()[-1] == "plain"


@needs_extension
def test_an_environment_variable_names_another_instruction_set():
    code = "from octavo import _cpu; print(_cpu.isa())"

    assert run_fresh(code, **{cpu.ISA_VARIABLE: "plain"}) == "plain"


@needs_extension
def test_an_unknown_instruction_set_is_refused_with_those_that_there_are():
    code = """
from octavo import _cpu
try:
    _cpu.isa()
except ValueError as error:
    print(error)
"""

    message = run_fresh(code, **{cpu.ISA_VARIABLE: "neon"})

    assert "'neon'" in message
    assert "plain" in message


@needs_extension
def test_the_extension_loads_in_a_moment_and_loads_neither_numpy_nor_torch():
    code = """
import octavo, sys, time
before = time.perf_counter()
import octavo._cpu
took = time.perf_counter() - before
assert not {"numpy", "torch"} & set(sys.modules)
print(took)
"""

    assert min(float(run_fresh(code)) for _ in range(5)) < MAX_IMPORT_S


def test_without_the_extension_the_error_names_both_ways_out():
    code = """
import sys
sys.modules["octavo._cpu"] = None
from octavo import cpu
from octavo.errors import ConfigError
assert cpu.native() is None
try:
    cpu.require_native()
except ConfigError as error:
    print(error)
"""

    message = run_fresh(code)

    assert "compiler" in message
    assert "octavo[torch]" in message


def test_a_vocabulary_is_read_alike_with_and_without_the_extension(tmp_path):
    code = """
import sys
sys.modules["octavo._cpu"] = None
from pathlib import Path
from octavo.models.gguf import GGUFFile
print(len(GGUFFile(Path(sys.argv[1])).metadata["texts"]))
"""
    texts = [f"tökén {index}".encode() for index in range(5000)]
    strings = b"".join(struct.pack("<Q", len(text)) + text for text in texts)
    head = struct.pack("<IQQQ", 3, 0, 1, 5) + b"texts" + struct.pack("<IIQ", 9, 8, len(texts))
    path = tmp_path / "texts.gguf"
    path.write_bytes(b"GGUF" + head + strings)
    from octavo.models.gguf import GGUFFile

    read = GGUFFile(path).metadata["texts"]

    assert [text.encode() for text in read] == texts
    code = code.replace("sys.argv[1]", repr(str(path)))
    assert run_fresh(code) == str(len(texts))


@needs_extension
@pytest.mark.parametrize("change", ["cut", "length", "text"])
def test_broken_strings_are_refused(change):
    native = cpu.require_native()
    data = bytearray(struct.pack("<Q", 2) + b"ab" + struct.pack("<Q", 3) + b"cde")
    assert native.read_strings(bytes(data), 0, 2) == (["ab", "cde"], len(data))
    assert native.skip_strings(bytes(data), 0, 2) == len(data)
    if change == "cut":
        data = data[:-1]
    elif change == "length":
        data[17] = 0xFF
    else:
        data[8] = 0xFF

    with pytest.raises(ValueError, match=r"cut short|utf-8"):
        native.read_strings(bytes(data), 0, 2)


@needs_extension
def test_a_pool_without_threads_is_refused():
    with pytest.raises(ValueError, match="at least 1 thread"):
        cpu.require_native().ThreadPool(0)


@needs_extension
def test_many_threads_of_python_may_own_pools():
    native = cpu.require_native()
    pools = [native.ThreadPool(2) for _ in range(4)]
    weights = np.ones((64, 32), np.float32)
    matrix = native.pack([(0, weights.view(np.uint8))], 32, pool=pools[0])

    for pool in pools:
        pool.wake()
        np.testing.assert_array_equal(
            native.linear(matrix, np.ones((2, 32), np.float32), pool=pool), np.full((2, 64), 32)
        )
