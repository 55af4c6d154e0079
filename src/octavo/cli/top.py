"""`octavo top`: the essentials of a server's memory, in a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Annotated, Any

from octavo.cli.flags import Option
from octavo.cli.options import Json
from octavo.cli.output import note, print_json, say
from octavo.cli.top_stream import Requests, Told, events
from octavo.errors import EngineGone

Url = Annotated[str, Option(help="Of the server.")]
ApiKey = Annotated[
    str | None, Option(help="A tenant's key, or an administrator's; default: OCTAVO_API_KEY.")
]
Every = Annotated[float, Option(help="Seconds between two looks, from 0.1.")]
Insecure = Annotated[bool, Option("--insecure", help="Take any certificate.")]

STATES = ("in_use", "shared", "tentative", "pinned", "cached", "free", "quarantined")
_BAR = 40
_ROWS = 12


def top(
    url: Url = "http://127.0.0.1:8000",
    api_key: ApiKey = None,
    every: Every = 1.0,
    json: Json = False,
    insecure: Insecure = False,
) -> None:
    """Show what a server's KV memory holds, and who holds it; Ctrl-C ends.

    With --json one look, as a document; without a terminal, a page for each look.
    """
    key = api_key or os.environ.get("OCTAVO_API_KEY")
    if json:
        frame = _one(events(url, key, "once=true&cells=none", verify=not insecure))
        rows = Requests().take_in(frame)
        frame["requests"] = {**frame["requests"], "live": rows}
        del frame["requests"]["new"], frame["requests"]["gone"]
        print_json("octavo.top/1", {"url": url}, frame)
        return
    hz = max(1, min(10, round(1 / max(every, 0.1))))
    frames = events(url, key, f"cells=none&hz={hz}", verify=not insecure)
    _show(frames, url, max(every, 0.1))


def _one(stream: Iterator[tuple[str, Told]]) -> Told:
    for kind, told in stream:
        if kind == "snapshot":
            return told
        note(f"the engine is {told.get('state')}: waiting for it")
    raise EngineGone("the server ended before it had shown anything")


def _show(stream: Iterator[tuple[str, Told]], url: str, every_s: float) -> None:
    """Write a page for each look, in place where there is a terminal."""
    live = sys.stdout is not None and sys.stdout.isatty()  # pyright: ignore[reportUnnecessaryComparison]
    board = Board(url)
    drawn_s: float | None = None
    for kind, told in stream:
        board.take_in(kind, told)
        now_s = told.get("now_s")
        if now_s is not None and drawn_s is not None and 0 <= now_s - drawn_s < every_s * 0.9:
            continue
        drawn_s = now_s
        text = "\n".join(board.lines())
        say(f"\x1b[H\x1b[J{text}" if live else f"{text}\n")
    note("the server has ended the stream")


class Board:
    """What is known of a server, as lines of text."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._requests = Requests()
        self._rows: list[Told] = []
        self._state = "ready"
        self._pool: Told = {}
        self._frame: Told | None = None
        self._what_if: Told | None = None
        self._rates: Told = {}
        self._before: tuple[float, Told] | None = None

    def take_in(self, kind: str, told: Told) -> None:
        """Take in an event."""
        if kind == "state":
            self._state = str(told["state"])
            return
        if kind == "snapshot":
            self._pool, self._before, self._state = told["pool"], None, "ready"
        self._frame = told
        self._what_if = told.get("what_if", self._what_if)
        self._rows = self._requests.take_in(told)
        counters = told.get("counters")
        if counters is not None:
            self._take_rates(told["now_s"], counters)

    def lines(self) -> list[str]:
        """Return the page."""
        frame = self._frame
        if frame is None:
            return [f"{self._url}: the engine is {self._state}"]
        state = "paused" if frame["paused"] else self._state
        requests, counts = frame["requests"], frame["counts"]
        head = f"octavo top  {self._pool['model']}  {self._url}  {state}  step {frame['step']}"
        busy = f"{requests['running']} running  {requests['waiting']} waiting"
        lines = [head, f"{busy}  {self._speeds()}".rstrip(), ""]
        blocks = max(1, self._pool["blocks"])
        for name in STATES:
            share = counts[name] / blocks
            bar = "#" * round(share * _BAR)
            lines.append(f"{name:>12} {counts[name]:>8} {share:>6.1%}  {bar}")
        lines += ["", *self._sums(counts), *self._rules(), "", *self._table()]
        return lines

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _take_rates(self, now_s: float, counters: Told) -> None:
        before, self._before = self._before, (now_s, counters)
        if before is None or now_s <= before[0]:
            return
        names = (
            "steps",
            "computed_prompt_tokens",
            "prefix_hit_tokens",
            "prefix_query_tokens",
            "evictions",
            "preemptions",
        )
        seconds = now_s - before[0]
        self._rates = {name: (counters[name] - before[1][name]) / seconds for name in names}

    def _speeds(self) -> str:
        rates = self._rates
        if not rates:
            return ""
        asked = rates["prefix_query_tokens"]
        words = [
            f"{rates['steps']:.1f} steps/s",
            f"{rates['computed_prompt_tokens']:.0f} prompt tokens/s computed",
            f"{rates['prefix_hit_tokens']:.0f}/s from memory",
        ]
        if asked:
            words.append(f"{rates['prefix_hit_tokens'] / asked:.0%} hits")
        words += [
            f"{rates[name]:.1f} {name}/s" for name in ("evictions", "preemptions") if rates[name]
        ]
        return "  ".join(words)

    def _sums(self, counts: Told) -> list[str]:
        if "held" not in counts:
            return []
        waste = counts["waste_share"]
        words = f"{counts['held']} blocks held, {counts['logical']} without sharing"
        return [words if waste is None else f"{words}; {waste:.1%} of their slots are empty"]

    def _rules(self) -> list[str]:
        what_if = self._what_if
        if not what_if or not what_if["sequences"]:
            return []
        count, words = what_if["sequences"], list[str]()
        for rule in ("max", "pow2", "oracle"):
            one = what_if[rule]
            least = "" if one["exact"] else "at least "
            words.append(f"{rule}: {least}{one['blocks']} ({one['fits']} of {count} fit)")
        return ["unpaged they would reserve  " + "  ".join(words)]

    def _table(self) -> list[str]:
        if not self._rows:
            return ["no requests"]
        lines = [
            f"{'request':<12} {'tenant':<12} {'phase':<8} {'prompt':>7} {'tokens':>7} "
            f"{'found':>7} {'blocks':>7}  not found because"
        ]
        lines += [_row(row) for row in self._rows[:_ROWS]]
        if len(self._rows) > _ROWS:
            lines.append(f"… and {len(self._rows) - _ROWS} more")
        return lines


def _row(row: dict[str, Any]) -> str:
    miss, hit = row.get("miss"), row.get("hit")
    name = f"{row.get('request', '?')}/{row.get('index', 0)}"
    phase = "paused" if row["paused"] else row["phase"]
    return (
        f"{name:<12.12} {row.get('tenant', '?'):<12.12} {phase:<8} {row.get('prompt', 0):>7} "
        f"{row['tokens']:>7} {'-' if hit is None else hit:>7} {row['blocks']:>7}  "
        f"{miss['reason'] if miss else ''}"
    ).rstrip()
