"""Turn text into token ids and back, with the vocabulary that the model's files hold."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders

from octavo.errors import ModelError, RequestError
from octavo.text.gguf_vocabulary import adds_bos, backend_from_gguf, byte_alphabet
from octavo.text.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What the model's files say about their special tokens."""

    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    """Each of them ends an answer."""
    texts: dict[str, str]
    """By the names that chat templates use, such as bos_token."""
    adds_bos: bool | None
    """Whether a prompt starts with the begin token; None: as the backend is set up already."""
    adds_eos: bool | None


class Tokenizer:
    """A model's vocabulary; equal to what transformers builds from the same files."""

    def __init__(
        self, backend: tokenizers.Tokenizer, special: SpecialTokens, templates: Mapping[str, str]
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._special = special
        self._template = ChatTemplate(templates, special.texts)
        self._bytes: dict[int, bytes] = {}
        self._from_alphabet = {letter: byte for byte, letter in byte_alphabet().items()}
        self.special_ids: frozenset[int] = frozenset(
            token_id
            for token_id, token in backend.get_added_tokens_decoder().items()
            if token.special
        )
        """Tokens that decoding leaves out if asked to."""
        self.byte_level = isinstance(backend.decoder, decoders.ByteLevel)
        """True if decoding joins the tokens' bytes and does nothing else."""
        if special.adds_bos is not None or special.adds_eos is not None:
            _frame(backend, special)

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any], where: str = "the GGUF file") -> Tokenizer:
        """Build from the metadata of a GGUF file, as plain values; `where` names it for errors.

        Raises `ModelError` for a kind of vocabulary that is not supported.
        """
        backend = backend_from_gguf(metadata, where)
        head = "tokenizer.ggml."
        names = {
            "bos_token": "bos_token_id",
            "eos_token": "eos_token_id",
            "unk_token": "unknown_token_id",
            "pad_token": "padding_token_id",
        }
        ids = {name: _known_id(backend, metadata.get(head + key)) for name, key in names.items()}
        # Some files state the end of a turn apart from the end of a text; both end an answer.
        ends = [metadata.get(f"{head}{end}_token_id") for end in ("eos", "eot")]
        special = SpecialTokens(
            bos_token_id=ids["bos_token"],
            eos_token_ids=_known_ids(backend, ends),
            texts={
                name: backend.id_to_token(token_id) or ""
                for name, token_id in ids.items()
                if token_id is not None
            },
            adds_bos=adds_bos(metadata, where),
            adds_eos=metadata.get(f"{head}add_eos_token") is True,
        )
        return cls(backend, special, _templates(metadata.get("tokenizer.chat_template")))

    @classmethod
    def from_folder(cls, path: Path) -> Tokenizer:
        """Build from a Hugging Face folder: tokenizer.json and, where present, its companions.

        Raises `ModelError` if tokenizer.json is missing or broken.
        """
        file = path / "tokenizer.json"
        if not file.is_file():
            raise ModelError(
                f"{path} has no tokenizer.json. Other formats (tokenizer.model, vocab.json) are "
                "not read: get the folder with its fast tokenizer."
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises bare Exception for whatever it dislikes
            raise ModelError(f"{file} cannot be read: {error}") from error
        config = _read_json(path / "tokenizer_config.json")
        texts = {
            name: text
            for name in ("bos_token", "eos_token", "unk_token", "pad_token")
            if (text := _token_text(config.get(name))) is not None
        }
        ends = _ends_of_generation(path)
        if "eos_token" in texts:
            ends.append(backend.token_to_id(texts["eos_token"]))
        special = SpecialTokens(
            bos_token_id=backend.token_to_id(texts["bos_token"]) if "bos_token" in texts else None,
            eos_token_ids=_known_ids(backend, ends),
            texts=texts,
            adds_bos=config.get("add_bos_token"),
            adds_eos=config.get("add_eos_token"),
        )
        return cls(backend, special, _templates(_template_of(path, config)))

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, if the files name one."""
        return self._special.bos_token_id

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The tokens that end an answer."""
        return self._special.eos_token_ids

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; the model's matrix may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def definition(self) -> str:
        """Return it as tokenizer.json would have it, whatever file it came from."""
        return self._backend.to_str()

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text; special tokens written in it are read as such.

        add_special_tokens: add what the model wants around a prompt; a chat template has
        written it already, so its result is encoded without. Raises `RequestError` for text
        with half a surrogate pair, which has no UTF-8.
        """
        try:
            return self._backend.encode(text, add_special_tokens=add_special_tokens).ids
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(f"the text cannot be encoded as UTF-8: {error}") from None

    def encode_beside(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Like `encode`, for a thread of its own: others run meanwhile.

        The library keeps the interpreter to itself for one text, and lets it go for several.
        """
        try:
            encoded = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        except (UnicodeEncodeError, TypeError) as error:
            raise RequestError(f"the text cannot be encoded as UTF-8: {error}") from None
        return encoded[0].ids

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of token ids; bytes that are not UTF-8 become U+FFFD.

        Ids outside the vocabulary decode to nothing.
        """
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def decode_beside(self, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        """Like `decode`, for a thread of its own: others run meanwhile."""
        return self._backend.decode_batch([ids], skip_special_tokens=skip_special_tokens)[0]

    def special(self, texts: Iterable[str]) -> dict[str, int]:
        """Return the special tokens among some texts: those that decoding leaves out if asked to.

        What is no special token of this vocabulary is left out.
        """
        known = ((text, self._backend.token_to_id(text)) for text in texts)
        return {text: token for text, token in known if token in self.special_ids}

    def added(self, texts: Iterable[str]) -> dict[str, int]:
        """Return those of some texts that are a token each, whatever stands around them."""
        ids = {
            token.content: one for one, token in self._backend.get_added_tokens_decoder().items()
        }
        return {text: ids[text] for text in texts if text in ids}

    @property
    def template(self) -> ChatTemplate:
        """How the model's conversations are written."""
        return self._template

    def with_template(self, source: str) -> Tokenizer:
        """Return the same vocabulary with another chat template."""
        other = copy.copy(self)
        other._template = self._template.replaced(source)
        return other

    @property
    def has_chat_template(self) -> bool:
        """True if the model was made for conversations; a pretrained one continues texts."""
        return self._template.exists

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        /,
        *,
        add_generation_prompt: bool = True,
        **variables: Any,  # what the template reads, such as tools
    ) -> str:
        """Return the prompt for a conversation, to be encoded without adding special tokens.

        Raises `RequestError` if the model has no chat template or the template rejects the
        conversation.
        """
        return self._template.render(
            messages, {**variables, "add_generation_prompt": add_generation_prompt}
        )

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes that one token contributes to a text; none outside the vocabulary.

        Exact if `byte_level`; otherwise a token's bytes may depend on its neighbours, and
        these are the bytes in the middle of a text.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> bytes:
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self.byte_level:
            letters = [self._from_alphabet.get(letter) for letter in token]
            spelled = [letter for letter in letters if letter is not None]
            # A token with any foreign letter was added as plain text.
            return bytes(spelled) if len(spelled) == len(letters) else token.encode()
        if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
            return bytes.fromhex(token[3:5])
        return token.replace("\u2581", " ").encode()


