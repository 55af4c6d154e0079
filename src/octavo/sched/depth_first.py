"""Depth first over the tree of waiting prompts: who shares a prefix runs together."""

from __future__ import annotations

from octavo.contract.ids import BlockKey, SeqId
from octavo.contract.request import Request, Sequence
from octavo.sched.turns import Known, Turns


class DepthFirst:
    """Classes by priority number; inside a class, one branch of the tree of prompts after another.

    Of the branches at a node, the one with most waiting sequences goes first. window: sequences of
    a class that make up the tree. max_passed: by how many others one may be passed over. Source:
    SGLang's `dfs-weight`.
    """

    def __init__(self, *, window: int = 128, max_passed: int = 256) -> None:
        self._window = window
        self._max_passed = max_passed
        self.turns()

    def urgency(self, request: Request) -> int:
        """Return the request's own number."""
        return request.priority

    def turns(self) -> Turns:
        """Return what chooses inside one queue."""
        return Turns(_Tree(), window=self._window, max_passed=self._max_passed)


class _Node:
    __slots__ = ("branches", "ends", "key", "parent", "weight")

    def __init__(self, key: BlockKey, parent: _Node | None) -> None:
        self.key = key
        self.parent = parent
        self.branches: dict[BlockKey, _Node] = {}
        self.ends: dict[SeqId, Sequence] = {}
        """Whose prompt has no further full unit; oldest first."""
        self.weight = 0
        """Waiting sequences here and below."""


class _Tree:
    """The prompts of the waiting sequences, unit by unit; a prompt costs O(units) once."""

    def __init__(self) -> None:
        self._root = _Node(b"", None)
        self._leaves: dict[SeqId, _Node] = {}
        self._last = self._root
        """Where the sequence ended that was chosen last; it may be there no more."""

    def pick(self, waiting: list[Sequence], known: Known) -> Sequence:
        """Choose one near the last: in the lowest branch around it that has any left."""
        self._follow(waiting, known)
        node = self._last
        while not node.weight:
            assert node.parent is not None, "the tree is empty"
            node = node.parent
        while not node.ends:
            node = max(node.branches.values(), key=_weight)
        self._last = node
        return next(iter(node.ends.values()))

    def _follow(self, waiting: list[Sequence], known: Known) -> None:
        """Take in who has come, and let go of who has left."""
        there = {seq.id for seq in waiting}
        for seq_id in [one for one in self._leaves if one not in there]:
            self._remove(seq_id)
        for seq in waiting:
            if seq.id not in self._leaves:
                known(seq, 0)  # then its keys are there
                self._add(seq)

    def _add(self, seq: Sequence) -> None:
        node = self._root
        node.weight += 1
        for key in seq.keys:
            branch = node.branches.get(key)
            if branch is None:
                branch = node.branches[key] = _Node(key, node)
            node = branch
            node.weight += 1
        node.ends[seq.id] = seq
        self._leaves[seq.id] = node

    def _remove(self, seq_id: SeqId) -> None:
        node: _Node | None = self._leaves.pop(seq_id)
        del node.ends[seq_id]
        while node is not None:
            node.weight -= 1
            parent = node.parent
            if not node.weight and parent is not None:
                del parent.branches[node.key]
            node = parent


def _weight(node: _Node) -> int:
    return node.weight
