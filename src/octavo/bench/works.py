"""The works that engines are compared on: the same token ids and lengths for everybody.

Ids are drawn from what is ordinary text in SmolLM2's vocabulary. Answers have exactly the length
that stands there, so that every engine does the same amount of work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from octavo.errors import ConfigError

_FIRST_ID, _LAST_ID = 100, 40_000
_SHORTEST_CHAT, _LONGEST_CHAT = 8, 1024
_SHORTEST_REPLY, _LONGEST_REPLY = 4, 384


class WorkRequest(NamedTuple):
    """One prompt, and how long its answer is."""

    prompt: list[int]
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Work:
    """Requests that are all there at the start."""

    name: str
    requests: list[WorkRequest]

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(request.prompt) for request in self.requests)

    @property
    def output_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(request.output_tokens for request in self.requests)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return max(len(request.prompt) + request.output_tokens for request in self.requests)

    @property
    def counts_prompts(self) -> bool:
        """True if the speed is that of prompt tokens: the answers are hardly there."""
        return self.prompt_tokens > 100 * self.output_tokens

    @property
    def counts(self) -> str:
        """What the speed is measured in."""
        return "prompt tokens" if self.counts_prompts else "output tokens"

    @property
    def counted_tokens(self) -> int:
        """Tokens that the speed is measured in."""
        return self.prompt_tokens if self.counts_prompts else self.output_tokens


class _Source:
    """Draws the ids of one work; two of a name draw the same."""

    def __init__(self, name: str, end: int) -> None:
        self._random = Random(f"cpu-{name}")
        self._end = end

    def ids(self, count: int) -> list[int]:
        return [self._random.randrange(_FIRST_ID, self._end) for _ in range(count)]

    def length(self, mean: float, deviation: float, least: int, most: int) -> int:
        """Draw from a log-normal distribution."""
        return min(max(int(self._random.lognormvariate(mean, deviation)), least), most)

    def equal(self, count: int, prompt: int, output: int) -> list[WorkRequest]:
        return [WorkRequest(self.ids(prompt), output) for _ in range(count)]


def _chat(source: _Source) -> list[WorkRequest]:
    """Draw ragged lengths: sequences come and go all the time."""
    requests: list[WorkRequest] = []
    for _ in range(200):
        prompt = source.ids(source.length(4.6, 1.0, _SHORTEST_CHAT, _LONGEST_CHAT))
        output = source.length(4.0, 0.9, _SHORTEST_REPLY, _LONGEST_REPLY)
        requests.append(WorkRequest(prompt, output))
    return requests


def _one_head(source: _Source) -> list[WorkRequest]:
    """Draw one long head for all, as a system prompt is."""
    head = source.ids(1024)
    return [WorkRequest(head + source.ids(32), 32) for _ in range(32)]


_DRAW: dict[str, Callable[[_Source], list[WorkRequest]]] = {
    "single": lambda source: source.equal(1, 64, 128),
    "batch8": lambda source: source.equal(8, 64, 64),
    "batch32": lambda source: source.equal(32, 64, 64),
    "mixed64": lambda source: source.equal(64, 256, 128),
    "chat200": _chat,
    "prefix32": _one_head,
    "prefill512": lambda source: source.equal(1, 512, 1),
}
WORKS = tuple(_DRAW)
"""Their names, in the order of the tables."""
SHARED_PREFIX = "prefix32"
"""The work whose prompts begin alike: engines may keep the common part."""


def draw_work(name: str, *, vocab_size: int | None = None) -> Work:
    """Draw the requests of a work. Raises ConfigError for an unknown one.

    vocab_size: of a model that may have fewer tokens than SmolLM2; its ids are then others.
    """
    if name not in _DRAW:
        raise ConfigError(f"--work {name!r} is not one of {', '.join(_DRAW)}")
    end = _LAST_ID if vocab_size is None else min(_LAST_ID, vocab_size)
    if end <= _FIRST_ID:
        raise ConfigError(
            f"the works take token ids from {_FIRST_ID}, but the vocabulary has {vocab_size}"
        )
    return Work(name, _DRAW[name](_Source(name, end)))


def find_works(names: str | None, *, vocab_size: int, context: int) -> list[Work]:
    """Return works by their names, by commas, in the order of the tables; None: all of them.

    Raises ConfigError for an unknown one, or one with a text longer than `context`.
    """
    chosen = WORKS if names is None else [name.strip() for name in names.split(",")]
    works = {name: draw_work(name, vocab_size=vocab_size) for name in chosen}
    fitting = [name for name in WORKS if draw_work(name).longest <= context]
    for work in works.values():
        if work.longest > context:
            raise ConfigError(
                f"--work {work.name} has a text of {work.longest} tokens, but the model's context "
                f"is {context}: give --work {','.join(fitting) or 'of another --model'}"
            )
    return [works[name] for name in WORKS if name in works]
