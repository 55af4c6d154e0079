"""What a server says of itself, and how its cache is emptied."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, replace
from random import Random

import msgspec

from octavo.bench.serve.http import Client, ConnectionLost
from octavo.bench.serve.stream import error_message
from octavo.bench.serve.words import Words
from octavo.bench.texts import read_text
from octavo.errors import ConfigError

_NO_TOKENIZER = "no_tokenizer"
"""Code of the error with which a server says so."""
_FIRST_IDS = 4
_LETTERS = 3
"""Of a token of our text, or more."""
_HITS, _QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None
    vocab_size: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Error(msgspec.Struct):
    code: str | int | None = None


class _Tokens(msgspec.Struct):
    token_strs: list[str] | None = None
    error: _Error | None = None


@dataclass(frozen=True, slots=True)
class Site:
    """A model of a server, and the words to ask it with."""

    model: str
    max_model_len: int | None
    words: Words
    by_id: bool = False
    """It has no tokenizer: words are token ids, as numbers."""

    def new_first_line(self) -> str:
        """Return what no prompt has begun with, as this server reads it."""
        line = new_first_line()
        return self.words.text(_FIRST_IDS, Random(line)) if self.by_id else line


async def look_at(client: Client, model: str | None, *, tokens: bool = True) -> Site:
    """Ask a server for its model and for the words of its tokenizer.

    model: None: its first. tokens: False: nothing is tokenized. Raises ConfigError if it cannot be
    reached, or says no.
    """
    reply = await _ask(client, "GET", "/v1/models")
    try:
        known = msgspec.json.decode(reply, type=_Models).data
    except msgspec.MsgspecError as error:
        raise ConfigError(f"/v1/models of the server cannot be read: {error}") from None
    found = next((one for one in known if model in (None, one.id)), None)
    if found is None:
        if model is None:
            raise ConfigError("the server names no model: give --model")
        found = _Model(model)
    if not tokens:
        return Site(found.id, found.max_model_len, Words.guessed())
    reads, words = await _words(client, found)
    if not reads and found.vocab_size is not None:
        numbers = Words.numbers(found.vocab_size)
        return Site(found.id, found.max_model_len, numbers, by_id=True)
    return Site(found.id, found.max_model_len, words or Words.guessed())


async def _words(client: Client, model: _Model) -> tuple[bool, Words | None]:
    """Let the server tokenize our text; returns whether it reads texts at all, and its words.

    None: it does not tokenize, or not with the tokens' names.
    """
    text = read_text(None)
    reads, words = await _words_of(client, model.id, text)
    if reads and words is None and model.max_model_len is not None:
        # It may tokenize nothing that is too long for a prompt.
        part = text[: _LETTERS * model.max_model_len]
        if part != text:
            return await _words_of(client, model.id, part)
    return reads, words


async def _words_of(client: Client, model: str, text: str) -> tuple[bool, Words | None]:
    body = {
        "model": model,
        "prompt": text,
        "return_token_strs": True,
        "add_special_tokens": False,
    }
    try:
        reply = await client.send("POST", "/tokenize", msgspec.json.encode(body))
        told = msgspec.json.decode(reply.body, type=_Tokens)
    except (ConnectionLost, msgspec.MsgspecError):
        return True, None
    reads = told.error is None or told.error.code != _NO_TOKENIZER
    return reads, Words.from_tokens(told.token_strs) if told.token_strs else None


async def empty_cache(client: Client, admin_key: str) -> None:
    """Let a server forget what it has cached. Raises ConfigError if it does not."""
    headers = dict(client.address.headers) | {"authorization": f"Bearer {admin_key}"}
    own = Client(replace(client.address, headers=headers))
    try:
        reply = await own.send("POST", "/reset_prefix_cache")
    except ConnectionLost as error:
        raise ConfigError(f"--cache empty: {error}") from None
    finally:
        own.close()
    if reply.status != 200:
        raise ConfigError(
            f"--cache empty: /reset_prefix_cache answered {reply.status}: "
            f"{error_message(bytes(reply.body))}; check --admin-api-key, or give --cache vary"
        )


def new_first_line() -> str:
    """Return a line that no prompt has begun with: what follows it is in no cache."""
    return f"{uuid.uuid4().hex[:8]}\n"


async def cache_counts(client: Client) -> tuple[float, float] | None:
    """Return (hits, queries) in tokens from a server's metrics; None: it does not tell."""
    try:
        reply = await client.send("GET", "/metrics")
    except ConnectionLost:
        return None
    text = bytes(reply.body).decode("utf-8", "replace")
    sums = [_sum(text, name) for name in (_HITS, _QUERIES)]
    return None if reply.status != 200 or sums[0] is None or sums[1] is None else (sums[0], sums[1])


def _sum(text: str, name: str) -> float | None:
    values = re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE)
    return sum(map(float, values)) if values else None


async def _ask(client: Client, method: str, path: str) -> bytes:
    try:
        reply = await client.send(method, path)
    except ConnectionLost as error:
        raise ConfigError(f"{error}; is the server running, and is --base-url right?") from None
    body = bytes(reply.body)
    if reply.status != 200:
        raise ConfigError(f"{path} of the server answered {reply.status}: {error_message(body)}")
    return body
