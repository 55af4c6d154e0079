"""A conversation to be continued: the one value that the routes of every API make of their bodies.

What is beside it (how tokens are chosen, who asks, how the answer is told) is not in here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from octavo.server.cache_wishes import CacheMark
from octavo.server.failures import ApiError
from octavo.text.conversation import AUTOMATIC, MAX_DEPTH, Tool, ToolChoice, Turn, deeper
from octavo.text.formats.reading import ToolUse

OWN_VARIABLES = frozenset({"messages", "add_generation_prompt", "tools", "documents"})
"""Of a template: what has a field of its own, and is no one else's to set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """What is rendered, and how its answer is read.

    Raises ApiError or RequestError for what does not fit together.
    """

    turns: tuple[Turn, ...]
    """At least one."""
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = AUTOMATIC
    parallel_calls: bool = True
    """More than one call may stand in an answer."""
    documents: tuple[Mapping[str, object], ...] = ()
    """For templates that read them."""
    variables: Mapping[str, object] = field(default_factory=dict[str, object])
    """More of the template's variables."""
    add_generation_prompt: bool | None = None
    """None: unless the answer goes on with the last turn."""
    continue_final_turn: bool = False
    """The answer goes on with the last turn."""
    marks: tuple[CacheMark, ...] = ()
    """How parts of it are to be kept, from the beginning on."""

    def __post_init__(self) -> None:
        if self.continue_final_turn and self.add_generation_prompt:
            raise ApiError(
                400,
                "continue_final_message: add_generation_prompt would end that message; leave one "
                "out",
                param="continue_final_message",
            )
        for name in sorted(OWN_VARIABLES & self.variables.keys()):
            raise ApiError(
                400,
                f"chat_template_kwargs: {name} is a field of its own",
                param="chat_template_kwargs",
            )
        self._check_use()
        for one in self.documents:
            if deeper(one, MAX_DEPTH):
                raise ApiError(
                    400, f"documents: nested more than {MAX_DEPTH} deep", param="documents"
                )

    def _check_use(self) -> None:
        """Raise RequestError for tools that do not fit together."""
        ToolUse(tools=self.tools, choice=self.tool_choice, parallel=self.parallel_calls)

    @property
    def use(self) -> ToolUse:
        """Its tools, and what is to be done with them."""
        return ToolUse(tools=self.tools, choice=self.tool_choice, parallel=self.parallel_calls)

    @property
    def generates(self) -> bool:
        """True if the template ends in the beginning of an answer."""
        return not self.continue_final_turn and self.add_generation_prompt is not False

    @property
    def chars(self) -> int:
        """Of all texts in it, about: what bounds the work before anything is rendered."""
        told = [tool.parameters for tool in self.tools], self.documents
        return sum(
            len(turn.content)
            + len(turn.reasoning or "")
            + sum(len(call.arguments) for call in turn.calls)
            for turn in self.turns
        ) + (len(msgspec.json.encode(told)) if self.tools or self.documents else 0)
