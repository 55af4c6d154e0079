"""A tiny model's text for servers whose engine computes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_served import tiny_llm

from octavo.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_gguf: Path) -> Tokenizer:
    """The tokenizer in the file of the tiny model."""
    with tiny_llm(tiny_gguf) as llm:
        return llm.get_tokenizer()
