"""Responses are kept within bounds, each tenant's apart."""

from __future__ import annotations

import pytest

from octavo.server.choice import Piece
from octavo.server.failures import ApiError
from octavo.server.outline import Outline
from octavo.server.responses_form import ResponsesForm
from octavo.server.stored_responses import StoredResponse, StoredResponses
from octavo.text.conversation import Turn
from octavo.text.parsing import CallPiece, Parsed


class Clock:
    now_s = 0.0

    def __call__(self):
        return self.now_s


def ended(name, text="a"):
    """A response that has ended, to a prompt of this text."""
    stored = StoredResponse(ResponsesForm({"id": name}), (Turn(role="user", content=text),))
    stored.end()
    return stored


def kept_of(store, tenant, names):
    return [name for name in names if not missing(store, tenant, name)]


def missing(store, tenant, name):
    try:
        return store.get(tenant, name).id != name
    except ApiError as error:
        return error.code == "response_not_found"


def test_the_one_used_longest_ago_goes_first():
    store = StoredResponses(most=2)
    store.put("ann", ended("r1"))
    store.put("ann", ended("r2"))
    store.get("ann", "r1")
    store.put("ann", ended("r3"))

    assert kept_of(store, "ann", ["r1", "r2", "r3"]) == ["r1", "r3"]


def test_bytes_of_each_tenant_are_bounded_and_counted_anew():
    store = StoredResponses(most_bytes=10_000)
    for number in range(20):
        store.put("ann", ended(f"r{number}", "a" * 2000))
        assert store.bytes_of("ann") <= 10_000
    store.put("bob", ended("mine"))
    assert kept_of(store, "bob", ["mine"]) == ["mine"]
    names = [f"r{number}" for number in range(20)]
    kept = kept_of(store, "ann", names)
    assert kept == names[-len(kept) :]
    for name in kept:
        store.drop("ann", name)
    assert store.bytes_of("ann") == 0


def test_they_are_kept_for_a_time_after_their_last_use():
    clock = Clock()
    store = StoredResponses(kept_s=10, clock=clock)
    store.put("ann", ended("r1"))
    store.put("ann", ended("r2"))
    clock.now_s = 8
    store.get("ann", "r1")
    clock.now_s = 12

    assert kept_of(store, "ann", ["r1", "r2"]) == ["r1"]


def test_what_is_still_written_stays_and_what_was_forgotten_meanwhile_does_not_come_back():
    store = StoredResponses(most=1)
    left = []
    running = StoredResponse(ResponsesForm({"id": "r1"}, behind=True), ())
    running.cancel = lambda: left.append(True)
    store.put("ann", running)
    store.put("ann", ended("r2"))
    assert kept_of(store, "ann", ["r1"]) == ["r1"]

    store.drop("ann", "r1")
    store.end("ann", running)

    assert left == [True]
    assert kept_of(store, "ann", ["r1"]) == []


# ── what they are made of ─────────────────────────────────────────────────────────────────


def told(*parsed):
    """The parts of an answer that is read like this."""
    outline = Outline()
    steps = [step.what for piece in parsed for step in outline.take(Piece(parsed=[piece]))]
    steps += [step.what for step in outline.close()]
    assert steps.count("open") == steps.count("close") == len(outline.parts)
    return [(part.kind, part.name or part.text) for part in outline.parts]


@pytest.mark.parametrize(
    ("parsed", "parts"),
    [
        ([Parsed("a"), Parsed("b")], [("text", "ab")]),
        ([Parsed(reasoning="why"), Parsed("\n\n"), Parsed("so")], None),
        ([Parsed("  "), Parsed("a")], [("text", "  a")]),
        ([Parsed(" \n")], [("text", " \n")]),
        ([Parsed(reasoning="\n"), Parsed("a")], [("text", "a")]),
        ([], []),
    ],
)
def test_white_space_opens_no_part(parsed, parts):
    assert told(*parsed) == (parts or [("reasoning", "why"), ("text", "\n\nso")][: 2 * len(parsed)])


def test_a_text_between_calls_is_a_part_and_white_space_is_none():
    def call(number):
        return Parsed(calls=(CallPiece(number, f"c{number}", f"look{number}"),))

    assert told(call(0), Parsed("\n"), call(1), Parsed("and"), call(2), Parsed(" ")) == [
        ("call", "look0"),
        ("call", "look1"),
        ("text", "and"),
        ("call", "look2"),
    ]
