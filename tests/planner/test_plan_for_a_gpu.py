"""`octavo plan --gpu-memory`: an engine's sum, on a machine without a GPU."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from octavo.cli import run
from octavo.config import EngineConfig
from octavo.contract.formats import ITEM_BYTES
from octavo.executors.gpu_memory import CONTEXT_BYTES, FUSED, Card, Demand, GpuPlan, fused_dtype
from octavo.planner.subject import OnGpu, model_subject


def plan_json(capsys, *arguments):
    assert run(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def engine_plan(path, size, **settings):
    subject = model_subject(path)
    config = EngineConfig(**settings)
    dtype = fused_dtype(subject.dtype)
    demand = Demand(
        config=config,
        spec=subject.source,
        layout=subject.layout(block_size=config.block_size, dtype=dtype),
        dtype=dtype,
        weight_bytes=subject.weights_bytes * ITEM_BYTES[dtype] // ITEM_BYTES[subject.dtype],
        way=FUSED,
    )
    return GpuPlan(Card("cuda", size, size - CONTEXT_BYTES), demand)


def test_the_planner_counts_what_an_engine_would(capsys, tiny_folder):
    document = plan_json(
        capsys, str(tiny_folder), "--device", "cuda", "--gpu-memory", "4GB",
        "--gpu-memory-utilization", "0.8", "--max-num-seqs", "64",
    )  # fmt: skip
    plan = engine_plan(tiny_folder, 4 * 10**9, gpu_memory_utilization=0.8, max_num_seqs=64)

    assert document["kv_pool_bytes"] == plan.left_bytes
    assert document["blocks"] == plan.demand.layout.blocks_in(plan.left_bytes)
    assert document["memory_bytes"] == plan.budget_bytes - CONTEXT_BYTES
    assert document["gpu_memory_bytes"] == 4 * 10**9
    assert document["config"]["gpu_memory_utilization"] == 0.8
    assert document["graph_bytes"] > 0


def test_people_see_the_same_sum(capsys, tiny_folder):
    assert run(["plan", str(tiny_folder), "--gpu-memory", "4GB"]) == 0

    out = capsys.readouterr().out
    for line in engine_plan(tiny_folder, 4 * 10**9).show()[1:]:
        assert line.split("  ")[-1] in out
    assert "memory of cuda:" in out
    assert "graphs, estimated" in out


def test_advice_on_a_gpus_memory_is_true(capsys, tiny_folder):
    arguments = [str(tiny_folder), "--requests", "40", "--context", "500", "--block-size", "16"]
    document = plan_json(capsys, *arguments, "--gpu-memory", "1GB")

    assert not document["fits"]
    more = [line.partition(":")[0].split() for line in document["advice"]]
    sizes = [flags[1] for flags in more if flags[0] == "--gpu-memory"]
    assert sizes
    assert plan_json(capsys, *arguments, "--gpu-memory", sizes[0])["fits"]


def test_where_a_gpu_would_be_taken_the_plan_is_for_it_as_it_is(capsys, tiny_folder, monkeypatch):
    card = (3 << 30, 4 << 30)
    monkeypatch.setattr("octavo.runner.device.device_memory", lambda device: card)

    # What the native executor does not store, the reference backend does.
    document = plan_json(capsys, str(tiny_folder), "--dtype", "int8")

    assert document["gpu_memory_bytes"] == 4 << 30
    assert document["memory_bytes"] == int(0.9 * (4 << 30)) - (1 << 30)


def test_a_published_shape_needs_no_files(capsys):
    document = plan_json(capsys, "--shape", "llama-3.1-8b", "--gpu-memory", "141GB")

    assert document["weights_bytes"] == 2 * 8_030_261_248
    assert document["blocks"] == 50_982


@pytest.mark.parametrize("share", [1.0, 0.9, 0.33, 0.07])
@pytest.mark.parametrize("usable", [1, 999_999_937, 10**12])
def test_the_memory_for_a_use_is_the_least_that_leaves_it(share, usable):
    gpu = OnGpu(utilization=share, taken_bytes=512 << 20, workspace_bytes=0, graph_bytes=0)

    memory = gpu.memory_for(usable)

    assert gpu.usable_bytes(memory) >= usable
    assert gpu.usable_bytes(memory - 2 - int(1 / share)) < usable


def test_planning_for_a_gpu_never_loads_torch(tiny_folder):
    code = (
        "import sys; from octavo.cli import run; "
        f"run(['plan', {str(tiny_folder)!r}, '--gpu-memory', '4GB']); "
        "sys.exit('torch' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


BAD = [
    (["--gpu-memory", "4GB", "--memory", "4GB"], "give --memory or --gpu-memory, not both"),
    (["--gpu-memory", "4GB", "--device", "cpu"], "--gpu-memory is of a GPU, but --device is 'cpu'"),
    (["--device", "cuda", "--memory", "4GB"], "for a GPU give --gpu-memory instead"),
    (["--device", "cuda:7"], "device 'cuda:7' cannot be used here"),
    (["--gpu-memory-utilization", "0.5"], "--gpu-memory-utilization is of a GPU"),
    (["--shape", "llama-3.1-8b"], "give a model or a shape"),
    (["--gpu-memory", "much"], "--gpu-memory must be a size such as 12GiB"),
    (
        ["--gpu-memory", "4GB", "--gpu-memory-utilization", "2"],
        "gpu_memory_utilization must be above 0 and at most 1, got 2.0",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_status_2(arguments, message, capsys, tiny_folder):
    assert run(["plan", str(tiny_folder), *arguments]) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


@pytest.mark.parametrize("flags", [["--gpu-memory", "80GB"], ["--device", "cuda"]])
def test_a_bare_shape_has_no_sum(flags, capsys):
    shape = ["--layers", "80", "--kv-heads", "8", "--head-dim", "128"]

    assert run(["plan", *shape, *flags]) == 2

    assert "--gpu-memory" in capsys.readouterr().err
