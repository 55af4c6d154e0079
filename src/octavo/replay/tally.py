"""What a replay counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.replay.trace import RecordedRequest


class Counted(NamedTuple):
    """What one request gave."""

    references: int
    hits: int


@dataclass(slots=True)
class Tally:
    """Hits so far; a hit is a block of the longest prefix that the cache held."""

    requests: int = 0
    references: int = 0
    """Blocks of prompts, a partial last one counted as one."""
    hits: int = 0
    full_references: int = 0
    """The same without partial last blocks."""
    full_hits: int = 0
    prompt_tokens: int = 0
    hit_tokens: int = 0
    evictions: int = 0
    each: list[Counted] = field(default_factory=list[Counted])
    """Of each request, in order."""

    def count(self, request: RecordedRequest, hits: int, block_size: int) -> None:
        """Take in a request whose first `hits` blocks were found."""
        full = request.prompt_tokens // block_size
        self.requests += 1
        self.each.append(Counted(len(request.keys), hits))
        self.references += len(request.keys)
        self.hits += hits
        self.full_references += full
        self.full_hits += min(hits, full)
        self.prompt_tokens += request.prompt_tokens
        self.hit_tokens += min(hits * block_size, request.prompt_tokens)

    @property
    def hit_rate(self) -> float:
        """Share of block references that hit."""
        return _share(self.hits, self.references)

    @property
    def full_hit_rate(self) -> float:
        """The same, of references to full blocks."""
        return _share(self.full_hits, self.full_references)

    @property
    def token_hit_rate(self) -> float:
        """Share of prompt tokens that need no computing."""
        return _share(self.hit_tokens, self.prompt_tokens)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
