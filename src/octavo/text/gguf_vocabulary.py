"""Build a tokenizer from the vocabulary in GGUF metadata: one row per kind.

`tokenizer.ggml.model` names the kind of vocabulary, `tokenizer.ggml.pre` how its authors cut
text before merging. A later kind or cut adds a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from octavo.errors import ModelError

_NORMAL = 1
_UNKNOWN = 2
_CONTROL = 3
_USER_DEFINED = 4

_SPACE = "\u2581"
"""How SentencePiece writes a space."""


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


def _words_and_numbers_cut(digits: int) -> pre_tokenizers.PreTokenizer:
    """Cut into words, numbers of at most so many digits, punctuation, and space.

    Source: the published tokenizers of Llama 3 (three digits) and Qwen2 (one).
    """
    number = r"\p{N}" if digits == 1 else rf"\p{{N}}{{1,{digits}}}"
    parts = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        number,
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("|".join(parts)), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@dataclass(frozen=True, slots=True)
class _Rules:
    """What `tokenizer.ggml.pre` stands for."""

    cut: Callable[[], pre_tokenizers.PreTokenizer]
    composes: bool = False
    """Letters and their accents are joined first (NFC)."""
    whole_words: bool = False
    """A word that is a token is taken as it is, even if no merges lead to it."""
    adds_bos: bool = False
    """What a file means that does not say."""


_LLAMA3 = _Rules(lambda: _words_and_numbers_cut(3), whole_words=True, adds_bos=True)

_BYTE_LEVEL_RULES = {
    "default": _Rules(_gpt2_cut),
    "gpt-2": _Rules(_gpt2_cut),
    "smollm": _Rules(_single_digits_cut),
    "qwen2": _Rules(lambda: _words_and_numbers_cut(1), composes=True),
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
}


class _Vocabulary:
    """The metadata's lists, checked when they are asked for."""

    def __init__(self, metadata: Mapping[str, Any], where: str) -> None:
        self._metadata = metadata
        self._checked: dict[str, list[str]] = {}
        self.where = where

    def get(self, name: str) -> Any:  # whatever the file says
        return self._metadata.get(f"tokenizer.ggml.{name}")

    def texts(self, name: str) -> list[str]:
        if name in self._checked:
            return self._checked[name]
        value = self.get(name)
        if not isinstance(value, list) or not set(map(type, value)) <= {str}:
            raise ModelError(
                f"{self.where} has no list of texts in tokenizer.ggml.{name}, so it cannot encode "
                "text. Convert the model again, with its tokenizer."
            )
        self._checked[name] = value
        return value

    def scores(self) -> list[float]:
        value = self.get("scores")
        numbers = isinstance(value, list) and all(isinstance(one, (int, float)) for one in value)
        if not numbers or len(value) != len(self.texts("tokens")):
            raise ModelError(
                f"{self.where} has no score for each token in tokenizer.ggml.scores, so it cannot "
                "encode text. Convert the model again, with its tokenizer."
            )
        return value

    def merges(self) -> list[tuple[str, ...]]:
        return [tuple(merge.split(" ")) for merge in self.texts("merges")]

    def model(self, merges: list[tuple[str, ...]], **options: Any) -> models.BPE:  # its options
        tokens = self.texts("tokens")
        vocabulary = dict(zip(tokens, range(len(tokens)), strict=True))
        try:
            # The library wants pairs; it names a merge of any other length in its error.
            return models.BPE(vocab=vocabulary, merges=merges, **options)  # pyright: ignore[reportArgumentType]
        except Exception as error:  # the library raises bare Exception for whatever it dislikes
            raise ModelError(
                f"{self.where}: the vocabulary and its merges do not fit: {error}. Convert the "
                "model again, with its tokenizer."
            ) from error

    def unsupported(self, what: str, key: str, known: Mapping[str, object]) -> ModelError:
        return ModelError(
            f"{self.where}: {what} (tokenizer.ggml.{key}); supported: {', '.join(known)}. Use the "
            "Hugging Face folder instead."
        )


