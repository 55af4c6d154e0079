"""The page in a real browser: the memory as it is, live, for eyes, keyboards and readers."""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import pytest
from shown_server import ADMIN, ALICE, TENANTS, ShownServer

from octavo.contract.memory_view import CellState

LIVE = "#status[data-kind=live]"
STATES = ("free", "cached", "in_use", "shared", "tentative", "pinned", "quarantined")


def counts(page):
    """Blocks by state, as the legend tells them."""
    found = page.evaluate("() => [...document.querySelectorAll('#legend b')].map(b => b.innerText)")
    return dict(zip(STATES, map(int, found), strict=True))


def wait_for(page, condition, seconds=5.0):
    """Wait until the legend's counts fulfil a condition; returns them."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if re.search(r"\d", page.inner_text("#legend")):
            seen = counts(page)
            if condition(seen):
                return seen
        page.wait_for_timeout(40)
    raise AssertionError(f"the page still shows {counts(page)}")


def wait_for_words(page, selector, words):
    page.locator(selector).filter(has_text=words).wait_for()


def choose(page, **options):
    """Set options of the playground, which are folded away at first."""
    for name, value in options.items():
        kind = "checked" if value is True else "value"
        page.eval_on_selector(f"#option-{name}", f"(it, value) => {{ it.{kind} = value; }}", value)


def forget(shown):
    """Let no request run and no text be in memory."""
    shown.call(idle(shown.core))
    shown.call(shown.core.reset_prefix_cache())


async def idle(core):
    for name in core.loop.requests:
        core.abort(name)
    while core.loop.busy:
        await asyncio.sleep(0.02)


@pytest.fixture
def page(shown, one_page):
    """The page, live, of a memory in which nothing is."""
    forget(shown)
    one_page.goto(shown.url)
    one_page.wait_for_selector(LIVE)
    return one_page


def test_a_message_is_answered_and_its_blocks_come_and_are_let_go(page):
    wait_for(page, lambda seen: seen["free"] == 1500)

    page.fill("#say", "hello")
    choose(page, max_tokens="60", ignore_eos=True)
    page.click("#send")

    wait_for(page, lambda seen: seen["in_use"] + seen["tentative"] > 4)
    page.wait_for_selector("#stop:disabled")
    assert len(page.inner_text(".turn:last-child span:nth-child(2)")) > 10
    seen = wait_for(page, lambda seen: seen["cached"] > 4 and seen["in_use"] == 0)
    assert sum(seen.values()) == 1500


def test_eight_requests_share_the_blocks_of_their_prompt(page):
    page.fill("#say", "hello " * 20)
    choose(page, max_tokens="120", ignore_eos=True)
    page.click("#eight")

    wait_for(page, lambda seen: seen["shared"] > 4)
    assert page.locator(".answers > div").count() == 8
    page.click("#stop")

    wait_for(page, lambda seen: seen["shared"] + seen["in_use"] + seen["tentative"] == 0)


def test_an_answer_can_be_stopped_and_made_again(page):
    choose(page, max_tokens="1000", ignore_eos=True)
    page.fill("#say", "hello")
    page.press("#say", "Enter")
    page.wait_for_function("() => document.querySelector('.turn:last-child').innerText.length > 30")

    page.click("#stop")
    assert "Stopped." in page.inner_text("#log")
    choose(page, max_tokens="5")
    page.click("#again")

    page.wait_for_selector("#send:enabled")
    assert page.locator("#log > .turn").count() == 2
    assert "Stopped." not in page.inner_text("#log")


def test_a_failure_is_said_in_the_servers_words(page):
    choose(page, top_p="7")
    page.click("#send")

    page.wait_for_selector(".turn.error")
    assert "top_p" in page.inner_text(".turn.error")


def test_the_request_is_shown_as_curl_and_as_python(page):
    page.fill("#say", "it's")
    page.click("text=The request as code")

    wait_for_words(page, "#code", "it'\\''s")
    page.select_option("#code-as", "python")
    wait_for_words(page, "#code", "from openai import OpenAI")
    compile(page.inner_text("#code"), "shown", "exec")


def test_the_keyboard_alone_reaches_a_block_and_is_told_of_it(page):
    page.keyboard.press("Tab")
    assert "Go to the map" in page.evaluate("() => document.activeElement.innerText")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")

    focused = page.evaluate("() => document.activeElement.getAttribute('aria-valuetext')")
    assert re.fullmatch(r"Block \d+: free, 0 holders, 0 tokens", focused)
    page.keyboard.press("Home")
    assert page.get_attribute("#map", "aria-valuenow") == "0"


async def first_cached(core):
    blocks = range(core.facts.num_blocks)
    return next(one for one in blocks if core.loop.block(one).state is CellState.CACHED)


def go_to(page, block):
    """Go to a block by the keyboard."""
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    columns = int(page.get_attribute("#map", "aria-valuenow"))
    page.keyboard.press("Home")
    for key, times in (("ArrowDown", block // columns), ("ArrowRight", block % columns)):
        for _ in range(times):
            page.keyboard.press(key)
    assert int(page.get_attribute("#map", "aria-valuenow")) == block


def test_a_block_that_is_pointed_at_tells_its_text(shown, page):
    page.fill("#say", "hello hello hello")
    choose(page, max_tokens="1")
    page.click("#send")
    wait_for(page, lambda seen: seen["cached"] > 1)
    page.focus("#map")

    go_to(page, shown.call(first_cached(shown.core)))

    page.wait_for_selector("#cell-text:not([hidden])")
    assert "cached" in page.inner_text("#cell-facts")
    assert page.inner_text("#cell-text")


def test_the_page_outlives_the_engine_and_the_server(shown, page):
    shown.call(die(shown.core))
    page.wait_for_selector("#trouble:not([hidden])")
    assert "no engine now (restarting)" in page.inner_text("#trouble")
    shown.call(shown.core.revive())
    page.wait_for_selector(LIVE)

    shown.stop()
    page.wait_for_selector("#status[data-kind=bad]")
    assert "cannot be reached" in page.inner_text("#trouble")
    shown.start()
    page.wait_for_selector(LIVE, timeout=8000)
    page.wait_for_selector("#trouble", state="hidden")
    wait_for(page, lambda seen: seen["free"] == 1500)


async def die(core):
    core.die()


def test_on_a_phone_nothing_is_wider_than_the_screen(shown, open_page):
    page = open_page(shown.url, viewport={"width": 360, "height": 740}, is_mobile=True)
    page.wait_for_selector(LIVE)

    assert page.evaluate("() => document.documentElement.scrollWidth") <= 360


def test_axe_finds_no_serious_fault(shown, open_page):
    package = pytest.importorskip("axe_playwright_python", reason="it brings axe")
    forget(shown)
    # Scripts of ours alone may run in the page: axe is a guest that the policy must let in.
    page = open_page(shown.url, color_scheme="light", bypass_csp=True)
    page.wait_for_selector(LIVE)
    page.add_script_tag(path=Path(package.__file__).parent / "axe.min.js")
    for summary in page.locator("summary").all():
        summary.click()
    choose(page, max_tokens="700", ignore_eos=True, n="2")
    page.click("#send")
    page.click(".turn:last-child button")
    wait_for_words(page, "#followed-tables", "shared with")

    for theme in ("light", "dark"):
        assert page.evaluate("() => document.documentElement.dataset.theme") == theme
        assert faults(page, "document") == []
        for name in ("tree", "charts", "what-if"):
            page.click(f"#tab-{name}")
            page.wait_for_timeout(100)
            assert faults(page, f"'#{name}'") == []
        page.click("#theme")


def faults(page, part):
    """Serious faults of a part of the page, by rule and element."""
    found = page.evaluate(f"() => axe.run({part})")["violations"]
    return [
        (one["id"], one["nodes"][0]["html"])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


def test_a_request_is_followed_with_whom_it_shares_and_what_was_copied(page):
    page.fill("#say", "hello hello")
    choose(page, max_tokens="1500", ignore_eos=True, n="3")
    page.click("#send")

    page.click(".turn:last-child button")

    wait_for_words(page, "#followed-tables", "shared with")
    wait_for_words(page, "#followed-facts", "0 of them found in memory")
    wait_for_words(page, "#followed-miss", "From token 0 on")
    wait_for_words(page, "#followed-copies", "was copied to")
    before = page.locator("#followed-tables .chips li").count()
    page.wait_for_function(
        "many => document.querySelectorAll('#followed-tables .chips li').length > many", arg=before
    )
    page.click("#stop")
    wait_for_words(page, "#followed-facts", "It has ended")


def test_a_prefix_is_pinned_from_the_tree_and_let_go_again(page):
    page.fill("#say", "hello " * 8)
    choose(page, max_tokens="4")
    page.click("#send")
    wait_for(page, lambda seen: seen["cached"] > 4)

    page.click("#tab-tree")
    page.click("#nodes button")
    page.keyboard.type("rules")
    page.keyboard.press("Enter")

    wait_for_words(page, "#pins", "rules (")
    wait_for(page, lambda seen: seen["pinned"] > 4)
    page.click("#pins button")
    wait_for_words(page, "#pins", "Nothing is pinned.")
    wait_for(page, lambda seen: seen["pinned"] == 0)


def test_charts_and_what_other_rules_would_reserve_are_told_in_words(page):
    page.fill("#say", "hello")
    choose(page, max_tokens="1500", ignore_eos=True)
    page.click("#send")

    page.focus("#tab-requests")
    page.keyboard.press("ArrowLeft")
    wait_for_words(page, "[for=what-if-paged]", "paging, as it is")
    page.select_option("#rule", "pow2")
    wait_for_words(page, "[for=what-if-reserved]", "1 of 1 requests would fit")
    page.click("#stop")
    page.click("#tab-charts")
    page.locator("svg[aria-label^='Blocks by state. held:']").wait_for()


def test_a_tenant_gives_its_key_and_sees_its_own(page_tokenizer, open_page):
    server = ShownServer(page_tokenizer, keys=TENANTS)
    server.start()
    try:
        page = open_page(server.url)
        page.wait_for_selector("#keys[open]")
        page.fill("#key", ALICE)
        page.press("#key", "Enter")
        page.wait_for_selector(LIVE)
        wait_for_words(page, "#summary", "of others' only the state")

        page.reload()
        page.wait_for_selector(LIVE)
        page.click("#keys-open")
        page.fill("#admin-key", ADMIN)
        page.click("#keys-form .main")
        wait_for_words(page, "#summary", "blocks held")
    finally:
        server.close()
