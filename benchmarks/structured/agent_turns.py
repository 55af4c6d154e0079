"""Turns of a recorded agent through the chat template: is each a prefix hit up to its new messages?

GPT-4o's runs over an airline's tools (tau-bench), sent turn by turn to `octavo serve` as its own
client would send them: all messages so far, with tools, calls and results. The answer is one token;
the next turn has the recorded one. What must be found is the prompt of the turn before without the
beginning of its answer, to a block. The file has no schemas of its tools: they are made of the
calls.

    python benchmarks/structured/agent_turns.py --json record.json
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
from rig import Goal, parser, report, say, server_flags, serving

BLOCK = 16
"""Tokens: what a prefix may end short of."""
COUNTED = ("turns", "first", "too long", "prompt", "due", "cached", "hits", "exactly")
"""Turns, those that begin a run, runs that do not fit; tokens of prompts, those that had to be
found and those that were; turns that found what they had to, to a block and to the token."""
_KINDS = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def main() -> int:
    """Replay, and show what was found. Returns 1 if a turn found less than it must."""
    options = _options()
    with gzip.open(options.data, "rt", encoding="utf-8") as file:
        runs = [run["traj"] for run in json.load(file)]
    with serving(
        *server_flags(options, "--served-model-name", "m", "--block-size", str(BLOCK))
    ) as server:
        count = asyncio.run(replay(server.address, runs, options.turns))
    goals = [
        Goal("turns", count["turns"], options.turns, at_least=True),
        Goal(
            "turns after the first that found all but their new messages",
            count["hits"],
            count["turns"] - count["first"],
            at_least=True,
        ),
    ]
    return report("octavo.agent-turns/2", options, [{name: count[name] for name in COUNTED}], goals)


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument(
        "--data",
        type=Path,
        default=Path("../shared/data/agents/taubench_gpt4o_airline.json.gz"),
    )
    made.add_argument("--turns", type=int, default=500)
    return made.parse_args()


async def replay(address: str, runs: list[list[dict[str, Any]]], turns: int) -> Counter[str]:
    """Send runs one after another until there are so many turns."""
    import httpx2

    count: Counter[str] = Counter()
    tools = tools_of(runs)
    async with httpx2.AsyncClient(base_url=address, timeout=600) as client:

        async def post(path: str, **body: Any) -> dict[str, Any]:
            reply = await client.post(path, json={"tools": tools, **body})
            assert reply.status_code == 200, reply.text
            return reply.json()

        for run in runs:
            messages = [read(message) for message in run]
            whole = await post("/tokenize", messages=messages)
            if whole["count"] + BLOCK > whole["max_model_len"]:
                count["too long"] += 1
                continue
            count["first"] += 1
            due = 0
            for end in (at for at, one in enumerate(messages) if one["role"] == "assistant"):
                if count["turns"] == turns:
                    return count
                asked = {"messages": messages[:end]}
                usage = (await post("/v1/chat/completions", **asked, max_tokens=1))["usage"]
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                count["turns"] += 1
                count["prompt"] += usage["prompt_tokens"]
                count["cached"] += cached
                if due:
                    count["due"] += due
                    count["hits"] += cached >= due - BLOCK
                    count["exactly"] += cached >= due
                    if cached < due - BLOCK:
                        say(f"turn {count['turns']}: {cached} found, {due} had to be")
                ended = await post("/tokenize", **asked, add_generation_prompt=False)
                due = ended["count"]
    return count


def read(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message as the API has it now."""
    kept = {"role", "content", "tool_calls", "tool_call_id", "name"}
    return {name: value for name, value in message.items() if name in kept and value is not None}


def tools_of(runs: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the tools that are called, with the arguments that they are called with."""
    seen: dict[str, dict[str, dict[str, str]]] = {}
    for message in (one for run in runs for one in run):
        for call in message.get("tool_calls") or ():
            properties = seen.setdefault(call["function"]["name"], {})
            for name, value in json.loads(call["function"]["arguments"]).items():
                properties.setdefault(name, {"type": _KINDS.get(type(value), "object")})
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": name.replace("_", " "),
                "parameters": {"type": "object", "properties": properties},
            },
        }
        for name, properties in sorted(seen.items())
    ]


if __name__ == "__main__":
    sys.exit(main())
