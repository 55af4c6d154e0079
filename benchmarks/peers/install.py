"""Set up the engines that octavo is compared with: install.py FOLDER

Each gets an environment of its own in FOLDER, with the versions that stand beside this file; the
model that octavo embeds is written for those that read no GGUF file. An engine that cannot be
installed is reported and left out, and what is there already is left as it is.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from octavo.cli.pull import model_path

HERE = Path(__file__).parent
ENGINES = {
    "openvino": "0.4 GB",
    "vllm": "3.4 GB",
    "llamacpp": "compiles, some minutes",
}


def install(engine: str, environment: Path) -> str | None:
    """Install one engine; returns what went wrong."""
    lists = [HERE / f"{engine}.txt", HERE / f"{engine}-alone.txt"]
    wanted = "".join(path.read_text() for path in lists if path.is_file())
    stamp = environment / ".installed"
    if stamp.is_file() and stamp.read_text() == wanted:
        return None
    say(f"installing {engine} ({ENGINES[engine]}) into {environment}")
    stamp.unlink(missing_ok=True)
    if not (environment / "bin" / "python").exists():
        venv.create(environment, with_pip=True, symlinks=True)
    for path, options in zip(lists, ([], ["--no-deps"]), strict=True):
        if path.is_file() and (error := pip(environment, *options, "-r", str(path))):
            return error
    stamp.write_text(wanted)  # last, so that an installation that failed is tried again
    return None


def pip(environment: Path, *arguments: str) -> str | None:
    """Run pip install in an environment; returns its last words if it fails."""
    command = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet", *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "\n".join(lines or [done.stderr]) if done.returncode else None


def say(message: str) -> None:
    sys.stderr.write(message + "\n")


def main(folder: Path) -> None:
    for engine in ENGINES:
        error = install(engine, folder / engine)
        if error is not None:
            say(f"{engine} could not be installed, and is left out:\n{error}")
    model = model_path(None)
    writer = [sys.executable, str(HERE / "bf16_folder.py")]
    subprocess.run([*writer, str(model), str(folder / "bf16" / model.stem)], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
