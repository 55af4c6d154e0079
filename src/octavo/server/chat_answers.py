"""From a conversation of any API to what the engine is asked, and how its answer is read."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.contract.sampling import SamplingParams
from octavo.server.chat_request import ChatRequest
from octavo.server.prompting import Prompt, Prompter
from octavo.server.terms import Terms


@dataclass(frozen=True, slots=True)
class Prepared:
    """A conversation, ready to be continued."""

    prompt: Prompt
    terms: Terms
    params: SamplingParams


async def prepare_chat(
    prompter: Prompter, chat: ChatRequest, terms: Terms, params: SamplingParams
) -> Prepared:
    """Render a conversation. Raises ApiError or RequestError."""
    prompt = await prompter.conversation(chat, max_tokens=params.max_tokens)
    params, terms = prompter.read(chat, prompt, params, terms)
    return Prepared(prompt, terms, params)
