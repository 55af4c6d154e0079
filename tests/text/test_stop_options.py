"""Stop strings that are kept, or that come too early to count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.text.detokenize import Detokenizer
from octavo.text.stops import StopMatcher
from octavo.text.tokenizer import Tokenizer

letters = st.text("ab", min_size=1, max_size=12)


@pytest.fixture(scope="module")
def tiny(tiny_folder) -> Tokenizer:
    return Tokenizer.from_folder(tiny_folder)


@given(text=letters, stop=st.text("ab", min_size=1, max_size=4), early=st.integers(0, 12))
def test_a_match_counts_only_where_it_ends_late_enough(text, stop, early):
    matcher = StopMatcher((stop,))
    out = "".join(matcher.push(letter, counts=place >= early) for place, letter in enumerate(text))
    out += matcher.finish()

    ends = [end for end in range(early + 1, len(text) + 1) if text[:end].endswith(stop)]
    assert out == (text[: ends[0] - len(stop)] if ends else text)
    assert matcher.stopped == (stop if ends else None)


@given(text=letters, stop=st.text("ab", min_size=1, max_size=4), cut=st.integers(0, 12))
def test_an_included_stop_is_the_end_of_the_text(text, stop, cut):
    matcher = StopMatcher((stop,), include=True)

    out = matcher.push(text[:cut]) + matcher.push(text[cut:]) + matcher.finish()

    place = text.find(stop)
    assert out == (text if place < 0 else text[: place + len(stop)])


@pytest.mark.parametrize("pieces", [1, 3])
def test_the_first_tokens_cannot_end_the_answer(tiny, pieces):
    tokens = [tiny.encode("a")[0]] * 9
    detokenizer = Detokenizer(tiny, ("aa",), min_tokens=4)

    text = "".join(
        detokenizer.push(tokens[start : start + pieces]) for start in range(0, 9, pieces)
    )

    assert text == "aaa"
    assert detokenizer.stopped == "aa"


def test_what_is_held_at_an_early_end_does_not_stop_it(tiny):
    detokenizer = Detokenizer(tiny, ("aa",), min_tokens=4)

    text = detokenizer.push(tiny.encode("a") * 3) + detokenizer.finish()

    assert text == "aaa"
    assert detokenizer.stopped is None
