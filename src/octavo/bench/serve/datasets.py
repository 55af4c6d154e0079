"""What is asked: drawn at random, or read from files. All of it as text."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TypeVar, cast

import msgspec

from octavo.bench.serve.load import Chain
from octavo.bench.serve.stream import Ask
from octavo.bench.serve.words import Words
from octavo.bench.workload import draw
from octavo.errors import ConfigError

_Row = TypeVar("_Row", bound=msgspec.Struct)

_CHARS_PER_TOKEN = 4
"""Of English; for answers in files, of which only the length counts."""
_FEWEST_CHARS = 3
"""Per token, of what agents write: code and numbers too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long random prompts and answers are, in tokens. Raises ConfigError."""

    input: int = 1024
    output: int = 128
    range_ratio: float = 0.0
    """Both are drawn evenly from (1 - ratio) to (1 + ratio) of that."""
    prefix: int = 0
    """The same tokens in front of every prompt, beside `input`."""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("--random-input-len", self.input, 1),
            ("--random-output-len", self.output, 1),
            ("--random-prefix-len", self.prefix, 0),
        ):
            if value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        if not 0 <= self.range_ratio < 1:
            raise ConfigError(
                f"--random-range-ratio must be from 0 to below 1, got {self.range_ratio}"
            )

    def draw(self, random: Random) -> tuple[int, int]:
        """Return lengths of a prompt and its answer."""
        return self._spread(self.input, random), self._spread(self.output, random)

    def _spread(self, mean: int, random: Random) -> int:
        reach = int(mean * self.range_ratio)
        return max(1, random.randint(mean - reach, mean + reach))


def random_asks(words: Words, count: int, lengths: Lengths, seed: int) -> list[Chain]:
    """Draw prompts that share what `lengths.prefix` says and nothing else."""
    random = Random(f"random {seed}")
    head = words.text(lengths.prefix, random)
    chains: list[Chain] = []
    for _ in range(count):
        prompt, output = lengths.draw(random)
        text = head + words.text(prompt, random)
        chains.append((_ask(text, lengths.prefix + prompt, output),))
    return chains


def sharegpt_like_asks(
    words: Words, count: int, longest: int, seed: int, output: int | None = None
) -> list[Chain]:
    """Draw prompts whose lengths are like those of ShareGPT.

    longest: with the answer. output: tokens of every answer, if not like those of ShareGPT.
    """
    work = draw("sharegpt-lognormal", requests=count, max_length=longest, seed=seed)
    random = Random(f"sharegpt {seed}")
    return [
        (_ask(words.text(prompt, random), prompt, output or own),) for prompt, own in work.lengths
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """Prompts of a few heads and many tails, in tokens. Raises ConfigError."""

    prefix: int = 256
    suffix: int = 256
    prefixes: int = 10
    output: int = 128

    def __post_init__(self) -> None:
        for name, value in (
            ("--prefix-repetition-prefix-len", self.prefix),
            ("--prefix-repetition-suffix-len", self.suffix),
            ("--prefix-repetition-num-prefixes", self.prefixes),
            ("--prefix-repetition-output-len", self.output),
        ):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")


def repetition_asks(words: Words, count: int, shape: Repetition, seed: int) -> list[Chain]:
    """Draw prompts that share one of a few heads, in random order."""
    random = Random(f"repetition {seed}")
    heads = [words.text(shape.prefix, random) for _ in range(shape.prefixes)]
    size = shape.prefix + shape.suffix
    chains: list[Chain] = [
        (_ask(heads[number % len(heads)] + words.text(shape.suffix, random), size, shape.output),)
        for number in range(count)
    ]
    random.shuffle(chains)
    return chains


# ── files ─────────────────────────────────────────────────────────────────────────────────────


def read_data(path: Path) -> str:
    """Return a UTF-8 file, plain or .gz. Raises ConfigError."""
    try:
        data = path.read_bytes()
        data = gzip.decompress(data) if path.suffix == ".gz" else data
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}") from None
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read {path}: {reason}") from None


def _rows(path: Path) -> Iterator[tuple[str, object]]:
    """Yield the rows of JSON lines, or of one JSON list, and where each is."""
    text = read_data(path)
    if text.lstrip().startswith("["):
        try:
            rows = cast("list[object]", json.loads(text))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{path} is no JSON: {error}") from None
        for number, row in enumerate(rows):
            yield f"{path}, row {number}", row
        return
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            where = f"{path}, line {number}"
            try:
                yield where, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{where} is no JSON: {error}") from None


class _Turn(msgspec.Struct):
    value: str = ""


class _Conversation(msgspec.Struct):
    conversations: list[_Turn] = msgspec.field(default_factory=list[_Turn])


class _Prompt(msgspec.Struct):
    prompt: str
    output_tokens: int | None = None


def read_sharegpt(path: Path, count: int, output: int | None, seed: int) -> list[Chain]:
    """Read the first turn of conversations as ShareGPT has them, in random order.

    output: tokens of every answer; None: as long as the second turn. Raises ConfigError.
    """
    pairs: list[tuple[str, int]] = []
    for where, row in _rows(path):
        one = _convert(where, row, _Conversation)
        if len(one.conversations) >= 2 and one.conversations[0].value:
            prompt, answer = (turn.value for turn in one.conversations[:2])
            pairs.append((prompt, output or _guess(answer)))
    Random(f"sharegpt {seed}").shuffle(pairs)
    return _some(path, [(_ask(text, None, length),) for text, length in pairs], count)


def read_custom(path: Path, count: int, output: int | None) -> list[Chain]:
    """Read JSON lines of prompt and, if `output` is None, output_tokens. Raises ConfigError."""
    chains: list[Chain] = []
    for where, row in _rows(path):
        one = _convert(where, row, _Prompt)
        length = output or one.output_tokens
        if not length or length < 1:
            raise ConfigError(f"{where} has no output_tokens: give --output-len")
        chains.append((_ask(one.prompt, None, length),))
    return _some(path, chains, count)


class _Call(msgspec.Struct):
    timestamp: float
    input: str
    output: str = ""
    session_id: str = ""


def read_agents(path: Path, count: int, output: int | None, longest: int) -> list[Chain]:
    """Read sessions of agents: each call waits for the one before it in its session.

    A session ends before the first call that might not fit into `longest` tokens, at three
    characters each. count: calls; the first ones of all sessions are taken before the second.
    Raises ConfigError. Source of the format: LMCache's agent traces.
    """
    sessions: dict[str, list[_Call]] = {}
    for where, row in _rows(path):
        one = _convert(where, row, _Call)
        if one.input:
            sessions.setdefault(one.session_id, []).append(one)
    whole = [_calls(own, output, longest) for own in sessions.values()]
    begun: list[list[Ask]] = [[] for _ in whole]
    for turn in range(max(map(len, whole), default=0)):
        for chain, own in zip(whole, begun, strict=True):
            if turn < len(chain) and count > 0:
                own.append(chain[turn])
                count -= 1
    return _some(path, [tuple(own) for own in begun if own], len(begun))


def _calls(calls: list[_Call], output: int | None, longest: int) -> Chain:
    chain: list[Ask] = []
    for one in sorted(calls, key=lambda call: call.timestamp):
        length = output or _guess(one.output)
        if len(one.input) // _FEWEST_CHARS + length > longest:
            break
        chain.append(_ask(one.input, None, length))
    return tuple(chain)


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceRequest:
    """One request of a recorded trace: when it came, how long it was, what it begins like."""

    time_s: float
    prompt_tokens: int
    output_tokens: int
    keys: tuple[bytes, ...] = ()
    """Of its prompt's blocks; equal ones stand for equal texts."""


