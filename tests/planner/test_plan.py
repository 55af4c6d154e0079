"""What fits: the numbers that people quote, advice that is true, one formula for the bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from octavo.bench.throughput import measure_throughput
from octavo.bench.works import draw_work
from octavo.config import EngineConfig
from octavo.contract.layout import kv_layout
from octavo.contract.model import ModelSpec
from octavo.errors import ConfigError
from octavo.executors.pool_size import pool_blocks
from octavo.models.checkpoint import open_checkpoint
from octavo.planner.cost import Price, read_throughput
from octavo.planner.plan import Wish, advise, make_plan
from octavo.planner.show import plan_table
from octavo.planner.subject import Shape, Subject, model_subject, shape_subject
from octavo.sizes import ask_bytes, parse_bytes
from octavo.testing.tiny import tiny_spec

GB = 10**9
GIB = 2**30
LLAMA_70B = Shape(layers=80, kv_heads=8, head_dim=128)
LLAMA_70B_UNGROUPED = Shape(layers=80, kv_heads=64, head_dim=128)
QWEN3_235B = Shape(layers=94, kv_heads=4, head_dim=128)


def plan_for(shape, *, memory=80 * GIB, **wish):
    return advise(shape_subject(shape), Wish(memory_bytes=memory, **wish))


# ── numbers that people quote ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_token_of_llama_70b_takes_327_680_bytes(dtype):
    assert plan_for(LLAMA_70B, dtype=dtype).kv_bytes_per_token == 327_680


def test_4096_tokens_of_it_take_1_34_gb():
    plan = plan_for(LLAMA_70B, context_tokens=4096)

    assert round(plan.kv_bytes_per_request / GB, 2) == 1.34


def test_128_000_tokens_of_it_take_39_06_gib():
    plan = plan_for(LLAMA_70B, context_tokens=128_000)

    assert round(plan.kv_bytes_per_request / GIB, 2) == 39.06


def test_without_grouping_8000_tokens_take_20_97_gb_and_32_requests_671():
    plan = plan_for(LLAMA_70B_UNGROUPED, context_tokens=8000, requests=32)

    assert round(plan.kv_bytes_per_request / GB, 2) == 20.97
    assert round(plan.kv_bytes_all_requests / GB) == 671


def test_qwen3_235b_sends_2_1_terabits_a_second():
    plan = plan_for(QWEN3_235B, context_tokens=32_768, prefill_rate_per_s=41.6)

    assert plan.kv_bytes_per_token == 192_512
    assert round(plan.egress_bits_per_s / 1e12, 1) == 2.1


# ── what fits ─────────────────────────────────────────────────────────────────────────────


def test_the_planner_counts_the_blocks_that_the_allocator_makes(tiny_gguf):
    subject = model_subject(tiny_gguf)
    plan = make_plan(subject, Wish(memory_bytes=300 * 2**20, context_tokens=64))
    spec = open_checkpoint(tiny_gguf).spec
    layout = kv_layout(spec, block_size=16, dtype=plan.dtype)
    config = EngineConfig(kv_cache_memory_bytes=plan.kv_pool_bytes)

    assert plan.blocks == pool_blocks(config, layout, 64)
    assert plan.tokens == layout.capacity_tokens(plan.blocks, 2048)


def test_requests_take_whole_blocks():
    plan = plan_for(LLAMA_70B, context_tokens=17)

    assert plan.kv_bytes_per_request == 2 * 16 * 327_680


def test_the_edge_of_what_fits_is_exact():
    need = plan_for(LLAMA_70B, context_tokens=4096, requests=3).kv_bytes_all_requests

    enough = plan_for(LLAMA_70B, context_tokens=4096, requests=3, memory=need)
    short = plan_for(LLAMA_70B, context_tokens=4096, requests=3, memory=need - 1)

    assert (enough.fits, enough.max_concurrent_requests, enough.advice) == (True, 3, ())
    assert (short.fits, short.max_concurrent_requests) == (False, 2)


def test_a_bare_shape_has_unknown_weights():
    plan = plan_for(LLAMA_70B)

    assert plan.weights_bytes is None
    assert plan.workspace_bytes is None
    assert plan.kv_pool_bytes == plan.memory_bytes


def test_a_model_file_has_weights_a_context_and_a_workspace(tiny_gguf):
    plan = make_plan(model_subject(tiny_gguf), Wish(memory_bytes=GIB))
    checkpoint = open_checkpoint(tiny_gguf)

    numbers = sum(checkpoint.tensor(name).size for name in checkpoint.names)
    assert plan.weights_bytes == 4 * numbers
    assert plan.context_tokens == checkpoint.spec.context
    assert plan.memory_bytes == (
        plan.weights_bytes + plan.workspace_bytes + plan.graph_bytes + plan.kv_pool_bytes
    )


def test_a_folder_and_its_config_alone_give_the_same_plan(tiny_folder, tmp_path):
    bare = tmp_path / tiny_folder.name
    bare.mkdir()
    (bare / "config.json").write_bytes((tiny_folder / "config.json").read_bytes())
    wish = Wish(memory_bytes=GIB)

    whole = make_plan(model_subject(tiny_folder), wish)
    for path in (bare, bare / "config.json"):
        assert make_plan(model_subject(path), wish) == whole


def test_planning_never_loads_torch(tiny_gguf):
    code = (
        "import sys; from octavo.cli import run; "
        f"run(['plan', {str(tiny_gguf)!r}, '--memory', '1GiB']); "
        "sys.exit('torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


# ── advice ────────────────────────────────────────────────────────────────────────────────

FIELDS = {
    "--memory": "memory_bytes",
    "--requests": "requests",
    "--context": "context_tokens",
    "--dtype": "dtype",
    "--block-size": "block_size",
}


def follow(wish: dict, line: str) -> dict:
    """Apply one line of advice, "--flag value [--flag value]: why", to a wish."""
    words = line.split(":")[0].split()
    read = {"--dtype": str, "--memory": partial(parse_bytes, name="--memory")}
    pairs = zip(words[::2], words[1::2], strict=True)
    return wish | {FIELDS[f]: read.get(f, int)(v) for f, v in pairs}


IMPOSSIBLE = [
    {"memory_bytes": 10 * GB, "context_tokens": 4096, "requests": 8},
    {"memory_bytes": 10 * GB, "context_tokens": 4096, "requests": 8, "dtype": "float32"},
    {"memory_bytes": 1 * GB, "context_tokens": 4096},
    {"memory_bytes": 1, "context_tokens": 2, "requests": 10**6},
    {"memory_bytes": 3 * GB, "context_tokens": 5000, "dtype": "float32"},
    {"memory_bytes": 3 * GB, "context_tokens": 5000, "block_size": 512, "dtype": "float32"},
    {"memory_bytes": 3 * GB, "context_tokens": 5000, "block_size": 10**6},
    {"memory_bytes": 1 * GB, "context_tokens": 5000, "block_size": 10**6},
    {"memory_bytes": 1 * GB, "context_tokens": 9, "requests": 4000, "block_size": 15},
]


@pytest.mark.parametrize("wish", IMPOSSIBLE)
def test_every_line_of_advice_makes_the_plan_possible(wish):
    subject = shape_subject(LLAMA_70B)
    plan = advise(subject, Wish(**wish))

    assert not plan.fits
    assert plan.advice
    for line in plan.advice:
        assert make_plan(subject, Wish(**follow(wish, line))).fits, line


def test_advice_names_every_way_out():
    plan = advise(
        shape_subject(LLAMA_70B),
        Wish(memory_bytes=8 * GB, context_tokens=4096, requests=4, dtype="float32"),
    )

    assert [line.split()[0] for line in plan.advice] == [
        "--memory", "--requests", "--context", "--dtype", "--dtype",
    ]  # fmt: skip


def test_advice_asks_for_the_least_memory_rounded_up(tiny_gguf):
    subject = model_subject(tiny_gguf)
    wish = {"memory_bytes": 1000, "context_tokens": 64, "requests": 2}
    plan = advise(subject, Wish(**wish))

    (line,) = plan.advice
    need = plan.memory_needed_bytes
    assert need <= follow(wish, line)["memory_bytes"] < 1.01 * need
    assert make_plan(subject, Wish(**wish | {"memory_bytes": need})).fits
    assert not make_plan(subject, Wish(**wish | {"memory_bytes": need - 1})).fits


@pytest.mark.parametrize("memory", [40 * GB, 1 * GB])
def test_a_block_longer_than_a_request_is_the_first_thing_to_mend(memory):
    plan = plan_for(LLAMA_70B, memory=memory, context_tokens=4096, block_size=10**6)

    assert plan.advice[0].startswith("--block-size ")


def test_a_context_beyond_the_models_own_does_not_fit_any_memory(tiny_gguf):
    subject = model_subject(tiny_gguf)
    wish = {"memory_bytes": 4 * GIB, "context_tokens": 100_000}

    (line,) = advise(subject, Wish(**wish)).advice
    assert line.startswith("--context 512:")
    assert make_plan(subject, Wish(**follow(wish, line))).fits


def test_where_one_flag_is_not_enough_the_advice_names_two(tiny_gguf):
    subject = model_subject(tiny_gguf)
    wish = {"memory_bytes": 1000, "context_tokens": 100_000}

    (line,) = advise(subject, Wish(**wish)).advice
    assert line.startswith("--context 512 --memory ")
    assert make_plan(subject, Wish(**follow(wish, line))).fits


# ── windows ───────────────────────────────────────────────────────────────────────────────

WINDOWED = ModelSpec(
    family="llama", vocab_size=100, hidden_size=64, intermediate_size=64, num_layers=12,
    num_heads=4, num_kv_heads=2, head_dim=16, context=10**6, norm_eps=1e-5, rope_theta=1e4,
    tied_embeddings=True, window=512, window_layers=tuple(i for i in range(12) if i % 6 != 5),
)  # fmt: skip
"""Two layers that see everything, ten with a window: a group of the former, five of the latter."""

WINDOWED_SUBJECT = Subject("windowed", WINDOWED, "bfloat16", WINDOWED.context, 0)
BLOCK = 2 * 2 * 16 * 2 * 2 * 16
"""Bytes: keys and values, two layers, 16 tokens, two heads, two bytes, 16 numbers."""


def windowed_plan(memory=GIB, **wish):
    return advise(WINDOWED_SUBJECT, Wish(memory_bytes=memory, **wish))


def test_behind_a_window_a_long_request_holds_the_window_alone():
    plan = windowed_plan(context_tokens=8192)

    full, *windows = plan.groups
    assert (full.window, full.kv_bytes_per_request) == (None, 512 * BLOCK)
    assert [(group.window, group.kv_bytes_per_request) for group in windows] == [
        (512, 33 * BLOCK)
    ] * 5
    assert plan.kv_bytes_per_request == (512 + 5 * 33) * BLOCK


def test_the_first_request_needs_more_while_its_prompt_is_computed():
    plan = windowed_plan(context_tokens=8192, step_tokens=2048)

    # The window and a step, wherever they begin in a block.
    assert plan.kv_bytes_peak_per_request == (512 + 5 * 161) * BLOCK


def test_the_memory_that_windows_need_is_exact():
    wish = {"context_tokens": 8192, "requests": 5}
    need = windowed_plan(**wish).memory_needed_bytes

    enough, short = windowed_plan(need, **wish), windowed_plan(need - 1, **wish)

    assert (enough.fits, enough.max_concurrent_requests) == (True, 5)
    assert (short.fits, short.max_concurrent_requests) == (False, 4)
    assert need < 5 * enough.kv_bytes_peak_per_request + enough.workspace_bytes


def test_the_table_names_windows_and_what_layers_with_them_hold():
    console = Console(file=StringIO(), width=200)
    console.print(plan_table(windowed_plan(context_tokens=8192)))

    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in text_of(console)]
    assert ["10 layers that see 512 tokens", "1,280 bytes"] in rows
    assert ["10 layers that see 512 tokens", "660.00 KiB"] in rows
    assert ["2 layers that see everything", "2.00 MiB"] in rows
    assert ["while its prompt is computed", "5.14 MiB"] in rows


def text_of(console: Console) -> list[str]:
    return console.file.getvalue().splitlines()


@pytest.mark.parametrize("requests", [1, 5, 40])
@pytest.mark.parametrize("context", [100, 3000, 8192, 10**6])
def test_advice_on_a_model_with_windows_is_true(requests, context):
    wish = {"memory_bytes": 40 << 20, "context_tokens": context, "requests": requests}
    for line in advise(WINDOWED_SUBJECT, Wish(**wish)).advice:
        assert make_plan(WINDOWED_SUBJECT, Wish(**follow(wish, line))).fits, line


def test_the_longest_context_of_a_model_with_windows_is_exact():
    memory, wish = 50 << 20, {"context_tokens": 10**5, "requests": 3}
    line = next(one for one in windowed_plan(memory, **wish).advice if one.startswith("--context"))

    longest = follow(wish, line)["context_tokens"]

    for blocks in range(1, 9):
        longer = wish | {"context_tokens": longest + 16 * blocks}
        assert not windowed_plan(memory, **longer).fits


# ── money ─────────────────────────────────────────────────────────────────────────────────


def test_the_cost_of_a_million_tokens():
    assert Price(per_hour=3.6, tokens_per_s=1000).per_million() == pytest.approx(1.0)


def test_a_fleet_without_paging_is_larger_by_the_share_it_sustains():
    price = Price(
        per_hour=2.0, tokens_per_s=1000, load_tokens_per_s=9500, share_without_paging=0.25
    )
    plan = plan_for(LLAMA_70B, price=price)

    assert plan.fleet.machines == 10
    assert plan.fleet.machines_without_paging == 38
    assert plan.fleet.price_per_hour == 20.0
    assert plan.cost_per_million_tokens_without_paging == 4 * plan.cost_per_million_tokens


def test_without_throughput_there_is_neither_cost_nor_fleet():
    plan = plan_for(LLAMA_70B, price=Price(per_hour=2.0, load_tokens_per_s=100))

    assert plan.cost_per_million_tokens is None
    assert plan.fleet is None


def test_throughput_is_a_number_or_the_slowest_work_of_a_record(tmp_path):
    path = tmp_path / "record.json"
    rows = [
        measure_throughput(
            draw_work(name),
            lambda _, seconds=seconds: seconds,
            rounds=1,
            bandwidth=lambda: 1e9,
            advance=lambda _: None,
        )
        for name, seconds in (("single", 1.0), ("batch8", 8.0), ("prefill512", 600.0))
    ]
    path.write_text(json.dumps({"rows": msgspec.to_builtins(rows)}))

    assert read_throughput("250") == 250.0
    assert read_throughput(str(path)) == 64.0  # 8 answers of 64 tokens in 8 seconds


@pytest.mark.parametrize("text", ["no/such/file", "", "fast"])
def test_a_throughput_that_is_neither_is_refused(text):
    with pytest.raises(ConfigError, match="--throughput takes output tokens a second"):
        read_throughput(text)


# ── sizes ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (1, "1"), (1023, "1023"), (1024, "1KiB"), (1025, "1.01KiB"), (5 << 30, "5GiB"),
        ((5 << 30) + 1, "5.01GiB"), (3 << 29, "1.5GiB"), (2**63 - 1, str(2**63 - 1)),
    ],
)  # fmt: skip
def test_a_size_to_ask_for_is_short_and_never_too_small(count, text):
    assert ask_bytes(count) == text
    assert parse_bytes(text, name="--memory") >= count


@pytest.mark.parametrize("power", range(63))
def test_a_size_to_ask_for_is_at_most_a_hundredth_too_large(power):
    for count in (2**power, 2**power + 1, 3 * 2**power // 2 + 7):
        assert count <= parse_bytes(ask_bytes(count), name="") <= 1.011 * count


def test_a_longer_request_never_needs_less(tmp_path):
    spec = msgspec.structs.replace(tiny_spec(), window=24, window_layers=(0, 1))
    subject = Subject("windows", spec, "float32", 4096, 0)
    sizes = [
        make_plan(subject, Wish(memory_bytes=2**30, context_tokens=length)).kv_bytes_per_request
        for length in range(2, 300)
    ]

    assert sizes == sorted(sizes)
