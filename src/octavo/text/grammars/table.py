"""The libraries that make grammars, by name; each is loaded when its first form comes."""

from __future__ import annotations

from collections.abc import Callable

from octavo.text.grammars.backend import GrammarMaker, Vocabulary


def _llguidance(vocabulary: Vocabulary) -> GrammarMaker:
    from octavo.text.grammars.llguidance import LlguidanceMaker

    return LlguidanceMaker(vocabulary)


def _xgrammar(vocabulary: Vocabulary) -> GrammarMaker:
    from octavo.text.grammars.xgrammar import XgrammarMaker

    return XgrammarMaker(vocabulary)


GRAMMAR_BACKENDS: dict[str, Callable[[Vocabulary], GrammarMaker]] = {
    "llguidance": _llguidance,
    "xgrammar": _xgrammar,
}
"""The first is what auto means."""

READS_SPELLING = frozenset({"xgrammar"})
"""Those whose work depends on how each token is spelled, not on the tokenizer's definition."""
