"""Takes a step's numbers to the device: many arrays, one copy, nobody waits."""

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
    """A buffer of int32 on the device, and two of the host that take turns.

    A turn may begin once the step before the last has been collected: then its copy is done.
    """

    def __init__(self, room: int, device: torch.device) -> None:
        self._device = device
        self._turn = 0
        self._reserve(room)

    @property
    def buffer(self) -> Tensor:
        """Where arrays lie on the device; another one once a step has needed more room."""
        return self._there

    def send(self, arrays: Arrays, places: Places | None = None) -> dict[str, Tensor]:
        """Copy arrays to the device, in the order of the stream; returns views of them there.

        places: None puts them side by side. Arrays may be shorter than their places; what lies
        behind means nothing. A view has its array's length, or its place's where it is given one.
        """
        if places is None:
            places = Places.of({name: values.size for name, values in arrays.items()})
        if places.end > len(self._there):
            self._reserve(places.end * 2)
        here = self._here[self._turn].numpy()
        self._turn = 1 - self._turn
        end = 0
        for name, values in arrays.items():
            start, count = places.starts[name], values.size
            assert count <= places.rooms[name], f"{count} {name}, room for {places.rooms[name]}"
            here[start : start + count] = values.reshape(-1)
            end = max(end, start + count)
        source = self._here[1 - self._turn]
        self._there[:end].copy_(source[:end], non_blocking=True)
        return places.views(self._there)

    def _reserve(self, room: int) -> None:
        pinned = self._device.type == "cuda"
        self._here = [torch.empty(room, dtype=torch.int32, pin_memory=pinned) for _ in range(2)]
        self._there = torch.empty(room, dtype=torch.int32, device=self._device)
