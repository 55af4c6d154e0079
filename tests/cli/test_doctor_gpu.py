"""`octavo doctor` on machines with GPUs, with half of what they need, or with a broken part."""

from __future__ import annotations

import json
import stat
import sys
import types
import warnings
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from octavo.cli import doctor as doctor_command
from octavo.cli import gpus, run

DRIVER = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n"
    "GCC version: gcc 13\n"
)
SMI = "0, NVIDIA H200, 143771, 143164, 9.0, 580.95.05"
GIB = 2**30
H200 = {"name": "NVIDIA H200", "major": 9, "minor": 0, "total_memory": 140 * GIB}


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine without anything of NVIDIA's; its methods put things there."""
    return Machine(monkeypatch, tmp_path)


class Machine:
    def __init__(self, monkeypatch, folder):
        self._patch, self._folder = monkeypatch, folder
        self._versions: dict[str, str | None] = {"triton": None, "flashinfer-python": None}
        monkeypatch.setattr(gpus, "DRIVER_FILE", str(folder / "version"))
        monkeypatch.setattr(gpus, "DEVICE_FILES", (str(folder / "nvidiactl"),))
        monkeypatch.setattr(doctor_command, "version", self._version)
        monkeypatch.setenv("PATH", str(folder))
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_PATH"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("CUDA_HOME", str(folder / "cuda"))

    def driver(self):
        (self._folder / "version").write_text(DRIVER)

    def packages(self, **versions):
        self._versions |= {"flashinfer-python" if k == "flashinfer" else k: v
                           for k, v in versions.items()}  # fmt: skip

    def nvidia_smi(self, *rows):
        self.executable("nvidia-smi", "".join(f"echo '{row}'\n" for row in rows))

    def nvcc(self):
        (self._folder / "cuda" / "bin").mkdir(parents=True)
        self.executable("cuda/bin/nvcc", "")

    def executable(self, name, body):
        path = self._folder / name
        path.write_text("#!/bin/sh\n" + body)
        path.chmod(path.stat().st_mode | stat.S_IXUSR)

    def without_torch(self):
        self._patch.setitem(sys.modules, "torch", None)

    def torch(self, *, cuda, cards=(), available=None, says=None):
        """Put a torch there. cards: properties, and free bytes or an error."""
        fake = types.ModuleType("torch")
        fake.__spec__ = ModuleSpec("torch", None)
        fake.__version__ = "2.11.0"
        fake.version = SimpleNamespace(cuda=cuda)

        def is_available():
            if says:
                warnings.warn(says, stacklevel=1)
            return bool(cards) if available is None else available()

        def mem_get_info(index):
            free, total = cards[index][1], cards[index][0]["total_memory"]
            if isinstance(free, Exception):
                raise free
            return free, total

        fake.cuda = SimpleNamespace(
            is_available=is_available,
            device_count=lambda: len(cards),
            get_device_properties=lambda index: SimpleNamespace(**cards[index][0]),
            mem_get_info=mem_get_info,
        )
        self._patch.setitem(sys.modules, "torch", fake)

    def report(self, capsys):
        """Run the command; returns what people see."""
        run(["doctor"])
        return capsys.readouterr().out

    def document(self, capsys):
        run(["doctor", "--json"])
        document = json.loads(capsys.readouterr().out)
        return document["gpu_stack"], {check["name"]: check for check in document["checks"]}

    def _version(self, package):
        found = self._versions.get(package, "1.0")
        if found is None:
            raise PackageNotFoundError(package)
        return found


def test_a_whole_stack_is_named_part_by_part(machine, capsys):
    machine.driver()
    machine.torch(cuda="13.0", cards=[(H200, 139 * GIB)])
    machine.packages(triton="3.6.0", flashinfer="0.6.14")
    machine.nvcc()

    out = machine.report(capsys)

    assert "0: NVIDIA H200, 139.0 of 140.0 GiB free, compute capability 9.0" in out
    assert "ok        NVIDIA GPU: 1 GPU, torch 2.11.0 for CUDA 13.0, driver 580.95.05" in out
    assert "ok        triton: triton 3.6.0" in out
    assert "ok        flashinfer: flashinfer 0.6.14" in out
    assert "cuda/bin/nvcc: its kernels are compiled at first use, by nvcc" in out


