"""Captured graphs of steps: hundreds of kernels that are started as one."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from octavo.attention.paged import PagedAttention, PagedStep
from octavo.contract.layout import KVLayout
from octavo.kernels.triton.likeliest import Likeliest, find_likeliest
from octavo.models.fused import FusedDecoder
from octavo.runner.gpu_step import Frame, HostStep, Kind, fill, frame_places, paged_step
from octavo.runner.staging import Staging

_TILE_QUERIES = 32
_MORE_TILES = 32
"""Room for slices that are shorter than a tile."""

_QUICKER = 0.98
"""A larger graph that takes at most this share of a smaller one's time is used in its place: the
library that multiplies has sizes that it is slow at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSizes:
    """For which steps there are graphs."""

    single: tuple[int, ...]
    """Sequences of a step of decoding, ascending: it is filled up to one of these."""
    mixed: tuple[int, ...]
    """Rows of a step that computes prompts too, ascending."""
    parts: int
    """Of attention."""
    blocks: tuple[int, ...]
    """Of all tables of a step, per KV group."""
    exact: bool = False
    """Steps are cut so that no bit depends on others."""

    def frames(self) -> tuple[Frame, ...]:
        """Return what the graphs have room for, largest first."""
        seqs = self.single[-1]
        single = [Frame(rows=rows, entries=rows, samples=rows) for rows in self.single]
        mixed = [
            Frame(
                rows=rows,
                entries=min(rows, seqs),
                samples=min(rows, seqs),
                tiles=rows // _TILE_QUERIES + _MORE_TILES,
            )
            for rows in self.mixed
        ]
        return tuple(sorted((*single, *mixed), key=lambda frame: -frame.rows))


class StepGraphs:
    """Graphs of steps of decoding, and of small steps that compute prompts beside it.

    Each ends with the likeliest token of every sampled row, written to `chosen`. They share one
    pool of memory: only one runs at a time.
    """

    def __init__(
        self,
        decoder: FusedDecoder,
        attention: PagedAttention,
        layout: KVLayout,
        chosen: Likeliest,
        sizes: GraphSizes,
    ) -> None:
        self._decoder = decoder
        self._attention = attention
        self._chosen = chosen
        self._groups = len(layout.groups)
        self._sizes = sizes
        self._frames = {(frame.rows, frame.tiles > 0): frame for frame in sizes.frames()}
        self._places = frame_places(
            tuple(self._frames.values()),
            attention.shapes,
            parts=sizes.parts,
            blocks=sizes.blocks,
            exact=sizes.exact,
        )
        self._staging = Staging(self._places, decoder.device)
        most = max(frame.samples for frame in self._frames.values())
        spec, where = decoder.spec, {"dtype": decoder.dtype, "device": decoder.device}
        # All graphs write to these: what a graph keeps to itself, all of them would keep.
        self._states = torch.empty(most, spec.hidden_size, **where)
        self._logits = torch.empty(most, spec.vocab_size, **where)
        self._captured: dict[tuple[Frame, Kind], torch.cuda.CUDAGraph] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self._instead: dict[Frame, Frame] = {}
        """Larger frames that are quicker."""

    def frame_for(self, step: HostStep) -> Frame | None:
        """Return the smallest frame that a step fits in; None: there is none."""
        sizes = self._sizes.single if step.single else self._sizes.mixed
        place = bisect_left(sizes, len(step.arrays.tokens))
        if place == len(sizes):
            return None
        frame = self._frames[sizes[place], not step.single]
        frame = self._instead.get(frame, frame)
        return frame if step.fits(frame) else None

    def run(self, step: HostStep, frame: Frame) -> tuple[Tensor, Tensor]:
        """Compute a step: returns states and logits of sampled rows, valid until the next one."""
        self._staging.send(fill(step, frame))
        self._get(frame, step.kind).replay()
        return self._states[: frame.samples], self._logits[: frame.samples]

    def capture_all(self) -> None:
        """Capture the graphs without sharing, largest first; others come as they are used."""
        self._clear()
        for frame in self._frames.values():
            for parted in (False,) if self._sizes.exact else (False, True):
                self._get(frame, Kind(shared=False, parted=parted))
        for mixed in (False, True):
            self._prefer([frame for frame in self._frames.values() if (frame.tiles > 0) == mixed])

    def _prefer(self, frames: list[Frame]) -> None:
        """Find the frames for which a larger one is quicker, given a step of padding."""
        best, least = None, math.inf
        for frame in sorted(frames, key=lambda frame: -frame.rows):
            taken = self._time(frame)
            if best is not None and least <= taken * _QUICKER:
                self._instead[frame] = best
            if taken < least:
                best, least = frame, taken

    def _time(self, frame: Frame) -> float:
        """Return the milliseconds that a graph takes, its first run apart."""
        graph = self._get(frame, Kind(shared=False, parted=False))
        graph.replay()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)

    def _get(self, frame: Frame, kind: Kind) -> torch.cuda.CUDAGraph:
        found = self._captured.get((frame, kind))
        if found is None:
            found = self._captured[frame, kind] = self._capture(frame, kind)
        return found

    @torch.inference_mode()
    def _capture(self, frame: Frame, kind: Kind) -> torch.cuda.CUDAGraph:
        step = paged_step(self._staging.views, self._groups, kind, frame)
        # What is in the buffer now is a step that has been asked for, or one of padding: to run it
        # once more writes what it writes anyway. Kernels are compiled and libraries warmed by it.
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._forward(step, find=False)
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            self._forward(step, find=True)
        return graph

    def _forward(self, step: PagedStep, *, find: bool) -> None:
        states = self._decoder.states(step, self._attention)
        logits = self._logits[: len(states)]
        self._states[: len(states)].copy_(states)
        self._decoder.score(states, logits)
        if find:
            find_likeliest(logits, self._chosen)

    def _clear(self) -> None:
        """Fill the buffer with a step of padding."""
        arrays = {name: np.zeros(room, np.int64) for name, room in self._places.rooms.items()}
        for number in range(self._groups):
            arrays[f"blocks{number}"] -= 1
        self._staging.send(arrays)
