"""Packing many matrices at once gives what packing each of them gives, of memory and of files."""

from __future__ import annotations

import mmap
import threading

import gguf
import numpy as np
import pytest
from gguf.quants import quantize

from octavo import cpu

if cpu.native() is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

native = cpu.require_native()
TYPES = ("F32", "Q4_0", "Q4_1", "Q8_0")


def rows_of(kind, out, width, seed=0):
    values = np.random.default_rng(seed).normal(size=(out, width)).astype(np.float32)
    return quantize(values, gguf.GGMLQuantizationType[kind]).view(np.uint8)


def number(kind):
    return gguf.GGMLQuantizationType[kind].value


@pytest.mark.parametrize("threads", [1, 3])
def test_a_packed_model_is_its_packed_matrices(threads):
    pool = native.ThreadPool(threads)
    packer = native.Packer(pool)
    wanted, got = [], []
    for kind in TYPES:
        for paired in (False, True):
            parts = [(number(kind), rows_of(kind, 64, 96, seed)) for seed in (1, 2)]
            wanted.append(native.pack(parts, 96, paired=paired))
            got.append(packer.add([(*part, False) for part in parts], 96, paired=paired))

    packer.run()

    for one, other in zip(got, wanted, strict=True):
        assert (one.format, one.shape, one.nbytes) == (other.format, other.shape, other.nbytes)
        np.testing.assert_array_equal(one.unpack(), other.unpack())


def test_pages_of_a_file_are_read_again_after_they_were_given_back(tmp_path):
    rows = rows_of("Q8_0", 40_000, 512)  # 22 MB: more than is read in one piece
    (tmp_path / "rows").write_bytes(rows.tobytes())
    with (tmp_path / "rows").open("rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    mapped = np.frombuffer(data, np.uint8).reshape(rows.shape)
    packer = native.Packer(native.ThreadPool(2))

    matrix = packer.add([(number("Q8_0"), mapped, True)], 512)
    packer.run()

    expected = native.pack([(number("Q8_0"), rows)], 512)
    np.testing.assert_array_equal(matrix.unpack(), expected.unpack())
    np.testing.assert_array_equal(mapped, rows)


def test_matrices_outlive_their_packer():
    packer = native.Packer(native.ThreadPool(1))
    rows = rows_of("Q4_1", 32, 64)
    matrix = packer.add([(number("Q4_1"), rows, False)], 64)
    packer.run()
    del packer

    np.testing.assert_array_equal(
        matrix.unpack(), native.pack([(number("Q4_1"), rows)], 64).unpack()
    )


def test_other_threads_of_python_go_on_while_weights_are_packed():
    packer = native.Packer(native.ThreadPool(1))
    rows = rows_of("Q8_0", 1024, 1024)
    for _ in range(60):
        packer.add([(number("Q8_0"), rows, False)], 1024)
    ticks, done = [], threading.Event()

    def count():
        while not done.is_set():
            ticks.append(None)
            done.wait(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    begun = len(ticks)
    packer.run()
    during = len(ticks) - begun
    done.set()
    counter.join()

    assert during > 2


@pytest.mark.parametrize(
    ("parts", "width", "message"),
    [
        ([], 64, "parts is empty"),
        ([(2, np.zeros((4, 36), np.uint8), False)], 96, "data has shape"),
        ([(99, np.zeros((4, 36), np.uint8), False)], 64, "type 99 is not read"),
        ([(2, np.zeros((4, 36), np.uint8), False)], 60, "not a multiple of 32"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, width, message):
    with pytest.raises(ValueError, match=message):
        native.Packer(native.ThreadPool(1)).add(parts, width)


def test_a_matrix_without_rows_takes_no_counting():
    with pytest.raises(ValueError, match="a matrix has parts, outputs, and inputs"):
        native.packed_bytes([2], 0, 64)


def test_a_packer_that_is_stopped_leaves_the_rest_out():
    packer = native.Packer(native.ThreadPool(2))
    matrix = packer.add([(number("Q8_0"), rows_of("Q8_0", 64, 96), False)], 96)

    packer.stop()
    packer.run()

    assert not matrix.unpack().any()
