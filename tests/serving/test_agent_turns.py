"""Turns of an agent through the chat template: each is a prefix hit up to its new messages.

What the benchmark of recorded turns counts, on turns of our own.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path

import pytest
from sockets import in_a_thread
from tiny_served import saying

from octavo.testing.near_server import near_server

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "structured" / "agent_turns.py"


@pytest.fixture(scope="module")
def agent_turns():
    """The benchmark as a module; what it puts on the path is taken off again."""
    before = [*sys.path]
    spec = importlib.util.spec_from_file_location("agent_turns", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def run_of(name, turns):
    """One run of an agent: it looks, is told, looks again, and answers every third time."""
    messages = [
        {"role": "system", "content": "You help with flights. Look before you answer."},
        {"role": "user", "content": f"I am {name}. Is my flight late?"},
    ]
    for number in range(turns):
        if number % 3 == 2:
            messages += [
                {"role": "assistant", "content": f"It is {number} hours late.", "name": None},
                {"role": "user", "content": "And the next one?"},
            ]
            continue
        arguments = json.dumps({"flight": f"{name}-{number}", "exact": number % 2 == 0})
        call = {"name": "find_flight", "arguments": arguments}
        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
            },
            {
                "role": "tool",
                "tool_call_id": f"c{number}",
                "name": "find_flight",
                "content": json.dumps({"late_h": number, "gate": "B7"}),
            },
        ]
    return messages


def test_every_turn_after_the_first_is_a_prefix_hit_up_to_its_new_messages(
    agent_turns, tiny_tokenizer
):
    runs = [run_of("ann", 8), run_of("bob", 7), run_of("eve", 7)]
    with in_a_thread(near_server(**saying(tiny_tokenizer, "the"))) as address:
        count = asyncio.run(agent_turns.replay(address, runs, 20))

    assert (count["turns"], count["first"], count["too long"]) == (20, 3, 0)
    assert count["hits"] == count["exactly"] == 17
    assert count["cached"] >= count["due"] > 0
