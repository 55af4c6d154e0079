"""What is compiled for one instruction set must not be linked into what runs everywhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(__file__).parents[2] / "build" / "extension"
UNITS = [path for isa in ("avx2", "avx512") for path in BUILD.rglob(f"isa/{isa}.cpp.o")]


@pytest.mark.skipif(not UNITS, reason="make extension has not compiled such units here")
@pytest.mark.skipif(shutil.which("nm") is None, reason="there is no nm")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_shares_no_function_that_is_not_named_after_its_instruction_set(unit):
    """The linker keeps one of all copies of a shared function: it may be the newest machine's."""
    symbols = subprocess.run(
        ["nm", "-C", "--defined-only", unit], capture_output=True, text=True, check=True
    ).stdout.splitlines()

    shared = [line.split(maxsplit=2)[2] for line in symbols if line.split()[1] in "WVu"]

    assert [name for name in shared if "Avx2" not in name and "Avx512" not in name] == []
