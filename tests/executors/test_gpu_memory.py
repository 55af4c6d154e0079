"""The memory plan of a GPU: its numbers, and advice that is true where it does not come out."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest

from octavo.config import EngineConfig
from octavo.contract.formats import ITEM_BYTES
from octavo.contract.layout import kv_layout
from octavo.contract.model import ExpertSpec, ModelSpec
from octavo.errors import ConfigError
from octavo.executors.gpu_fit import fits_with, propose, require_fit
from octavo.executors.gpu_memory import (
    CONTEXT_BYTES,
    FUSED,
    GATHERING,
    GIB,
    Card,
    Demand,
    GpuPlan,
    captured_sizes,
)
from octavo.models.weights import weight_shapes

GB = 10**9
LLAMA_8B = ModelSpec(
    family="llama", vocab_size=128_256, hidden_size=4096, intermediate_size=14_336, num_layers=32,
    num_heads=32, num_kv_heads=8, head_dim=128, context=131_072, norm_eps=1e-5, rope_theta=5e5,
    tied_embeddings=False,
)  # fmt: skip
PARAMETERS = 8_030_261_248
SMALL = msgspec.structs.replace(
    LLAMA_8B, num_layers=28, hidden_size=3072, intermediate_size=8192, num_heads=24,
    tied_embeddings=True,
)  # fmt: skip
"""Llama 3.2 3B: 12.0 GiB of weights in float32."""

TEXT = "it would fit with "


def plan_for(card_bytes, *, spec=LLAMA_8B, dtype="bfloat16", used=CONTEXT_BYTES, way=FUSED, **how):
    config = EngineConfig(**how)
    stored = dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    demand = Demand(
        config=config,
        spec=spec,
        layout=kv_layout(spec, block_size=config.block_size, dtype=stored),
        dtype=dtype,
        weight_bytes=ITEM_BYTES[dtype] * sum(map(math.prod, weight_shapes(spec).values())),
        way=way,
    )
    return GpuPlan(Card("cuda:0", card_bytes, card_bytes - used), demand)


def settings_of(line):
    """Read "--flag value --flag" as settings."""
    kinds = {"dtype": str, "kv_cache_dtype": str, "gpu_memory_utilization": float}
    settings = {}
    for part in line.removeprefix("--").split(" --"):
        flag, _, value = part.partition(" ")
        name = flag.replace("-", "_")
        settings[name] = kinds.get(name, int)(value) if value else True
    return settings


def refusal(plan, others=(), elsewhere=()):
    with pytest.raises(ConfigError) as caught:
        require_fit(plan, others=lambda: others, elsewhere=lambda: elsewhere)
    message = str(caught.value)
    assert "\n" not in message
    return message


# ── the sum ───────────────────────────────────────────────────────────────────────────────


def test_the_parts_and_kv_add_up_to_the_share_of_the_card():
    plan = plan_for(141 * GB)
    demand, blocks = plan.demand, plan.num_blocks

    assert demand.weight_bytes == 2 * PARAMETERS
    taken = plan.card.used_bytes + plan.fixed_bytes
    assert plan.budget_bytes == 126_900_000_000
    assert plan.left_bytes == plan.budget_bytes - taken
    assert 0 <= plan.left_bytes - plan.kv_bytes < demand.layout.block_bytes
    assert blocks == plan.left_bytes // (2 << 20)


def test_llama_8b_on_141_gb_leaves_room_for_815_000_tokens():
    plan = plan_for(141 * GB)

    workspace = {part.name: part.num_bytes for part in plan.demand.workspace()}
    assert workspace == {
        "2,048 rows between layers": 2048 * 3 * 4096 * 2,
        "their queries, keys, values": 2048 * (32 + 16) * 128 * 2,
        "what attention gives": 2048 * 4096 * 2,
        "gate, up and their product": 2048 * 3 * 14_336 * 2,
        "logits of 128 rows": 128 * 128_256 * (2 + 4),
        "attention's partial results": (4096 + 256) * 32 * 129 * 4,
        "turns of all positions": 131_072 * 128 * 4,
        "sampling": 256 << 20,
        "block tables": 2 * 128 * 8192 * 4,
        "buffers of libraries": 256 << 20,
    }
    graphs = {part.name: part.num_bytes for part in plan.demand.graphs()}
    assert graphs == {
        "129 graphs, of up to 1,024 rows": 129 * 32 * (512 << 10),
        "their states and logits": 128 * (4096 + 128_256) * 2,
        "rows that they share": 1024 * (3 * 4096 + 48 * 128 + 4096 + 3 * 14_336) * 2,
    }
    assert plan.num_blocks * 16 == 815_712
    assert plan.fits


def test_the_sum_is_shown_line_by_line_with_what_kv_has_room_for():
    lines = plan_for(141 * GB).show()

    assert lines[0] == "memory of cuda:0:"
    amounts = [float(line.split()[-2].replace(",", "")) for line in lines[1:] if "GiB" in line]
    names = [line.strip() for line in lines]
    assert any(name.startswith("0.9 of 131.32 GiB ") for name in names)
    assert any(name.startswith("- weights in bfloat16 ") for name in names)
    assert any(name.startswith("= KV in bfloat16 ") for name in names)
    assert names[-1] == "room for 815,712 tokens: 6 texts of 131,072, the longest there are"
    top = [float(line.split()[-2]) for line in lines[1:-1] if line[2] in "0-="]
    assert abs(top[0] - sum(top[1:])) < 0.03
    assert max(amounts) < 141


def test_a_pool_of_given_size_needs_no_utilization_but_free_memory():
    plan = plan_for(24 * GB, kv_cache_memory_bytes=2 * GIB, gpu_memory_utilization=0.1)

    assert plan.fits
    assert plan.num_blocks == 1024
    assert "24.00" not in plan.show()[1]
    assert not plan_for(24 * GB, kv_cache_memory_bytes=7 * GIB).fits


def test_the_pool_is_no_larger_than_all_sequences_need():
    plan = plan_for(141 * GB, max_num_seqs=4, max_model_len=4096)

    assert plan.num_blocks == 4 * 256
    assert "stay free: all sequences have room" in plan.show()[-1]


def test_memory_that_others_use_comes_out_of_the_share():
    mine, shared = plan_for(141 * GB), plan_for(141 * GB, used=CONTEXT_BYTES + 20 * GIB)

    assert mine.left_bytes - shared.left_bytes == 20 * GIB


def test_without_a_length_asked_for_a_pool_smaller_than_the_context_will_do():
    plan = plan_for(24 * GB)

    assert plan.fits
    assert "less than one text of 131,072: longer ones are refused" in plan.show()[-1]


def test_the_reference_backend_captures_nothing_and_gathers_what_it_reads():
    plan = plan_for(141 * GB, way=GATHERING)

    assert plan.demand.graphs() == ()
    assert any(part.name == "keys and values gathered" for part in plan.demand.workspace())


def test_without_graphs_or_with_experts_nothing_is_captured():
    experts = ExpertSpec(number=8, per_token=2, intermediate_size=14_336, normalized=True)

    assert plan_for(141 * GB, enforce_eager=True).demand.graphs() == ()
    mixture = msgspec.structs.replace(LLAMA_8B, experts=experts)
    assert plan_for(141 * GB, spec=mixture).demand.graphs() == ()


def test_only_kv_that_the_backend_reads_is_proposed():
    fused, reference = (
        propose(plan_for(24 * GB, max_model_len=36_000, way=way)) for way in (FUSED, GATHERING)
    )

    assert not any(line.startswith("--kv-cache-dtype") for line in fused)
    assert any(line.startswith("--kv-cache-dtype int8") for line in reference)


def test_experts_count_with_those_that_a_row_goes_through():
    experts = ExpertSpec(number=128, per_token=8, intermediate_size=768, normalized=True)
    spec = msgspec.structs.replace(LLAMA_8B, experts=experts)

    parts = {part.name: part.num_bytes for part in plan_for(141 * GB, spec=spec).demand.workspace()}
    assert parts["gate, up and their product"] == 2048 * 8 * (3 * 768 + 2 * 4096) * 2


@pytest.mark.parametrize("most", [1, 3, 4, 7, 8, 100, 128, 256, 1000])
def test_every_number_of_sequences_has_a_captured_size_not_far_above(most):
    sizes = captured_sizes(most)

    assert sizes[-1] == most
    assert list(sizes) == sorted(set(sizes))
    for count in range(1, most + 1):
        padded = next(size for size in sizes if size >= count)
        assert padded - count < max(8, count / 8)


# ── advice ────────────────────────────────────────────────────────────────────────────────

TIGHT = [
    (12 * GB, {"spec": SMALL, "dtype": "float32"}),
    (12 * GB, {"spec": SMALL, "max_model_len": 65_536}),
    (12 * GB, {"spec": SMALL, "max_model_len": 131_072, "max_num_batched_tokens": 32_768}),
    (12 * GB, {"spec": SMALL, "max_num_batched_tokens": 65_536}),
    (12 * GB, {"spec": SMALL, "max_num_seqs": 8192}),
    (12 * GB, {"spec": SMALL, "gpu_memory_utilization": 0.5}),
    (12 * GB, {"spec": SMALL, "kv_cache_memory_bytes": 8 * GIB}),
    (12 * GB, {"spec": SMALL, "kv_cache_memory_bytes": 1000}),
    (24 * GB, {"max_model_len": 131_072}),
    (24 * GB, {"dtype": "float32"}),
    (24 * GB, {"dtype": "float32", "max_model_len": 131_072, "max_num_batched_tokens": 16_384}),
    (18 * GB, {"max_num_batched_tokens": 8192, "max_num_seqs": 512}),
    (24 * GB, {"way": GATHERING, "max_model_len": 131_072}),
    (24 * GB, {"used": 6 * GIB}),
]


@pytest.mark.parametrize(("card", "how"), TIGHT, ids=str)
def test_every_line_of_advice_makes_it_fit(card, how):
    plan = plan_for(card, **how)
    assert not plan.fits

    lines = propose(plan)

    assert lines
    for line in lines:
        assert fits_with(plan, settings_of(line)), line
        other = replace(plan, demand=plan.demand.changed(**settings_of(line)))
        assert other.fits, line
        asked = other.demand.config.max_model_len or 2
        assert other.num_blocks >= other.demand.layout.peak_blocks(asked, 1), line


def test_advice_on_a_number_names_the_largest_that_fits():
    plan = plan_for(12 * GB, spec=SMALL, max_num_batched_tokens=65_536)
    line = next(one for one in propose(plan) if one.startswith("--max-num-batched-tokens"))

    largest = settings_of(line)["max_num_batched_tokens"]

    assert 64 <= largest < 65_536
    assert not fits_with(plan, {"max_num_batched_tokens": largest + 16})


def test_advice_on_the_length_names_the_longest_that_fits():
    plan = plan_for(24 * GB, max_model_len=131_072)
    line = next(one for one in propose(plan) if one.startswith("--max-model-len"))

    longest = settings_of(line)["max_model_len"]

    assert not fits_with(plan, {"max_model_len": longest + 16})


def test_advice_on_the_utilization_names_the_least():
    plan = plan_for(24 * GB, gpu_memory_utilization=0.5)
    line = next(one for one in propose(plan) if one.startswith("--gpu-memory-utilization"))

    least = settings_of(line)["gpu_memory_utilization"]

    assert not fits_with(plan, {"gpu_memory_utilization": least - 0.01})


def test_the_refusal_has_the_numbers_and_the_flags():
    message = refusal(plan_for(24 * GB, max_model_len=131_072))

    assert message.startswith(
        "cuda:0 has too little memory: 0.9 of its 22.35 GiB may be used, 0.50 are in use; weights "
        "in bfloat16 take 14.96, workspace 0.98, graphs 2.17, KV (a text of 131,072 tokens) 16.00: "
    )
    assert re.search(r"GiB too much; it would fit with --\S+ \S+(, or --\S+ \S+)*$", message)


def test_where_one_flag_is_not_enough_one_line_names_those_that_are():
    plan = plan_for(24 * GB, dtype="float32", max_model_len=131_072)

    (line,) = propose(plan)

    assert len(settings_of(line)) > 1
    for name in settings_of(line):
        fewer = {key: value for key, value in settings_of(line).items() if key != name}
        assert not fits_with(plan, fewer), f"{line}: {name} could be left out"


def test_where_no_setting_helps_the_refusal_says_how_large_a_gpu_must_be():
    plan = plan_for(12 * GB)

    message = refusal(plan)

    assert "no setting makes it fit: choose a smaller model, or a GPU of at least " in message
    size = float(re.search(r"at least ([0-9.]+) GiB", message)[1])
    assert plan_for(int((size + 0.01) * GIB)).fits
    assert not plan_for(int((size - 0.01) * GIB)).fits


def test_another_gpu_is_named_if_it_has_room():
    others = [Card("cuda:1", 12 * GB, 12 * GB), Card("cuda:2", 80 * GB, 79 * GB)]

    message = refusal(plan_for(12 * GB), others, ["--backend cpu --device cpu"])

    assert message.endswith(f"{TEXT}--device cuda:2, or --backend cpu --device cpu")


def test_a_plan_that_fits_asks_no_other_device():
    def nobody():
        raise AssertionError("looked elsewhere")

    require_fit(plan_for(141 * GB), others=nobody, elsewhere=nobody)


def test_a_pool_too_small_for_one_sequence_is_refused_with_the_least():
    plan = plan_for(141 * GB, kv_cache_memory_bytes=1000)

    message = refusal(plan)

    assert message.startswith("kv_cache_memory_bytes is 1000, but one sequence needs at least")
    assert message.endswith(f"{TEXT}--kv-cache-memory-bytes {2 << 20}")


def test_planning_a_gpu_never_loads_torch():
    code = (
        "import sys, octavo.executors.gpu_fit, octavo.executors.gpu_memory\n"
        "sys.exit('torch' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
