"""A browser, and a server for it, shared by all tests of a module."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from shown_server import NO_LOG, ShownServer

from octavo import LLM
from octavo.text.tokenizer import Tokenizer


@pytest.fixture(scope="session")
def page_tokenizer(tiny_gguf: Path) -> Tokenizer:
    """The tokenizer in the file of the tiny model."""
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20) as llm:
        return llm.get_tokenizer()


@pytest.fixture(scope="module")
def browser():
    """Debian's Chromium. While it is driven, an event loop runs here: it ends with the module."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        # Its sandbox needs rights that root in a container lacks; it opens our page alone.
        started = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def shown(page_tokenizer):
    """A server that needs no key."""
    server = ShownServer(page_tokenizer, settings=NO_LOG)
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="module")
def open_page(browser):
    """Open a page in a context of its own; mistakes of its scripts fail at the end."""
    contexts, mistakes = [], []

    def note(said):
        if "Content Security Policy" in said.text:
            mistakes.append(said.text)

    def open_one(url, **options):
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(5000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: mistakes.append(str(error)))
        page.on("console", note)
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert mistakes == []


@pytest.fixture(scope="module")
def one_page(shown, open_page):
    """A page that tests use one after the other: opening one takes longer than most of them."""
    return open_page(shown.url)
