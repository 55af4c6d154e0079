"""From a conversation of any API to what the engine is asked, and how its answer is read."""

from __future__ import annotations

from dataclasses import dataclass, replace

from octavo.contract.sampling import SamplingParams
from octavo.errors import RequestError
from octavo.server.cache_wishes import CacheWish, ranges
from octavo.server.chat_request import ChatRequest
from octavo.server.failures import ApiError
from octavo.server.prompting import Prompt, Prompter
from octavo.server.terms import Terms
from octavo.text.conversation import AUTOMATIC, Turn


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation, ready to be continued."""

    prompt: Prompt
    terms: Terms
    params: SamplingParams
    marked: int = 0
    """Leading tokens that its marks keep."""


async def prepare_chat(
    prompter: Prompter, chat: ChatRequest, terms: Terms, params: SamplingParams
) -> Prepared:
    """Render a conversation. Raises ApiError or RequestError."""
    prompt = await prompter.conversation(chat, max_tokens=params.max_tokens)
    params, terms = prompter.read(chat, prompt, params, terms)
    ends = await mark_ends(prompter, chat, prompt)
    kept = ranges(ends)
    if kept:
        terms = replace(terms, retention=kept)
    return Prepared(prompt, terms, params, max((end for end, _ in ends), default=0))


async def mark_ends(
    prompter: Prompter, chat: ChatRequest, prompt: Prompt
) -> list[tuple[int, CacheWish]]:
    """Return up to which token each mark of a conversation reaches.

    A mark ends where the leading turns alone and the whole conversation part: a template may write
    a turn otherwise when another one follows. One whose turns it does not write alone is dropped.
    """
    ends: list[tuple[int, CacheWish]] = []
    for mark in chat.marks:
        # Tools stand ahead of the first turn, or in it; what is common with an empty one is theirs.
        turns = chat.turns[: mark.turns] or (Turn(role=chat.turns[0].role),)
        leading = replace(
            chat,
            turns=turns,
            tool_choice=AUTOMATIC,
            add_generation_prompt=False,
            continue_final_turn=False,
            marks=(),
        )
        try:
            ids = await prompter.encode(await prompter.render(leading), special=False)
        except (ApiError, RequestError):
            continue
        end = _common(prompt.ids, ids)
        if end:
            ends.append((end, mark.wish))
    return ends


def _common(one: tuple[int, ...], other: list[int]) -> int:
    """Return how many tokens two texts begin alike."""
    return next(
        (place for place, (mine, its) in enumerate(zip(one, other, strict=False)) if mine != its),
        min(len(one), len(other)),
    )
