"""An engine that obeys messages: what it reports, in which order, and how soon it obeys."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from random import Random

import pytest

from octavo.contract.request import FinishReason, Request, choice_seed
from octavo.contract.sampling import SamplingParams
from octavo.contract.structured import StructuredOutputs
from octavo.engine.core import Core
from octavo.engine.messages import (
    Abort,
    Accepted,
    Check,
    Checked,
    Count,
    Counted,
    Finish,
    ListPins,
    News,
    Pause,
    PinsListed,
    Ready,
    Refused,
    ResetCache,
    Resume,
    Said,
    Stop,
    Submit,
    TakeSnapshot,
    Unpin,
    pack,
    read_command,
    read_report,
)
from octavo.errors import Corrupted, OverLimit, RequestError
from octavo.testing.damage import DAMAGES
from octavo.testing.fake_grammars import FakeGrammars
from octavo.testing.fake_runner import FakeRunner, expected_output
from octavo.testing.near_core import fake_loop

random = Random(5)
PROMPT = (1, 2, 3, 4, 5)


class Script:
    """A channel that brings commands at given steps, and stops the engine once it is idle.

    Everything crosses as bytes. idle: times that the engine may wait in vain before.
    """

    def __init__(self, *commands, idle=1, abandoned_at=None, **loop):
        self.runner = CountingRunner()
        self.loop, facts = fake_loop(runner=self.runner, **loop)
        self.core = Core(self.loop, facts, self)
        self._coming = deque(commands)
        self._later = {}
        self._idle = idle
        self._abandoned_at = abandoned_at
        self.looks = 0
        self.heard = []

    def at(self, steps, *commands):
        """Bring commands once so many steps have been submitted."""
        self._later[steps] = commands
        return self

    def damaged(self, kind):
        """Return what does damage to the memory plane, to be brought like a command."""
        return lambda: DAMAGES[kind](self.loop._cache.device, random)

    def run(self):
        self.core.run()
        return self

    def receive(self, timeout_s):
        self._coming += self._later.pop(self.runner.submitted, ())
        while self._coming:
            command = self._coming.popleft()
            if not callable(command):
                return read_command(pack(command))
            command()
        if timeout_s:
            self._idle -= 1
            if self._idle < 0:
                return Stop()
        return None

    def send(self, report):
        self.heard.append(read_report(pack(report)))

    @property
    def abandoned(self):
        self.looks += 1
        return self.looks == self._abandoned_at

    def of(self, kind):
        return [report for report in self.heard if isinstance(report, kind)]

    def updates(self, name="r", index=0):
        return [
            update
            for news in self.of(News)
            for update in news.updates
            if (update.request_id, update.index) == (name, index)
        ]

    def tokens(self, name="r", index=0):
        return [token for update in self.updates(name, index) for token in update.tokens]


class CountingRunner(FakeRunner):
    """Notes how many steps were submitted, and which of them computed something."""

    def __init__(self):
        super().__init__((4,))
        self.submitted = 0
        self.closed = False

    def submit(self, batch):
        self.submitted += 1
        super().submit(batch)

    def close(self):
        self.closed = True
        super().close()


def ask(name="r", prompt=PROMPT, **sampling):
    params = SamplingParams(**{"max_tokens": 8, **sampling})
    return Submit(Request(id=name, prompt=prompt, sampling=params, seed=3))


def test_it_says_that_it_is_ready_then_that_it_has_a_request_then_what_comes_of_it():
    heard = Script(ask()).run()

    kinds = [type(report) for report in heard.heard]
    assert kinds[:3] == [Ready, Accepted, News]
    assert heard.of(Accepted) == [Accepted("r", 8)]
    assert len(heard.tokens()) == 8
    assert heard.updates()[-1].finish is FinishReason.LENGTH


def test_all_that_a_step_brings_comes_in_one_message():
    heard = Script(ask("a"), ask("b"), ask("c")).run()

    first = next(news for news in heard.of(News) if news.updates)
    assert {update.request_id for update in first.updates} == {"a", "b", "c"}
    steps = [news.step for news in heard.of(News)]
    assert steps == sorted(steps)


def test_a_request_has_begun_when_its_first_tokens_are_planned_not_when_it_is_queued():
    heard = Script(ask("first"), ask("second"), max_num_seqs=1).run()

    begun = [one for news in heard.of(News) for one in news.begun]
    assert [one.request_id for one in begun] == ["first", "second"]
    ended = next(n for n in heard.of(News) if any(u.finish is not None for u in n.updates))
    assert begun[0].at_s < ended.applied_s <= begun[1].at_s


def test_what_can_never_be_served_is_refused_and_the_rest_goes_on():
    heard = Script(ask("long", prompt=tuple(range(500))), ask()).run()

    (refused,) = heard.of(Refused)
    assert refused.request_id == "long"
    assert "500 tokens" in refused.message
    assert len(heard.tokens()) == 8


def test_an_id_that_is_in_use_is_refused():
    (refused,) = Script(ask(), ask()).run().of(Refused)

    assert "in use" in refused.message


@pytest.mark.parametrize("submitted", [1, 2, 5, 9])
def test_an_abort_is_obeyed_before_the_next_step_and_its_blocks_are_free(submitted):
    script = Script(ask(max_tokens=300), max_model_len=400)
    heard = script.at(submitted, Abort("r"), TakeSnapshot(7)).run()

    assert script.runner.submitted == submitted, "a step was planned after the abort had come"
    (counted,) = heard.of(Counted)
    assert counted.snapshot.usage.blocks_used == 0
    assert (counted.snapshot.running, counted.snapshot.waiting) == (0, 0)


def test_nothing_is_heard_of_a_request_after_its_abort():
    heard = Script(ask(max_tokens=300)).at(5, Abort("r"), Check(1)).run()

    told = heard.heard.index(heard.of(Checked)[0])
    assert not any(
        update.request_id == "r"
        for report in heard.heard[told:]
        if isinstance(report, News)
        for update in report.updates
    )


def test_a_choice_whose_text_is_complete_ends_and_the_others_go_on():
    heard = Script(ask(n=2, max_tokens=20, temperature=1.0)).at(4, Finish("r", 1)).run()

    assert len(heard.tokens(index=0)) == 20
    assert len(heard.tokens(index=1)) < 6


def test_a_pause_lets_the_step_in_flight_end_and_plans_no_other():
    script = Script(ask(max_tokens=40), idle=4)
    heard = script.at(5, Pause(1), TakeSnapshot(2)).run()

    assert script.runner.submitted == 5
    (counted,) = heard.of(Counted)
    assert counted.snapshot.paused
    assert len(heard.tokens()) == 5, "the step in flight was not collected"


def test_what_was_paused_goes_on_as_if_nothing_had_been():
    heard = Script(ask(max_tokens=40)).at(5, Pause(1), ask("s"), Resume(2)).run()

    (accepted,) = [report for report in heard.of(Accepted) if report.request_id == "s"]
    assert heard.heard.index(accepted) > heard.heard.index(Count(1))
    assert heard.tokens() == Script(ask(max_tokens=40)).run().tokens()


def test_a_pause_may_end_all_that_is_there():
    script = Script(ask("a", max_tokens=40), ask("b", n=2, temperature=1.0), max_num_seqs=1)
    heard = script.at(3, Pause(1, abort=True), Resume(2), TakeSnapshot(3)).run()

    assert heard.updates("a")[-1].finish is FinishReason.ABORT
    assert heard.updates("b")[-1].finish is FinishReason.ABORT
    assert heard.of(Count) == [Count(1, 2), Count(2, 0)]
    assert heard.of(Counted)[0].snapshot.usage.blocks_used == 0


def test_cached_texts_are_forgotten_on_command():
    script = Script(ask(), idle=3)
    heard = script.at(8, ResetCache(1), Unpin(2), Unpin(3, tenant="nobody")).run()
    assert heard.of(Count)[1:] == [Count(2, 0), Count(3, 0)]

    again = Script(ask(), idle=1).run()
    assert again.loop.usage().blocks_cached > 0


def test_pins_are_told_on_command_and_a_tenant_that_there_is_not_has_none():
    heard = Script(ask()).at(8, ListPins(1), ListPins(2, tenant="nobody")).run()

    assert heard.of(PinsListed) == [PinsListed(1, ()), PinsListed(2, ())]


def test_an_idle_engine_recomputes_every_count_once():
    heard = Script(ask(), idle=5).run()

    assert heard.core.checks.runs == 1


def test_an_engine_that_has_done_nothing_has_nothing_to_recompute():
    assert Script(idle=5).run().core.checks.runs == 0


def test_a_count_that_is_wrong_is_told_and_set_right_and_requests_go_on():
    script = Script(ask(max_tokens=20), ask("s", n=2, max_tokens=20, temperature=1.0), idle=3)
    script.at(6, script.damaged("a holder is made up"), Check(4), Check(5), TakeSnapshot(6))
    script.run()

    first, second = script.of(Checked)
    assert "holders" in first.error
    assert first.checks.failures == first.checks.quarantined == 1
    assert second.error == ""
    assert second.checks.quarantined == 1
    assert "1 blocks are used no more" in script.of(Said)[0].text
    expected = [expected_output(list(PROMPT), choice_seed(3, i), 20, 50) for i in range(2)]
    assert script.tokens() == script.tokens("s", 0) == expected[0]
    assert script.tokens("s", 1) == expected[1]


def test_what_is_wrong_when_the_engine_is_idle_is_found_by_itself():
    script = Script(ask(), idle=4)
    script.at(8, script.damaged("a free block is lost"))
    script.run()

    assert script.core.checks.failures == 1
    script.loop.check()


def test_an_engine_that_cannot_be_set_right_ends():
    script = Script(ask(), num_blocks=1 + 8)
    script.at(8, *[script.damaged("a holder is made up")] * 40, Check(1))

    with pytest.raises(Corrupted, match="something is wrong with"):
        script.run()
    assert script.runner.closed


def test_an_engine_that_nobody_hears_ends():
    script = Script(idle=100, abandoned_at=3).run()

    assert script.runner.closed
    assert script.looks == 3


def test_a_busy_engine_looks_now_and_then_whether_anybody_hears_it():
    script = Script(ask(max_tokens=390), idle=100, abandoned_at=1).run()

    assert 200 < script.runner.submitted < 300


def test_stopping_ends_the_step_in_flight_and_closes_the_runner():
    script = Script(ask(max_tokens=300)).at(6, Stop())
    script.run()

    assert script.runner.closed
    assert len(script.tokens()) == 6


def test_an_error_of_the_runner_ends_the_engine():
    script = Script(ask())

    def collect():
        raise RuntimeError("out of order")

    script.runner.collect = collect
    with pytest.raises(RuntimeError, match="out of order"):
        script.run()
    assert script.runner.closed


def test_answers_are_those_of_the_model():
    heard = Script(ask()).run()

    assert heard.tokens() == expected_output(list(PROMPT), choice_seed(3, 0), 8, 50)


def test_a_snapshot_says_where_the_time_of_steps_goes_and_what_they_compute():
    heard = Script(ask(), idle=3).at(8, TakeSnapshot(1)).run()

    (counted,) = heard.of(Counted)
    times, stats = counted.snapshot.times, counted.snapshot.stats
    assert times.plan.count == times.tokens.count == stats.steps
    assert times.tokens.total == len(PROMPT) + 7
    assert stats.steps - 1 <= times.run.count == times.apply.count <= stats.steps


def test_the_blocks_of_a_snapshot_add_up():
    script = Script(ask(max_tokens=40), ask("s", n=2, max_tokens=40, temperature=1.0), idle=3)
    (counted,) = script.at(20, TakeSnapshot(1)).run().of(Counted)

    usage = counted.snapshot.usage
    assert (
        usage.blocks_free + usage.blocks_cached + usage.blocks_used == counted.snapshot.num_blocks
    )


def test_a_request_that_ends_before_it_has_begun_is_not_looked_for_any_more():
    script = Script(ask("a", max_tokens=40), ask("b"), max_num_seqs=1, idle=3)
    script.at(5, Finish("b", 0)).run()

    assert not script.core._fresh


# ── forms that are compiled ───────────────────────────────────────────────────────────────


class SlowGrammars(FakeGrammars):
    """Compiles a form when told to."""

    def __init__(self):
        super().__init__(50)
        self.futures = {}

    def begin(self, form):
        return self.futures.setdefault(form.text, Future())

    def finish(self, text, error=None):
        def now():
            if error is None:
                self.futures[text].set_result(None)
            else:
                self.futures[text].set_exception(error)

        return now


def bound(name="r", text="a", **sampling):
    return ask(name, structured_outputs=StructuredOutputs(regex=text), **sampling)


def slow(*commands, **options):
    script = Script(*commands, **options)
    script.grammars = script.loop.grammars = SlowGrammars()
    return script


def test_a_form_that_takes_long_to_compile_keeps_nobody_else_waiting():
    script = slow(bound(), ask("other", max_tokens=20))
    heard = script.at(15, script.grammars.finish("a")).run()

    assert [one.request_id for one in heard.of(Accepted)] == ["other", "r"]
    assert len(heard.tokens("other")) == 20
    assert len(heard.tokens()) == 8


def test_a_form_that_cannot_be_compiled_is_refused_and_nothing_else_is_heard():
    script = slow(bound())
    heard = script.at(0, script.grammars.finish("a", RequestError("no"))).run()

    assert heard.of(Refused) == [Refused("r", "no")]
    assert not heard.of(Accepted)


def test_an_engine_that_only_waits_for_a_form_looks_at_it_often():
    script = slow(bound(), idle=3)
    waited = []
    receive = script.receive

    def note(timeout_s):
        waited.append(timeout_s)
        return receive(timeout_s)

    script.receive = note
    script.run()

    assert 0 < max(waited[1:]) <= 0.002


def test_an_abort_ends_a_request_whose_form_is_being_compiled():
    script = slow(bound(), Abort("r"), ask("other"))
    heard = script.at(3, script.grammars.finish("a")).run()

    assert [one.request_id for one in heard.of(Accepted)] == ["other"]


def test_a_request_whose_form_is_being_compiled_counts_as_waiting_and_ends_with_the_others():
    heard = slow(bound(), TakeSnapshot(1), Pause(2, abort=True)).run()

    assert heard.of(Counted)[0].snapshot.waiting == 1
    assert heard.of(Count) == [Count(2, 1)]
    assert heard.updates()[-1].finish is FinishReason.ABORT


def test_an_id_whose_form_is_being_compiled_is_in_use():
    heard = slow(bound(), bound(text="b")).run()

    assert "in use" in heard.of(Refused)[0].message


def test_where_too_many_forms_wait_one_may_be_sent_again():
    script = slow(bound())

    def refuse(form):
        raise OverLimit("512 forms wait", retry_after_s=1.0)

    script.grammars.begin = refuse

    assert script.run().of(Refused) == [Refused("r", "512 forms wait", 1.0)]
