"""The example package is installed as a user would, passes octavo's suites, and runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Install the example into a folder of its own."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(folder), str(ROOT / "examples" / "plugin")]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder


def python(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(site)}
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=site,
        check=False,
    )


def test_one_option_runs_the_suites_on_the_installed_plugins(site):
    done = python(site, "-m", "pytest", "--octavo-conformance", "-v", "-p", "no:cacheprovider")

    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_conformance[eviction-second_chance] PASSED" in done.stdout
    assert "test_conformance[attention-sdpa] PASSED" in done.stdout
    assert "test_conformance[codecs-fp8_e4m3] PASSED" in done.stdout


def test_a_model_answers_with_the_plugins_policy_and_backend(site, tiny_gguf):
    code = (
        "import sys; from octavo import LLM, SamplingParams as P\n"
        "def run(**settings):\n"
        "    with LLM(sys.argv[1], kv_cache_memory_bytes=1 << 20, **settings) as llm:\n"
        "        p = P(temperature=0, max_tokens=8, ignore_eos=True)\n"
        "        return llm.generate('Hello there', p)[0].outputs[0].token_ids\n"
        "ours = run(backend='reference')\n"
        "assert run(eviction_policy='second_chance', backend='sdpa') == ours\n"
        "print('same')\n"
    )

    done = python(site, "-c", code, str(tiny_gguf))

    assert done.stdout.strip() == "same", done.stderr


def test_a_model_answers_with_the_plugins_codec(site, tiny_gguf):
    code = (
        "import sys; from octavo import LLM, SamplingParams as P\n"
        "for backend in ('reference', 'sdpa'):\n"
        "    with LLM(sys.argv[1], kv_cache_dtype='fp8_e4m3', backend=backend,\n"
        "             kv_cache_memory_bytes=1 << 20) as llm:\n"
        "        p = P(temperature=0, max_tokens=8, ignore_eos=True)\n"
        "        tokens = llm.generate('Hello there', p)[0].outputs[0].token_ids\n"
        "        print(len(tokens), llm.built.layout.dtype, llm.built.layout.bytes_per_token)\n"
    )

    done = python(site, "-c", code, str(tiny_gguf))

    assert done.stdout.split("\n") == ["8 fp8_e4m3 128", "8 fp8_e4m3 128", ""], done.stderr


def test_doctor_lists_the_plugins(site):
    done = python(site, "-m", "octavo", "doctor")

    assert "plug-in second_chance (octavo.eviction)" in done.stdout


def test_without_the_package_its_names_are_unknown(tiny_gguf):
    from octavo import LLM, ConfigError

    with pytest.raises(ConfigError, match="eviction_policy 'second_chance' is not one of lru"):
        LLM(str(tiny_gguf), eviction_policy="second_chance")
