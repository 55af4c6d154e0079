"""The executors that are held against transformers, each in float32."""

from __future__ import annotations

import pytest

ENGINES = {
    "reference": {"backend": "reference"},
    "cpu": {"backend": "cpu", "dtype": "float32"},
}


@pytest.fixture(scope="module", params=list(ENGINES))
def engine(request):
    """Settings of `LLM` and `EngineConfig` that choose an executor."""
    if request.param == "cpu":
        from octavo.cpu import native

        if native() is None:
            pytest.skip("octavo is installed without its extension")
    return ENGINES[request.param]
