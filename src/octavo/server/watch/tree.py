"""The texts in memory as a tree: each node a run of blocks that only one text goes on from."""

from __future__ import annotations

import numpy as np

from octavo.contract.memory_view import CellState
from octavo.server.watch.mirror import KEY_BYTES, Column, Mirror

_MOST_BLOCKS = 32_768
"""Of more blocks than this, those of the lowest numbers are looked at."""
_NO_KEY = bytes(KEY_BYTES)


class Tree:
    """Finds the nodes of most use. group: the KV group whose blocks stand for the texts.

    Working it out costs O(blocks), some microseconds each: it is not done for every frame.
    """

    def __init__(self, mirror: Mirror, group: int = 0) -> None:
        self._mirror = mirror
        self._group = group

    def told(self, most: int, mine: Column | None) -> dict[str, object]:
        """Return at most so many nodes: those of most tokens and hits, and all above them.

        mine: the blocks that count, by number; None: all.
        """
        mirror = self._mirror
        there = mirror.group == self._group
        if mine is not None:
            there = there & mine
        index = np.flatnonzero(there)[:_MOST_BLOCKS]
        keys = mirror.keys[index].tobytes()
        has = np.array([keys[at : at + KEY_BYTES] != _NO_KEY for at in _starts(len(index))], bool)
        index = index[has] if len(index) else index
        if not len(index):
            return {"group": self._group, "nodes": [], "total": 0, "shown": 0}
        above = self._parents(index)
        children = np.bincount(above[above >= 0], minlength=len(index))
        head = (above < 0) | (children[above] != 1)
        node = np.where(head, np.arange(len(index)), above)
        while True:
            further = node[node]
            if np.array_equal(further, node):
                break
            node = further
        return self._nodes(most, index, above, node, np.flatnonzero(head))

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _parents(self, index: Column) -> Column:
        """Return, for each block, the place in `index` of the one before it; -1: none is."""
        mirror, starts = self._mirror, _starts(len(index))
        keys, parents = mirror.keys[index].tobytes(), mirror.parents[index].tobytes()
        place = {keys[at : at + KEY_BYTES]: number for number, at in enumerate(starts)}
        return np.array([place.get(parents[at : at + KEY_BYTES], -1) for at in starts], np.int64)

    def _nodes(
        self, most: int, index: Column, above: Column, node: Column, heads: Column
    ) -> dict[str, object]:
        mirror, count = self._mirror, len(index)
        blocks = np.bincount(node, minlength=count)
        tokens = np.bincount(node, mirror.tokens[index], count).astype(np.int64)
        held = np.bincount(node, mirror.refs[index] > 0, count).astype(np.int64)
        pinned = mirror.state[index] == CellState.PINNED
        kept = np.bincount(node, pinned, count).astype(np.int64)
        hits, used = np.zeros(count, np.int64), np.zeros(count, np.int64)
        np.maximum.at(hits, node, mirror.hits[index])
        np.maximum.at(used, node, mirror.used[index])
        last = np.zeros(count, np.int64)
        order = np.argsort(mirror.depth[index], kind="stable")
        last[node[order]] = index[order]  # the deepest is written last
        parent = np.where(above[heads] >= 0, node[above[heads]], -1)
        parents = dict(zip(heads.tolist(), parent.tolist(), strict=True))
        branches = np.bincount(parent[parent >= 0], minlength=count)
        score = tokens[heads] * (1 + hits[heads])
        chosen = _chosen(most, heads[np.argsort(-score, kind="stable")].tolist(), parents)
        size = int(self._sizes())
        nodes = [
            {
                "node": int(index[one]),
                "parent": int(index[parents[one]]) if parents[one] >= 0 else None,
                "blocks": int(blocks[one]),
                "tokens": int(tokens[one]),
                "hits": int(hits[one]),
                "used_s": float(used[one]) / 10,
                "held": int(held[one]),
                "pinned": int(kept[one]),
                "last": int(last[one]),
                "children": int(branches[one]),
                "depth": int(mirror.depth[index[one]]) * size,
            }
            for one in chosen
        ]
        return {
            "group": self._group,
            "nodes": nodes,
            "total": len(heads),
            "shown": len(nodes),
        }

    def _sizes(self) -> int:
        return self._mirror.block_sizes[self._group]


def _chosen(most: int, best: list[int], parents: dict[int, int]) -> list[int]:
    """Return the best nodes for which there is room with all that lie above them."""
    chosen: dict[int, None] = {}
    for one in best:
        chain = list[int]()
        while one >= 0 and one not in chosen:
            chain.append(one)
            one = parents[one]
        if len(chosen) + len(chain) <= most:
            chosen.update(dict.fromkeys(reversed(chain)))
        if len(chosen) == most:
            break
    return list(chosen)


def _starts(count: int) -> range:
    return range(0, count * KEY_BYTES, KEY_BYTES)
