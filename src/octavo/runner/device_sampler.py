"""The sampler of a device: every option, where the logits lie, and nobody waits for the answers."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from octavo.errors import ConfigError
from octavo.runner.device_answers import Launched, LaunchedNames, Layout
from octavo.runner.device_choice import (
    Limits,
    Options,
    Survey,
    draw,
    find_best,
    first_place,
    log_probabilities,
    survey,
)
from octavo.runner.device_edits import DeviceLists, DeviceMasks, Edits
from octavo.runner.device_names import Names
from octavo.runner.device_rows import Piece, Plan, Real, Way, have_own_rows, make_plan
from octavo.runner.device_staging import Array, Fetched, send
from octavo.runner.inputs import Target, Work
from octavo.runner.sampler import wants_likeliest

ROOM = 256 << 20
"""Bytes of device memory for what is computed of logits at once, if that is a row or more."""

_NONE_LEFT = -1
_LOGITS = (torch.bfloat16, torch.float16, torch.float32)


class DeviceSampler:
    """Chooses the tokens that `sampler.sample` would choose.

    Weights and their sums are in float64; log-probabilities are rounded to float32, but for
    candidates. Beside `room_bytes` it needs memory for what it returns.
    """

    def __init__(self, vocab_size: int, device: torch.device, *, room_bytes: int = ROOM) -> None:
        """Raise ConfigError for a device that has no float64."""
        if device.type == "mps":
            raise ConfigError(
                f"tokens cannot be chosen on {device}, which has no float64: choose them on the CPU"
            )
        self._vocab_size = vocab_size
        self._device = device
        self._room_bytes = room_bytes

    @torch.inference_mode()
    def launch(self, logits: Tensor, work: Work, newest: Tensor | None = None) -> Launched:
        """Begin to answer each sample of a step, on the current stream.

        logits: [rows, vocab] bfloat16, float16 or float32, those of samples first.
        newest: [samples] int64 on the device: the last token of a text whose history lacks it,
        because a step in flight samples it; -1: it lacks none. None: no text lacks any.
        The histories are read before this returns.
        """
        self._check(logits, work.sampled)
        logits = logits[: work.sampled]
        found = survey(logits, self._room_bytes)
        if have_own_rows(work) and all(map(wants_likeliest, work.samples)):
            count = len(work.samples)
            found = Survey(*(one[:count] for one in found))
            logprobs = _logprobs(logits[:count], found.likeliest, found.levels)
            returned = Fetched([found.likeliest, logprobs, found.broken])
            layout = Layout(list(range(count)), [], None)
            return Launched(found.likeliest, returned, work, layout, self._vocab_size)
        plan = make_plan(work, self._vocab_size, self._room_bytes)
        assert newest is not None or not plan.pending, "a text lacks its newest token"
        samples = [work.samples[number] for number in plan.order]
        tops = [None if one.candidates else one.params.logprobs for one in samples]
        names = Names(tops, self._vocab_size, self._room_bytes)
        step = _Step(logits, found, plan, names, newest, self._device)
        tokens, returned = step.answer(names)
        pieces = [piece for piece in plan.pieces if piece.way is Way.CANDIDATES]
        layout = Layout(plan.order, pieces, names)
        return Launched(tokens, returned, work, layout, self._vocab_size)

    @torch.inference_mode()
    def launch_names(self, logits: Tensor, targets: list[Target]) -> LaunchedNames:
        """Begin to say how likely tokens of prompts were, on the current stream.

        logits: [rows, vocab] as in `launch`, those after which the targets stand first.
        """
        self._check(logits, len(targets))
        logits = logits[: len(targets)]
        found = survey(logits, self._room_bytes)
        names = Names([one.top for one in targets], self._vocab_size, self._room_bytes)
        numbers = np.array([[one.token for one in targets], names.places], dtype=np.int64)
        tokens, places = send([numbers], self._device)[0]
        levels = found.levels.index_select(0, places)
        named = names.launch(logits, places, levels, tokens.index_select(0, places))
        returned = Fetched([_logprobs(logits, tokens, found.levels), found.broken, *named])
        return LaunchedNames(returned, targets, names, self._vocab_size)

    def _check(self, logits: Tensor, rows: int) -> None:
        assert logits.dtype in _LOGITS, f"logits of type {logits.dtype}"
        assert len(logits) >= rows, f"{len(logits)} rows of logits where {rows} are needed"
        assert logits.shape[1] == self._vocab_size, (
            f"rows of {logits.shape[1]} logits for a vocabulary of {self._vocab_size}"
        )


class _Step:
    """The logits of a step, and on the device what is asked about them, in working order."""

    def __init__(
        self,
        logits: Tensor,
        found: Survey,
        plan: Plan,
        names: Names,
        newest: Tensor | None,
        device: torch.device,
    ) -> None:
        wholes = np.array([plan.order, plan.rows, plan.top_ks], dtype=np.int64)
        arrays: list[Array] = [wholes, plan.reals, np.array(names.places, dtype=np.int64)]
        masks: DeviceMasks | None = None
        for lists in plan.lists.values():
            arrays += lists.ids, lists.values, lists.lengths
        if plan.masks is not None:
            arrays += plan.masks.bits, plan.masks.rows
        (order, rows, top_ks), reals, named, *sent = send(arrays, device)
        if newest is not None:
            newest = newest.index_select(0, order) if plan.pending else None
        device_lists = {
            kind: DeviceLists.make(lists, *sent[3 * number : 3 * number + 3])
            for number, (kind, lists) in enumerate(plan.lists.items())
        }
        self._logits = logits
        self._plan = plan
        self._found = Survey(*(one.index_select(0, rows) for one in found))
        self._order, self._rows, self._named = order, rows, named
        self._options = Options(reals, top_ks[:, None])
        if plan.masks is not None:
            masks = DeviceMasks.make(plan.masks, *sent[-2:])
        self._edits = Edits(device_lists, reals, newest, masks)

    def answer(self, names: Names) -> tuple[Tensor, Fetched]:
        """Return the tokens in the order of the samples, and all that comes back."""
        chosen: list[Tensor] = []
        candidates: list[Tensor] = []
        for piece in self._plan.pieces:
            likeliest = self._found.likeliest[piece.first : piece.last]
            if piece.way is Way.CANDIDATES:
                candidates += self._find(piece)
            elif piece.way is not Way.LIKELIEST:
                likeliest = self._choose(piece, likeliest)
            chosen.append(likeliest)
        tokens = torch.cat(chosen)
        # Whoever reads on must find a token in each place, also where there is none.
        given = tokens.clamp(min=0)
        logprobs = _logprobs(self._logits, given, self._found.levels, self._rows)
        named = names.launch(
            self._logits,
            *(one.index_select(0, self._named) for one in (self._rows, self._found.levels, given)),
        )
        returned = Fetched([tokens, logprobs, self._found.broken, *candidates, *named])
        return torch.empty_like(given).index_copy_(0, self._order, given), returned

    def _choose(self, piece: Piece, likeliest: Tensor) -> Tensor:
        """Choose a token for each sample of a piece: [samples]; none is left: -1."""
        x = self._read(piece)
        if not piece.edited:
            return draw(x, likeliest, *self._asked(piece))
        x = x.double()
        self._edits.apply(x, piece)
        top = x.amax(1, keepdim=True)
        likeliest = first_place(x == top)
        drawn = piece.way is Way.DRAWN
        tokens = draw(x, likeliest, *self._asked(piece)) if drawn else likeliest
        return torch.where(top.squeeze(1) > -math.inf, tokens, _NONE_LEFT)

    def _find(self, piece: Piece) -> tuple[Tensor, Tensor]:
        """Find the likeliest tokens of each sample of a piece, and their log-probabilities."""
        x = self._read(piece) - self._found.levels[piece.first : piece.last, None]
        if piece.edited:
            self._edits.apply(x, piece)
        ids = find_best(x, piece.depth)
        return ids.int(), x.gather(1, ids)

    def _read(self, piece: Piece) -> Tensor:
        """Return the logits that each sample of a piece reads; not to be changed."""
        rows = self._plan.rows[piece.first : piece.last]
        first, end = rows[0], rows[0] + len(rows)
        if rows == list(range(first, end)):
            return self._logits[first:end]
        return self._logits.index_select(0, self._rows[piece.first : piece.last])

    def _asked(self, piece: Piece) -> tuple[Options, Limits]:
        part = slice(piece.first, piece.last)
        reals = self._plan.reals[part]
        limits = Limits(
            depth=piece.depth,
            min_p=bool((reals[:, Real.MIN_P] > 0).any()),
            top_p=bool((reals[:, Real.TOP_P] < 1).any()),
        )
        return Options(*(one[part] for one in self._options)), limits


def _logprobs(logits: Tensor, tokens: Tensor, levels: Tensor, rows: Tensor | None = None) -> Tensor:
    """Return the log-probability of one token a sample: [samples] float32.

    rows: the row of logits that each reads; None: its own.
    """
    if rows is None:
        return log_probabilities(logits.gather(1, tokens[:, None]), levels).squeeze(1)
    return log_probabilities(logits[rows, tokens], levels)
