"""The tokenizer agrees with transformers to the token."""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ModelError, RequestError
from octavo.models.gguf import GGUFFile
from octavo.text.grammars.backend import Vocabulary
from octavo.text.tokenizer import Tokenizer
from tiny_model import TEMPLATE, write_tiny_gguf

TEXTS = {
    "empty": "",
    "English": "Paged memory, like an operating system's; it isn't new. They'll say we've copied.",
    "code": "def f(x: int) -> int:\n    return x ** 2  # square\n\n\tif (a != b) { c++; }\n",
    "digits": "In 1984, 3.14159 * 2,000,000 = 6283180 (or 0x5F). Tel. +49 30 123456",
    "indented digits": "a  1\n\n2\t3   45\r\n  6",
    "Chinese": "分页的键值缓存让许多请求共享内存。今天天气很好。",
    "Arabic": "ذاكرة التخزين المؤقت مقسمة إلى صفحات، والعدد ١٢٣٤.",
    "Hindi": "कैश को पृष्ठों में बाँटा गया है, इसलिए १२३ अनुरोध साझा करते हैं।",
    "emoji": "family 👩‍👩‍👧‍👦, flag 🏳️‍🌈, skin 👍🏽, ☃️",
    "accents": "naïve café, Zürich, ﬁancé, e\u0301 and \u00a0 \u2003 \u200b",
    "spaces": "  two   three    four\t\ttabs \n\n\n lines  \r\n end   ",
    "special": "<|im_start|>user\nhi <|im_end|>\n<|endoftext|><repo_name>x",
    "almost special": "<|im_start |> <im_end> <|im_start|<|im_end|>",
    "controls": "\x00\x01\x7f\x80\ufffd\ufeff",
}
CHAT = [
    {"role": "user", "content": "Who <b>are</b> you? 'quoted' & \"so\""},
    {"role": "assistant", "content": "A model."},
    {"role": "user", "content": "  Thanks\n"},
]


def xquad_texts() -> list[str]:
    """Paragraphs in three scripts, if the data set lies beside the project."""
    folder = Path(__file__).parents[3] / "shared" / "data" / "qa"
    texts = []
    for file in sorted(folder.glob("xquad_*.json.gz")):
        data = json.loads(gzip.decompress(file.read_bytes()))["data"]
        texts += [
            paragraph["context"] for article in data[:8] for paragraph in article["paragraphs"]
        ]
    return texts


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile(smollm2_path).metadata)


@pytest.fixture(scope="module")
def reference(smollm2_path: Path):
    """What transformers makes of the same file, told to cut around digits.

    Reading GGUF it overlooks `pre = smollm` and cuts as for GPT-2; the model was trained on
    single digits, as its published tokenizer and llama.cpp have it.
    """
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    digits = pre_tokenizers.Digits(individual_digits=True)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])
    return tokenizer


@pytest.fixture(scope="module")
def tiny(tiny_gguf: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile(tiny_gguf).metadata)


# --- against transformers


@pytest.mark.weights
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_ids_and_text_equal_those_of_transformers(smollm2, reference, text):
    ids = smollm2.encode(text)

    assert ids == reference.encode(text)
    for skip in (True, False):
        assert smollm2.decode(ids, skip_special_tokens=skip) == reference.decode(
            ids, skip_special_tokens=skip
        )


@pytest.mark.weights
def test_line_breaks_before_a_digit_stay_one_token(smollm2):
    ids = smollm2.encode("List:\n\n1. one")

    assert [smollm2.token_bytes(i) for i in ids[2:5]] == [b"\n\n", b"1", b"."]


@pytest.mark.weights
def test_long_texts_in_three_scripts_equal_those_of_transformers(smollm2, reference):
    texts = xquad_texts()
    if not texts:
        pytest.skip("the XQuAD files are not here")

    assert [smollm2.encode(text) for text in texts] == reference(texts)["input_ids"]


@pytest.mark.weights
@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=80))
def test_any_text_equals_that_of_transformers(smollm2, reference, text):
    ids = smollm2.encode(text)

    assert ids == reference.encode(text)
    assert smollm2.decode(ids) == reference.decode(ids, skip_special_tokens=True)


