"""FlashInfer's attention for prompts, beside our own kernels for single queries.

FlashInfer cuts the work of a step on the host, about a millisecond for each KV group, which pays
for runs of queries alone; for single ones our kernels are as fast, need no plan and read what texts
share once. It compiles its kernels when they are first used, which takes nvcc a minute and a half;
until they are there, prompts go through our kernels too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.attention.paged import PagedStep, TritonAttention
from octavo.attention.schedule import HostGroup, Ints, Runs
from octavo.kernels.triton.decode import Shape


@dataclass(slots=True)
class _Plan:
    """The runs of one KV group in this step."""

    wrapper: Any  # of FlashInfer, which has no types
    first: int
    end: int
    rows: Tensor | None
    """Of the runs, if they do not follow each other."""


class _Compiling:
    """Runs a function that compiles, in a thread that does not keep the process alive."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function
        self._ended = threading.Event()
        self.error: Exception | None = None
        """What it raised; to be read when it has ended."""
        threading.Thread(target=self._run, name="octavo-flashinfer", daemon=True).start()

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the end, or so long; returns whether it has ended."""
        return self._ended.wait(timeout_s)

    def _run(self) -> None:
        try:
            self._function()
        except Exception as error:  # whoever waits for the kernels says it
            self.error = error
        self._ended.set()


class FlashInferAttention:
    """Attends to prompts with FlashInfer and with single queries by `TritonAttention`.

    workspace_bytes: for FlashInfer's partial results. report: told why FlashInfer does not serve
    prompts, if it does not.
    """

    def __init__(
        self,
        single: TritonAttention,
        *,
        dtype: torch.dtype,
        device: torch.device,
        workspace_bytes: int,
        report: Callable[[str], None],
    ) -> None:
        import flashinfer  # pyright: ignore[reportMissingImports]

        self._single = single
        self._dtype = dtype
        self._device = device
        self._report = report
        self._make_wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper
        self._workspace = torch.empty(workspace_bytes, dtype=torch.uint8, device=device)
        # Two for each group take turns: the numbers of one plan may be on their way to the device
        # while the next is made.
        self._wrappers = [[self._wrapper() for _ in range(2)] for _ in single.shapes]
        self._turn = 0
        self._plans: list[_Plan | None] = []
        self.shapes = single.shapes
        self._ready = False
        self._compiling: _Compiling | None = _Compiling(self._compile)

    def pages(self, layer: int) -> Tensor:
        """Return a layer's pages."""
        return self._single.pages(layer)

    def group(self, layer: int) -> int:
        """Return the number of a layer's KV group."""
        return self._single.group(layer)

    def wait(self, timeout_s: float | None = None) -> Exception | None:
        """Wait for FlashInfer's compiler, or so long; returns what went wrong, if anything did.

        Then prompts stay with our kernels.
        """
        compiling = self._compiling
        if compiling is None or not compiling.wait(timeout_s):
            return None
        self._compiling = None
        if compiling.error is not None:
            first = str(compiling.error).strip().partition("\n")[0]
            reason = f"{type(compiling.error).__name__}: {first}"
            self._report(f"FlashInfer has no kernels, prompts go through triton's ({reason})")
        self._ready = compiling.error is None
        return compiling.error

    @property
    def compiling(self) -> bool:
        """True while it is not known whether FlashInfer's kernels will be there."""
        return self._compiling is not None

    def plan(self, groups: tuple[HostGroup, ...]) -> None:
        """Let FlashInfer cut the runs of a step, if it is ready."""
        self.wait(0)
        if not self._ready:
            return
        self._turn = 1 - self._turn
        self._plans = [
            None if group.runs is None else self._plan(number, group.runs, group.tables)
            for number, group in enumerate(groups)
        ]

    def attend(self, layer: int, q: Tensor, step: PagedStep) -> Tensor:
        """Attend with all rows of a step."""
        if step.captured or not self._ready:
            return self._single.attend(layer, q, step)
        number = self.group(layer)
        out = torch.empty_like(q)
        if step.groups[number].tiles is not None:
            plan = self._plans[number]
            assert plan is not None, "attend before plan"
            if plan.rows is None:
                part = slice(plan.first, plan.end)
                plan.wrapper.run(q[part], self.pages(layer), out=out[part])
            else:
                out[plan.rows] = plan.wrapper.run(q[plan.rows], self.pages(layer))
        self._single.attend_single(layer, q, step, out)
        return out

    def _wrapper(self) -> Any:
        return self._make_wrapper(self._workspace, "NHD", backend="auto")

    def _compile(self) -> None:
        """Let FlashInfer build and load what the plans of all groups will want."""
        none, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        with self._own_stream():
            for shape in self.shapes:
                self._cut(self._wrapper(), shape, Runs(none, one, none, none), none)

    @contextmanager
    def _own_stream(self) -> Generator[None]:
        """Keep out of the way of the thread that captures and runs steps."""
        if self._device.type != "cuda":
            yield
            return
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                yield
            stream.synchronize()

    def _plan(self, number: int, runs: Runs, tables: Ints) -> _Plan:
        wrapper = self._wrappers[number][self._turn]
        self._cut(wrapper, self.shapes[number], runs, tables)
        first, end = int(runs.first_rows[0]), int(runs.first_rows[-1] + runs.counts[-1])
        rows = None
        if end - first != int(runs.counts.sum()):
            each = np.repeat(runs.first_rows - (np.cumsum(runs.counts) - runs.counts), runs.counts)
            rows = torch.from_numpy(each + np.arange(len(each))).to(self._device)
        return _Plan(wrapper, first, end, rows)

    def _cut(self, wrapper: Any, shape: Shape, runs: Runs, tables: Ints) -> None:
        ends = runs.positions + runs.counts
        blocks = -(-ends // shape.block_size)
        starts = np.cumsum(blocks) - blocks
        place = np.repeat(runs.table_starts - starts, blocks) + np.arange(int(blocks.sum()))
        wrapper.plan(
            _bounds(runs.counts),
            _bounds(blocks),
            # What lies behind a window is hidden, but read all the same.
            _whole(np.maximum(tables[place], 0)),
            _whole((ends - 1) % shape.block_size + 1),
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.block_size,
            causal=True,
            window_left=_window(shape),
            q_data_type=self._dtype,
            kv_data_type=self._dtype,
        )


def _bounds(counts: Ints) -> Tensor:
    return _whole(np.concatenate(([0], np.cumsum(counts))))


def _whole(values: Ints) -> Tensor:
    return torch.from_numpy(values.astype(np.int32))


def _window(shape: Shape) -> int:
    """Say how many keys before its own a query sees; -1: all."""
    return -1 if shape.window is None else shape.window - 1
