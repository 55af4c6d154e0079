"""What must stay true of the package as a whole: size, imports, public names."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

import octavo

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 70
MAX_IMPORT_S = 0.1

PUBLIC_NAMES = [
    "LLM",
    "AsyncLLM",
    "CacheHint",
    "CompletionOutput",
    "ConfigError",
    "FetchError",
    "ModelError",
    "OctavoError",
    "RequestError",
    "RequestOutput",
    "Retention",
    "SamplingParams",
    "StructuredOutputs",
    "__version__",
]


def run_in_fresh_interpreter(code: str) -> str:
    """Return what `code` prints in an interpreter that has imported nothing of ours."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("plane", ["contract", "memory", "sched", "text", "engine", "server"])
def test_the_deciding_plane_never_loads_torch(plane):
    code = f"""
import importlib, pkgutil, sys
package = importlib.import_module("octavo.{plane}")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    importlib.import_module(module.name)
print("torch" in sys.modules)
"""

    assert run_in_fresh_interpreter(code) == "False"


def test_importing_octavo_is_quick():
    code = """
import time
before = time.perf_counter()
import octavo
print(time.perf_counter() - before)
"""

    best = min(float(run_in_fresh_interpreter(code)) for _ in range(5))

    assert best < MAX_IMPORT_S


def test_importing_octavo_loads_neither_torch_nor_numpy():
    code = 'import octavo, sys; print({"torch", "numpy"} & set(sys.modules))'

    assert run_in_fresh_interpreter(code) == "set()"


def test_the_public_names_are_the_listed_ones():
    assert octavo.__all__ == PUBLIC_NAMES


@pytest.mark.parametrize("name", PUBLIC_NAMES)
def test_every_public_name_resolves(name):
    assert getattr(octavo, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'octavo' has no attribute 'nothing'"):
        _ = octavo.nothing


def test_the_base_install_has_no_torch():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert not [need for need in project["dependencies"] if need.startswith(("torch", "transf"))]
    assert any(need.startswith("torch") for need in project["optional-dependencies"]["torch"])


def test_the_version_is_the_packaged_one():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    assert octavo.__version__ == project["version"]


def test_a_source_distribution_holds_every_file_but_what_only_the_repository_needs(tmp_path):
    pytest.importorskip("scikit_build_core")
    if not (ROOT / ".git").exists():
        pytest.skip("this is no repository")
    code = f"from scikit_build_core.build import build_sdist; build_sdist({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)

    (archive,) = tmp_path.glob("octavo-*.tar.gz")
    with tarfile.open(archive) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}

    needless = re.compile(r"\.(?!dockerignore)")
    wanted = {name for name in listed.stdout.splitlines() if not needless.match(name)}
    assert "deploy/docker/Dockerfile" in wanted
    assert wanted - names == set()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_source_file_is_short_and_says_what_it_is_for(path):
    text = path.read_text()
    tree = ast.parse(text)
    long_functions = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno + 1 >= MAX_FUNCTION_LINES
    }

    assert ast.get_docstring(tree), "no module docstring"
    assert len(text.splitlines()) < MAX_FILE_LINES
    assert not long_functions, f"functions of {MAX_FUNCTION_LINES} lines or more"


def test_every_requirement_for_development_is_exact():
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    requirements = [line for line in lines if line and not line.startswith("#")]

    assert [line for line in requirements if "==" not in line] == []
