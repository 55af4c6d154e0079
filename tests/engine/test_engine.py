"""The engine: from tokens to text, and nothing lost when it is interrupted."""

from __future__ import annotations

import pytest

from octavo.contract.request import FinishReason, Request
from octavo.contract.sampling import SamplingParams
from octavo.engine.engine import Engine
from octavo.errors import RequestError
from octavo.models.gguf import GGUFFile
from octavo.sched.limits import Limits
from octavo.sched.order import Fcfs
from octavo.sched.scheduler import Scheduler
from octavo.testing.driver import make_cache
from octavo.testing.fake_runner import FakeRunner
from octavo.text.tokenizer import Tokenizer

VOCAB = 272
PROMPT = (100, 101, 102, 103, 104)
LENGTH = 60


@pytest.fixture(scope="session")
def tokenizer(tiny_gguf):
    return Tokenizer.from_gguf(GGUFFile(tiny_gguf).metadata)


class Talk:
    """An engine over a fake runner, and what it has said so far."""

    def __init__(self, tokenizer, *, depth=1, runner=None):
        cache = make_cache(300)
        scheduler = Scheduler(cache, Fcfs(), Limits(8, 64, 1000, 1200))
        self.engine = Engine(
            scheduler,
            cache,
            runner or FakeRunner((4,), vocab_size=VOCAB),
            tokenizer,
            depth=depth,
            clock=lambda: 0.0,
        )
        self.news = []

    def ask(self, name="r", *, prompt=PROMPT, eos=(), seed=0, **sampling):
        options = SamplingParams(**{"max_tokens": LENGTH, **sampling})
        return self.engine.add(
            Request(
                id=name,
                prompt=tuple(prompt),
                sampling=options,
                seed=seed,
                eos_token_ids=frozenset(eos),
            )
        )

    def run(self, *, steps=10_000):
        """Step until all is said; an interrupt is noted and the talk goes on."""
        interrupts = 0
        while self.engine.busy and steps:
            steps -= 1
            try:
                self.news += self.engine.step()
            except KeyboardInterrupt:
                interrupts += 1
        return interrupts

    def said(self, name="r", index=0):
        return [news for news in self.news if (news.request_id, news.index) == (name, index)]

    def text(self, name="r", index=0):
        return "".join(news.text for news in self.said(name, index))

    def tokens(self, name="r", index=0):
        return [token for news in self.said(name, index) for token in news.token_ids]

    def end(self, name="r", index=0):
        return self.said(name, index)[-1]


@pytest.fixture
def talk(tokenizer):
    return Talk(tokenizer)


@pytest.fixture(scope="session")
def free(tokenizer):
    """What the fake model says when nothing stops it."""
    talk = Talk(tokenizer)
    talk.ask()
    talk.run()
    return talk


# ── text ──────────────────────────────────────────────────────────────────────────────────


def test_the_text_is_that_of_the_tokens(free, tokenizer):
    assert len(free.tokens()) == LENGTH
    assert free.text() == tokenizer.decode(free.tokens())
    assert free.end().finish is FinishReason.LENGTH


def test_no_piece_holds_half_a_character(free, tokenizer):
    # The fake model speaks bytes at random: most of them are no character, ever. What could
    # still become one is held back, so that cutting the stream anywhere decodes alike.
    spoken = []
    for news in free.said()[:-1]:
        spoken += news.token_ids
        streamed = "".join(said.text for said in free.said()[: len(spoken)])
        assert tokenizer.decode(spoken).startswith(streamed)


def test_every_choice_has_its_own_text(talk, tokenizer):
    talk.ask(n=3)
    talk.run()

    texts = {talk.text(index=index) for index in range(3)}

    assert len(texts) == 3
    for index in range(3):
        assert talk.text(index=index) == tokenizer.decode(talk.tokens(index=index))


def borders(free, tokenizer):
    """Positions in the text where one token ends and the next begins."""
    positions, text = [], ""
    for token in free.tokens():
        text += tokenizer.decode([token])
        positions.append(len(text))
    return positions


