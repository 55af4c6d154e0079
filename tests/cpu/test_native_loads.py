"""What the kernel benchmark times in the native extension: floors and loads."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import cpu

_cpu = cpu.native()
if _cpu is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

ISAS = _cpu.available_isas()
MIB = 1 << 20


@pytest.fixture(scope="module")
def pool():
    return _cpu.ThreadPool(2)


def tables(*lists: list[int]) -> list[tuple[int, int, np.ndarray]]:
    return [(1, 16 * len(table) - 1, np.array(table, dtype=np.int32)) for table in lists]


@pytest.mark.parametrize("isa", ISAS)
def test_all_of_the_memory_is_read(pool, isa):
    words = np.random.default_rng(0).integers(0, 1 << 63, 3 * MIB // 8, dtype=np.uint64)

    got = _cpu.read_memory(words.view(np.uint8), pool=pool, isa=isa)

    assert got == int(words.sum(dtype=np.uint64))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("arithmetic", ["integers", "bf16", "float32"])
def test_operations_are_counted_by_the_chunk(pool, isa, arithmetic):
    one = _cpu.calculate(arithmetic, 1, pool=pool, isa=isa)

    assert one >= 10_000
    assert _cpu.calculate(arithmetic, 7, pool=pool, isa=isa) == 7 * one


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", _cpu.formats())
def test_a_linear_load_runs_with_any_number_of_rows_up_to_its_most(pool, name, isa):
    load = _cpu.LinearLoad(name, [(40, 64), (64, 32)], copies=3, most_rows=18, pool=pool)

    for rows in (1, 17, 18):
        load.run(rows, isa=isa)

    assert load.weights == 3 * (40 * 64 + 64 * 32)
    assert load.nbytes > 3 * (40 * 64 + 64 * 32) // 2


def test_a_load_names_the_arithmetic_of_its_format(pool):
    of = {
        name: _cpu.LinearLoad(name, [(16, 32)], copies=1, most_rows=1, pool=pool).arithmetic
        for name in _cpu.formats()
    }

    assert {name for name, kind in of.items() if kind == "bf16"} == {"bf16"}
    assert {name for name, kind in of.items() if kind == "float32"} == {"f16", "f32"}
    assert set(of.values()) == {"integers", "bf16", "float32"}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("steps", [tables([1, 0]), tables([0, 1, 2], [0, 1, 3])])
def test_an_attention_load_runs_over_tables_in_any_order(pool, steps, isa):
    load = _cpu.AttentionLoad(steps, shape=(4, 2, 32, 16), blocks=4, layers=2, copies=3, pool=pool)

    load.run(isa=isa)
    load.run(isa=isa)


LINEAR = {"copies": 1, "most_rows": 4}
ATTENTION = {"shape": (4, 2, 32, 16), "blocks": 2, "layers": 1, "copies": 1}
BAD = [
    (lambda c: c.calculate("int4", 1), "there is no arithmetic 'int4'"),
    (lambda c: c.calculate("bf16", 0), "chunks is 0, below 1"),
    (lambda c: c.read_memory(np.ones(5, np.uint8)), "data has 5 bytes, not whole megabytes"),
    (lambda c: c.read_memory(np.ones(0, np.uint8)), "data has 0 bytes"),
    (lambda c: c.LinearLoad("q3", [(16, 32)], **LINEAR), "there is no format 'q3'"),
    (lambda c: c.LinearLoad("q4", [], **LINEAR), "shapes is empty"),
    (lambda c: c.LinearLoad("q4", [(16, 33)], **LINEAR), "shapes: in is 33, not a multiple of 32"),
    (lambda c: c.LinearLoad("q4", [(0, 32)], **LINEAR), "shapes: out is 0, below 1"),
    (lambda c: c.LinearLoad("q4", [(16, 32)], **LINEAR | {"copies": 0}), "copies is 0"),
    (lambda c: c.LinearLoad("q4", [(16, 32)], **LINEAR).run(5), "rows is 5, not from 1 to 4"),
    (lambda c: c.AttentionLoad([], **ATTENTION), "sequences is empty"),
    (lambda c: c.AttentionLoad(tables([2]), **ATTENTION), "table has block 2, there are 2"),
    (
        lambda c: c.AttentionLoad(tables([0]), **ATTENTION | {"shape": (3, 2, 32, 16)}),
        "shape: heads is 3, not a multiple of 2",
    ),
    (
        lambda c: c.AttentionLoad(tables([0]), **ATTENTION | {"shape": (4, 2, 32, 8)}),
        "shape: block_tokens is 8, not a multiple of 16",
    ),
    (lambda c: c.AttentionLoad(tables([0]), **ATTENTION | {"layers": 0}), "layers is 0"),
]


class WithPool:
    """The extension, with one pool for all calls."""

    def __init__(self, pool) -> None:
        self._pool = pool

    def __getattr__(self, name: str):
        return lambda *given, **named: getattr(_cpu, name)(*given, pool=self._pool, **named)


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_arguments_are_refused(pool, call, message):
    with pytest.raises(ValueError, match=message):
        call(WithPool(pool))
