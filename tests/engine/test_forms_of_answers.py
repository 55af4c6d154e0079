"""What an engine cannot do, a form or an embedding, it refuses before anything is queued."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from octavo.contract.pooling import Pooling
from octavo.contract.request import Request
from octavo.contract.sampling import SamplingParams
from octavo.contract.structured import StructuredOutputs
from octavo.engine.loop import Loop
from octavo.errors import RequestError
from octavo.memory.groups import Groups
from octavo.sched.limits import Limits
from octavo.sched.order import Fcfs
from octavo.sched.scheduler import Scheduler
from octavo.testing.fake_runner import FakeRunner
from octavo.testing.near_core import fake_loop, make_cache

MEAN = Pooling("mean")
FORM = StructuredOutputs(regex="[0-9]+")


def asks(form):
    return Request(id="a", prompt=(1, 2), seed=0, sampling=SamplingParams(structured_outputs=form))


class Notes:
    """Compiles nothing, and notes what it is asked."""

    def __init__(self, error=None):
        self.forms = []
        self.closed = False
        self._error = error

    def begin(self, form):
        self.forms.append(form)
        done = Future()
        if self._error is None:
            done.set_result(None)
        else:
            done.set_exception(self._error)
        return done

    def close(self):
        self.closed = True


def loop_with(grammars):
    limits = Limits(4, 16, 40, 40)
    cache = make_cache(10, Groups((4,)))
    runner = FakeRunner((4,), vocab_size=50)
    return Loop(Scheduler(cache, Fcfs(), limits), cache, runner, grammars=grammars)


def test_an_engine_without_grammars_refuses_a_form_by_its_name():
    loop, _ = fake_loop()

    with pytest.raises(RequestError, match="structured_outputs: regex: this engine makes no"):
        loop.add(asks(FORM))

    assert not loop.busy


def test_a_form_is_compiled_before_its_request_is_queued():
    grammars = Notes()
    loop = loop_with(grammars)

    loop.add(asks(FORM))

    assert grammars.forms == [FORM]
    assert loop.requests == ["a"]


def test_what_cannot_be_compiled_leaves_nothing_in_the_queue():
    loop = loop_with(Notes(RequestError("regex: '(' is not closed")))

    with pytest.raises(RequestError, match="is not closed"):
        loop.add(asks(FORM))

    assert loop.requests == []


def test_an_engine_without_embeddings_refuses_one_by_its_name():
    loop = loop_with(Notes())

    with pytest.raises(RequestError, match="pooling: this model has no embeddings"):
        loop.add(Request(id="a", prompt=(1,), seed=0, sampling=SamplingParams(), pooling=MEAN))

    assert not loop.busy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"how": "cls"}, "'cls' is not one of mean, last"),
        ({"how": "mean", "dimensions": 0}, "dimensions must be a whole number of at least 1"),
        ({"how": "mean", "normalize": 1}, "normalize must be true or false, got 1"),
    ],
)
def test_a_pooling_that_there_is_not_is_refused(options, message):
    with pytest.raises(RequestError, match=message):
        Pooling(**options)


def test_a_loop_that_is_closed_closes_its_grammars():
    grammars = Notes()

    loop_with(grammars).close()

    assert grammars.closed
