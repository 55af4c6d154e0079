"""octavo installs with its extension, without a compiler, and in little room."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from octavo import cpu

ROOT = Path(__file__).parents[2]
MAX_SITE_BYTES = 150 * 10**6


def run(*command: str | Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
        cwd=Path(command[0]).parent,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture
def path_without_compiler(tmp_path: Path) -> str:
    """A PATH on which there is CMake, and Ninja, and nothing else."""
    folder = tmp_path / "bin"
    folder.mkdir()
    scripts = Path(sysconfig.get_path("scripts"))
    for tool in ("cmake", "ninja"):
        if (scripts / tool).exists():
            (folder / tool).symlink_to(scripts / tool)
    return str(folder)


def install_without_compiler(target: Path, path: str, **environment: str) -> str:
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(target)]
    environment = {"PATH": path, "CXX": "", "CC": "", "OCTAVO_EXTENSION": ""} | environment
    return run(sys.executable, "-m", "pip", "install", *options, str(ROOT), **environment)


@pytest.mark.slow
def test_without_a_compiler_the_package_is_installed_without_its_extension(
    tmp_path, path_without_compiler
):
    target = tmp_path / "site"

    install_without_compiler(target, path_without_compiler)

    assert (target / "octavo" / "py.typed").is_file()
    assert not list((target / "octavo").glob("_cpu*.so"))
    (tags,) = (
        line
        for line in next(target.glob("octavo-*.dist-info/WHEEL")).read_text().splitlines()
        if line.startswith("Tag:")
    )
    assert tags == "Tag: py3-none-any"


@pytest.mark.slow
def test_whoever_requires_the_extension_is_told_that_there_is_no_compiler(
    tmp_path, path_without_compiler
):
    with pytest.raises(AssertionError, match="CMAKE_CXX_COMPILER"):
        install_without_compiler(
            tmp_path / "site", path_without_compiler, OCTAVO_EXTENSION="required"
        )


@pytest.fixture(scope="module")
def empty_environment(tmp_path_factory) -> Path:
    """The Python of a new environment into which the built wheel was installed, from a registry."""
    folder = tmp_path_factory.mktemp("wheel")
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder)]
    run(sys.executable, "-m", "pip", "wheel", *options, str(ROOT))
    (wheel,) = folder.glob("octavo-*.whl")
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", wheel)
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "pip", "setuptools")
    return python


@pytest.mark.net
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no compiler")
def test_the_wheel_takes_little_room_and_starts_without_torch(empty_environment, record_property):
    site = Path(
        run(
            empty_environment, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"
        ).strip()
    )
    size = sum(file.stat().st_size for file in site.rglob("*") if file.is_file())

    record_property("site_bytes", size)
    assert size < MAX_SITE_BYTES
    assert not (site / "torch").exists()
    assert "generate" in run(empty_environment.with_name("octavo"), "--help")
    took = run(
        empty_environment,
        "-c",
        "import octavo, time; t = time.perf_counter(); import octavo._cpu; "
        "print(time.perf_counter() - t); assert octavo._cpu.isa()",
    )
    record_property("import_cpu_s", float(took))
    print(f"site-packages {size / 1e6:.0f} MB, import octavo._cpu {float(took) * 1e3:.1f} ms")  # noqa: T201
    assert cpu.native() is None or float(took) < 0.05