@pytest.mark.weights
@pytest.mark.parametrize("add_generation_prompt", [True, False])
def test_a_chat_equals_that_of_transformers(smollm2, reference, add_generation_prompt):
    ours = smollm2.apply_chat_template(CHAT, add_generation_prompt=add_generation_prompt)

    assert ours == reference.apply_chat_template(
        CHAT, tokenize=False, add_generation_prompt=add_generation_prompt
    )


@pytest.mark.weights
def test_what_the_file_says_about_special_tokens(smollm2, reference):
    assert smollm2.bos_token_id == reference.bos_token_id == 1
    assert smollm2.eos_token_ids == {reference.eos_token_id} == {2}
    assert smollm2.vocab_size == len(reference) == 49152
    assert smollm2.special_ids == frozenset(range(17))


def test_a_folder_equals_transformers(tiny_folder):
    from transformers import AutoTokenizer

    ours, reference = Tokenizer.from_folder(tiny_folder), AutoTokenizer.from_pretrained(tiny_folder)

    for text in TEXTS.values():
        ids = ours.encode(text)
        assert ids == reference.encode(text)
        assert ours.decode(ids) == reference.decode(ids, skip_special_tokens=True)
    assert ours.apply_chat_template(CHAT) == reference.apply_chat_template(
        CHAT, tokenize=False, add_generation_prompt=True
    )


# --- file and folder


def test_a_file_and_a_folder_give_the_same_tokenizer(tiny, tiny_folder):
    folder = Tokenizer.from_folder(tiny_folder)

    assert [tiny.encode(text) for text in TEXTS.values()] == [
        folder.encode(text) for text in TEXTS.values()
    ]
    assert tiny.apply_chat_template(CHAT) == folder.apply_chat_template(CHAT)
    assert tiny.special_ids == folder.special_ids == {0, 1, 2}
    assert tiny.eos_token_ids == folder.eos_token_ids == {2}
    assert tiny.bos_token_id == folder.bos_token_id == 1


def test_every_end_token_of_generation_config_ends_an_answer(tmp_path, tiny_folder):
    for file in tiny_folder.glob("*token*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 2, 99999]}')

    assert Tokenizer.from_folder(tmp_path).eos_token_ids == {0, 2}


@pytest.mark.parametrize("adds", [True, False])
def test_the_begin_token_is_added_if_the_file_says_so(tmp_path, adds):
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.ggml.add_bos_token": adds})
    tokenizer = Tokenizer.from_gguf(GGUFFile(path).metadata)

    assert (tokenizer.encode("the")[0] == 1) == adds
    assert tokenizer.encode("the", add_special_tokens=False)[0] != 1


def test_a_begin_token_that_the_vocabulary_lacks_is_not_added(tmp_path, tiny_folder):
    (tmp_path / "tokenizer.json").write_bytes((tiny_folder / "tokenizer.json").read_bytes())
    config = {
        "bos_token": "<nobody>",
        "add_bos_token": True,
        "eos_token": {"content": "<|im_end|>"},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.from_folder(tmp_path)

    assert tokenizer.bos_token_id is None
    assert tokenizer.eos_token_ids == {2}
    assert tokenizer.decode(tokenizer.encode("the"), skip_special_tokens=False) == "the"


# --- bytes


def test_the_bytes_of_the_tokens_are_the_bytes_of_the_text(tiny):
    for text in TEXTS.values():
        ids = tiny.encode(text)
        assert b"".join(map(tiny.token_bytes, ids)).decode() == text


def test_ids_outside_the_vocabulary_have_no_text(tiny):
    assert tiny.token_bytes(10**6) == tiny.token_bytes(-1) == b""
    assert tiny.decode([10**6]) == ""


def test_half_a_surrogate_pair_is_the_callers_mistake(tiny):
    with pytest.raises(RequestError, match="cannot be encoded as UTF-8"):
        tiny.encode("\ud83d")


# --- what is refused


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"tokenizer.ggml.model": "bert"}, r"kind 'bert' .* supported: gpt2, llama"),
        (
            {"tokenizer.ggml.model": "llama", "tokenizer.ggml.merges": None},
            r"no score for each token in tokenizer\.ggml\.scores",
        ),
        ({"tokenizer.ggml.model": None}, r"kind None"),
        ({"tokenizer.ggml.pre": "tekken"}, r"named 'tekken' .* supported: default, .*llama-bpe"),
        ({"tokenizer.ggml.merges": None}, r"no list of texts in tokenizer\.ggml\.merges"),
        ({"tokenizer.ggml.merges": ["zz yy"]}, r"do not fit"),
        ({"tokenizer.ggml.merges": ["abc"]}, r"do not fit"),
    ],
)
def test_a_vocabulary_that_cannot_be_used_is_named(tmp_path, metadata, message):
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata=metadata)

    with pytest.raises(ModelError, match=message) as error:
        Tokenizer.from_gguf(GGUFFile(path).metadata, str(path))
    assert str(path) in str(error.value)


