"""A matcher is told each token of its text once, in order, and none of another text."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from octavo.contract.batch import Sample, Sampled
from octavo.contract.sampling import SamplingParams
from octavo.errors import RequestError
from octavo.runner.following import Following, name_refusals
from octavo.runner.history import History
from octavo.runner.inputs import StepArrays, Work
from octavo.runner.masks import allowed_by
from octavo.runner.sampler import Refused
from octavo.testing.fake_grammars import FakeGrammars, allowed_tokens, expected_text, fake_form

VOCAB = 40
FORM = fake_form(1)
NONE = np.empty(0, dtype=np.int64)
PROMPT = (7, 8)


def work_of(*texts):
    """Samples as (sequence, its output or None if nothing binds it)."""
    samples, histories = [], []
    for seq, output in texts:
        form = None if output is None else FORM
        samples.append(Sample(seq, 0, SamplingParams(structured_outputs=form), len(PROMPT)))
        histories.append(None if output is None else History((*PROMPT, *output), len(PROMPT)))
    arrays = StepArrays((), (), NONE, NONE, (), NONE)
    return Work(arrays, len(samples), samples=samples, histories=histories)


def masks_of(following, *texts):
    work = work_of(*texts)
    following.begin(work)
    assert following.end() == {}
    return work.masks


def test_a_mask_lets_come_what_the_form_does():
    free, bound = masks_of(Following(FakeGrammars(VOCAB), VOCAB), (0, None), (1, []))

    assert free is None
    assert set(np.flatnonzero(allowed_by(bound, VOCAB))) == allowed_tokens(FORM, [], VOCAB)


def test_a_step_without_a_grammar_has_no_masks():
    assert masks_of(Following(FakeGrammars(VOCAB), VOCAB), (0, None)) == []


def test_each_token_is_told_once():
    grammars = FakeGrammars(VOCAB)
    following = Following(grammars, VOCAB)
    text = expected_text(FORM, 5, VOCAB)

    for length in (0, 1, 3, 5):
        (mask,) = masks_of(following, (0, text[:length]))

    (matcher,) = grammars.started
    assert matcher.output == text
    assert set(np.flatnonzero(allowed_by(mask, VOCAB))) == allowed_tokens(FORM, text, VOCAB)


def test_a_text_that_comes_back_is_told_whole():
    grammars = FakeGrammars(VOCAB)
    following = Following(grammars, VOCAB)
    text = expected_text(FORM, 4, VOCAB)
    masks_of(following, (0, text[:3]))

    following.forget([0, 99])
    masks_of(following, (0, text))

    assert [matcher.output for matcher in grammars.started] == [text[:3], text]


def test_texts_do_not_share_a_matcher():
    grammars = FakeGrammars(VOCAB)
    following = Following(grammars, VOCAB)
    text = expected_text(FORM, 2, VOCAB)

    masks_of(following, (0, text[:1]), (1, text), (2, []))

    assert [matcher.output for matcher in grammars.started] == [text[:1], text, []]


class Stubborn(FakeGrammars):
    """Cannot compute one mask."""

    def start(self, form):
        matcher = super().start(form)
        if len(self.started) == 2:
            matcher.fill = self.refuse
        return matcher

    def refuse(self, mask):
        raise RequestError("structured_outputs: too much work")


def test_a_mask_that_takes_too_much_work_refuses_its_own_sample():
    following = Following(Stubborn(VOCAB), VOCAB)
    work = work_of((0, []), (1, []), (2, None))
    following.begin(work)
    answers = [Sampled(1, 0.0), Sampled(2, 0.0), Sampled(3, 0.0)]

    refusals = following.end()
    name_refusals(answers, refusals)

    assert not work.masks[1].any()
    assert answers[1] == Refused("structured_outputs: too much work")
    assert [answers[0].token, answers[2].token] == [1, 3]


def test_without_grammars_a_bound_sample_is_refused():
    following = Following(None, VOCAB)
    following.begin(work_of((0, [])))

    assert "was given no grammars" in following.end()[0]


def test_masks_are_worked_out_in_a_thread_of_their_own():
    gate = threading.Event()

    class Slow(FakeGrammars):
        def start(self, form):
            assert gate.wait(10)
            return super().start(form)

    following = Following(Slow(VOCAB), VOCAB)
    work = work_of((0, []))

    following.begin(work)
    gate.set()
    following.end()

    assert work.masks[0].any()


def test_a_step_that_nobody_waited_for_does_not_disturb_the_next():
    following = Following(FakeGrammars(VOCAB), VOCAB)
    following.begin(work_of((0, [])))

    following.forget([0])
    (mask,) = masks_of(following, (0, expected_text(FORM, 1, VOCAB)))

    assert mask.any()


def test_an_error_of_ours_is_an_error_of_the_step():
    class Broken(FakeGrammars):
        def start(self, form):
            raise ZeroDivisionError

    following = Following(Broken(VOCAB), VOCAB)
    following.begin(work_of((0, [])))

    with pytest.raises(ZeroDivisionError):
        following.end()


def test_what_the_thread_has_not_begun_is_done_by_whoever_waits(monkeypatch):
    started = []
    monkeypatch.setattr("octavo.runner.following._help", started.append)
    following = Following(FakeGrammars(VOCAB), VOCAB)
    work = work_of((0, []), (1, []))

    following.begin(work)

    assert following.end() == {}
    assert all(mask.any() for mask in work.masks)
    started[0].get()()  # too late: nothing is left


def test_the_thread_ends_with_the_runner():
    before = set(threading.enumerate())
    following = Following(FakeGrammars(VOCAB), VOCAB)
    masks_of(following, (0, []))
    (helper,) = set(threading.enumerate()) - before

    del following
    helper.join(10)

    assert not helper.is_alive()
