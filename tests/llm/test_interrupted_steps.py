"""Ctrl-C while an engine decides: it waits for a moment when nothing is half done."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from octavo import LLM, SamplingParams
from octavo.interrupts import interrupts_wait

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture(autouse=True)
def listening():
    """Look out for Ctrl-C, also where the tests themselves run in a shell's background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def press():
    os.kill(os.getpid(), signal.SIGINT)


def pressed(times, done):
    with interrupts_wait():
        for _ in range(times):
            press()
        done.append("the rest")


def test_ctrl_c_waits_for_the_end_of_a_block():
    done = []

    with pytest.raises(KeyboardInterrupt):
        pressed(1, done)

    assert done == ["the rest"]


def test_a_second_ctrl_c_does_not_wait():
    done = []

    with pytest.raises(KeyboardInterrupt):
        pressed(2, done)

    assert not done


def test_afterwards_ctrl_c_is_what_it_was():
    with interrupts_wait():
        pass

    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_other_threads_and_other_handlers_are_left_alone():
    seen = []
    with interrupts_wait():
        inside = signal.getsignal(signal.SIGINT)

        def nested():
            with interrupts_wait():
                seen.append(signal.getsignal(signal.SIGINT))

        thread = threading.Thread(target=nested)
        thread.start()
        thread.join()

    assert seen == [inside]


def test_an_engine_that_was_interrupted_while_it_decided_goes_on(tiny_gguf, monkeypatch):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=8 << 20) as llm:
        expected = llm.generate(["one", "two"], GREEDY)
        engine = llm.built.engine
        leave = engine.loop._scheduler._roster._leave

        def interrupted(seq, *, returns):
            """Ctrl-C in the middle of a list's change."""
            press()
            leave(seq, returns=returns)

        monkeypatch.setattr(engine.loop._scheduler._roster, "_leave", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.generate(["one", "two"], GREEDY)
        monkeypatch.undo()
        again = llm.generate(["one", "two"], GREEDY)
        engine.check()

    for one, other in zip(again, expected, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
