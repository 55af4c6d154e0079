"""From what a request says to prompts of token ids."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec

from octavo.contract.request import Request
from octavo.contract.sampling import SamplingParams
from octavo.errors import RequestError
from octavo.prompts import NO_TOKENIZER, RequestBuilder
from octavo.server.changes import Places
from octavo.server.chat_request import ChatRequest
from octavo.server.failures import ApiError
from octavo.server.parts import Parts
from octavo.server.reading import read_answers
from octavo.server.schemas.chat import ChatBody
from octavo.server.schemas.completions import CompletionBody
from octavo.server.terms import Terms
from octavo.text.formats.reading import Formats
from octavo.text.template import up_to_message
from octavo.text.tokenizer import Tokenizer

Result = TypeVar("Result")

QUICK_CHARS = 500
"""One text up to this length is tokenized at once, in less than a millisecond; a longer one, and
several, beside the event loop."""

QUICK_TURNS = 16
"""A conversation of so few messages, as short as that, is rendered at once."""

QUICK_IDS = 4096
"""Prompts of so few tokens, and without words that are banned, are checked at once."""

TOKENIZING = 2
"""Requests whose texts are tokenized at once: more of them would take the engine's cores."""

LONGEST_TOKEN = 256
"""Characters. A text longer than a prompt's tokens could spell is not even tokenized."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, as tokens."""

    ids: tuple[int, ...]
    text: str | None = None
    """What it was before it was tokenized; None: it came as tokens."""
    dropped: int = 0
    """Tokens that were cut off at its beginning, as the request asked."""
    opening: str = ""
    """What an answer that echoes begins with, if that is not the whole prompt."""
    places: Places | None = None
    """Knows its messages, if it has any and nothing of it was cut off."""


