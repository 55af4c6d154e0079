"""Streamed text equals text decoded at once, and stops where it should."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st

from octavo.models.gguf import GGUFFile
from octavo.text.detokenize import Detokenizer
from octavo.text.tokenizer import SpecialTokens, Tokenizer
from tiny_model import TOKENS

FEW = settings(max_examples=150, deadline=None)
IDS = st.lists(st.integers(0, len(TOKENS) + 5), max_size=40)
STOPS = ["the", " ", "e\ufffd", "<|im_end|>", "é"]
WORDS = st.text("abc", min_size=1, max_size=4)


@pytest.fixture(scope="module")
def tiny(tiny_gguf: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile(tiny_gguf).metadata)


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GGUFFile(smollm2_path).metadata)


@pytest.fixture(scope="module")
def sentencepiece() -> Tokenizer:
    """A vocabulary with byte fallback, whose decoder drops the first space."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "▁the", "▁a", "b", "é", "▁日本"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE(
            vocab={piece: index for index, piece in enumerate(pieces)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    backend.decoder = tokenizers.decoders.Sequence(
        [
            tokenizers.decoders.Replace("▁", " "),
            tokenizers.decoders.ByteFallback(),
            tokenizers.decoders.Fuse(),
            tokenizers.decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    special = SpecialTokens(1, frozenset({2}), {}, adds_bos=None, adds_eos=None)
    return Tokenizer(backend, special, {})


def stream(detokenizer: Detokenizer, ids: list[int], size: int = 1) -> list[str]:
    """Push tokens `size` at a time, and finish."""
    pieces = [detokenizer.push(ids[at : at + size]) for at in range(0, len(ids), size)]
    return [*pieces, detokenizer.finish()]


def text_until_stop(text: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """Say in the plainest way what a stop string does: read on until the text ends with one."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


# --- text


@FEW
@given(ids=IDS, size=st.integers(1, 5), skip=st.booleans())
def test_the_pieces_joined_equal_the_text_decoded_at_once(tiny, ids, size, skip):
    detokenizer = Detokenizer(tiny, skip_special_tokens=skip)

    assert "".join(stream(detokenizer, ids, size)) == tiny.decode(ids, skip_special_tokens=skip)


@FEW
@given(text=st.text(max_size=30))
def test_no_piece_holds_half_a_character(tiny, text):
    pieces = stream(Detokenizer(tiny), tiny.encode(text))

    assert "".join(pieces) == tiny.decode(tiny.encode(text))
    assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_a_character_of_several_tokens_comes_out_whole(tiny):
    detokenizer = Detokenizer(tiny)

    pieces = [detokenizer.push([token]) for token in tiny.encode("€!")]

    assert pieces == ["", "", "€", "!"]


def test_half_a_character_at_the_end_comes_out_as_a_replacement(tiny):
    detokenizer = Detokenizer(tiny)

    assert detokenizer.push(tiny.encode("x€")[:-1]) == "x"
    assert detokenizer.finish() == "\ufffd"
    assert detokenizer.finish() == ""


@pytest.mark.weights
@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 49151), max_size=60), skip=st.booleans())
def test_random_tokens_of_the_embedded_model_stream_exactly(smollm2, ids, skip):
    detokenizer = Detokenizer(smollm2, skip_special_tokens=skip)

    assert "".join(stream(detokenizer, ids)) == smollm2.decode(ids, skip_special_tokens=skip)


def test_a_long_answer_costs_no_more_per_token_than_a_short_one(tiny):
    ids = tiny.encode("the hello thing 日本 " * 4000)
    detokenizer = Detokenizer(tiny, ("never seen",))

    start = time.perf_counter()
    pieces = stream(detokenizer, ids)
    seconds = time.perf_counter() - start

    assert "".join(pieces) == tiny.decode(ids)
    # Decoding everything again for each of these tokens would take minutes.
    assert seconds < 3


# --- vocabularies that are not byte-level


@FEW
@given(text=st.text("ab é日本the€👍", max_size=20), size=st.integers(1, 4))
def test_a_sentencepiece_vocabulary_streams_too(sentencepiece, text, size):
    ids = sentencepiece.encode(text.replace(" ", "▁"))
    detokenizer = Detokenizer(sentencepiece)

    assert "".join(stream(detokenizer, ids, size)) == sentencepiece.decode(ids)


def test_tokens_without_text_do_not_pile_up(sentencepiece):
    detokenizer = Detokenizer(sentencepiece)
    lead_byte = sentencepiece.encode("€")[0]

    start = time.perf_counter()
    text = "".join(stream(detokenizer, [lead_byte] * 5000))
    seconds = time.perf_counter() - start

    assert set(text) == {"\ufffd"}
    assert seconds < 5


# --- stop strings


@FEW
@given(text=st.text("abc", max_size=25), stops=st.lists(WORDS, max_size=4), size=st.integers(1, 6))
@example(text="abcab", stops=["abcd", "bc"], size=1)
@example(text="aab", stops=["ab", "aab"], size=2)
@example(text="aaab", stops=["aab"], size=1)
def test_text_ends_before_the_stop_string_that_is_complete_first(tiny, text, stops, size):
    detokenizer = Detokenizer(tiny, tuple(stops))

    pieces = stream(detokenizer, tiny.encode(text), size)

    assert ("".join(pieces), detokenizer.stopped) == text_until_stop(text, tuple(stops))


@FEW
@given(ids=IDS, stops=st.lists(st.sampled_from(STOPS), max_size=3))
def test_stop_strings_in_any_tokens_match_the_text_decoded_at_once(tiny, ids, stops):
    detokenizer = Detokenizer(tiny, tuple(stops), skip_special_tokens=False)

    pieces = stream(detokenizer, ids)

    expected = text_until_stop(tiny.decode(ids, skip_special_tokens=False), tuple(stops))
    assert ("".join(pieces), detokenizer.stopped) == expected


@FEW
@given(text=st.text("abc", max_size=25), stops=st.lists(WORDS, min_size=1, max_size=4))
def test_no_text_is_held_back_that_cannot_begin_a_stop_string(tiny, text, stops):
    detokenizer = Detokenizer(tiny, tuple(stops))

    shown = "".join(detokenizer.push([token]) for token in tiny.encode(text))

    if detokenizer.stopped is None:
        held = text[len(shown) :]
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_across_token_borders_is_found(tiny):
    detokenizer = Detokenizer(tiny, ("END",))

    pieces = [detokenizer.push(tiny.encode(part)) for part in ("an E", "N", "D", " of it")]

    assert pieces == ["an ", "", "", ""]
    assert detokenizer.stopped == "END"
    assert detokenizer.finish() == ""


def test_what_looked_like_a_stop_string_comes_out_when_the_answer_is_over(tiny):
    detokenizer = Detokenizer(tiny, ("END",))

    assert detokenizer.push(tiny.encode("an EN")) == "an "
    assert detokenizer.finish() == "EN"
    assert detokenizer.stopped is None


def test_a_special_token_that_is_shown_stands_in_the_text(tiny):
    ids = tiny.encode("the<|im_end|>the<|im_start|>")
    shown = frozenset(tiny.special(["<|im_start|>", "the"]).values())

    assert "".join(stream(Detokenizer(tiny, shown=shown), ids)) == "thethe<|im_start|>"