def _frame(backend: tokenizers.Tokenizer, special: SpecialTokens) -> None:
    """Let the backend put the begin and end tokens around a prompt, as far as wanted."""
    wanted = [("bos_token", special.adds_bos), ("eos_token", special.adds_eos)]
    texts = [special.texts.get(name) if adds else None for name, adds in wanted]
    ids = {text: backend.token_to_id(text) for text in texts if text is not None}
    known = {text: token_id for text, token_id in ids.items() if token_id is not None}
    before, after = ([f"{text}:0"] if text in known else [] for text in texts)
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=[*before, "$A:0", *after], special_tokens=list(known.items())
    )


def _known_id(backend: tokenizers.Tokenizer, token_id: object) -> int | None:
    if not isinstance(token_id, int) or not 0 <= token_id < 2**31:
        return None
    return token_id if backend.id_to_token(token_id) is not None else None


def _known_ids(backend: tokenizers.Tokenizer, token_ids: Iterable[object]) -> frozenset[int]:
    known = (_known_id(backend, token_id) for token_id in token_ids)
    return frozenset(token_id for token_id in known if token_id is not None)


def _templates(value: object) -> dict[str, str]:
    """Return templates by name; files hold one text, or a list of named ones."""
    if isinstance(value, str):
        return {"default": value}
    rows = value if isinstance(value, list) else []
    return {
        row["name"]: row["template"]
        for row in rows
        if isinstance(row, dict) and isinstance(row.get("template"), str) and "name" in row
    }


def _template_of(path: Path, config: Mapping[str, Any]) -> object:
    file = path / "chat_template.jinja"
    return file.read_text(encoding="utf-8") if file.is_file() else config.get("chat_template")


def _token_text(value: object) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _ends_of_generation(path: Path) -> list[object]:
    """Return the end tokens by generation_config.json, or config.json where there is none."""
    file = path / "generation_config.json"
    value = _read_json(file if file.is_file() else path / "config.json").get("eos_token_id")
    return value if isinstance(value, list) else [value]


def _read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object; a file that does not exist counts as empty."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} cannot be read: {error}. Download it again.") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path} is not a JSON object. Download it again.")
    return value
