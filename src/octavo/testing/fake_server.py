"""A whole server whose engine computes nothing: python -m octavo.testing.fake_server FAKE SETTINGS.

Both are JSON objects: what `FakeCore` and `ServerSettings` are given. It writes its address on a
line, and lives and ends as `octavo serve` does.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.errors import OctavoError
from octavo.server.keys import KeyTable
from octavo.server.lifecycle import Ending, Place, serve
from octavo.server.listen import address_of, listen
from octavo.server.parts import Parts, ServedModel
from octavo.server.remote.client import ProcessCore
from octavo.server.settings import ServerSettings
from octavo.testing.served import FakeCore

ADMIN = "the-admins-key"


def main(fake: str, settings: str) -> int:
    """Serve until signals end it; returns the exit status."""
    place = Place(socket=listen("127.0.0.1", 0))
    core = ProcessCore(msgspec.json.decode(fake, type=FakeCore).spec(), report=_say)
    parts = Parts(
        core=core,
        model=ServedModel(names=("fake",), root="fake", tokenizer=None, created_s=1_700_000_000),
        settings=ServerSettings(**json.loads(settings)),
        keys=KeyTable([], [ADMIN]),
    )

    async def live() -> int:
        ending = Ending()
        with ending.listening():
            _say(address_of(place.socket, tls=False))
            return await serve(
                core, lambda: parts, place, ready=lambda parts: _say("ready"), ending=ending
            )

    try:
        return asyncio.run(live())
    except OctavoError as error:
        _say(f"error: {error}")
        return 2


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 (whoever started it reads this)


@dataclass(slots=True)
class FakeServer:
    """One that runs."""

    process: subprocess.Popen[str]
    address: str

    def wait_for(self, line: str) -> None:
        """Read what it says up to this line."""
        assert self.process.stdout is not None
        for said in self.process.stdout:
            if said.strip() == line:
                return
        raise AssertionError(f"it ended without saying {line!r}")

    def ended(self, within_s: float = 10.0) -> int:
        """Wait for its end; returns its exit status."""
        return self.process.wait(within_s)


@contextmanager
def fake_server(
    fake: FakeCore | None = None,
    *,
    wait: bool = True,
    **settings: Any,  # those of ServerSettings that JSON has
) -> Iterator[FakeServer]:
    """Run one in a process of its own. wait: until its engine is ready."""
    line = [sys.executable, "-m", "octavo.testing.fake_server"]
    data = msgspec.json.encode(fake or FakeCore()).decode()
    process = subprocess.Popen(
        [*line, data, json.dumps(settings)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        server = FakeServer(process, process.stdout.readline().strip())
        if wait:
            server.wait_for("ready")
        yield server
    finally:
        _end(process)
        if process.stdout is not None:
            process.stdout.close()


def _end(process: subprocess.Popen[str]) -> None:
    """End it as its user would, so that it leaves nothing behind."""
    for end in (process.terminate, process.terminate, process.kill):
        if process.poll() is not None:
            return
        end()
        with suppress(subprocess.TimeoutExpired):
            process.wait(2)


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started and that still run. Linux only."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(one) for one in file.read().split()]
    except FileNotFoundError:
        return []


def gone(pids: list[int], within_s: float = 5.0) -> bool:
    """Say whether processes end in time."""
    end_s = time.monotonic() + within_s
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
