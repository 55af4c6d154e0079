"""How the rows of a step are cut for the parts of a decoder that treat every row alone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowTiles:
    """Row counts in which a step is computed; a step is padded to a sum of them.

    Matrix libraries choose their code by shape, so that a row's bits may depend on how many rows
    are computed with it. With sizes that were found to agree bit for bit they do not.
    """

    sizes: tuple[int, ...] = ()
    """Ascending; empty: all rows of a step at once, unpadded."""

    def split(self, rows: int) -> tuple[int, ...]:
        """Cut a step: the largest size while it is full, then the smallest that holds the rest.

        The sum is at least `rows`.
        """
        if not rows or not self.sizes:
            return (rows,) if rows else ()
        full, rest = divmod(rows, self.sizes[-1])
        tail = next((size for size in self.sizes if size >= rest), 0) if rest else 0
        return (self.sizes[-1],) * full + ((tail,) if tail else ())


ALL_AT_ONCE = RowTiles()
"""No tiles: the fastest way, for steps whose bits may depend on the batch."""
