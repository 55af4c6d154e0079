"""The kinds of vocabulary in GGUF files, against transformers and an algorithm of our own.

The vocabularies are trained here, on the texts below.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Trained
from tokenizers import models, pre_tokenizers, trainers

from octavo.errors import ModelError
from octavo.models.gguf import GGUFFile
from octavo.text.detokenize import Detokenizer
from octavo.text.tokenizer import Tokenizer
from tiny_model import TEMPLATE, write_tiny_gguf

CORPUS = [
    "Paged memory, like an operating system's; it isn't new. They'll say we've copied it.",
    "In 1984, 3.14159 * 2,000,000 = 6283180. The year 2024 follows 2023, and 1000 is 10**3.",
    "def f(x: int) -> int:\n    return x ** 2  # square\n\n\tif (a != b) { c++; }\r\n",
    "The moon is the moon, and the sun is the sun; naïve café, Zürich, cafe\u0301.",
    "分页的键值缓存让许多请求共享内存。今天天气很好。今天的天气。",
] * 4
TEXTS = {
    "empty": "",
    "English": CORPUS[0],
    "numbers": "1 12 123 1234 12345 123456, 2024/11/29 ١٢٣٤",
    "code": CORPUS[2] + "\n\n\n    x = 1",
    "decomposed": "cafe\u0301 e\u0301 \u1100\u1161",
    "Chinese": CORPUS[4] + "未见过的字",
    "emoji": "family 👩‍👩‍👧‍👦, flag 🏳️‍🌈, ☃️",
    "spaces": "two   three    four\t\ttabs \n\n\n lines  \r\n end   ",
    "leading spaces": "   three before",
    "special": "<s>user\nhi</s> there<|end|>x <unk>",
    "almost special": "<s ></ s> <0x41> <|end|",
    "controls": "\x00\x01\x7f\x80\ufffd",
    "block letter": "▁a▁▁b ▁",
    "contractions": "I'M we'LL don't 'tis rock'n'roll",
}


def train_byte_level(pre: str) -> dict[str, object]:
    """Metadata of a byte-level vocabulary whose words were cut as for GPT-2, spaces kept apart."""
    backend = Trained(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return byte_level_metadata(backend, pre)


def byte_level_metadata(backend: Trained, pre: str) -> dict[str, object]:
    import json

    model = json.loads(backend.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    special = ["<s>", "</s>", "<|end|>", "<unk>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + special,
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3] * len(special),
        "tokenizer.ggml.merges": [" ".join(merge) for merge in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
        "tokenizer.ggml.unknown_token_id": len(tokens) + 3,
        "tokenizer.ggml.padding_token_id": len(tokens) + 1,
        "tokenizer.ggml.add_bos_token": None,
    }


def sentence_pieces() -> dict[str, object]:
    """Metadata as of Llama 2: specials, bytes, merged pieces by falling score, single letters."""
    import json

    backend = Trained(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    model = json.loads(backend.to_str())["model"]
    merged = ["".join(merge) for merge in model["merges"]]
    letters = [token for token in model["vocab"] if len(token) == 1]
    special = ["<unk>", "<s>", "</s>"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *merged, *letters, "<|end|>"]
    plain = range(len(tokens) - 259 - 1)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + [-float(rank) for rank in plain] + [0.0],
        "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * len(plain) + [4],
        "tokenizer.ggml.merges": None,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.padding_token_id": 2,
        "tokenizer.ggml.add_bos_token": None,
    }


def written(folder: Path, metadata: dict[str, object], **changes: object) -> Path:
    keys = {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    return write_tiny_gguf(folder / "m.gguf", metadata=metadata | keys)


def ours(path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile(path).metadata, str(path))


def reference(path: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory) -> Path:
    return written(tmp_path_factory.mktemp("pieces"), sentence_pieces())


@pytest.fixture(scope="module")
def both(pieces):
    return ours(pieces), reference(pieces)


# --- byte-level vocabularies


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_qwen2_equals_the_class_of_transformers(text):
    from transformers import Qwen2Tokenizer

    metadata = train_byte_level("qwen2")
    tokens = metadata["tokenizer.ggml.tokens"]
    expected = Qwen2Tokenizer(
        vocab={token: index for index, token in enumerate(tokens)},
        merges=[tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]],
        unk_token=None,
        eos_token="</s>",
        pad_token="</s>",
        additional_special_tokens=["<s>", "<|end|>", "<unk>"],
    )
    tokenizer = Tokenizer.from_gguf(metadata)

    ids = tokenizer.encode(text)
    assert ids == expected.encode(text)
    assert tokenizer.decode(ids) == expected.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize("pre", ["gpt-2", "default", "llama-bpe", "llama3", "llama-v3"])
def test_byte_level_kinds_equal_what_transformers_makes_of_the_file(tmp_path, pre):
    # transformers leaves the begin token to the file; the file says it here.
    path = written(tmp_path, train_byte_level(pre), add_bos_token=True)
    tokenizer, expected = ours(path), reference(path)

    for text in TEXTS.values():
        assert tokenizer.encode(text, add_special_tokens=False) == expected.encode(
            text, add_special_tokens=False
        )
        ids = tokenizer.encode(text)
        assert ids[0] == tokenizer.bos_token_id
        assert tokenizer.decode(ids) == expected.decode(ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("pre", "pieces"),
    [
        ("qwen2", ["year", " ", "2", "0", "2", "4"]),
        ("llama-bpe", ["year", " ", "202", "4"]),
        ("smollm", ["year", " ", "2", "0", "2", "4"]),
        ("gpt-2", ["year", " 2024"]),
    ],
)
def test_each_rule_cuts_numbers_in_its_own_way(pre, pieces):
    metadata = train_byte_level(pre)
    # Let every run of digits be one token, so that only the cut can part them.
    merges = ["2 0", "20 2", "202 4", "Ġ 2024", "y e", "ye a", "yea r"]
    tokens = metadata["tokenizer.ggml.tokens"]
    metadata["tokenizer.ggml.tokens"] = list(
        dict.fromkeys([*tokens[:256], *(merge.replace(" ", "") for merge in merges)])
    )
    metadata["tokenizer.ggml.merges"] = merges
    metadata["tokenizer.ggml.token_type"] = None
    metadata["tokenizer.ggml.add_bos_token"] = False
    tokenizer = Tokenizer.from_gguf(metadata)

    got = [tokenizer.token_bytes(token).decode() for token in tokenizer.encode("year 2024")]
    assert got == pieces


def test_a_word_of_llama_3_needs_no_merges():
    metadata = train_byte_level("llama-bpe")
    metadata["tokenizer.ggml.tokens"] += ["unreachable"]
    metadata["tokenizer.ggml.token_type"] += [1]
    metadata["tokenizer.ggml.add_bos_token"] = False

    ids = Tokenizer.from_gguf(metadata).encode("unreachable")

    assert ids == [len(metadata["tokenizer.ggml.tokens"]) - 1]


@pytest.mark.parametrize(
    ("pre", "adds"), [("gpt-2", False), ("qwen2", False), ("llama-bpe", True), ("smollm", False)]
)
def test_a_file_that_does_not_say_adds_the_begin_token_as_its_kind_does(pre, adds):
    tokenizer = Tokenizer.from_gguf(train_byte_level(pre))

    assert (tokenizer.encode("the")[0] == tokenizer.bos_token_id) == adds


# --- pieces with scores


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_pieces_equal_what_transformers_makes_of_the_file(both, text):
    tokenizer, expected = both

    ids = tokenizer.encode(text)
    assert ids == expected.encode(text)
    assert tokenizer.encode(text, add_special_tokens=False) == ids[1:]
    for skip in (True, False):
        assert tokenizer.decode(ids, skip_special_tokens=skip) == expected.decode(
            ids, skip_special_tokens=skip
        )


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=60))
def test_any_text_in_pieces_equals_that_of_transformers(both, text):
    tokenizer, expected = both

    ids = tokenizer.encode(text)
    assert ids == expected.encode(text)
    assert tokenizer.decode(ids) == expected.decode(ids, skip_special_tokens=True)


def merged_by_score(metadata: dict[str, object], text: str) -> list[int]:
    """SentencePiece's algorithm: join the neighbours that make the best-scored piece, leftmost
    first; what is no piece in the end is spelled in bytes. For text without special tokens."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    score_of = dict(zip(tokens, scores, strict=True))
    pieces = list("▁" + text.replace(" ", "▁"))
    while True:
        made = [(score_of.get(a + b), a + b) for a, b in pairwise(pieces)]
        best = max((score for score, _ in made if score is not None), default=None)
        if best is None:
            break
        place = next(index for index, (score, _) in enumerate(made) if score == best)
        pieces[place : place + 2] = [made[place][1]]
    spelled = []
    for piece in pieces:
        known = [piece] if piece in score_of else [f"<0x{byte:02X}>" for byte in piece.encode()]
        spelled += [tokens.index(one) for one in known]
    return spelled


