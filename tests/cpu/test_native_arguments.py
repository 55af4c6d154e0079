"""The engine of the extension refuses what would read or write memory that is not its own."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import cpu
from octavo.contract.layout import kv_layout
from octavo.runner.native_model import NativeWeights
from octavo.testing.tiny import tiny_spec

_cpu = cpu.native()
if _cpu is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

from native_hand import StoredRandomWeights  # noqa: E402

BLOCKS = 4
WINDOW = 20
SPEC = tiny_spec(window=WINDOW, window_layers=(1,))
LAYOUT = kv_layout(SPEC, block_size=16, dtype="float32")
GROUPS = [(16, 0, 1), (16, WINDOW, 1)]


@pytest.fixture(scope="module")
def model_of():
    pool = _cpu.ThreadPool(1)
    weights = NativeWeights(StoredRandomWeights(SPEC), arithmetic="float32", pool=pool)
    return lambda: weights.model(LAYOUT)


def build(model, **change):
    given = {
        "groups": GROUPS,
        "blocks": BLOCKS,
        "page_format": "f32",
        "pool": _cpu.ThreadPool(1),
    }
    return _cpu.Engine(model, **(given | change))


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def step(**change):
    """Two tokens of a text of which 40 have been computed."""
    given = {
        "ids": ints(5, 6),
        "positions": ints(40, 41),
        "starts": ints(40),
        "lengths": ints(2),
        "tables": ints(0, 1, 2),
        "window_tables": ints(-1, 1, 2),
        "table_starts": ints(0),
        "blocks": ints(2, 2),
        "offsets": ints(8, 9),
        "sample_rows": ints(1),
    } | change
    tables, windowed, *rest = (
        given.pop(name) for name in ("tables", "window_tables", "table_starts", "blocks", "offsets")
    )
    groups = [(tables, *rest), (windowed, *rest)]
    return {**given, "groups": given.pop("groups", groups)}


STEPS = {
    "a token that there is not": ({"ids": ints(5, 96)}, "ids has 96, not from 0 to 95"),
    "a row that there is not": ({"sample_rows": ints(2)}, "sample_rows has 2, not from 0 to 1"),
    "a block that there is not": ({"blocks": ints(2, 4)}, "blocks has 4, not from 0 to 3"),
    "a slot behind the block": ({"offsets": ints(8, 16)}, "offsets has 16, not from 0 to 15"),
    "a table of a strange block": ({"tables": ints(0, 1, 7)}, "tables has 7, not from 0 to 3"),
    "a block that is seen and not there": (
        {"tables": ints(-1, 1, 2)},
        "tables has -1, not from 0 to 3",
    ),
    "a block in the window that is not there": (
        {"window_tables": ints(-1, -1, 2)},
        "tables has -1, not from 0 to 3",
    ),
    "a table that is short": (
        {"tables": ints(0, 1)},
        "tables ends before position 41 of slice 0",
    ),
    "a table that begins behind its end": (
        {"table_starts": ints(1)},
        "tables ends before position 41 of slice 0",
    ),
    "a table that begins before all": (
        {"table_starts": ints(-1)},
        "tables ends before position 41 of slice 0",
    ),
    "a negative position": ({"starts": ints(-1)}, "starts has -1, not from 0"),
    "lengths that are too many": (
        {"starts": ints(40, 0), "lengths": ints(2, 1), "table_starts": ints(0, 0)},
        "lengths must add up to the tokens",
    ),
    "a slice of nothing": (
        {"starts": ints(40, 0), "lengths": ints(2, 0), "table_starts": ints(0, 0)},
        "lengths has 0, not from 1",
    ),
    "a group too few": ({"groups": []}, "groups: one for each KV group"),
}


@pytest.mark.parametrize("case", STEPS)
def test_a_step_that_cannot_be_is_refused(model_of, case):
    change, message = STEPS[case]
    engine = build(model_of())

    with pytest.raises(ValueError, match=message):
        engine.run(**step(**change))

    engine.run(**step())


def test_wide_numbers_are_a_type_error(model_of):
    with pytest.raises(TypeError, match="ids has dtype int64, not int32"):
        build(model_of()).run(**step(ids=np.array([5, 6])))


def test_only_rows_that_were_sampled_are_scored(model_of):
    engine = build(model_of())
    engine.run(**step())

    with pytest.raises(ValueError, match="the last step sampled 1 rows, not 2"):
        engine.score(0, np.empty((2, SPEC.vocab_size), np.float32))
    with pytest.raises(ValueError, match=r"logits has shape \[1, 95\]"):
        engine.score(0, np.empty((1, 95), np.float32))


def test_only_blocks_that_are_there_are_copied(model_of):
    with pytest.raises(ValueError, match="targets has 4, not from 0 to 3"):
        build(model_of()).copy(ints(0), ints(4))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"groups": GROUPS[:1]}, "group of a layer is 1, there are 1"),
        ({"groups": [(16, 0, 0), GROUPS[1]]}, "index_in_group of a layer is 0, there are 0"),
        ({"groups": [(8, 0, 1), GROUPS[1]]}, "block_tokens is 8, not a multiple of 16"),
        ({"blocks": 0}, "blocks must be at least 1"),
        ({"page_format": "f16"}, "no page format 'f16': bf16 or f32"),
        ({"isa": "sse"}, "no instruction set 'sse'; it has .*plain"),
    ],
)
def test_a_memory_that_cannot_be_is_refused(model_of, change, message):
    with pytest.raises(ValueError, match=message):
        build(model_of(), **change)


def test_a_model_becomes_one_engine_only(model_of):
    model = model_of()
    build(model)

    with pytest.raises(ValueError, match="has no layers, or is in use already"):
        build(model)


def test_a_model_without_its_ends_or_layers_is_refused():
    empty = _cpu.Model(
        vocab=96,
        hidden=64,
        intermediate=160,
        heads=4,
        kv_heads=2,
        head_dim=16,
        norm_eps=1e-5,
        embedding_scale=1.0,
        gelu=False,
        experts=0,
        experts_per_token=0,
        normalized_experts=False,
    )
    with pytest.raises(ValueError, match="the model has no layers"):
        build(empty)


# ── the sampler ───────────────────────────────────────────────────────────────────────────


def choose(**change):
    """One sample of a vocabulary of 10, with a banned token."""
    given = {
        "logits": np.zeros((2, 10), dtype=np.float32),
        "whole": np.array([[1, 0, 0, 0, 0, 0, 0, -1, -1]]),
        "real": np.array([[1.0, 1.0, 0.0, 1.0, 0.0, 0.0]]),
        "ends": np.array([[0, 1, 1, 1, 1]]),
        "ids": ints(9),
        "values": np.zeros(1),
        "masks": ints(-1).reshape(1, 1),
    } | change
    return _cpu.Sampler(10, pool=_cpu.ThreadPool(1)).sample(**given)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"logits": np.zeros((2, 11), dtype=np.float32)}, ValueError, "logits has shape"),
        ({"logits": np.zeros((2, 10))}, TypeError, "logits has dtype float64"),
        ({"whole": np.array([[2, 0, 0, 0, 0, 0, 0, -1, -1]])}, ValueError, "row 2, there are 2"),
        ({"whole": np.array([[-1, 0, 0, 0, 0, 0, 0, -1, -1]])}, ValueError, "row -1, there are 2"),
        ({"whole": np.array([[1, 0, 0, 0, 0, 0, 0, 10, -1]])}, ValueError, "gives token 10"),
        ({"whole": np.array([[1, 0, 0]])}, ValueError, "whole has shape"),
        ({"real": np.ones((2, 6))}, ValueError, "real has shape"),
        ({"ends": np.array([[0, 2, 2, 2, 2]])}, ValueError, "pass the end of ids"),
        ({"ends": np.array([[1, 0, 1, 1, 1]])}, ValueError, "must not fall"),
        ({"ends": np.array([[-1, 1, 1, 1, 1]])}, ValueError, "must not fall"),
        ({"ids": ints(10)}, ValueError, "ids has 10, not from 0 to 9"),
        ({"values": np.zeros(2)}, ValueError, "values has shape"),
        ({"masks": np.zeros((1, 2), dtype=np.int32)}, ValueError, "masks has shape"),
        ({"whole": np.array([[1, 0, 0, 0, 0, 0, 0, -1, 1]])}, ValueError, "mask"),
    ],
)
def test_a_sample_that_points_outside_is_refused(change, error, message):
    assert int(choose()[0][0]) in range(9)

    with pytest.raises(error, match=message):
        choose(**change)


@pytest.mark.parametrize(("first", "count"), [(0, 2), (1, 1), (-1, 1), (0, -1), (2**31 - 1, 1)])
def test_the_likeliest_of_rows_that_were_not_sampled_are_refused(model_of, first, count):
    engine = build(model_of())

    with pytest.raises(ValueError, match="the last step sampled 0 rows"):
        engine.find_likeliest(first, count, ints(), np.zeros((0, 3), dtype=np.int32))


@pytest.mark.parametrize(
    ("of_row", "masks", "message"),
    [
        ([0], 1, "of_row has shape"),
        ([], 0, "masks has shape"),
        ([], 4, "masks has shape"),
    ],
)
def test_masks_of_another_shape_are_refused(model_of, of_row, masks, message):
    engine = build(model_of())

    with pytest.raises(ValueError, match=message):
        engine.find_likeliest(0, 0, ints(*of_row), np.zeros((1, masks), dtype=np.int32))
