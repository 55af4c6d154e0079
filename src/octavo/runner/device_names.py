"""Names the likeliest tokens of rows of logits on a device, beside the token that stands there."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from torch import Tensor

from octavo.contract.batch import Logprobs
from octavo.runner.device_choice import find_best, log_probabilities, rank_of
from octavo.runner.device_rows import Piece, most_rows, reach
from octavo.runner.device_staging import Array


class Names:
    """Which places of a list of tokens are to be named, in pieces that fit some memory."""

    def __init__(self, tops: list[int | None], vocab_size: int, room_bytes: int) -> None:
        """tops: for each token, how many to name beside it; -1: all, None: it is not named."""
        counts = {
            place: vocab_size if top < 0 else min(top, vocab_size)
            for place, top in enumerate(tops)
            if top is not None
        }
        self.places = sorted(counts, key=lambda place: reach(counts[place]))
        """In the order in which they are worked on: those that need the same work together."""
        self._counts = [counts[place] for place in self.places]
        self._pieces = list(self._cut(vocab_size, room_bytes))

    def launch(self, logits: Tensor, rows: Tensor, levels: Tensor, tokens: Tensor) -> list[Tensor]:
        """Begin to name tokens; `read` takes what comes back.

        logits: [rows, vocab]; the others have one number for each of `places`: the row that it
        reads, the level of that row, and its token.
        """
        found: list[Tensor] = []
        for piece in self._pieces:
            part = slice(piece.first, piece.last)
            x = logits.index_select(0, rows[part])
            ids = find_best(x, piece.depth)
            values = log_probabilities(x.gather(1, ids), levels[part])
            found += ids.int(), values, rank_of(x, tokens[part])
        return found

    def read(
        self, found: list[Array], tokens: list[int], logprobs: list[float]
    ) -> dict[int, Logprobs]:
        """Return the names of each place that is named; tokens, logprobs: those of all places."""
        named: dict[int, Logprobs] = {}
        for number, piece in enumerate(self._pieces):
            ids, values, ranks = (one.tolist() for one in found[3 * number : 3 * number + 3])
            for row, at in enumerate(range(piece.first, piece.last)):
                place, count, rank = self.places[at], self._counts[at], ranks[row]
                best = tuple(ids[row][:count]), tuple(values[row][:count])
                ranking = tuple(range(1, count + 1))
                if rank <= count:
                    named[place] = Logprobs(*best, ranking)
                    continue
                named[place] = Logprobs(
                    (*best[0], tokens[place]), (*best[1], logprobs[place]), (*ranking, rank)
                )
        return named

    def _cut(self, vocab_size: int, room_bytes: int) -> Iterator[Piece]:
        for _, same in groupby(range(len(self._counts)), key=lambda at: reach(self._counts[at])):
            places = list(same)
            end = places[-1] + 1
            step = most_rows(self._counts[places[0]], vocab_size, room_bytes)
            for first in range(places[0], end, step):
                last = min(first + step, end)
                yield Piece(first, last, depth=max(self._counts[first:last]))