@pytest.mark.parametrize(
    "name", ["English", "numbers", "code", "decomposed", "Chinese", "emoji", "spaces", "controls"]
)
def test_pieces_equal_those_of_sentencepieces_algorithm(both, name):
    text = TEXTS[name].replace("▁", "")

    ids = both[0].encode(text, add_special_tokens=False)
    assert ids == merged_by_score(sentence_pieces(), text)
    assert len(ids) < len(text.encode()) or name in ("emoji", "controls")


def test_unknown_letters_are_spelled_in_bytes_and_read_back(both):
    tokenizer = both[0]
    ids = tokenizer.encode("☃ 𝄞")

    pieces = [tokenizer.token_bytes(one) for one in ids[1:]]
    assert b"".join(pieces) == " ☃ 𝄞".encode()
    assert tokenizer.decode(ids) == "☃ 𝄞"


def test_pieces_stream_as_they_decode(both):
    tokenizer = both[0]
    for text in TEXTS.values():
        ids = tokenizer.encode(text)
        stream = Detokenizer(tokenizer)
        got = "".join(stream.push([one]) for one in ids) + stream.finish()
        assert got == tokenizer.decode(ids)


def test_no_space_is_put_before_a_text_if_the_file_says_so(tmp_path):
    path = written(tmp_path, sentence_pieces(), add_space_prefix=False)
    tokenizer = ours(path)

    ids = tokenizer.encode("the moon")
    assert tokenizer.token_bytes(ids[1])[:1] == b"t"
    assert tokenizer.decode(tokenizer.encode(" the moon")) == " the moon"
    assert tokenizer.decode(ids) == "the moon"


