"""Copies of blocks between the device and the host's memory, beside the computing.

It knows blocks and bytes; it must not know keys, tiers or why a block moves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.errors import ConfigError
from octavo.pages.arena import Arena

Pairs: TypeAlias = Iterable[tuple[int, int]]
"""Blocks: from where, to where."""

DIRECT_BYTES = 2 << 20
"""A run of blocks of so many bytes is copied as it lies: smaller copies, issued one by one from
Python, do not fill the bus."""

PIECE_BYTES = 8 << 20
"""What is gathered and copied at once, while the next piece is gathered: long enough on the bus to
issue the next."""

_PIECES = 2
_PORTABLE = 1
"""cudaHostRegisterPortable: pinned for every device."""

_Ints: TypeAlias = NDArray[np.int64]


class Ticket:
    """Copies that were started together."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        """event: None means that all is done."""
        self._event = event

    def done(self) -> bool:
        """Tell whether all copies have ended; the answer comes at once."""
        return self._event is None or self._event.query()

    def wait(self, stream: torch.cuda.Stream | None = None) -> None:
        """Let a stream wait for the copies, and nobody else; None: the current one."""
        if self._event is not None:
            self._event.wait(stream)

    def join(self) -> None:
        """Wait on the host until all copies have ended."""
        if self._event is not None:
            self._event.synchronize()


class BlockCopies:
    """Host memory for blocks, and copies of whole blocks to and from it.

    On a GPU copies are asynchronous. They take effect in the order in which they were started, and
    after what the current stream was given before; a step that reads loaded blocks waits for the
    ticket, and so does one that writes over stored blocks. Runs of blocks are copied as they lie;
    scattered small ones are gathered on the device, or spread there, in large pieces. What is
    scattered on the host costs a copy for each run, so that host blocks are best given out in
    order. On a CPU a copy is done when the call returns.
    """

    def __init__(self, arena: Arena, host_blocks: int) -> None:
        """Reserve the host's memory. Raises ConfigError if there is too little."""
        assert host_blocks > 0, f"a host buffer needs at least one block, got {host_blocks}"
        block_bytes = arena.layout.block_bytes
        try:
            self.host = torch.empty((host_blocks, block_bytes), dtype=torch.uint8)
            """[host_blocks, block_bytes] uint8; pinned for a GPU. Read it when a ticket is done."""
        except (RuntimeError, MemoryError) as error:
            raise ConfigError(
                f"{host_blocks} blocks of {block_bytes} bytes cannot be allocated in the host's "
                "memory: give it fewer"
            ) from error
        self._device = arena.raw
        self._direct = -(-DIRECT_BYTES // block_bytes)
        self._most = max(1, PIECE_BYTES // block_bytes)
        self._on_gpu = arena.device.type == "cuda"
        self._open = True
        if self._on_gpu:
            with torch.cuda.device(arena.device):
                _pin(self.host)
        self._copying, self._gathering = _Lane(arena.device), _Lane(arena.device)
        small = self._most if self._direct > 1 else 0
        self._staging = [self._device.new_empty(small, block_bytes) for _ in range(_PIECES)]
        self._left: list[torch.cuda.Event | None] = [None] * _PIECES
        """When what was in each piece of staging memory had left it."""

    def store(self, pairs: Pairs) -> Ticket:
        """Copy blocks to the host: (device block, host block). No host block is named twice."""
        work = self._sorted([(host, device) for device, host in pairs], written=0)
        if not work.size:
            return Ticket(None)
        self._begin()
        large, small = cut(work, self._direct)
        index = self._on_device(small[1])
        for number, first in enumerate(range(0, small.shape[1], self._most)):
            part = slice(first, first + self._most)
            staging = self._piece(number, small[0, part].size)
            with self._gathering.use():
                self._gathering.after(self._left[number % _PIECES])
                torch.index_select(_wide(self._device), 0, index[part], out=_wide(staging))
                self._copying.after(self._gathering.mark())
            with self._copying.use():
                for here, run in _places(small[0, part]):
                    self.host[run].copy_(staging[here], non_blocking=True)
                self._left[number % _PIECES] = self._copying.mark()
        with self._copying.use():
            for host, device in large:
                self.host[host].copy_(self._device[device], non_blocking=True)
        return self._end()

    def load(self, pairs: Pairs) -> Ticket:
        """Copy blocks to the device: (host block, device block). No device block is named twice."""
        work = self._sorted(list(pairs), written=1)
        if not work.size:
            return Ticket(None)
        self._begin()
        large, small = cut(work, self._direct)
        index = self._on_device(small[1])
        for number, first in enumerate(range(0, small.shape[1], self._most)):
            part = slice(first, first + self._most)
            staging = self._piece(number, small[0, part].size)
            with self._copying.use():
                self._copying.after(self._left[number % _PIECES])
                for here, run in _places(small[0, part]):
                    staging[here].copy_(self.host[run], non_blocking=True)
                self._gathering.after(self._copying.mark())
            with self._gathering.use():
                _wide(self._device).index_copy_(0, index[part], _wide(staging))
                self._left[number % _PIECES] = self._gathering.mark()
        with self._copying.use():
            for host, device in large:
                self._device[device].copy_(self.host[host], non_blocking=True)
        return self._end()

    def close(self) -> None:
        """Wait for copies in flight and give the host's memory back; once more: no effect."""
        if not self._open:
            return
        self._open = False
        self._gathering.join()
        self._copying.join()
        if self._on_gpu:
            _unpin(self.host)
        self.host = self.host.new_empty(0, self.host.shape[1])
        self._staging.clear()

    def _sorted(self, pairs: list[tuple[int, int]], *, written: int) -> _Ints:
        """Check pairs of (host, device) and sort them by host block: [2, pairs].

        written: which of the two is written.
        """
        assert self._open, "a copy after close"
        work = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        for name, blocks, room in zip(
            ("host", "device"), work, (self.host.shape[0], self._device.shape[0]), strict=True
        ):
            wrong = blocks[(blocks < 0) | (blocks >= room)]
            assert not wrong.size, f"{name} block {wrong[0]}, but there are {room} blocks"
        assert np.unique(work[written]).size == work.shape[1], (
            f"a {('host', 'device')[written]} block is written twice in one call"
        )
        return work[:, np.argsort(work[0], kind="stable")]

    def _begin(self) -> None:
        """Let both lanes wait for all that was started before this call."""
        now = _mark_of_current(self._device.device)
        self._copying.after(now)
        self._gathering.after(now)
        self._gathering.after(self._copying.mark())

    def _end(self) -> Ticket:
        """Join the lanes, so that the next call comes after this one."""
        self._copying.after(self._gathering.mark())
        return Ticket(self._copying.mark())

    def _on_device(self, blocks: _Ints) -> Tensor:
        index = torch.from_numpy(np.ascontiguousarray(blocks))
        if not self._on_gpu or not blocks.size:
            return index
        with self._gathering.use():
            return index.pin_memory().to(self._device.device, non_blocking=True)

    def _piece(self, number: int, count: int) -> Tensor:
        return self._staging[number % _PIECES][:count]


class _Lane:
    """Work on a device that is done in the order in which it was given."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def use(self) -> AbstractContextManager[Any]:
        """Give to it what is done inside."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def mark(self) -> torch.cuda.Event | None:
        """Name what it was given so far."""
        return None if self._stream is None else _mark(self._stream)

    def after(self, mark: torch.cuda.Event | None) -> None:
        """Do what comes next only after that."""
        if self._stream is not None and mark is not None:
            self._stream.wait_event(mark)

    def join(self) -> None:
        """Wait on the host for all of it."""
        if self._stream is not None:
            self._stream.synchronize()


def cut(work: _Ints, direct: int) -> tuple[list[tuple[slice, slice]], _Ints]:
    """Part runs of `direct` blocks or more, which are copied as they lie, from all others.

    work: [2, blocks], host blocks in ascending order and their device blocks. Returns the host's
    and the device's side of each long run, and the rest: [2, blocks].
    """
    follows = (np.diff(work) == 1).all(axis=0)
    begins = np.flatnonzero(np.concatenate(([True], ~follows)))
    counts = np.diff(np.append(begins, work.shape[1]))
    is_long = counts >= direct
    runs = [
        (slice(host, host + count), slice(device, device + count))
        for (host, device), count in zip(
            work[:, begins[is_long]].T.tolist(), counts[is_long].tolist(), strict=True
        )
    ]
    return runs, work[:, ~np.repeat(is_long, counts)]


def _places(hosts: _Ints) -> Iterator[tuple[slice, slice]]:
    """Cut host blocks, in ascending order, into runs: where in the staging memory, where there."""
    begins = np.flatnonzero(np.concatenate(([True], np.diff(hosts) != 1)))
    ends = np.append(begins[1:], hosts.size)
    for begin, end in zip(begins.tolist(), ends.tolist(), strict=True):
        host = int(hosts[begin])
        yield slice(begin, end), slice(host, host + end - begin)


def _wide(blocks: Tensor) -> Tensor:
    """View bytes as larger items, which kernels move faster; blocks are multiples of 16 bytes."""
    return blocks.view(torch.int64)


def _mark_of_current(device: torch.device) -> torch.cuda.Event | None:
    """Name what the caller's stream was given so far."""
    return _mark(torch.cuda.current_stream(device)) if device.type == "cuda" else None


def _mark(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event()
    event.record(stream)
    return event


def _pin(host: Tensor) -> None:
    """Lock memory in place. Not torch's allocator: that one rounds up to a power of two."""
    runtime: Any = torch.cuda.cudart()  # a binding without types
    status = int(runtime.cudaHostRegister(host.data_ptr(), host.numel(), _PORTABLE))
    if status:
        raise ConfigError(
            f"{host.numel()} bytes of the host's memory cannot be pinned (CUDA error {status}): "
            "give the host fewer blocks"
        )


def _unpin(host: Tensor) -> None:
    runtime: Any = torch.cuda.cudart()
    runtime.cudaHostUnregister(host.data_ptr())
