"""What a call of `LLM` keeps of the requests that it answers, and what makes these."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.build import Built
    from octavo.config import EngineConfig
    from octavo.engine.engine import Output
    from octavo.prompts import RequestBuilder
    from octavo.results import Delta, RequestOutput


def request_builder(
    built: Built, config: EngineConfig, report: Callable[[str], None]
) -> RequestBuilder:
    """Return what makes requests for an engine. report: told what has no effect, once."""
    from octavo.cache_hints import unheard
    from octavo.prompts import RequestBuilder

    return RequestBuilder(
        built.tokenizer,
        vocab_size=built.spec.vocab_size,
        namespace=built.namespace,
        seed=config.seed,
        unheard=None if built.hears_hints else lambda: report(unheard(config)),
    )


class Run:
    """One request that a call of `LLM` is answering."""

    def __init__(self, number: int, output: RequestOutput) -> None:
        from octavo.results import Delta

        self.open = True
        self.unread: deque[Delta] = deque()
        self._piece = Delta.of
        self._number = number
        self._output = output
        self._start = time.monotonic()

    def take_in(self, news: Output) -> None:
        """Keep the result up to date, and the piece until it is asked for."""
        self._output.take_in(news, time.monotonic() - self._start)
        self.unread.append(self._piece(news, self._number))
        self.open = not self._output.finished
