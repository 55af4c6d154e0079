"""Takes the numbers of captured steps to the device: fixed places, one copy, nobody waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Arrays = Mapping[str, NDArray[np.int64]]


@dataclass(frozen=True, slots=True)
class Places:
    """Where arrays lie in the buffer: each at a place of its own, in this order."""

    starts: dict[str, int]
    rooms: dict[str, int]
    """How many numbers each may have."""

    @classmethod
    def of(cls, rooms: Mapping[str, int]) -> Places:
        """Lay arrays out one after the other, each at a multiple of 16 bytes."""
        starts: dict[str, int] = {}
        end = 0
        for name, room in rooms.items():
            starts[name] = end
            end += -(-room // 4) * 4
        return cls(starts, dict(rooms))

    @property
    def end(self) -> int:
        """Numbers up to the end of the last array."""
        last = next(reversed(self.starts), None)
        return 0 if last is None else self.starts[last] + self.rooms[last]

    def views(self, device: Tensor) -> dict[str, Tensor]:
        """Return every array's place in a buffer, whole."""
        return {
            name: device[start : start + self.rooms[name]] for name, start in self.starts.items()
        }


class Staging:
    """A buffer of int32 on the device in which arrays keep their places, and two of the host.

    Those of the host take turns: a turn may begin once the step before the last has been
    collected, since its copy is done then.
    """

    def __init__(self, places: Places, device: torch.device) -> None:
        self._places = places
        pinned = device.type == "cuda"
        self._here = [
            torch.empty(places.end, dtype=torch.int32, pin_memory=pinned) for _ in range(2)
        ]
        self._turn = 0
        self._there = torch.empty(places.end, dtype=torch.int32, device=device)
        self.views = places.views(self._there)
        """Every array's place on the device, whole."""

    def send(self, arrays: Arrays) -> None:
        """Copy arrays to their places, in the order of the stream.

        They may be shorter than their places; what lies behind means nothing.
        """
        source = self._here[self._turn]
        self._turn = 1 - self._turn
        here = source.numpy()
        starts, rooms = self._places.starts, self._places.rooms
        end = 0
        for name, values in arrays.items():
            start, count = starts[name], values.size
            assert count <= rooms[name], f"{count} {name}, room for {rooms[name]}"
            here[start : start + count] = values.reshape(-1)
            end = max(end, start + count)
        self._there[:end].copy_(source[:end], non_blocking=True)
