"""Triton's kernels run on a GPU if there is one, and in Triton's interpreter otherwise."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def device() -> str:
    """Where kernels are tried."""
    pytest.importorskip("triton", reason="Triton is not installed: pip install 'octavo[gpu]'")
    torch = pytest.importorskip("torch")
    return "cuda" if torch.cuda.is_available() else "cpu"
