"""Says why a text was not found further: from what is there, and from what is remembered."""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from octavo.contract.ids import BlockKey
from octavo.contract.misses import Miss, MissReason
from octavo.contract.namespace import Namespace
from octavo.contract.request import Sequence
from octavo.memory.departures import Departure
from octavo.memory.groups import Groups
from octavo.memory.keys import KEY_BYTES, TOKEN_BYTES
from octavo.memory.policies.use_counts import Recent
from octavo.memory.prefix import Hit, block_text
from octavo.memory.tier import Text, Tier

_FIRST_TEXTS = 4096
"""Beginnings of texts whose namespaces are remembered, at most."""

_EVICTED = (MissReason.EVICTED, MissReason.EXPIRED)


class MissFinder:
    """Looks at the block that a hit lacks next. O(1) per request, whatever its length.

    Of texts in other namespaces it knows the hash of the first unit and who wrote it last.
    """

    def __init__(self, groups: Groups, tiers: tuple[Tier, ...]) -> None:
        self._groups = groups
        self._device = tiers[0]
        self._slower = tiers[1:]
        self._first_texts: Recent[Namespace] = Recent(_FIRST_TEXTS)
        self._alone = not self._device.pool.shares.several
        """All that was ever evicted was one caller's: its number tells of nobody else's load."""
        self._salt: str | None = None
        """Of the first text."""

    def explain(self, seq: Sequence, hit: Hit) -> Miss | None:
        """Say why no more of a sequence was found than this; None: all was. Changes nothing.

        hit: of a look-up, before the sequence is admitted: then its own blocks are known too.
        """
        tokens, align = seq.reusable - hit.tokens, self._groups.align
        if tokens <= 0:
            return None
        whole = hit.tokens // align * align
        # What would only have been of use in part is found on the device alone, if at all.
        parts = self._device.siblings is not None
        lacking = self._lacking(seq, whole, seq.length if parts else seq.reusable)
        brought = self._lacking(seq, whole, seq.reusable) if self._slower else ()
        slower = any(tier.find(group, text) for tier in self._slower for group, text in brought)
        left = None if slower else self._departure(lacking)
        if left is not None:
            return self._gone(left, hit.tokens, tokens)
        if slower:
            reason = MissReason.NOT_LOADED
        elif self._diverges(seq, hit, whole):
            reason = MissReason.DIVERGED
        elif seq.reusable - whole < min(self._groups.sizes):
            reason = MissReason.TOO_SHORT
        else:
            reason = MissReason.FIRST_SEEN
        elsewhere = () if whole else self._differing(seq)
        return Miss(reason=reason, position=hit.tokens, tokens=tokens, elsewhere=elsewhere)

    def _gone(self, left: Departure, position: int, tokens: int) -> Miss:
        departures, evicted = self._device.departures, left.reason in _EVICTED
        assert departures is not None, "a text has left a tier that remembers none"
        since = self._device.pool.evictions - left.evictions
        return Miss(
            reason=left.reason,
            position=position,
            tokens=tokens,
            policy=departures.policy if left.reason is MissReason.EVICTED else None,
            age_s=departures.now_s - left.at_s,
            evicted_since=since if evicted and self._alone else None,
        )

    def remember(self, seq: Sequence, hit: Hit) -> None:
        """Note that a text is written in this namespace, and who is there."""
        salt = seq.request.namespace.salt
        if self._salt is None:
            self._salt = salt
        self._alone = self._alone and salt == self._salt
        if seq.units and hit.tokens < self._groups.align:
            self._first_texts.put(_first_text(seq), seq.request.namespace)

    def _lacking(self, seq: Sequence, start: int, end: int) -> list[tuple[int, Text]]:
        """Return the groups that lack a block from an aligned position on, and its text.

        end: where such a block ends at the latest.
        """
        groups = self._groups
        texts = [
            (group, block_text(groups, seq, group, start // size))
            for group, size in enumerate(groups.sizes)
            if start + size <= end
        ]
        return [(group, text) for group, text in texts if self._device.find(group, text) is None]

    def _departure(self, lacking: list[tuple[int, Text]]) -> Departure | None:
        """Return how one of these texts left the device, if that is remembered."""
        departures = self._device.departures
        if departures is None:
            return None
        left = (departures.get(group, text.key) for group, text in lacking)
        return next((one for one in left if one is not None), None)

    def _diverges(self, seq: Sequence, hit: Hit, whole: int) -> bool:
        """True if another text goes on where this one was found to end."""
        ends = [block for block in hit.tails if block is not None]
        if not ends:
            return whole > 0 and self._has_siblings(seq, whole)
        # The end of an earlier turn, taken whole, is left by nobody.
        sizes = self._groups.sizes
        return any(len(end.tokens) > hit.tokens % sizes[end.group] * TOKEN_BYTES for end in ends)

    def _has_siblings(self, seq: Sequence, start: int) -> bool:
        """True if other committed texts go on where this one was found to end."""
        siblings = self._device.siblings
        if siblings is None:
            return False
        parent = seq.keys[start // self._groups.unit - 1] if start else seq.root
        return any(siblings.follow(group, parent) for group in range(len(self._groups)))

    def _differing(self, seq: Sequence) -> tuple[str, ...]:
        """Return in which fields the namespace differs in which a text began like this last."""
        known = self._first_texts.get(_first_text(seq)) if seq.units else None
        if known is None:
            return ()
        own = seq.request.namespace
        names = [field.name for field in msgspec.structs.fields(Namespace)]
        return tuple(name for name in names if getattr(known, name) != getattr(own, name))


def _first_text(seq: Sequence) -> BlockKey:
    """Hash the first unit of a text, whatever its namespace."""
    return blake2b(seq.units[0], digest_size=KEY_BYTES, person=b"octavo.first").digest()