@pytest.mark.parametrize(("stated", "adds"), [(None, True), (True, True), (False, False)])
def test_the_begin_token_of_pieces_is_added_unless_the_file_says_no(tmp_path, stated, adds):
    tokenizer = ours(written(tmp_path, sentence_pieces(), add_bos_token=stated))

    assert (tokenizer.encode("the")[0] == 1) == adds


def test_what_a_file_says_about_special_pieces(both):
    tokenizer, expected = both

    assert tokenizer.special_ids == {0, 1, 2}
    assert tokenizer.bos_token_id == expected.bos_token_id == 1
    assert tokenizer.eos_token_ids == {expected.eos_token_id} == {2}
    assert tokenizer.vocab_size == len(expected)


def test_the_chat_template_of_the_file_is_used(both):
    chat = [{"role": "user", "content": "hi"}]

    assert TEMPLATE.startswith("{% for")
    assert both[0].apply_chat_template(chat) == both[1].apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )


@pytest.mark.parametrize("scores", [None, [0.0, 1.0], ["high"]])
def test_pieces_without_a_score_each_are_refused(tmp_path, scores):
    metadata = sentence_pieces() | {"tokenizer.ggml.scores": scores}

    with pytest.raises(ModelError, match=r"m\.gguf has no score for each token"):
        Tokenizer.from_gguf(metadata, "m.gguf")