def trace_asks(
    words: Words, requests: Iterable[TraceRequest], block_size: int, *, longest: int, seed: int
) -> tuple[list[Chain], int]:
    """Spell a trace: equal keys give equal words. Returns it, and how many were too long."""
    chains: list[Chain] = []
    left_out = 0
    for number, one in enumerate(requests):
        if one.prompt_tokens + one.output_tokens > longest:
            left_out += 1
            continue
        names = [key.hex() for key in one.keys]
        blocks = -(-one.prompt_tokens // block_size)
        names += [f"{number}, block {place}" for place in range(len(names), blocks)]
        sizes = [block_size] * (one.prompt_tokens // block_size)
        sizes += [one.prompt_tokens % block_size] * (one.prompt_tokens % block_size > 0)
        text = "".join(
            words.text(size, Random(f"trace {seed} {name}"))
            for name, size in zip(names, sizes, strict=False)
        )
        output = max(1, one.output_tokens)
        chains.append((_ask(text, one.prompt_tokens, output, one.time_s),))
    return chains, left_out


def _ask(text: str, tokens: int | None, output: int, arrival_s: float = 0.0) -> Ask:
    return Ask(text=text, output_tokens=output, prompt_tokens=tokens, arrival_s=arrival_s)


def _guess(text: str) -> int:
    return max(1, len(text) // _CHARS_PER_TOKEN)


def _convert(where: str, row: object, kind: type[_Row]) -> _Row:
    try:
        return msgspec.convert(row, kind)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{where}: {error}") from None


def _some(path: Path, chains: list[Chain], count: int) -> list[Chain]:
    if not chains:
        raise ConfigError(f"{path} holds nothing to ask that fits")
    return chains[:count]
