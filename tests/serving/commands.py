"""`octavo serve`, started as a user starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import contextmanager

MEMORY = ["--kv-cache-memory-bytes", "1MiB", "--max-num-seqs", "4"]


@contextmanager
def octavo_serve(*arguments, key=""):
    """Run the command; yields its process and its address. key: of those who ask."""
    command = [sys.executable, "-m", "octavo", "serve", *map(str, arguments), *MEMORY]
    environment = {**os.environ, "OCTAVO_API_KEY": key, "OCTAVO_ADMIN_API_KEY": "boss"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            found = re.search(r"(\S+) serves (\S+) on cpu", line)
            if found:
                break
        else:
            raise AssertionError("".join(said))
        yield process, found[1]
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        process.stderr.close()
