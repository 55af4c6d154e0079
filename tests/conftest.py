"""Models for tests: the embedded one if it is on this machine, and tiny random ones."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from octavo.models import catalog
from tiny_model import write_tiny_folder, write_tiny_gguf

if not Path("/dev/nvidiactl").exists():
    # Before anything defines a kernel: without a GPU they are interpreted, on CPU tensors.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The SmolLM2 file; tests that use it are marked `weights`."""
    path = catalog.find(catalog.DEFAULT_ALIAS)
    if path is None:
        pytest.skip(f"{catalog.DEFAULT_ALIAS} is not in {catalog.cache_folder()}: octavo pull")
    return path


@pytest.fixture(scope="session")
def smollm2_of_transformers(smollm2_path: Path) -> Any:  # transformers is loaded where it is asked
    """The SmolLM2 of transformers in float32; reading it there takes many seconds."""
    import torch
    from transformers import LlamaForCausalLM

    with warnings.catch_warnings():
        # Reading GGUF there warns about its own dependencies.
        warnings.simplefilter("ignore")
        return LlamaForCausalLM.from_pretrained(
            smollm2_path.parent, gguf_file=smollm2_path.name, dtype=torch.float32
        ).eval()


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random llama with a byte-level tokenizer, as a float32 GGUF file."""
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model and tokenizer as `tiny_gguf`, as a Hugging Face folder."""
    return write_tiny_folder(tmp_path_factory.mktemp("folder"))
