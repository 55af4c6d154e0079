"""The engine that tests of the server use behaves as one in a process of its own."""

from __future__ import annotations

import asyncio

import pytest

from octavo.contract.request import FinishReason, Request
from octavo.contract.sampling import SamplingParams
from octavo.errors import EngineGone, RequestError
from octavo.server.core import CoreClient, CoreState
from octavo.testing.fake_runner import expected_output
from octavo.testing.near_core import Heard, NearCore, fake_loop

PROMPT = (1, 2, 3, 4, 5)


def ask(core: CoreClient, name: str = "r", *, prompt=PROMPT, **sampling) -> Heard:
    params = SamplingParams(**{"max_tokens": 8, **sampling})
    heard = Heard(params.choices)
    core.submit(Request(id=name, prompt=prompt, sampling=params, seed=3), heard)
    return heard


def with_core(test, **options):
    """Run a test against a core that has started, and stop it."""

    async def run():
        core = NearCore(lambda: fake_loop(**options))
        await core.start()
        try:
            await asyncio.wait_for(test(core), 10)
        finally:
            await core.stop()

    asyncio.run(run())


def test_a_request_is_accepted_begun_and_answered_in_this_order():
    async def test(core):
        heard = ask(core)
        assert heard.max_tokens is None, "told before the call has returned"
        await heard.ended.wait()
        assert heard.max_tokens == 8
        assert heard.begun_s is not None
        assert len(heard.tokens()) == 8
        assert heard.updates[-1].finish is FinishReason.LENGTH

    with_core(test)


def test_what_it_answers_is_known_beforehand():
    async def test(core):
        heard = ask(core, temperature=0)
        await heard.ended.wait()
        again = ask(core, "s", temperature=0)
        await again.ended.wait()
        assert heard.tokens() == again.tokens()
        assert again.updates[0].cached_tokens == 4

    with_core(test)
    assert len(expected_output(list(PROMPT), 3, 8, 50)) == 8


def test_what_can_never_be_served_is_refused():
    async def test(core):
        heard = ask(core, prompt=())
        await heard.ended.wait()
        assert isinstance(heard.error, RequestError)
        assert heard.max_tokens is None

    with_core(test)


def test_who_aborts_hears_no_more_and_the_memory_is_free():
    async def test(core):
        heard, other = ask(core, max_tokens=200), ask(core, "other")
        while not heard.updates:
            await asyncio.sleep(0)
        core.abort("r")
        seen = len(heard.updates)
        await other.ended.wait()
        assert len(heard.updates) == seen
        assert (await core.snapshot()).usage.blocks_used == 0

    with_core(test)


def test_a_choice_whose_text_is_complete_ends_and_the_other_goes_on():
    async def test(core):
        heard = ask(core, n=2)
        while not heard.updates:
            await asyncio.sleep(0)
        core.finish("r", 0)
        while len(heard.tokens(1)) < 8:
            await asyncio.sleep(0)
        assert len(heard.tokens(0)) < 8
        assert (await core.snapshot()).usage.blocks_used == 0

    with_core(test)


def test_everybody_hears_that_the_engine_has_died_and_the_next_one_answers():
    async def test(core):
        heard = ask(core, max_tokens=200)
        await asyncio.sleep(0)
        core.die()
        assert isinstance(heard.error, EngineGone)
        assert core.state is CoreState.RESTARTING
        with pytest.raises(EngineGone, match="signal 9"):
            ask(core, "s")
        await core.revive()
        after = ask(core, "s")
        await after.ended.wait()
        assert len(after.tokens()) == 8

    with_core(test)


def test_a_paused_engine_takes_requests_and_answers_them_later():
    async def test(core):
        await core.pause()
        heard = ask(core)
        for _ in range(20):
            await asyncio.sleep(0)
        assert heard.max_tokens == 8
        assert not heard.updates
        await core.resume()
        await heard.ended.wait()

    with_core(test)


def test_a_pause_holds_in_the_engine_that_follows_until_it_is_ended():
    async def test(core):
        await core.pause()
        core.die()
        await core.revive()
        assert core.state is CoreState.PAUSED
        core.die()
        with pytest.raises(EngineGone):
            await core.resume()
        await core.revive()
        assert core.state is CoreState.READY

    with_core(test)


def test_a_pause_that_aborts_says_so_to_those_who_wait():
    async def test(core):
        heard = ask(core, max_tokens=200)
        await asyncio.sleep(0)
        await core.pause(abort=True)
        assert heard.updates[-1].finish is FinishReason.ABORT
        assert (await core.snapshot()).usage.blocks_used == 0

    with_core(test)
