"""Build a tokenizer from the vocabulary in GGUF metadata: one row per kind.

`tokenizer.ggml.model` names the kind of vocabulary, `tokenizer.ggml.pre` how its authors cut
text before merging. A later kind adds a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from octavo.errors import ModelError

_CONTROL = 3
_USER_DEFINED = 4


@cache
def byte_alphabet() -> dict[int, str]:
    """Return the letter that byte-level vocabularies write for each byte.

    Printable bytes of Latin-1 stand for themselves; the others, in order, for the letters
    from U+0100. Source: Radford et al. 2019, "Language Models are Unsupervised Multitask
    Learners" (GPT-2).
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable}
    return letters | {byte: chr(0x100 + index) for index, byte in enumerate(others)}


def _gpt2_cut() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _single_digits_cut() -> pre_tokenizers.PreTokenizer:
    """Cut around every digit first, as SmolLM's vocabulary was trained (llama.cpp does too)."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, _gpt2_cut()])


_BYTE_LEVEL_CUTS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": _gpt2_cut,
    "gpt-2": _gpt2_cut,
    "smollm": _single_digits_cut,
}


def _byte_level(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    name = metadata.get("tokenizer.ggml.pre", "default")
    cut = _BYTE_LEVEL_CUTS.get(name)
    if cut is None:
        raise ModelError(
            f"the file's vocabulary cuts text by the rules named {name!r} (tokenizer.ggml.pre); "
            f"supported: {', '.join(_BYTE_LEVEL_CUTS)}. Use the Hugging Face folder instead."
        )
    vocabulary = {token: index for index, token in enumerate(_texts(metadata, "tokens"))}
    merges = [tuple(merge.split(" ")) for merge in _texts(metadata, "merges")]
    try:
        # The library wants pairs; it names a merge of any other length in its error.
        model = models.BPE(vocab=vocabulary, merges=merges)  # pyright: ignore[reportArgumentType]
    except Exception as error:  # the library raises bare Exception for whatever it dislikes
        raise ModelError(f"the file's vocabulary and its merges do not fit: {error}") from error
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = cut()
    backend.decoder = decoders.ByteLevel()
    return backend


_KINDS: dict[str, Callable[[Mapping[str, Any]], tokenizers.Tokenizer]] = {"gpt2": _byte_level}


def backend_from_gguf(metadata: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """Build the tokenizer, its special and its added tokens.

    Raises `ModelError` for a kind that is not supported, or a vocabulary that is broken.
    """
    kind = metadata.get("tokenizer.ggml.model")
    build = _KINDS.get(kind) if isinstance(kind, str) else None
    if build is None:
        raise ModelError(
            f"the file's vocabulary is of kind {kind!r} (tokenizer.ggml.model); supported: "
            f"{', '.join(_KINDS)}. Use the Hugging Face folder instead."
        )
    backend = build(metadata)
    types = metadata.get("tokenizer.ggml.token_type")
    if isinstance(types, list):
        marked = list(zip(_texts(metadata, "tokens"), types, strict=False))
        backend.add_special_tokens(
            [
                AddedToken(token, normalized=False, special=True)
                for token, kind in marked
                if kind == _CONTROL and token
            ]
        )
        backend.add_tokens(
            [
                AddedToken(token, normalized=False, special=False)
                for token, kind in marked
                if kind == _USER_DEFINED and token
            ]
        )
    return backend


def _texts(metadata: Mapping[str, Any], name: str) -> list[str]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ModelError(
            f"the file has no list of texts in tokenizer.ggml.{name}, so it cannot encode text. "
            "Convert the model again, with its tokenizer."
        )
    return value
