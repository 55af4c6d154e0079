"""Options of beam search: what is taken as it is, and what is refused with the way out."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from octavo.contract.sampling import SamplingParams
from octavo.errors import RequestError


def beams(**options):
    return SamplingParams(use_beam_search=True, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_width": 0}, "beam_width must be a whole number from 1 to 256, got 0"),
        ({"beam_width": -1}, "beam_width must be a whole number from 1 to 256, got -1"),
        ({"beam_width": 257}, "from 1 to 256, got 257"),
        ({"beam_width": 2.5}, "from 1 to 256, got 2.5"),
        ({"beam_width": 4.0}, "from 1 to 256, got 4.0"),
        ({"beam_width": True}, "from 1 to 256, got True"),
        ({"beam_width": "4"}, "from 1 to 256, got '4'"),
        ({"length_penalty": 17}, "length_penalty must be a number from -16 to 16, got 17"),
        ({"length_penalty": -16.5}, "from -16 to 16, got -16.5"),
        ({"length_penalty": float("nan")}, "from -16 to 16, got nan"),
        ({"length_penalty": float("inf")}, "from -16 to 16, got inf"),
        ({"length_penalty": None}, "from -16 to 16, got None"),
        ({"length_penalty": True}, "from -16 to 16, got True"),
        (
            {"early_stopping": "always"},
            "early_stopping must be true, false or 'never', got 'always'",
        ),
        ({"early_stopping": "True"}, "true, false or 'never', got 'True'"),
        ({"early_stopping": None}, "true, false or 'never', got None"),
        ({"early_stopping": 2}, "true, false or 'never', got 2"),
        ({"early_stopping": np.array([1, 2])}, "true, false or 'never', got array"),
        ({"n": 2, "temperature": 0}, "n cannot be combined with use_beam_search"),
        ({"early_stopping": 1}, "true, false or 'never', got 1"),
        ({"temperature": 0.7}, "temperature is 0.7, but beam search draws nothing: leave it out"),
        (
            {"n": 2},
            "n cannot be combined with use_beam_search: the answers are the best beam_width",
        ),
        ({"top_k": 5}, "top_k cannot be combined with use_beam_search: nothing is drawn"),
        ({"top_p": 0.9}, "top_p cannot be combined with use_beam_search: nothing is drawn"),
        ({"min_p": 0.1}, "min_p cannot be combined with use_beam_search: nothing is drawn"),
        ({"stop": "\n"}, "stop cannot be combined with use_beam_search: .* give stop_token_ids"),
        ({"stop": ["a", "b"]}, "stop cannot be combined with use_beam_search"),
        ({"logprobs": 1}, "logprobs cannot be combined with use_beam_search: cumulative_logprob"),
        ({"logprobs": 0}, "logprobs cannot be combined with use_beam_search"),
    ],
)
def test_what_a_search_cannot_do_is_refused_with_the_way_out(options, message):
    with pytest.raises(RequestError, match=message):
        beams(**options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n": 1},
        {"temperature": 0},
        {"temperature": 1},
        {"temperature": 0.0, "n": 1},
        {"top_k": 0},
        {"top_k": -1},
        {"top_p": 1},
        {"min_p": 0},
        {"stop": None},
        {"stop": []},
        {"stop": ()},
        {"logprobs": None},
        {"seed": 5},
        {"prompt_logprobs": 3},
        {"max_tokens": None},
        {"beam_width": None},
        {"beam_width": 256},
        {"length_penalty": -16},
        {"early_stopping": "never"},
        {"stop_token_ids": [3], "min_tokens": 2, "ignore_eos": True},
        {"repetition_penalty": 1.2, "presence_penalty": 1.0, "frequency_penalty": -1.0},
        {"logit_bias": {3: 1.0}, "bad_words": ["x"], "allowed_token_ids": [1, 2]},
        {"include_stop_str_in_output": True, "skip_special_tokens": False, "detokenize": False},
    ],
)
def test_options_that_say_nothing_else_are_taken(options):
    assert beams(**options).use_beam_search


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam_width": 3}, "beam_width is 3, but use_beam_search is false: set it, or leave"),
        ({"length_penalty": 2.0}, "length_penalty is 2.0, but use_beam_search is false"),
        ({"early_stopping": True}, "early_stopping is True, but use_beam_search is false"),
        ({"early_stopping": "never"}, "early_stopping is 'never', but use_beam_search is false"),
    ],
)
def test_options_of_a_search_without_one_are_refused(options, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**options)


@pytest.mark.parametrize("value", [1, "yes", None])
def test_whether_to_search_is_true_or_false(value):
    with pytest.raises(RequestError, match="use_beam_search must be true or false, got"):
        SamplingParams(use_beam_search=value)


def test_numbers_of_other_libraries_become_pythons():
    params = beams(beam_width=np.int16(3), length_penalty=Fraction(1, 2))

    assert (params.beam_width, type(params.beam_width)) == (3, int)
    assert (params.length_penalty, type(params.length_penalty)) == (0.5, float)


def test_the_number_of_answers_is_the_width_of_a_search_and_n_without_one():
    assert beams().choices == 4
    assert beams(beam_width=1).choices == 1
    assert beams(beam_width=9).choices == 9
    assert SamplingParams(n=3).choices == 3
    assert SamplingParams().choices == 1


@pytest.mark.parametrize(("ends", "count"), [(0, 8), (1, 8), (2, 12), (5, 24)])
def test_more_end_tokens_ask_for_more_candidates(ends, count):
    assert beams(beam_width=4).candidates(ends) == count


@pytest.mark.parametrize("name", ["beam_width", "length_penalty", "early_stopping"])
def test_an_array_as_an_option_of_beams_is_refused_by_name(name):
    with pytest.raises(RequestError, match=f"{name} is array"):
        SamplingParams(**{name: np.array([1, 2])})
