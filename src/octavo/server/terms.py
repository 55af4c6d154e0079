"""What an HTTP request asks of its answer beside its text: the same, whichever API it came by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from octavo.contract.pooling import Pooling
from octavo.contract.retention import Retention
from octavo.server.cache_wishes import CacheWish
from octavo.text.parsing import AnswerParser


def _nothing() -> Mapping[str, object]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How a request is treated, and how its answer is told."""

    model: str | None = None
    """As the client names it; None: the only one."""
    request_id: str | None = None
    """That ids of its objects are made of; None: one is made up."""
    stream: bool = False
    interval: int | None = None
    """Tokens of a choice that are sent together; None: as the server is set."""
    usage: bool = False
    """A stream ends in it."""
    usage_always: bool = False
    """Each chunk of a stream tells it."""
    priority: int = 0
    """Lower goes first."""
    cache_salt: str | None = None
    """Only requests with the same one find each other's prompts in memory."""
    silent: bool = False
    """Nothing is told but the prompt."""
    parser: Callable[[], AnswerParser] | None = None
    """Makes what reads reasoning and calls out of one answer; None: all of it is content."""
    shown: frozenset[int] = frozenset()
    """Special tokens that are text all the same, for the parser to see."""
    retention: tuple[Retention, ...] = ()
    """How ranges of its prompt are kept, which is one then."""
    wish: CacheWish | None = None
    """How all of its prompts are kept, and what it says of texts to come."""
    scored: bool = False
    """Log-probabilities are told with the text that their tokens are of."""
    pooling: Pooling | None = None
    """Its prompts are embedded, and nothing is written."""
    tells_cache: bool = False
    """Usage tells what was in memory, and why the rest was not."""
    scores_field: str = "prompt_logprobs"
    """Which field asks for log-probabilities of the prompt, for errors."""
    logged: Callable[[], Mapping[str, object]] = _nothing
    """Returns its options as a log may show them, without texts and secrets."""
