"""The works that engines are compared on: the same token ids and lengths for everybody.

Answers have exactly the length that stands there, so that every engine does the same amount of
work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import NamedTuple

from octavo.errors import ConfigError


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
    """Draws the ids and lengths of one work."""

    def __init__(self, random: Random, first_id: int, end: int) -> None:
        self._random = random
        self._ids = (first_id, end)

    def ids(self, count: int) -> list[int]:
        return [self._random.randrange(*self._ids) for _ in range(count)]

    def length(self, mean: float, deviation: float, least: int, most: int) -> int:
        """Draw from a log-normal distribution."""
        return min(max(int(self._random.lognormvariate(mean, deviation)), least), most)

    def equal(self, count: int, prompt: int, output: int) -> list[WorkRequest]:
        return [WorkRequest(self.ids(prompt), output) for _ in range(count)]

    def one_head(self, count: int, shared: int, own: int, output: int) -> list[WorkRequest]:
        """Draw one long head for all, as a system prompt is."""
        head = self.ids(shared)
        return [WorkRequest(head + self.ids(own), output) for _ in range(count)]


def _chat(
    source: _Source, count: int, prompts: tuple[int, int], replies: tuple[float, int, int]
) -> list[WorkRequest]:
    """Draw ragged lengths: sequences come and go all the time.

    prompts: shortest and longest. replies: mean of their logarithms, shortest and longest.
    """
    mean, least, most = replies
    requests: list[WorkRequest] = []
    for _ in range(count):
        prompt = source.ids(source.length(4.6, 1.0, *prompts))
        requests.append(WorkRequest(prompt, source.length(mean, 0.9, least, most)))
    return requests


@dataclass(frozen=True, slots=True)
class WorkTable:
    """Works for one kind of machine."""

    draw: Mapping[str, Callable[[_Source], list[WorkRequest]]]
    """In the order in which they are shown."""
    random: Callable[[str], Random]
    """What a work of a name is drawn from: the same each time."""
    first_id: int
    end_id: int
    """Ids are below it."""
    chosen_by: str
    """The flag that takes this table, for errors."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all works."""
        return tuple(self.draw)


CPU_WORKS = WorkTable(
    draw={
        "single": lambda source: source.equal(1, 64, 128),
        "batch8": lambda source: source.equal(8, 64, 64),
        "batch32": lambda source: source.equal(32, 64, 64),
        "mixed64": lambda source: source.equal(64, 256, 128),
        "chat200": lambda source: _chat(source, 200, (8, 1024), (4.0, 4, 384)),
        "prefix32": lambda source: source.one_head(32, 1024, 32, 32),
        "prefill512": lambda source: source.equal(1, 512, 1),
    },
    random=lambda name: Random(f"cpu-{name}"),
    first_id=100,
    end_id=40_000,
    chosen_by="--load-format auto",
)
"""For a small model on a few cores; ids are ordinary text in SmolLM2's vocabulary."""

GPU_WORKS = WorkTable(
    draw={
        "decode_b1": lambda source: source.equal(1, 1024, 256),
        "decode_b64": lambda source: source.equal(64, 1024, 256),
        "decode_b256": lambda source: source.equal(256, 1024, 256),
        "prefill_32x4k": lambda source: source.equal(32, 4096, 1),
        "prefix_64x8k": lambda source: source.one_head(64, 8192, 64, 64),
        "chat_1000": lambda source: _chat(source, 1000, (8, 2048), (5.4, 8, 1024)),
    },
    random=lambda name: Random(7),
    first_id=1000,
    end_id=120_000,
    chosen_by="--load-format dummy",
)
"""For a model of some billion weights on a GPU. chat_1000 has lengths as ShareGPT has."""

WORKS = CPU_WORKS.names
"""The works of small models, in the order of the tables."""
SHARED_PREFIX = "prefix32"
"""The work of them whose prompts begin alike: engines may keep the common part."""


def draw_work(name: str, *, vocab_size: int | None = None, table: WorkTable = CPU_WORKS) -> Work:
    """Draw the requests of a work. Raises ConfigError for an unknown one.

    vocab_size: of a model that may have fewer tokens than the works' ids; its ids are then others.
    """
    if name not in table.draw:
        others = [one.chosen_by for one in (CPU_WORKS, GPU_WORKS) if name in one.draw]
        hint = f": it belongs to {others[0]}" if others else ""
        raise ConfigError(f"--work {name!r} is not one of {', '.join(table.names)}{hint}")
    end = table.end_id if vocab_size is None else min(table.end_id, vocab_size)
    if end <= table.first_id:
        raise ConfigError(
            f"the works take token ids from {table.first_id}, but the vocabulary has {vocab_size}"
        )
    return Work(name, table.draw[name](_Source(table.random(name), table.first_id, end)))


def find_works(
    names: str | None, *, vocab_size: int, context: int, table: WorkTable = CPU_WORKS
) -> list[Work]:
    """Return works by their names, by commas, in the order of the table; None: all of them.

    Raises ConfigError for an unknown one, or one with a text longer than `context`.
    """
    chosen = table.names if names is None else [name.strip() for name in names.split(",")]
    works = {name: draw_work(name, vocab_size=vocab_size, table=table) for name in chosen}
    for work in works.values():
        if work.longest > context:
            everything = (draw_work(name, table=table) for name in table.names)
            fitting = ",".join(other.name for other in everything if other.longest <= context)
            raise ConfigError(
                f"--work {work.name} has a text of {work.longest} tokens, but the model's context "
                f"is {context}: give --work {fitting or 'of another --model'}"
            )
    return [works[name] for name in table.names if name in works]
