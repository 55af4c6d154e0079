"""The runner of a GPU: two steps in flight, tokens that stay on the device until they are told.

`submit` puts a step on the stream and returns; `collect` waits for it. What a step needs from the
one before, the device keeps: the newest tokens. It knows slices and samples; it must not know
requests, keys, stop rules or why a block is where it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from octavo.attention.paged import PagedAttention
from octavo.contract.batch import Batch, Candidates, Copy, Logprobs, Sampled, StepResult
from octavo.kernels.triton.blocks import copy_blocks
from octavo.kernels.triton.likeliest import Likeliest, find_likeliest
from octavo.models.fused import FusedDecoder
from octavo.pages.arena import Arena
from octavo.runner.device import on_device
from octavo.runner.device_answers import Launched, LaunchedNames
from octavo.runner.device_pools import DevicePools, LaunchedVectors
from octavo.runner.device_sampler import DeviceSampler
from octavo.runner.device_staging import send
from octavo.runner.following import Following, Refusals, name_refusals
from octavo.runner.gpu_graphs import StepGraphs
from octavo.runner.gpu_step import HostStep, StepCutter, arrays_of, paged_step
from octavo.runner.inputs import GroupArrays, InputBuilder, StepArrays, Work
from octavo.runner.masks import Matchers
from octavo.runner.sampler import Answer, broken_row, wants_likeliest
from octavo.runner.step_runner import MAX_IN_FLIGHT, SCORED_ROWS, one_line

TensorObserver = Callable[[Batch, Tensor], None]
"""Receives the logits of a step: [slices that sample, vocab_size] float32, in slice order."""


class Newest:
    """The tokens that the last step has chosen, on the device, and their way back to the host."""

    def __init__(self, samples: int, device: torch.device) -> None:
        self._there = torch.zeros(3, samples, dtype=torch.int32, device=device)
        pinned = device.type == "cuda"
        self._here = [
            torch.zeros(3, samples, dtype=torch.int32, pin_memory=pinned) for _ in range(2)
        ]
        self._turn = 0
        self.chosen = Likeliest(self._there[0], self._there[1].view(torch.float32), self._there[2])
        """Where the likeliest tokens of a step are written."""

    @property
    def tokens(self) -> Tensor:
        """As int32, one for each sample."""
        return self._there[0]

    def fetch(self) -> Tensor:
        """Begin to copy what was chosen to the host; returns where it will lie, in two turns."""
        here = self._here[self._turn]
        self._turn = 1 - self._turn
        here.copy_(self._there, non_blocking=True)
        return here


@dataclass(slots=True)
class _InFlight:
    """A step that has been submitted."""

    batch: Batch
    result: StepResult
    work: Work | None = None
    told: Tensor | None = None
    """What `Newest.fetch` returned, if the likeliest tokens are the answers."""
    asked: Launched | None = None
    """Otherwise: what the sampler will answer."""
    refusals: Refusals = field(default_factory=dict[int, str])
    scores: list[LaunchedNames] = field(default_factory=list[LaunchedNames])
    """Of prompts."""
    vectors: LaunchedVectors | None = None
    """Of prompts that are embedded and end in it."""
    passed: torch.cuda.Event | None = None
    finished: bool = False


class GpuRunner:
    """Runs batches with a fused decoder, in the order in which they are submitted.

    matchers: of grammars; None: there are none. on_logits: is shown the logits of every step, which
    makes the host wait for each. Moves are reported as failed: there is no tier but the device.
    """

    def __init__(
        self,
        decoder: FusedDecoder,
        arena: Arena,
        attention: PagedAttention,
        cutter: StepCutter,
        newest: Newest,
        *,
        graphs: StepGraphs | None = None,
        matchers: Matchers | None = None,
        on_logits: TensorObserver | None = None,
    ) -> None:
        self._decoder = decoder
        self._arena = arena
        self._attention = attention
        self._cutter = cutter
        self._newest = newest
        self._graphs = graphs
        self._on_logits = on_logits
        self._groups = len(arena.layout.groups)
        self._inputs = InputBuilder(
            arena.layout, num_blocks=arena.num_blocks, vocab_size=decoder.spec.vocab_size
        )
        self._following = Following(matchers, decoder.spec.vocab_size)
        self._sampler = DeviceSampler(decoder.spec.vocab_size, arena.device)
        self._pools = DevicePools(decoder.spec.hidden_size, arena.device)
        self._states: Tensor | None = None
        self._in_flight: deque[_InFlight] = deque()
        self._closed = False

    @torch.inference_mode()
    def warm_up(self, rows: int, longest: int) -> None:
        """Compute a step of so many rows that nothing is kept of.

        Kernels are compiled, libraries and memory made ready: what does not fit fails now.
        """
        lengths = [longest] * (rows // longest) + ([rows % longest] if rows % longest else [])
        positions = np.concatenate([np.arange(length) for length in lengths])
        groups = tuple(
            GroupArrays(
                tables=np.zeros(-(-max(lengths) // size), dtype=np.int64),
                table_starts=np.zeros(len(lengths), dtype=np.int64),
                blocks=np.full(rows, -1),
                offsets=np.zeros(rows, dtype=np.int64),
            )
            for size in self._arena.layout.block_sizes
        )
        arrays = StepArrays(
            starts=(0,) * len(lengths),
            lengths=tuple(lengths),
            tokens=np.zeros(rows, dtype=np.int64),
            positions=positions,
            groups=groups,
            sample_rows=np.cumsum(lengths) - 1,
        )
        self._eager(self._cutter.cut(arrays))
        find_likeliest(self._scores(0, len(lengths)), self._newest.chosen)
        self._states = None

    def finish_start(self) -> None:
        """Wait for kernels that are compiled beside the first steps."""
        self._attention.wait()

    def submit(self, batch: Batch) -> None:
        """Put one step on the stream; its result waits for `collect`.

        A batch that contradicts what is known fails an assertion and changes nothing. Whatever
        goes wrong in computing is reported in the result.
        """
        assert not self._closed, "submit after close"
        assert len(self._in_flight) < MAX_IN_FLIGHT, (
            f"step {batch.step} is submitted with {len(self._in_flight)} steps in flight"
        )
        self._inputs.check(batch)
        failed = tuple(move.id for move in batch.moves)
        one = _InFlight(batch, StepResult(step=batch.step, failed=failed))
        try:
            with on_device(self._arena.device):
                self._launch(one)
        except Exception as error:
            self._fail(one, error)
        self._in_flight.append(one)

    def collect(self) -> StepResult:
        """Return the result of the oldest step in flight; waits for it."""
        assert self._in_flight, "collect without a step in flight"
        one = self._in_flight.popleft()
        self._finish(one)
        return one.result

    def close(self) -> None:
        """Drop weights, KV memory and results that nobody collected; once more: no effect."""
        if self._closed:
            return
        self._closed = True
        if self._arena.device.type == "cuda":
            torch.cuda.synchronize(self._arena.device)
        self._in_flight.clear()
        del self._decoder, self._arena, self._attention, self._graphs, self._states
        del self._sampler, self._pools, self._newest, self._inputs, self._following

    @torch.inference_mode()
    def _launch(self, one: _InFlight) -> None:
        """Put a step on the stream, with all that is wanted from it."""
        self._inputs.advance(one.batch)
        self._following.forget(one.batch.ended)
        self._pools.forget(one.batch.ended)
        self._copy(one.batch.copies)
        work = self._inputs.build(one.batch)
        if work is None:
            one.finished = True
            return
        one.work = work
        self._following.begin(work)
        logits = self._compute(work)
        if work.targets:
            one.scores = self._score(work)
        if work.pools:
            assert self._states is not None, "vectors before a step"
            first = work.sampled + len(work.targets)
            one.vectors = self._pools.launch(work.pools, first, self._states)
        if self._on_logits is not None:
            self._on_logits(one.batch, self._scores(0, work.sampled).float())
        if work.samples:
            self._choose(one, work, logits)
            self._inputs.expect(one.batch.step, work.samples)
        # Of a prompt's many rows they would take room from the next step.
        self._states = None
        if self._arena.device.type == "cuda":
            one.passed = torch.cuda.Event()
            one.passed.record()

    def _compute(self, work: Work) -> Tensor | None:
        """Write the KV of all rows; return logits of the samples' rows if there are any yet."""
        step = self._cutter.cut(work.inputs)
        if self._graphs is not None and not work.targets:
            frame = self._graphs.frame_for(step)
            if frame is not None:
                self._states, logits = self._graphs.run(step, frame)
                return logits[: work.sampled]
        self._eager(step)
        return None

    def _eager(self, step: HostStep) -> None:
        """Compute a step kernel by kernel, and keep the last states of the sampled rows."""
        self._attention.plan(step.groups)
        arrays = arrays_of(step)
        sent = send([one.astype(np.int32) for one in arrays.values()], self._arena.device)
        views = dict(zip(arrays, sent, strict=True))
        paged = paged_step(views, self._groups, step.kind)
        self._states = self._decoder.states(paged, self._attention)

    def _choose(self, one: _InFlight, work: Work, logits: Tensor | None) -> None:
        """Choose a token, or find the likeliest ones, for each sample."""
        if not all(map(wants_likeliest, work.samples)):
            if logits is None:
                logits = self._scores(0, work.sampled)
            one.refusals = self._following.end()
            one.asked = self._sampler.launch(logits, work, self._lacking(work))
            self._newest.tokens[: len(work.samples)].copy_(one.asked.tokens)
            return
        if logits is None:
            find_likeliest(self._scores(0, work.sampled), self._newest.chosen)
        if len(work.samples) != work.sampled:
            # Forks read one row.
            (rows,) = send([np.array(work.sample_rows)], self._arena.device)
            for values in (self._newest.chosen.tokens, self._newest.chosen.logprobs):
                values[: len(rows)] = values[rows]
        one.told = self._newest.fetch()

    def _lacking(self, work: Work) -> Tensor | None:
        """Return the newest token of each text that looks back without it: [samples] int64."""
        if max(work.pending) < 0:
            return None
        (places,) = send([np.array(work.pending)], self._arena.device)
        newest = self._newest.tokens[places.clamp(min=0)]
        return torch.where(places < 0, -1, newest).long()

    def _score(self, work: Work) -> list[LaunchedNames]:
        """Begin to work out log-probabilities of prompts, a few rows at a time."""
        return [
            self._sampler.launch_names(self._scores(work.sampled + first, SCORED_ROWS), tile)
            for first in range(0, len(work.targets), SCORED_ROWS)
            if (tile := work.targets[first : first + SCORED_ROWS])
        ]

    def _scores(self, first: int, count: int) -> Tensor:
        """Score the vocabulary after some of the sampled rows of the last step."""
        assert self._states is not None, "logits before a step"
        return self._decoder.score(self._states[first : first + count])

    def _copy(self, copies: tuple[Copy, ...]) -> None:
        """Copy whole blocks, in order, before the step's first write."""
        if not copies:
            return
        pairs = np.array([(copy.src, copy.dst) for copy in copies])
        targets = set(pairs[:, 1].tolist())
        if len(targets) == len(pairs) and targets.isdisjoint(pairs[:, 0].tolist()):
            copy_blocks(self._arena.raw, *send([pairs.astype(np.int32)], self._arena.device))
        else:
            self._arena.copy(copies)

    def _finish(self, one: _InFlight) -> None:
        """Wait for a step and put its answers into its result; once more: no effect."""
        if one.finished:
            return
        one.finished = True
        try:
            if one.passed is not None:
                one.passed.synchronize()
            if one.work is not None:
                self._answer(one, one.work)
        except Exception as error:
            self._fail(one, error)
        else:
            self._inputs.settle(one.result)

    def _answer(self, one: _InFlight, work: Work) -> None:
        self._name(one, work)
        if one.vectors is not None:
            one.result.pooled.update(one.vectors.vectors())
        if one.asked is not None:
            answers = one.asked.answers()
            name_refusals(answers, one.refusals)
        else:
            answers = [] if one.told is None else self._likeliest(one.told, work)
        for sample, answer in zip(work.samples, answers, strict=True):
            if isinstance(answer, Sampled):
                one.result.sampled[sample.seq] = answer
            elif isinstance(answer, Candidates):
                one.result.candidates[sample.seq] = answer
            else:
                one.result.refused[sample.seq] = answer.reason

    def _name(self, one: _InFlight, work: Work) -> None:
        """Put the log-probabilities of prompts into the result."""
        named: dict[int, list[Logprobs]] = {target.seq: [] for target in work.targets}
        rows = [row for scores in one.scores for row in scores.answers()]
        for target, row in zip(work.targets, rows, strict=True):
            named[target.seq].append(row)
        one.result.scored.update({seq: tuple(rows) for seq, rows in named.items()})

    def _likeliest(self, told: Tensor, work: Work) -> list[Answer]:
        count = len(work.samples)
        broken = told[2, : work.sampled].numpy()
        if broken.any():
            row = int(np.flatnonzero(broken)[0])
            place = work.sample_rows.index(row)
            where = f"sequence {work.samples[place].seq} at position {work.positions[place]}"
            raise broken_row(int(broken[row]), self._decoder.spec.vocab_size, where)
        tokens = told[0, :count].tolist()
        logprobs = told[1, :count].view(torch.float32).tolist()
        return list(map(Sampled, tokens, logprobs))

    def _fail(self, one: _InFlight, error: Exception) -> None:
        self._inputs.lose(one.batch)
        one.finished = True
        one.result = StepResult(
            step=one.batch.step, failed=one.result.failed, error=one_line(error)
        )
