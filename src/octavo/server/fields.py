"""Fields of the API beyond those that do something here: which are let through, and which not."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from functools import cache

from octavo.server.failures import ApiError

log = logging.getLogger("octavo.server")

WITHOUT_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "parallel_tool_calls",
        "service_tier",
        "reasoning_effort",
        "session_id",
        "safety_identifier",
        "prompt_cache_key",
        "verbosity",
        "max_tool_calls",
        "prompt_cache_retention",
    }
)
"""Taken, and ignored: answers are the same without them."""

NOT_YET: Mapping[str, str] = {
    "conversation": "name the response that is continued: previous_response_id",
    "tools": "a text calls no tools: send a conversation",
    "tool_choice": "a text calls no tools: send a conversation",
    "functions": "its successor is tools",
    "function_call": "its successor is tool_choice",
    "documents": "a text has none: send a conversation, or write them into it",
    "chat_template": "the template is the model's own: a server runs none that a request brings",
    "thinking_token_budget": "thinking has no limit of its own: set max_tokens",
    "kv_transfer_params": "KV is not handed over between servers",
    "logits_processors": "a server runs no code that a request brings",
    "repetition_detection": "it is not supported: set repetition_penalty",
    "modalities": "answers are text",
    "audio": "answers are text",
    "prediction": "predicted outputs are not supported",
    "suffix": "text is continued at its end alone",
    "store": "answers are not kept",
    "web_search_options": "nothing is looked up elsewhere",
    "mm_processor_kwargs": "prompts are text",
    "vllm_xargs": "it has no meaning here",
}
"""Would change the answer: refused, with the reason, unless their value asks for nothing."""

NOT_IN_MESSAGES: Mapping[str, str] = {
    "function_call": "its successor is tool_calls",
    "audio": "messages are text",
    "refusal": "it is no part of what a model reads",
    "annotations": "it is no part of what a model reads",
}


def sift(given: Mapping[str, object], known: Iterable[str]) -> dict[str, object]:
    """Return the fields that do something. Raises ApiError for one that cannot be ignored."""
    names = set(known)
    kept: dict[str, object] = {}
    for name, value in given.items():
        if name in names:
            kept[name] = value
        elif name in WITHOUT_EFFECT:
            _note(name)
        elif name in NOT_YET:
            if not asks_nothing(value):
                raise ApiError(400, f"{name}: {NOT_YET[name]}; leave it out", param=name)
        else:
            raise _unknown(name, names)
    return kept


def asks_nothing(value: object) -> bool:
    """True for the values that clients send for fields that they do not use."""
    if value in (None, False, "none", ["text"]) or value == {"type": "text"}:
        return True
    return isinstance(value, dict | list | str) and not value


def _unknown(name: str, names: set[str]) -> ApiError:
    near = difflib.get_close_matches(name[:100], [*names, *WITHOUT_EFFECT, *NOT_YET], 1)
    hint = f"did you mean {near[0]}?" if near else "leave it out"
    return ApiError(400, f"{name!r:.100} is not a field of this route: {hint}", param=name[:100])


@cache
def _note(name: str) -> None:
    """Say it in the log, once for each field."""
    log.info("requests set %s, which has no effect here", name)