class Prompter:
    """Tokenizes prompts and makes requests of them, numbered as they come."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._builder: RequestBuilder | None = None
        self._formats: Formats | None = None
        self._beside = ThreadPoolExecutor(TOKENIZING, "octavo-tokenize")

    async def completion(self, body: CompletionBody) -> list[Prompt]:
        """Return the prompts of a completion. Raises ApiError or RequestError."""
        many = prompts_of(body)
        special = body.add_special_tokens is not False
        if isinstance(many[0], str):
            encoded = await self._encode(many, special=special)
            prompts = [Prompt(tuple(ids), one) for ids, one in zip(encoded, many, strict=True)]
        else:
            prompts = [Prompt(tuple(one)) for one in many]
        return [
            await self._fitting(one, body.truncate_prompt_tokens, body.max_tokens, cuts=True)
            for one in prompts
        ]

    async def chat(self, body: ChatBody, chat: ChatRequest) -> Prompt:
        """Return the conversation of a body as a prompt. Raises ApiError or RequestError."""
        most = body.max_tokens if body.max_completion_tokens is None else body.max_completion_tokens
        return await self.conversation(
            chat,
            special=bool(body.add_special_tokens),
            keep=body.truncate_prompt_tokens,
            max_tokens=most,
            cuts=True,
        )

    async def conversation(
        self,
        chat: ChatRequest,
        *,
        special: bool = False,
        keep: int | None = None,
        max_tokens: int | None = None,
        cuts: bool = False,
    ) -> Prompt:
        """Return what any API made of its body as a prompt. Raises ApiError or RequestError.

        keep: tokens at its end, if it is to be cut; -1: those that leave room for max_tokens. cuts:
        a request can ask for that.
        """
        text = await self.render(chat)
        ids = await self.encode(text, special=special)
        last = chat.turns[-1]
        prompt = Prompt(
            tuple(ids),
            text,
            opening=last.content if last.role == "assistant" else "",
            places=Places(
                chat, text, partial(self._rendered, formats=self.formats), self.tokenizer
            ),
        )
        return await self._fitting(prompt, keep, max_tokens, cuts=cuts)

    def read(
        self, chat: ChatRequest, prompt: Prompt, params: SamplingParams, terms: Terms
    ) -> tuple[SamplingParams, Terms]:
        """Return options and terms of its answers, with what tools and reasoning ask for.

        Raises RequestError for tools that the model has no words for.
        """
        return read_answers(self.formats, chat, prompt.text or "", params, terms)

    async def render(self, chat: ChatRequest) -> str:
        """Return a conversation as a text. Raises ApiError or RequestError."""
        self._check_chars(chat.chars)
        if chat.documents and not self.tokenizer.template.reads("documents"):
            raise ApiError(
                400,
                "documents: the model's template reads none: write them into a message",
                param="documents",
            )
        render = partial(self._rendered, chat, self.formats)
        large = chat.variables or chat.tools or chat.documents
        if not large and len(chat.turns) <= QUICK_TURNS and chat.chars <= QUICK_CHARS:
            return render()
        return await self.beside(render)

    def _rendered(self, chat: ChatRequest, formats: Formats) -> str:
        variables = {**self._parts.settings.chat_variables, **chat.variables}
        tools = () if formats.lowers else chat.tools
        for name, values in (
            ("tools", [tool.for_template() for tool in tools]),
            ("documents", [dict(one) for one in chat.documents]),
        ):
            if values:
                variables[name] = values
        try:
            text = formats.tokenizer.apply_chat_template(
                [turn.for_template() for turn in formats.turns(chat.turns, chat.tools)],
                add_generation_prompt=chat.generates,
                **variables,
            )
        except RequestError as error:
            param = "tools" if str(error).startswith("tools: ") else "messages"
            raise ApiError(400, str(error), param=param) from None
        return up_to_message(text, chat.turns[-1].content) if chat.continue_final_turn else text

    async def encode(self, text: str, *, special: bool = True) -> list[int]:
        """Return a text as token ids. Raises RequestError."""
        (ids,) = await self._encode([text], special=special)
        return ids

    async def decode(self, ids: list[int], *, special: bool = True) -> str:
        """Return the text of token ids. special: with special ones. Raises RequestError."""
        decode = self.tokenizer.decode_beside
        return await self.beside(partial(decode, ids, skip_special_tokens=not special))

    async def beside(self, work: Callable[[], Result]) -> Result:
        """Do what would hold up the event loop on one of a few threads."""
        return await asyncio.get_running_loop().run_in_executor(self._beside, work)

    def check_ids(self, name: str, count: int) -> None:
        """Raise ApiError for more token ids than a prompt can have. name: of their field."""
        longest = self._parts.core.facts.longest_text
        if count > longest:
            raise ApiError(
                400,
                f"{name}: {count} tokens are more than a prompt and its answer can have, "
                f"{longest}: send them in parts",
                param=name,
            )

    @property
    def formats(self) -> Formats:
        """How the model writes calls and reasoning. Raises RequestError if it has no text."""
        if self._formats is None:
            settings = self._parts.settings
            self._formats = Formats.find(
                self.tokenizer, settings.tool_call_parser, settings.reasoning_parser
            )
        return self._formats

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's. Raises ApiError if it has none."""
        tokenizer = self._parts.model.tokenizer
        if tokenizer is None:
            raise ApiError(
                400,
                f"{NO_TOKENIZER}: give prompts to /v1/completions as token ids",
                code="no_tokenizer",
            )
        return tokenizer

    async def requests(
        self,
        prompts: list[Prompt],
        params: SamplingParams,
        *,
        priority: int,
        tenant: str,
        salt: str,
    ) -> list[Request]:
        """Return what the engine is asked. Raises RequestError."""
        builder = self._building()

        def build() -> list[Request]:
            built = builder.build(
                [{"prompt_token_ids": list(prompt.ids)} for prompt in prompts],
                params,
                [priority] * len(prompts),
                tenant=tenant,
            )
            return [self._own(request, salt) for request, _ in built]

        if not params.bad_words and sum(len(prompt.ids) for prompt in prompts) <= QUICK_IDS:
            return build()
        return await self.beside(build)

    def _own(self, request: Request, salt: str) -> Request:
        """Put a request into its namespace."""
        number = request.id.removeprefix("request-")
        if not self._parts.settings.prefix_caching:
            # Blocks are found by requests of one salt.
            salt = msgspec.json.encode(["request", number, salt]).decode()
        namespace = msgspec.structs.replace(request.namespace, salt=salt)
        return msgspec.structs.replace(request, id=f"r{number}", namespace=namespace)

    def _building(self) -> RequestBuilder:
        """Return what numbers requests; it goes on counting when the engine is started anew."""
        if self._builder is None:
            facts = self._parts.core.facts
            seed = facts.settings.get("seed")
            self._builder = RequestBuilder(
                self._parts.model.tokenizer,
                vocab_size=facts.vocab_size,
                namespace=facts.namespace,
                seed=seed if isinstance(seed, int) else 0,
            )
        return self._builder

    async def _encode(self, texts: list[str], *, special: bool) -> list[list[int]]:
        for text in texts:
            self._check_chars(len(text))
        tokenizer = self.tokenizer
        if len(texts) == 1 and len(texts[0]) <= QUICK_CHARS:
            return [tokenizer.encode(texts[0], add_special_tokens=special)]
        encode = partial(tokenizer.encode_beside, add_special_tokens=special)
        return await self.beside(lambda: [encode(text) for text in texts])

    async def _fitting(
        self, prompt: Prompt, keep: int | None, max_tokens: int | None, *, cuts: bool
    ) -> Prompt:
        """Cut a prompt as its request asks. Raises ApiError if it is too long for an answer."""
        longest, ids = self._parts.core.facts.longest_text, prompt.ids
        if not ids:
            raise ApiError(
                400, "prompt: it is empty: it must have at least one token", param="prompt"
            )
        if keep is not None and keep != -1 and keep < 1:
            raise ApiError(
                400,
                f"truncate_prompt_tokens: must be -1 or at least 1, got {keep}",
                param="truncate_prompt_tokens",
            )
        if keep == -1:
            keep = max(1, longest - max(1, min(max_tokens or 1, longest)))
        if keep is not None and len(ids) > keep:
            dropped = len(ids) - keep
            ids = ids[dropped:]
            text = None if prompt.text is None else await self.decode(list(ids), special=False)
            prompt = Prompt(ids, text, dropped, prompt.opening)
        if len(ids) + 1 > longest:
            raise ApiError(
                400,
                f"the prompt has {len(ids)} tokens, but prompt and answer have room for {longest}: "
                f"shorten it{', or set truncate_prompt_tokens' if cuts else ''}",
                param="prompt",
                code="context_length_exceeded",
            )
        return prompt

    def _check_chars(self, chars: int) -> None:
        longest = self._parts.core.facts.longest_text
        if chars > longest * LONGEST_TOKEN:
            raise ApiError(
                400,
                f"the prompt has {chars} characters, but prompt and answer have room for {longest} "
                "tokens: shorten it",
                param="prompt",
                code="context_length_exceeded",
            )


def prompts_of(body: CompletionBody) -> list[Any]:
    """Return the prompts of a completion as they came, texts or lists of ids. Raises ApiError."""
    given: Any = body.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [given]
    if not given:
        raise ApiError(400, "prompt: there is none", param="prompt")
    return given