def _byte_level(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    rules = _rules(vocabulary)
    backend = tokenizers.Tokenizer(
        vocabulary.model(vocabulary.merges(), ignore_merges=rules.whole_words)
    )
    if rules.composes:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rules.cut()
    backend.decoder = decoders.ByteLevel()
    return backend


def _rules(vocabulary: _Vocabulary) -> _Rules:
    name = vocabulary.get("pre")
    name = "default" if name is None else name
    rules = _BYTE_LEVEL_RULES.get(name) if isinstance(name, str) else None
    if rules is None:
        what = f"the vocabulary cuts text by the rules named {name!r}"
        raise vocabulary.unsupported(what, "pre", _BYTE_LEVEL_RULES)
    return rules


def _sentence_piece(vocabulary: _Vocabulary) -> tokenizers.Tokenizer:
    """Merge neighbours by the score of what they make; spell what is no token in bytes.

    As transformers has it, a space is put before a text that has none; SentencePiece itself puts
    one before every text.
    """
    spaced = vocabulary.get("add_space_prefix") is not False
    merges = vocabulary.merges() if vocabulary.get("merges") else _merges_by_score(vocabulary)
    types, tokens = vocabulary.get("token_type"), vocabulary.texts("tokens")
    unknown = [
        token
        for token, kind in zip(tokens, types if isinstance(types, list) else [], strict=False)
        if kind == _UNKNOWN
    ]
    backend = tokenizers.Tokenizer(
        vocabulary.model(
            merges, fuse_unk=True, byte_fallback=True, unk_token=unknown[0] if unknown else None
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=_SPACE, prepend_scheme="first" if spaced else "never", split=False
    )
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence(steps + [decoders.Strip(" ", 1, 0)] * spaced)
    return backend


def _merges_by_score(vocabulary: _Vocabulary) -> list[tuple[str, ...]]:
    """Return the pairs of tokens that make a token, the best-scored first.

    Equal scores keep the order in which transformers has them: longer beginnings first, then
    the order of the vocabulary.
    """
    tokens, scores = vocabulary.texts("tokens"), vocabulary.scores()
    ids = {token: index for index, token in enumerate(tokens)}
    best = {token: scores[index] for token, index in ids.items()}
    merges: list[tuple[float, str, str]] = []
    for token, score in best.items():
        cuts = [(token[:place], token[place:]) for place in range(1, len(token))]
        pairs = [pair for pair in cuts if pair[0] in ids and pair[1] in ids]
        pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += [(score, left, right) for left, right in pairs]
    merges.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in merges]


_KINDS: dict[str, Callable[[_Vocabulary], tokenizers.Tokenizer]] = {
    "gpt2": _byte_level,
    "llama": _sentence_piece,
}


def backend_from_gguf(metadata: Mapping[str, Any], where: str) -> tokenizers.Tokenizer:
    """Build the tokenizer, its special and its added tokens; `where` names the file for errors.

    Raises `ModelError` for a kind that is not supported, or a vocabulary that is broken.
    """
    vocabulary = _Vocabulary(metadata, where)
    kind = vocabulary.get("model")
    build = _KINDS.get(kind) if isinstance(kind, str) else None
    if build is None:
        raise vocabulary.unsupported(f"the vocabulary is of kind {kind!r}", "model", _KINDS)
    backend = build(vocabulary)
    types = vocabulary.get("token_type")
    if isinstance(types, list):
        # Nearly all are normal; a vocabulary is long, and every start reads it.
        tokens = vocabulary.texts("tokens")
        some = [place for place, kind in enumerate(types[: len(tokens)]) if kind != _NORMAL]
        marked = [(tokens[place], types[place]) for place in some]
        for special, kinds in ((True, (_UNKNOWN, _CONTROL)), (False, (_USER_DEFINED,))):
            added = [
                AddedToken(token, normalized=False, special=special)
                for token, kind in marked
                if kind in kinds and token
            ]
            (backend.add_special_tokens if special else backend.add_tokens)(added)
    return backend


def adds_bos(metadata: Mapping[str, Any], where: str) -> bool:
    """Tell whether a prompt starts with the begin token; many files leave it to the kind."""
    vocabulary = _Vocabulary(metadata, where)
    stated = vocabulary.get("add_bos_token")
    if isinstance(stated, bool):
        return stated
    return vocabulary.get("model") == "llama" or _rules(vocabulary).adds_bos
