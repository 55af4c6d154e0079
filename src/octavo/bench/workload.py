"""How long prompts and answers are: named distributions, drawn from a seed."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Lengths whose logarithm is normal, drawn independently for prompt and answer."""

    mean_input: float
    mean_output: float
    sigma_input: float = 1.0
    """Standard deviation of the logarithm."""
    sigma_output: float = 0.75

    def draw(self, random: Random, max_length: int) -> tuple[int, int]:
        """Return (prompt, answer) in tokens, each at least 1, together at most `max_length`."""
        prompt = _log_normal(random, self.mean_input, self.sigma_input)
        output = _log_normal(random, self.mean_output, self.sigma_output)
        return clip(prompt, output, max_length)

    def slices(self, count: int) -> tuple[list[int], list[int]]:
        """Return the means of `count` equally likely slices of each length, ascending."""
        return (
            _slices(self.mean_input, self.sigma_input, count),
            _slices(self.mean_output, self.sigma_output, count),
        )


DISTRIBUTIONS = {
    "sharegpt-lognormal": LogNormal(161.31, 337.99),
    "alpaca-lognormal": LogNormal(19.31, 58.45),
}
"""Means as the PagedAttention paper states them for its two data sets (Kwon et al., SOSP 2023,
figure 11); the shape is ours, since the paper gives none in numbers."""

DEFAULT_DISTRIBUTION = "sharegpt-lognormal"


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests by their lengths alone."""

    name: str
    distribution: str
    """How the lengths came about, in words."""
    lengths: tuple[tuple[int, int], ...]
    """(prompt, answer) in tokens."""
    seed: int | None
    """None: nothing is random about them."""

    @property
    def mean_input(self) -> float:
        """Mean prompt, in tokens, after clipping."""
        return sum(prompt for prompt, _ in self.lengths) / len(self.lengths)

    @property
    def mean_output(self) -> float:
        """Mean answer, in tokens, after clipping."""
        return sum(output for _, output in self.lengths) / len(self.lengths)

    def keys(self, arrival: str) -> dict[str, object]:
        """Return what a JSON document says of a workload."""
        return {
            "name": self.name,
            "requests": len(self.lengths),
            "mean_input": self.mean_input,
            "mean_output": self.mean_output,
            "distribution": self.distribution,
            "arrival": arrival,
            "seed": self.seed,
        }


def draw(name: str, *, requests: int, max_length: int, seed: int) -> Workload:
    """Draw a workload from a named distribution; the same seed gives the same lengths.

    The first lengths do not depend on `requests`. Raises ConfigError for an unknown name.
    """
    if name not in DISTRIBUTIONS:
        raise ConfigError(f"distribution {name!r} is not one of {', '.join(DISTRIBUTIONS)}")
    source, random = DISTRIBUTIONS[name], Random(seed)
    lengths = tuple(source.draw(random, max_length) for _ in range(requests))
    words = (
        f"log-normal, means {source.mean_input} / {source.mean_output}, sigma "
        f"{source.sigma_input} / {source.sigma_output}, clipped to {max_length} in all"
    )
    return Workload(name, words, lengths, seed)


_PAIRINGS = 1000


def draw_evenly(name: str, *, requests: int, max_length: int, seed: int) -> Workload:
    """Take lengths that few requests can stand for a distribution with.

    Each distribution is cut into `requests` slices, equally likely, and the mean of each is taken,
    so that the mean of all is right, long tail included. Prompts and answers are paired at random:
    of 1,000 pairings the one that is least correlated, as independent draws are. Raises
    ConfigError for an unknown name.
    """
    if name not in DISTRIBUTIONS:
        raise ConfigError(f"distribution {name!r} is not one of {', '.join(DISTRIBUTIONS)}")
    source, random = DISTRIBUTIONS[name], Random(seed)
    prompts, outputs = source.slices(requests)
    apart = requests * (sum(prompts) / requests) * (sum(outputs) / requests)

    def shuffled() -> list[int]:
        return random.sample(prompts, requests)

    def correlation(order: list[int]) -> float:
        return abs(sum(p * o for p, o in zip(order, outputs, strict=True)) - apart)

    order = min((shuffled() for _ in range(_PAIRINGS)), key=correlation)
    pairs = zip(order, outputs, strict=True)
    lengths = tuple(clip(prompt, output, max_length) for prompt, output in pairs)
    words = (
        f"means of {requests} equally likely slices of a log-normal, means {source.mean_input} / "
        f"{source.mean_output}, sigma {source.sigma_input} / {source.sigma_output}, paired without "
        f"correlation, clipped to {max_length} in all"
    )
    return Workload(name, words, lengths, seed)


def clip(prompt: int, output: int, max_length: int) -> tuple[int, int]:
    """Cut lengths to at least one token each and `max_length` together, the prompt first."""
    prompt = min(max(1, prompt), max_length - 1)
    return prompt, min(max(1, output), max_length - prompt)


def _log_normal(random: Random, mean: float, sigma: float) -> int:
    # The mean of a log-normal variable is exp(mu + sigma² / 2).
    return round(random.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))


def _slices(mean: float, sigma: float, count: int) -> list[int]:
    # Below a point, e^x has the share of its mean that the normal has below it moved by sigma.
    normal = NormalDist()
    inner = [normal.inv_cdf(number / count) for number in range(1, count)]
    shares = [0.0, *(normal.cdf(point - sigma) for point in inner), 1.0]
    return [
        max(1, round(count * mean * (above - below))) for below, above in itertools.pairwise(shares)
    ]