def test_a_stop_string_across_token_borders_ends_the_text_before_it(free, tokenizer):
    text = free.text()
    stops = {text[at - 1 : at + 2] for at in borders(free, tokenizer)[2:-3]}
    for stop in sorted(stop for stop in stops if len(stop) == 3):
        talk = Talk(tokenizer)
        talk.ask(stop=stop)
        talk.run()

        assert talk.text() == text[: text.index(stop)]
        assert (talk.end().finish, talk.end().stop_reason) == (FinishReason.STOP, stop)


def test_the_tokens_of_a_stop_string_stay_in_the_ids(free, talk, tokenizer):
    stop = free.text()[20:23]
    talk.ask(stop=stop)
    talk.run()

    tokens = talk.tokens()

    assert tokens == free.tokens()[: len(tokens)]
    assert stop in tokenizer.decode(tokens)
    assert stop not in tokenizer.decode(tokens[:-1])


def test_text_that_only_began_like_a_stop_string_is_not_lost(free, talk):
    talk.ask(stop=free.text()[10:14] + "never")
    talk.run()

    assert talk.text() == free.text()


def test_text_that_may_begin_a_stop_string_is_held_back(free, talk):
    text = free.text()
    talk.ask(stop=text[20:30])
    streamed = ""
    while talk.engine.busy:
        for news in talk.engine.step():
            streamed += news.text
            assert text[: text.index(text[20:30])].startswith(streamed)


def test_a_sequence_ended_by_a_stop_string_gives_its_blocks_back(free, talk):
    talk.ask(stop=free.text()[20:23])
    talk.run()

    assert talk.engine.usage().blocks_used == 0
    talk.engine.check()


def test_the_text_of_a_stop_token_is_not_in_the_text(free, talk, tokenizer):
    tokens = free.tokens()
    stop = tokens[12]
    spoken = tokens[: tokens.index(stop)]
    talk.ask(stop_token_ids=(stop,))
    talk.run()

    assert talk.text() == tokenizer.decode(spoken)
    assert talk.tokens() == [*spoken, stop]
    assert (talk.end().finish, talk.end().stop_reason) == (FinishReason.STOP, stop)


def test_the_end_token_ends_a_text_without_a_reason_of_the_caller(free, talk, tokenizer):
    tokens = free.tokens()
    spoken = tokens[: tokens.index(tokens[9])]
    talk.ask(eos=(tokens[9],))
    talk.run()

    assert talk.text() == tokenizer.decode(spoken)
    assert (talk.end().finish, talk.end().stop_reason) == (FinishReason.STOP, None)


def test_an_ignored_end_token_is_emitted_like_any_other(free, talk):
    talk.ask(eos=(free.tokens()[9],), ignore_eos=True)
    talk.run()

    assert talk.tokens() == free.tokens()


@pytest.mark.parametrize("cut", range(15, 45, 6))
def test_depth_changes_no_text(free, tokenizer, cut):
    said = []
    for depth in (1, 2):
        talk = Talk(tokenizer, depth=depth)
        talk.ask("stopped", stop=free.text()[cut : cut + 2])
        talk.ask("free", prompt=[*PROMPT, 7], n=3, seed=5)
        talk.ask("token", stop_token_ids=(free.tokens()[cut],))
        talk.run()
        keys = [("stopped", 0), ("token", 0), *(("free", index) for index in range(3))]
        said.append([(talk.text(*k), talk.tokens(*k), talk.end(*k).stop_reason) for k in keys])

    assert said[0] == said[1]


# ── requests come and go ──────────────────────────────────────────────────────────────────


def test_adding_a_request_tells_its_effective_maximum(talk):
    assert talk.ask(max_tokens=7) == 7
    assert talk.ask("all", max_tokens=None) == 1000 - len(PROMPT)


def test_a_refused_request_leaves_nothing_behind(talk):
    with pytest.raises(RequestError, match="the prompt is empty"):
        talk.ask(prompt=())

    assert not talk.engine.busy
    talk.ask()  # its id is free
    talk.run()
    assert talk.end().finish is FinishReason.LENGTH