def test_json_has_every_fact_of_the_stack(machine, capsys):
    machine.driver()
    machine.torch(cuda="13.0", cards=[(H200, 139 * GIB), (H200, 12 * GIB)])
    machine.packages(triton="3.6.0")

    stack, checks = machine.document(capsys)

    assert stack["driver"] == "580.95.05"
    assert stack["torch"]["cuda"] == "13.0"
    assert [card["free_bytes"] for card in stack["gpus"]] == [139 * GIB, 12 * GIB]
    assert (stack["triton"], stack["flashinfer"], stack["nvcc"]) == ("3.6.0", None, None)
    assert checks["flashinfer"]["remedy"] == "pip install 'octavo[gpu]'"
    assert "CUDA_HOME" in checks["nvcc, for flashinfer"]["remedy"]


def test_a_torch_without_cuda_beside_a_driver_is_named_as_such(machine, capsys):
    machine.driver()
    machine.torch(cuda=None)
    machine.nvidia_smi(SMI)

    out = machine.report(capsys)

    assert "torch 2.11.0 is built without CUDA, beside NVIDIA driver 580.95.05" in out
    assert "install a torch built for CUDA" in out
    assert "0: NVIDIA H200, 139.8 of 140.4 GiB free, compute capability 9.0" in out


def test_a_driver_too_old_for_torch_is_told_in_torchs_words(machine, capsys):
    machine.driver()
    machine.torch(cuda="13.0", says="The NVIDIA driver on your system is too old (found 12020).")

    out = machine.report(capsys)

    assert "torch 2.11.0 for CUDA 13.0 finds no GPU beside NVIDIA driver 580.95.05" in out
    assert "(The NVIDIA driver on your system is too old (found 12020).)" in out


def test_hidden_cards_are_told_by_the_variable_that_hides_them(machine, capsys, monkeypatch):
    machine.driver()
    machine.torch(cuda="13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert "CUDA_VISIBLE_DEVICES is ''" in machine.report(capsys)


def test_a_driver_without_torch_says_how_to_get_one(machine, capsys):
    machine.driver()
    machine.without_torch()

    out = machine.report(capsys)

    assert "NVIDIA driver 580.95.05 is here, but torch is not installed" in out


def test_a_machine_without_nvidias_driver_is_told_once(machine, capsys):
    machine.torch(cuda=None)

    _, checks = machine.document(capsys)

    assert checks["NVIDIA GPU"]["detail"] == "no NVIDIA driver is here"
    assert not {"flashinfer", "triton"} & set(checks)


def test_a_card_that_does_not_answer_is_listed_with_its_reason(machine, capsys):
    machine.driver()
    busy = RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable\nmore")
    machine.torch(cuda="13.0", cards=[(H200, busy)])

    out = machine.report(capsys)

    assert "0: NVIDIA H200, ? of 140.0 GiB free, compute capability 9.0, CUDA error: all" in out
    assert "more" not in out.splitlines()


def test_a_torch_that_fails_is_a_line_and_no_crash(machine, capsys):
    def broken():
        raise OSError("libcudart.so.13: cannot open shared object file")

    machine.driver()
    machine.torch(cuda="13.0", available=broken)

    out = machine.report(capsys)

    assert "torch does not load (libcudart.so.13: cannot open shared object file)" in out


def test_an_nvidia_smi_that_fails_is_no_crash(machine, capsys):
    machine.executable("nvidia-smi", "echo 'NVIDIA-SMI has failed'; exit 9\n")
    machine.torch(cuda=None)

    stack, _ = machine.document(capsys)

    assert stack["gpus"] == []
    assert stack["driver"] is None


def test_what_nvidia_smi_does_not_know_is_left_out(machine, capsys):
    machine.nvidia_smi("0, Orin (nvgpu), [N/A], [N/A], [N/A], 540.4.0")
    machine.torch(cuda=None)

    stack, checks = machine.document(capsys)

    (card,) = stack["gpus"]
    assert (card["name"], card["total_bytes"], card["compute_capability"]) == (
        "Orin (nvgpu)", None, None,
    )  # fmt: skip
    assert "beside NVIDIA driver 540.4.0" in checks["NVIDIA GPU"]["detail"]
