"""The folder that engines read which read no GGUF file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from octavo.models.checkpoint import open_checkpoint
from tiny_model import write_tiny_gguf

WRITER = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "bf16_folder.py"


@pytest.mark.parametrize("tied", [False, True])
def test_a_folder_holds_the_weights_of_the_file_in_bfloat16(tmp_path, tied):
    source = write_tiny_gguf(tmp_path / "tiny.gguf", tied=tied)
    folder = tmp_path / "folders" / "tiny"

    subprocess.run([sys.executable, str(WRITER), str(source), str(folder)], check=True, timeout=120)

    file, written = open_checkpoint(source), open_checkpoint(folder)
    # GGUF rounds this number to float32.
    assert written.spec == msgspec.structs.replace(file.spec, norm_eps=1e-5)
    assert written.dtype == "bfloat16"
    for name in file.names:
        # The weights of the tiny model are numbers that bfloat16 holds exactly.
        assert np.array_equal(written.tensor(name), file.tensor(name)), name
    assert [path.name for path in folder.parent.iterdir()] == ["tiny"]