@pytest.mark.parametrize("depth", [1, 2])
def test_nothing_more_is_heard_of_an_aborted_request(tokenizer, free, depth):
    talk = Talk(tokenizer, depth=depth)
    talk.ask("r", n=2)
    talk.ask("other")
    talk.run(steps=5)
    heard = len(talk.said("r"))

    talk.engine.abort("r")
    talk.run()

    assert len(talk.said("r")) == heard
    assert talk.text("other") == free.text()
    assert talk.engine.usage().blocks_used == 0


def test_an_unknown_request_is_aborted_without_effect(talk):
    talk.engine.abort("nobody")

    assert not talk.engine.busy


def test_a_known_prefix_is_found_until_the_cache_is_reset(talk):
    cached = []
    for name in ("cold", "warm", "reset"):
        if name == "reset":
            assert talk.engine.reset_prefix_cache() > 0
        talk.ask(name, prompt=range(3, 20))
        talk.run()
        cached.append(talk.end(name).cached_tokens)

    assert cached == [0, 16, 0]


# ── interrupts and failures ───────────────────────────────────────────────────────────────


class Interrupted(FakeRunner):
    """Ctrl-C comes while these steps are being submitted."""

    def __init__(self, steps, *, too_late=False):
        super().__init__((4,), vocab_size=VOCAB)
        self.steps = steps
        self.too_late = too_late

    def submit(self, batch):
        if self.too_late:
            super().submit(batch)
        if batch.step in self.steps:
            raise KeyboardInterrupt
        if not self.too_late:
            super().submit(batch)


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("step", [1, 2, 7])
def test_an_interrupt_reaches_the_caller_and_loses_nothing(tokenizer, free, step, depth):
    talk = Talk(tokenizer, depth=depth, runner=Interrupted({step}))
    talk.ask("r")
    talk.ask("other", prompt=[*PROMPT, 9])

    assert talk.run() == 1

    assert (talk.text("r"), talk.tokens("r")) == (free.text(), free.tokens())
    assert talk.end("other").finish is FinishReason.LENGTH
    talk.engine.check()


@pytest.mark.parametrize("depth", [1, 2])
def test_interrupts_are_no_fault_of_a_request_however_many(tokenizer, free, depth):
    talk = Talk(tokenizer, depth=depth, runner=Interrupted({2, 3, 4, 6, 8}))
    talk.ask("r")

    assert talk.run() == 5

    assert (talk.text("r"), talk.tokens("r")) == (free.text(), free.tokens())


@pytest.mark.parametrize("step", [2, 3, 7])
def test_a_second_interrupt_loses_no_news_of_the_first(tokenizer, free, step):
    talk = Talk(tokenizer, depth=2, runner=Interrupted({step, step + 1}))
    talk.ask("short", max_tokens=step - 1)  # its last token is in flight at the first interrupt
    talk.ask("other", prompt=[*PROMPT, 9])

    assert talk.run() == 2

    assert talk.tokens("short") == free.tokens()[: step - 1]
    assert talk.end("short").finish is FinishReason.LENGTH


def test_the_result_of_an_interrupted_step_is_not_taken_for_the_next(tokenizer, free):
    talk = Talk(tokenizer, runner=Interrupted({3}, too_late=True))
    talk.ask()

    assert talk.run() == 1

    assert talk.tokens() == free.tokens()


def test_an_interrupted_request_can_be_aborted(tokenizer, free):
    talk = Talk(tokenizer, depth=2, runner=Interrupted({4}))
    talk.ask("r")
    while not talk.run(steps=1):
        pass

    talk.engine.abort("r")

    assert not talk.engine.busy or talk.run() == 0
    assert talk.engine.usage().blocks_used == 0
    talk.ask("next")
    talk.run()
    assert talk.text("next") == free.text()


def test_an_error_of_the_device_is_news_of_the_request(tokenizer):
    runner = FakeRunner((4,), vocab_size=VOCAB, fate=lambda batch: "out of memory")
    talk = Talk(tokenizer, runner=runner)
    talk.ask(n=2)

    talk.run()

    for index in range(2):
        end = talk.end(index=index)
        assert (end.finish, end.error, end.text) == (FinishReason.ERROR, "out of memory", "")
