"""An engine whose memory is watched: it shows it beside its steps, and forgets who is gone."""

from __future__ import annotations

from collections import deque

import pytest

from octavo.contract.request import Request
from octavo.contract.sampling import SamplingParams
from octavo.engine.core import IDLE_S, WATCHED_S, Core
from octavo.engine.messages import (
    BlockShown,
    LookAtMemory,
    MemoryShown,
    Pause,
    ShowBlock,
    Stop,
    Submit,
    pack,
    read_command,
    read_report,
)
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.near_core import fake_loop


class Desk:
    """A channel that brings a command whenever the engine looks for one, and keeps what it says.

    A command may be a number: so many seconds pass in silence.
    """

    def __init__(self, *commands):
        self.runner = Noting(self)
        self.loop, facts = fake_loop(runner=self.runner)
        self.now_s = 100.0
        self.log = []
        self.checks = []
        self._coming = deque(commands)
        self.core = Core(self.loop, facts, self, clock=lambda: self.now_s)

    def run(self):
        self.core.run()
        return self

    def receive(self, timeout_s):
        self.checks.append(self.core.checks.runs)
        if not timeout_s and self._coming and not self._due:
            return None  # one command a turn
        self._due = False
        if not self._coming:
            return Stop() if timeout_s else None
        command = self._coming.popleft()
        if isinstance(command, float):
            self.now_s += command
            return None
        return read_command(pack(command))

    _due = True

    def send(self, report):
        self._due = True
        self.log.append(read_report(pack(report)))

    @property
    def abandoned(self):
        return False

    def shown(self):
        return [one for one in self.log if isinstance(one, MemoryShown)]


class Noting(FakeRunner):
    """Notes steps in the log of a desk."""

    def __init__(self, desk):
        super().__init__((4,))
        self._desk = desk

    def submit(self, batch):
        self._desk.log.append("submitted")
        super().submit(batch)

    def collect(self):
        self._desk.log.append("collected")
        self._desk._due = True
        return super().collect()


def ask(max_tokens=8):
    params = SamplingParams(max_tokens=max_tokens)
    return Submit(Request(id="r", prompt=(1, 2, 3, 4, 5, 6), sampling=params, seed=3))


def test_a_look_is_answered_while_the_next_step_is_computed():
    desk = Desk(ask(), LookAtMemory(1), LookAtMemory(2, 1), 1.0).run()

    places = [at for at, one in enumerate(desk.log) if isinstance(one, MemoryShown)]
    assert len(places) == 2
    for at in places:
        before = [one for one in desk.log[:at] if isinstance(one, str)]
        assert before[-1] == "submitted"


def test_an_idle_engine_answers_at_once_and_so_does_a_paused_one():
    desk = Desk(LookAtMemory(1), Pause(2), ask(), LookAtMemory(3, 1)).run()

    first, second = desk.shown()
    assert (first.paused, second.paused) == (False, True)
    assert (first.frame.memory.whole, second.frame.memory.whole) == (True, False)
    assert second.waiting == 1
    assert "submitted" not in desk.log


def test_whoever_has_not_looked_for_long_is_forgotten():
    desk = Desk(LookAtMemory(1), WATCHED_S + 1, 0.0, LookAtMemory(2, 1)).run()

    assert [one.frame.memory.whole for one in desk.shown()] == [True, True]


def test_an_idle_engine_that_is_watched_still_recomputes_its_counts():
    looks = []
    for number in range(12):
        looks += [LookAtMemory(number, number), IDLE_S / 10]
    desk = Desk(ask(), *looks).run()

    assert desk.core.checks.runs == 1


@pytest.mark.parametrize("block", [0, 10_000])
def test_one_block_is_told(block):
    desk = Desk(ask(1), 1.0, ShowBlock(1, block, True)).run()

    (told,) = [one for one in desk.log if isinstance(one, BlockShown)]
    if block:
        assert told.facts is None
    else:
        assert told.facts is not None
        assert told.facts.tokens == (1, 2, 3, 4)
