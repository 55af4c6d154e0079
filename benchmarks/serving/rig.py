"""A server for the time of a measurement, load on it, and the record that comes of it."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from octavo.bench.serve.http import Client, read_address
from octavo.bench.serve.load import Chain, Pace, Run, run_load
from octavo.bench.serve.report import percentile
from octavo.bench.serve.site import Site, look_at
from octavo.bench.serve.stream import Outcome, Sender
from octavo.envelope import envelope

Result = TypeVar("Result")

START_S = 300.0
STOP_S = 30.0


@dataclass(frozen=True)
class Server:
    """A process that serves."""

    address: str
    pid: int

    def processor_s(self) -> float | None:
        """Return what it has used so far, its engine's process not counted; None: not known."""
        try:
            fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(*flags: str, tell_applied: bool = False) -> Iterator[Server]:
    """Run `octavo serve` on a free port until the block ends."""
    port = free_port()
    command = [sys.executable, "-m", "octavo", "serve", "--port", str(port), *flags]
    command += ["--disable-uvicorn-access-log"]
    variables = os.environ | ({"OCTAVO_SHOW_APPLIED": "1"} if tell_applied else {})
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            address = f"http://127.0.0.1:{port}"
            wait_until_healthy(address, process)
            said, check = _read_on(process)
            try:
                yield Server(address, process.pid)
            except BaseException:
                sys.stderr.write("the server said last:\n" + "".join(said[-30:]))
                raise
            check()
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _read_on(process: subprocess.Popen[str]) -> tuple[list[str], Callable[[], None]]:
    """Keep reading what a process says, so that it never waits for us; also: show it if it ends."""
    import threading

    assert process.stderr is not None
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.extend(process.stderr or ()), daemon=True)
    thread.start()

    def check() -> None:
        if process.poll() is not None:
            sys.exit(f"the server ended with status {process.returncode}:\n{''.join(said[-20:])}")

    return said, check


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until_healthy(address: str, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            assert process.stderr is not None
            sys.exit(f"the server did not start:\n{process.stderr.read()[-2000:]}")
        with suppress(OSError):
            if urllib.request.urlopen(f"{address}/health", timeout=5).status == 200:
                return
        time.sleep(0.05)
    sys.exit(f"the server was not healthy after {START_S:g} s")


# ── load ──────────────────────────────────────────────────────────────────────────────────────


class Load:
    """Sends requests to one server; for use in one event loop."""

    def __init__(self, address: str, *, backend: str = "openai") -> None:
        self._client = Client(read_address(address))
        self._backend = backend

    async def site(self) -> Site:
        return await look_at(self._client, None)

    def sender(self, site: Site) -> Sender:
        options = {"temperature": 0, "ignore_eos": True}
        return Sender(self._client, site.model, backend=self._backend, options=options)

    async def run(self, chains: list[Chain], pace: Pace) -> Run:
        site = await self.site()
        return await run_load(chains, self.sender(site).send, pace)

    def close(self) -> None:
        self._client.close()


def run_on_a_quick_loop(main: Coroutine[Any, Any, Result]) -> Result:
    """Run what sends the load where it takes least from the server."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def load_once(address: str, chains: list[Chain], pace: Pace) -> Run:
    """Send requests in an event loop of their own; ends the program if any of them fails."""

    async def run() -> Run:
        load = Load(address)
        try:
            return await load.run(chains, pace)
        finally:
            load.close()

    found = run_on_a_quick_loop(run())
    check_all_went_well(found.outcomes)
    return found


def site_of(address: str) -> Site:
    async def look() -> Site:
        load = Load(address)
        try:
            return await load.site()
        finally:
            load.close()

    return run_on_a_quick_loop(look())


def check_all_went_well(outcomes: list[Outcome]) -> None:
    failed = [one.error for one in outcomes if one.error]
    if failed:
        sys.exit(f"{len(failed)} of {len(outcomes)} requests failed: {failed[0]}")


# ── records ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Goal:
    """What a measurement is about."""

    name: str
    found: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.found >= self.bound if self.at_least else self.found <= self.bound

    def keys(self) -> dict[str, object]:
        return {"name": self.name, "found": self.found, "bound": self.bound, "met": self.met}


def parser(about: str | None) -> argparse.ArgumentParser:
    """Return a parser with what all of these measurements take."""
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--model", help="a path or a known name; default: the embedded model")
    made.add_argument("--memory", default="1GiB", help="size of the KV pool")
    made.add_argument(
        "--flag",
        action="append",
        default=[],
        help="of the server, such as --flag=--threads=2; several times",
    )
    made.add_argument("--json", type=Path, help="write the record to this file")
    return made


def server_flags(options: argparse.Namespace, *more: str) -> list[str]:
    model = [] if options.model is None else ["--model", options.model]
    return [*model, "--kv-cache-memory-bytes", options.memory, *more, *options.flag]


def report(
    schema: str,
    options: argparse.Namespace,
    rows: list[dict[str, object]],
    goals: list[Goal],
) -> int:
    """Show rows and goals, and write the record; returns 1 if a goal is missed."""
    names = list(rows[0])
    cells = [names, *([_cell(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[place]) for line in cells) for place in range(len(names))]
    for line in cells:
        say("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
    for goal in goals:
        sign = "at least" if goal.at_least else "at most"
        verdict = "met" if goal.met else "MISSED"
        say(f"{goal.name}: {goal.found:.4g}, {sign} {goal.bound:g}: {verdict}")
    settings = {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(options).items()
        if name != "json"
    }
    document = envelope(schema, None, **settings)
    document |= {
        "load": os.getloadavg(),
        "rows": rows,
        "goals": [goal.keys() for goal in goals],
    }
    if options.json is not None:
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if all(goal.met for goal in goals) else 1


def spread(values: list[float]) -> dict[str, float]:
    """Return the percentiles of seconds that are shown, in milliseconds."""
    return {f"p{p:g}_ms": 1000 * percentile(values, p) for p in (50, 90, 99)}


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _cell(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
