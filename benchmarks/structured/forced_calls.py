"""Forced calls of the Berkeley function-calling tasks: do all parse, and fit their schemas?

Each task is a chat with `tool_choice` required, asked twice of `octavo serve` by the official
client: in one piece and as a stream, which must be the same byte for byte. The tasks' own types
(dict, float, tuple, any) are no JSON Schema, and are mapped here. What a small model could write
without end is bounded, and the bounds are part of the schema that calls must fit; every call that
was asked for counts.

    python benchmarks/structured/forced_calls.py --data shared/data/tools
    python benchmarks/structured/forced_calls.py --model Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema_rs
import openai

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))
from rig import Goal, parser, report, say, server_flags, serving

SETS = (
    "simple_python",
    "multiple",
    "parallel",
    "parallel_multiple",
    "live_simple",
    "live_parallel",
)
COUNTED = ("tasks", "refused", "calls", "valid", "same")
MAX_TEXT, MAX_ITEMS, MAX_NUMBER = 24, 3, 1_000_000
_TYPES = {"dict": "object", "float": "number", "tuple": "array"}
_PLAIN = ("type", "enum", "description", "format", "minItems", "maxItems", "minimum", "maximum")


@dataclass(frozen=True, slots=True)
class Task:
    """One chat."""

    id: str
    messages: list[dict[str, str]]
    tools: list[dict[str, Any]]
    parallel: bool


def main() -> int:
    """Ask, and show a table. Returns 1 if a call is not as it must be."""
    options = _options()
    if options.model is not None and not Path(options.model).exists():
        say(f"skipped: there is no {options.model}")
        return 0
    flags = ("--served-model-name", "m", "--max-num-seqs", str(options.streams))
    with serving(*server_flags(options, *flags)) as server:
        counts: dict[str, Counter[str]] = {}
        for name in SETS:
            counts[name] = asyncio.run(ask_all(server.address, name, options))
            say(f"{name}: {dict(counts[name])}")  # all of it takes an hour
    counts["all"] = total = sum(counts.values(), Counter())
    rows = [
        {"set": name, **{part: count[part] for part in COUNTED}} for name, count in counts.items()
    ]
    asked = total["tasks"] - total["refused"]
    goals = [
        Goal("calls that parse and fit", total["valid"], total["calls"], at_least=True),
        Goal("answers that are the same streamed", total["same"], asked, at_least=True),
    ]
    return report("octavo.forced-calls/2", options, rows, goals)


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--data", type=Path, default=Path("../shared/data/tools"))
    made.add_argument("--each", type=int, default=0, help="tasks of each set; 0: all")
    made.add_argument("--streams", type=int, default=32)
    made.add_argument("--temperature", type=float, default=0.7)
    return made.parse_args()


async def ask_all(address: str, name: str, options: argparse.Namespace) -> Counter[str]:
    """Ask all tasks of a set, so many at once."""
    count: Counter[str] = Counter()
    tasks = list(read_tasks(options.data / f"bfcl_v4_{name}.jsonl.gz", name))
    left = iter(list(enumerate(tasks))[: options.each or None])
    async with openai.AsyncOpenAI(
        base_url=f"{address}/v1", api_key="none", max_retries=0, timeout=3600
    ) as client:

        async def work() -> None:
            for number, task in left:
                await ask(client, task, number, options.temperature, count)

        await asyncio.gather(*(work() for _ in range(options.streams)))
    say(f"{name}: {dict(sorted(count.items()))}")
    return count


async def ask(
    client: openai.AsyncOpenAI, task: Task, seed: int, temperature: float, count: Counter[str]
) -> None:
    """Ask one task twice, and count what comes of it."""
    count["tasks"] += 1
    asked: dict[str, Any] = {
        "model": "m",
        "messages": task.messages,
        "tools": task.tools,
        "tool_choice": "required",
        "parallel_tool_calls": task.parallel,
        "seed": seed,
        "temperature": temperature,
        "extra_body": {"request_id": task.id},
    }
    try:
        reply = await client.chat.completions.create(**asked)
    except openai.BadRequestError as error:
        count["refused"] += 1
        say(f"{task.id}: {error.message[:200]}")
        return
    choice = reply.choices[0]
    calls = [
        (call.id, call.function.name, call.function.arguments)
        for call in choice.message.tool_calls or ()
    ]
    streamed = await stream(client, asked)
    same = (choice.message.content or "", calls, choice.finish_reason) == streamed
    count["same"] += same
    if not same:
        say(f"{task.id}: {calls} is {streamed} as a stream")
    schemas = {one["function"]["name"]: one["function"]["parameters"] for one in task.tools}
    count["calls"] += max(1, len(calls))
    for _, name, arguments in calls:
        try:
            valid = jsonschema_rs.is_valid(schemas[name], json.loads(arguments))
        except ValueError:
            valid = False
        count["valid"] += valid
        if not valid:
            say(f"{task.id}: {name}({arguments}) {choice.finish_reason}")


async def stream(client: openai.AsyncOpenAI, asked: dict[str, Any]) -> tuple[str, list[Any], str]:
    """Return what a stream says: its text, its calls, and why it ended."""
    text, finish = "", ""
    calls: dict[int, list[str]] = {}
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            finish = choice.finish_reason or finish
            for piece in choice.delta.tool_calls or ():
                call = calls.setdefault(piece.index, ["", "", ""])
                call[0] += piece.id or ""
                call[1] += piece.function.name or ""
                call[2] += piece.function.arguments or ""
    return text, [tuple(call) for call in calls.values()], finish


def read_tasks(path: Path, name: str) -> Iterator[Task]:
    """Read the tasks of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            tools = [
                {
                    "type": "function",
                    "function": {
                        "name": one["name"],
                        "description": one["description"],
                        "parameters": bounded(one["parameters"]),
                    },
                }
                for one in row["function"]
            ]
            unique = {one["function"]["name"]: one for one in tools}
            yield Task(row["id"], row["question"][0], [*unique.values()], "parallel" in name)


def bounded(schema: dict[str, Any]) -> dict[str, Any]:
    """Return JSON Schema that says the same, with an end to all that may be endless."""
    made = {key: schema[key] for key in _PLAIN if key in schema}
    kind = _TYPES.get(schema.get("type", "any"), schema.get("type", "any"))
    made["type"] = kind
    if "enum" in made:
        # Some enumerate texts where they say another type.
        del made["type"]
        return made
    match kind:
        case "object":
            properties = schema.get("properties", {})
            made["properties"] = {name: bounded(one) for name, one in properties.items()}
            known = [name for name in schema.get("required", ()) if name in properties]
            made |= {"required": known, "additionalProperties": False}
        case "array":
            made["items"] = bounded(schema.get("items", {"type": "string"}))
            made.setdefault("maxItems", MAX_ITEMS)
        case "string":
            if "format" not in made:
                made["maxLength"] = MAX_TEXT
        case "integer" | "number":
            made.setdefault("minimum", -MAX_NUMBER)
            made.setdefault("maximum", MAX_NUMBER)
            if kind == "number":
                made["multipleOf"] = 0.01
        case "any":
            made |= {"type": "string", "maxLength": MAX_TEXT}
    return made


if __name__ == "__main__":
    sys.exit(main())
