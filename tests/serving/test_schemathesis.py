"""No request that the server's own document describes, or nearly describes, makes it fail."""

from __future__ import annotations

import contextlib

import pytest
import schemathesis
from chaos_callers import TEMPLATE
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from sockets import in_a_thread
from tiny_served import VOCABULARY, worded

from octavo.server.keys import KeyTable
from octavo.server.settings import RequestBounds, ServerSettings
from octavo.testing.near_server import near_server
from octavo.testing.served import grammars_of

QUICK, THOROUGH = 6, 300

# A client of a small server, whose answers are short.
BOUNDS = ServerSettings(bounds=RequestBounds(max_n=4, max_prompts=4))


ADMIN = "boss"


@pytest.fixture
def url(tiny_tokenizer, tiny_gguf):
    """Where a server of a model that computes nothing is; its administrator closes it at last.

    It takes forms, tools and pins.
    """
    options = worded(
        tiny_tokenizer.with_template(TEMPLATE),
        max_model_len=60,
        max_num_batched_tokens=256,
        pin_limit=0.2,
        grammars=grammars_of(str(tiny_gguf), VOCABULARY),
    )
    keys = KeyTable([], admins=[ADMIN])
    with in_a_thread(near_server(**options, settings=BOUNDS, keys=keys)) as address:
        yield address


def ask_all(url: str, mode: GenerationMode, examples: int) -> set[int]:
    """Send examples of every operation; returns the statuses that came."""
    document = schemathesis.openapi.from_url(f"{url}/openapi.json")
    statuses = set[int]()
    for found in document.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def send(case):
            if case.path.endswith("/memory/events"):
                case.query = {**(case.query or {}), "once": "true"}  # else it never ends
            reply = case.call(timeout=10, headers={"Authorization": f"Bearer {ADMIN}"})
            statuses.add(reply.status_code)
            assert reply.status_code < 500, f"{case.method} {case.path}: {reply.text}"
            if reply.status_code >= 400 and case.method != "HEAD":
                assert reply.json()["error"]["message"]

        # A route without parameters has no request that is wrong.
        with contextlib.suppress(Unsatisfiable):
            send()
    return statuses


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_makes_the_server_fail(url, mode):
    statuses = ask_all(url, mode, QUICK)
    assert statuses & {200, 400}


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
def test_no_request_of_many_makes_the_server_fail(url, mode):
    ask_all(url, mode, THOROUGH)