def test_a_folder_without_tokenizer_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"has no tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_a_broken_tokenizer_file_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(tmp_path)


def test_a_model_without_template_points_to_plain_prompts(tmp_path):
    path = write_tiny_gguf(tmp_path / "m.gguf", metadata={"tokenizer.chat_template": None})

    with pytest.raises(RequestError, match=r"no chat template.*--raw"):
        Tokenizer.from_gguf(GGUFFile(path).metadata).apply_chat_template(CHAT)


def test_the_template_of_a_folder_may_be_in_its_config(tmp_path, tiny_folder):
    (tmp_path / "tokenizer.json").write_bytes((tiny_folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATE}))

    assert "<|im_start|>user" in Tokenizer.from_folder(tmp_path).apply_chat_template(CHAT)


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("name", TEXTS)
def test_a_text_has_the_same_tokens_beside_other_threads(tiny_gguf, name, special):
    tokenizer = Tokenizer.from_gguf(GGUFFile(tiny_gguf).metadata)
    expected = tokenizer.encode(TEXTS[name], add_special_tokens=special)
    assert tokenizer.encode_beside(TEXTS[name], add_special_tokens=special) == expected


def test_other_threads_run_while_a_long_text_is_encoded(tiny_gguf):
    tokenizer = Tokenizer.from_gguf(GGUFFile(tiny_gguf).metadata)
    text, begun, done = TEXTS["English"] * 2000, threading.Event(), threading.Event()

    def encode():
        begun.set()
        tokenizer.encode_beside(text)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    begun.wait()
    turns = 0
    while not done.is_set():
        turns += 1
    thread.join()
    assert turns > 100
    with pytest.raises(RequestError, match="UTF-8"):
        tokenizer.encode_beside("\ud800")


def test_its_definition_makes_the_same_tokenizer_whatever_file_it_came_from(tiny, tmp_path):
    (tmp_path / "tokenizer.json").write_text(tiny.definition(), encoding="utf-8")

    again = Tokenizer.from_folder(tmp_path)

    for text in TEXTS.values():
        assert again.encode(text) == tiny.encode(text)


def test_a_vocabulary_of_grammars_ends_where_the_model_scores_no_more(tiny):
    (end,) = tiny.eos_token_ids

    whole, short = (Vocabulary.of(tiny, size) for size in (tiny.vocab_size, end))

    assert (whole.ends, whole.size) == ((end,), tiny.vocab_size)
    assert short.ends == ()


def test_another_template_is_that_of_another_tokenizer(tiny_gguf):
    tokenizer = Tokenizer.from_gguf(GGUFFile(tiny_gguf).metadata)

    other = tokenizer.with_template("{{ messages[0].role }}{{ bos_token }}")

    chat = [{"role": "user", "content": "hi"}]
    assert other.apply_chat_template(chat).startswith("user")
    assert tokenizer.apply_chat_template(chat) != other.apply_chat_template(chat)
    assert other.encode("hi") == tokenizer.encode("hi")
