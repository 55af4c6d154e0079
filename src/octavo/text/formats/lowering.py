"""Tools for templates that know of none: told in plain turns, always in the same words."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import groupby

import msgspec

from octavo.text.conversation import Tool, Turn
from octavo.text.formats.spelling import CallSpelling

_RESULT = ("<tool_response>\n", "\n</tool_response>")


def lowered(
    turns: Iterable[Turn], tools: Iterable[Tool], spelling: CallSpelling
) -> tuple[Turn, ...]:
    """Return turns of plain text that say the same.

    Tools stand with the system's turn, calls in the words of the model, and results as a user's.
    What a turn becomes does not depend on those behind it. Raises RequestError for a call whose
    arguments are no JSON object.
    """
    plain: list[Turn] = []
    for results, group in groupby(turns, key=lambda turn: turn.role == "tool"):
        if results:
            text = "\n".join(turn.content.join(_RESULT) for turn in group)
            plain.append(Turn(role="user", content=text))
        else:
            plain += [_plain(turn, spelling) for turn in group]
    told = _told([*tools], spelling)
    if not told:
        return tuple(plain)
    if plain and plain[0].role == "system":
        system = plain.pop(0)
        content = f"{system.content}\n\n{told}" if system.content else told
        return (msgspec.structs.replace(system, content=content), *plain)
    return (Turn(role="system", content=told), *plain)


def _plain(turn: Turn, spelling: CallSpelling) -> Turn:
    if not turn.calls:
        return turn
    calls = spelling.write((call.name, call.read().text) for call in turn.calls)
    content = f"{turn.content}\n{calls}" if turn.content else calls
    return Turn(role=turn.role, content=content, name=turn.name, reasoning=turn.reasoning)


def _told(tools: list[Tool], spelling: CallSpelling) -> str:
    if not tools:
        return ""
    example = spelling.write([("NAME", '{"ARGUMENT": "VALUE"}')])
    lines = [json.dumps(tool.for_template()["function"], ensure_ascii=False) for tool in tools]
    return "\n".join(
        [
            "These functions can be called. Each line is one of them, with a JSON Schema of its "
            "arguments:",
            *lines,
            "",
            "To call a function, answer with its name and its arguments, written like this:",
            example,
        ]
    )


def one_by_one(turns: Iterable[Turn]) -> tuple[Turn, ...]:
    """Return turns with one call each, its results behind it: some templates write no more.

    Results that answer no call stay where they are.
    """
    waiting = list(turns)
    done: list[Turn] = []
    while waiting:
        turn = waiting.pop(0)
        if len(turn.calls) < 2:
            done.append(turn)
            continue
        results: list[Turn] = []
        while waiting and waiting[0].role == "tool":
            results.append(waiting.pop(0))
        for number, call in enumerate(turn.calls):
            said = turn if not number else Turn(role=turn.role, name=turn.name)
            done.append(msgspec.structs.replace(said, calls=(call,)))
            done += [one for one in results if one.call_id == call.id]
        ids = {call.id for call in turn.calls}
        done += [one for one in results if one.call_id not in ids]
    return tuple(done)
