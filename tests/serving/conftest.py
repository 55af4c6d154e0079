"""A tiny model's text for servers whose engine computes nothing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from tiny_served import tiny_llm

from octavo.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def tls_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Files with a key and with its certificate, for localhost and 127.0.0.1."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = str(folder / "key.pem"), str(folder / "cert.pem")
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    files = ["-keyout", key, "-out", certificate]
    subprocess.run(
        [openssl, "req", "-x509", *curve, *names, *files], check=True, capture_output=True
    )
    return key, certificate


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_gguf: Path) -> Tokenizer:
    """The tokenizer in the file of the tiny model."""
    with tiny_llm(tiny_gguf) as llm:
        return llm.get_tokenizer()
