"""Log-probabilities as the API's two routes write them."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.contract.batch import Logprobs
from octavo.text.tokenizer import Tokenizer

LEAST = -9999.0
"""What stands for the logarithm of 0, which JSON cannot write."""


class TokenNames:
    """The text of single tokens; each is decoded once. tokenizer: None: tokens have no text."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._texts: dict[int, str] = {}

    def text(self, token: int, *, by_id: bool = False) -> str:
        """Return what a token is called. by_id: as `token_id:7`."""
        if by_id or self._tokenizer is None:
            return f"token_id:{token}"
        text = self._texts.get(token)
        if text is None:
            text = self._tokenizer.decode([token], skip_special_tokens=False)
            self._texts[token] = text
        return text

    def join(self, tokens: Iterable[int]) -> str:
        """Return the text of several tokens; empty if tokens have none."""
        if self._tokenizer is None:
            return ""
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def data(self, token: int) -> list[int] | None:
        """Return the bytes of a token's text; None: it has none."""
        if self._tokenizer is None:
            return None
        if self._tokenizer.byte_level and token not in self._tokenizer.special_ids:
            return list(self._tokenizer.token_bytes(token))
        return list(self.text(token).encode())


class CompletionLogprobs:
    """Four lists, a token in each: the form of `/v1/completions`. It grows by `add`."""

    def __init__(self, names: TokenNames, *, by_id: bool, offset: int = 0) -> None:
        self._names = names
        self._by_id = by_id
        self.offset = offset
        """Characters before the next token."""
        self.text_offset: list[int] = []
        self.token_logprobs: list[float | None] = []
        self.tokens: list[str] = []
        self.top_logprobs: list[dict[str, float] | None] = []

    def add(self, tokens: Iterable[int], found: Iterable[Logprobs | None]) -> None:
        """Append tokens; None: nothing is known of how likely one was."""
        for token, one in zip(tokens, found, strict=True):
            name = self._names.text(token, by_id=self._by_id)
            self.tokens.append(name)
            self.text_offset.append(self.offset)
            self.offset += len(name if not self._by_id else self._names.text(token))
            self.token_logprobs.append(None if one is None else _of(token, one))
            self.top_logprobs.append(
                None
                if one is None
                else {
                    self._names.text(other, by_id=self._by_id): max(value, LEAST)
                    for other, value in zip(one.ids, one.values, strict=True)
                }
            )

    @property
    def json(self) -> dict[str, object]:
        """As JSON has it."""
        return {
            "text_offset": self.text_offset,
            "token_logprobs": self.token_logprobs,
            "tokens": self.tokens,
            "top_logprobs": self.top_logprobs,
        }


def chat_logprobs(
    names: TokenNames, tokens: Iterable[int], found: Iterable[Logprobs], count: int, *, by_id: bool
) -> dict[str, object]:
    """Return log-probabilities in the form of chats. count: likely tokens told for each."""
    content = [
        token_logprobs(names, token, one, count, by_id=by_id)
        for token, one in zip(tokens, found, strict=True)
    ]
    return {"content": content, "refusal": None}


def token_logprobs(
    names: TokenNames, token: int, one: Logprobs, count: int, *, by_id: bool = False
) -> dict[str, object]:
    """Return those of one token. count: likely tokens told beside it."""

    def entry(token: int, value: float) -> dict[str, object]:
        return {
            "token": names.text(token, by_id=by_id),
            "logprob": max(value, LEAST),
            "bytes": names.data(token),
        }

    top = [entry(*each) for each in zip(one.ids[:count], one.values[:count], strict=True)]
    return {**entry(token, _of(token, one)), "top_logprobs": top}


def prompt_logprobs(names: TokenNames, found: Iterable[Logprobs]) -> list[object]:
    """Return those of a prompt, token by token; nothing is known of its first."""
    return [
        None,
        *(
            {
                str(token): {
                    "logprob": max(value, LEAST),
                    "rank": rank,
                    "decoded_token": names.text(token),
                }
                for token, value, rank in zip(one.ids, one.values, one.ranks, strict=True)
            }
            for one in found
        ),
    ]


def _of(token: int, one: Logprobs) -> float:
    return max(one.values[one.ids.index(token)], LEAST)
