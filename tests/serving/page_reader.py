"""What a page does with a stream of the memory: it builds up what it is told, frame by frame."""

from __future__ import annotations

import json
from base64 import b64decode

import numpy as np

TYPES = {
    "state": np.uint8,
    "group": np.uint8,
    "refs": np.uint16,
    "tokens": np.uint16,
    "owner": np.int32,
    "hits": np.uint16,
    "used_s": np.uint32,
    "mine": np.uint8,
    "seq": np.int32,
    "phase": np.uint8,
    "computed": np.uint32,
    "blocks": np.uint32,
}


def numbers(text, dtype):
    return np.frombuffer(b64decode(text), dtype)


def events_in(chunk):
    """Return (kind, data) of the events in some bytes."""
    found = []
    for piece in chunk.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in piece.split("\n") if ": " in line)
        if "data" in fields:
            found.append((fields["event"], json.loads(fields["data"])))
    return found


class Page:
    """The cells, requests and tables that a stream has told of."""

    def __init__(self):
        self.frames = []
        self.states = []
        self.cells = {}
        self.requests = {}
        self.tables = {}
        self.seq = self.epoch = None

    def take_in(self, chunk):
        for kind, told in events_in(chunk):
            if kind == "state":
                self.states.append(told)
                continue
            assert kind == told["type"]
            if kind == "snapshot":
                self.cells, self.requests, self.tables = {}, {}, {}
            else:
                assert (told["base"], told["epoch"]) == (self.seq, self.epoch)
            self.seq, self.epoch = told["seq"], told["epoch"]
            self.frames.append(told)
            self._take_cells(told.get("cells"))
            for facts in told["requests"]["new"]:
                self.requests[facts["seq"]] = facts
            for gone in told["requests"]["gone"]:
                del self.requests[gone["seq"]]
            for table in told.get("tables", ()):
                self.tables[table["seq"], table["group"]] = table

    def _take_cells(self, cells):
        if cells is None:
            return
        index = numbers(cells["index"], np.uint32) if "index" in cells else slice(None)
        for name, text in cells.items():
            if name == "index":
                continue
            values = numbers(text, TYPES[name])
            if isinstance(index, slice):
                self.cells[name] = values.copy()
            else:
                self.cells[name][index] = values

    @property
    def last(self):
        return self.frames[-1]

    def live(self):
        """By sequence, (phase, tokens, computed, blocks)."""
        live = self.last["requests"]["live"]
        columns = [
            numbers(live[name], dtype).tolist()
            for name, dtype in (
                ("seq", np.int32),
                ("phase", np.uint8),
                ("tokens", np.uint32),
                ("computed", np.uint32),
                ("blocks", np.uint32),
            )
        ]
        return {row[0]: row[1:] for row in zip(*columns, strict=True)}
