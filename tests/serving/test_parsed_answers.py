"""What a parser reads out of an answer reaches the piece that is sent, however it comes."""

from __future__ import annotations

import pytest

from octavo.contract.request import FinishReason, Update
from octavo.contract.sampling import SamplingParams
from octavo.engine.answer import AnswerText
from octavo.server.choice import Choice
from octavo.text.parsing import CallPiece, Parsed


class Spelled(AnswerText):
    """An answer whose tokens are the letters of its text."""

    def __init__(self):
        super().__init__(None, SamplingParams())

    def push(self, update):
        return "".join(map(chr, update.tokens))


class Brackets:
    """Reads `(…)` as reasoning and `[name]` as a call, and holds back what is open."""

    def __init__(self):
        self._open = ""
        self._calls = 0

    def push(self, text):
        content, thought, calls = "", "", []
        for letter in text:
            if not self._open and letter not in "([":
                content += letter
                continue
            self._open += letter
            if letter == ")":
                thought, self._open = thought + self._open[1:-1], ""
            elif letter == "]":
                calls.append(CallPiece(self._calls, f"c{self._calls}", self._open[1:-1], "{}"))
                self._calls, self._open = self._calls + 1, ""
        return Parsed(content, thought, tuple(calls))

    def finish(self):
        rest, self._open = self._open, ""
        return Parsed(rest)


def says(text, finish=None):
    return Update("r", 0, tuple(map(ord, text)), finish=finish)


def test_reasoning_and_calls_are_told_apart_from_the_text():
    choice = Choice(0, Spelled(), parser=Brackets())

    choice.push(says("(why)so[look]", FinishReason.STOP), 0.0)
    piece = choice.take()

    assert (piece.reasoning, piece.text, piece.calls[0].name) == ("why", "so", "look")
    assert choice.calls == 1


def test_pieces_taken_one_by_one_are_together_the_whole_answer():
    choice, text = Choice(0, Spelled(), parser=Brackets()), "(a)b[c](d)e[f"
    pieces = []
    for place, letter in enumerate(text, 1):
        choice.push(says(letter, FinishReason.LENGTH if place == len(text) else None), 0.0)
        pieces.append(choice.take())

    assert "".join(piece.text for piece in pieces) == "be[f"
    assert "".join(piece.reasoning for piece in pieces) == "ad"
    assert [call.name for piece in pieces for call in piece.calls] == ["c"]


@pytest.mark.parametrize("cut", ["abort", "error"])
def test_an_answer_that_is_cut_tells_what_was_held_back(cut):
    choice = Choice(0, Spelled(), parser=Brackets())

    choice.push(says("so[lo"), 0.0)
    choice.end(cut)
    piece = choice.take()

    assert (piece.text, piece.finish) == ("so[lo", cut)


def test_without_a_parser_all_of_an_answer_is_text():
    choice = Choice(0, Spelled())

    choice.push(says("(why)[look]"), 0.0)

    assert choice.take().text == "(why)[look]"
