"""Tests that need a CUDA device: run them with `make test-gpu`."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def cuda() -> str:
    """The device; without one these tests are skipped."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device")
    return "cuda"
