"""Follows the texts that a grammar binds, and works out what may come next beside the step."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np

from octavo.contract.batch import Sample
from octavo.contract.ids import SeqId
from octavo.errors import OctavoError
from octavo.runner.history import History
from octavo.runner.inputs import Work
from octavo.runner.masks import Mask, Matcher, Matchers, mask_words
from octavo.runner.sampler import Answer, Refused

Refusals = dict[int, str]
"""By the number of the sample."""


def name_refusals(answers: list[Answer], refusals: Refusals) -> None:
    """Put reasons in place of the answers of samples that have no mask."""
    for place, reason in refusals.items():
        answers[place] = Refused(reason)


class NoMatchers:
    """Of a runner that was given none: a sample that a grammar binds is refused."""

    def start(self, form: object) -> Matcher:
        """Refuse it."""
        raise OctavoError("structured_outputs: this runner was given no grammars: leave it out")


class _Text(NamedTuple):
    matcher: Matcher
    consumed: int
    """Tokens of the output that it has been told."""


class _Filling:
    """Pieces of work that two threads share: whoever is free takes the next."""

    def __init__(self, places: list[int], fill: Callable[[int], None]) -> None:
        """fill: does one piece. Raises OctavoError for a refusal."""
        self._left = deque(places)
        self._fill = fill
        self._lock = threading.Lock()
        self._open = len(places)
        self._done = threading.Event()
        self._refusals: Refusals = {}
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do what nobody has begun."""
        while self._left:
            with suppress(IndexError):  # the other was quicker
                self._do(self._left.popleft())

    def result(self) -> Refusals:
        """Do what is left, wait for the rest, and return the refusals."""
        self.run()
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._refusals

    def stop(self) -> None:
        """Begin nothing more, and wait for what is being done."""
        while self._left:
            with suppress(IndexError):
                self._left.popleft()
                self._count()
        self._done.wait()

    def _do(self, place: int) -> None:
        try:
            self._fill(place)
        except OctavoError as refusal:
            self._refusals[place] = str(refusal)
        except BaseException as error:  # of whoever asks for the result
            self._error = error
        finally:
            self._count()

    def _count(self) -> None:
        with self._lock:
            self._open -= 1
            if self._open == 0:
                self._done.set()


class _Helper:
    """A thread that does what it is given, one after the other, until nobody has it any more.

    Not one for each step: starting a thread waits for its first turn.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        """Where it runs: not in one that is forked."""
        self.work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=_help, args=(self.work,), name="octavo-masks", daemon=True).start()

    def __del__(self) -> None:
        self.work.put(None)


def _help(work: SimpleQueue[Callable[[], None] | None]) -> None:
    while (run := work.get()) is not None:
        run()
        del run  # it holds matchers


class Following:
    """A matcher for each text that a grammar binds; others cost nothing.

    What a matcher is told are the tokens of the text's history, never an answer: a token of a step
    that was revoked does not exist. A step's masks are begun before it is computed and taken after.
    """

    def __init__(self, matchers: Matchers | None, vocab_size: int) -> None:
        self._matchers: Matchers = NoMatchers() if matchers is None else matchers
        self._words = mask_words(vocab_size)
        self._texts: dict[SeqId, _Text] = {}
        self._running: _Filling | None = None
        self._helper: _Helper | None = None

    def forget(self, ended: Iterable[SeqId]) -> None:
        """Drop what is known of some texts. Unknown: no effect."""
        self._wait()
        for seq in ended:
            self._texts.pop(seq, None)

    def begin(self, work: Work) -> None:
        """Begin to work out the masks of a step's samples, in a thread of its own.

        `Work.masks` is filled; it may be read after `end`.
        """
        bound = [place for place, one in enumerate(work.samples) if one.constrained]
        if not bound:
            return
        work.masks.extend([None] * len(work.samples))
        rows = np.zeros((len(bound), self._words), dtype=np.int32)
        for place, row in zip(bound, rows, strict=True):
            work.masks[place] = row

        def fill(place: int) -> None:
            mask = work.masks[place]
            assert mask is not None
            try:
                self._fill(work.samples[place], work.histories[place], mask)
            except OctavoError:
                # Nobody else is concerned. With no token allowed it gets none.
                mask[:] = 0
                raise

        self._running = _Filling(bound, fill)
        if self._helper is None or self._helper.process != os.getpid():
            self._helper = _Helper()
        self._helper.work.put(self._running.run)

    def end(self) -> Refusals:
        """Have the masks; returns which samples have none, and why.

        What the thread has not begun by now is done here: others may have kept it waiting.
        """
        if self._running is None:
            return {}
        running, self._running = self._running, None
        return running.result()

    def _fill(self, one: Sample, history: History | None, mask: Mask) -> None:
        assert history is not None, f"sequence {one.seq} is followed, but its text is unknown"
        form = one.params.structured_outputs
        assert form is not None
        known = self._texts.get(one.seq)
        if known is None:
            known = _Text(self._matchers.start(form), 0)
        new = history.tokens[one.prompt_length + known.consumed :]
        if new:
            known.matcher.consume(new)
        self._texts[one.seq] = _Text(known.matcher, known.consumed + len(new))
        known.matcher.fill(mask)

    def _wait(self) -> None:
        """Wait for a step that was interrupted from outside; its masks are nobody's."""
        if self._running is not None:
            self._running.stop()
            self._running = None
