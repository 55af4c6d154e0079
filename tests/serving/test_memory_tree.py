"""Which nodes of the tree of texts a page is told of, and what it takes to find them."""

from __future__ import annotations

from random import Random

import pytest

from octavo.server.watch.tree import choose


class Counted(dict):
    """Counts how often it is asked."""

    asked = 0

    def __getitem__(self, key):
        self.asked += 1
        return super().__getitem__(key)


def plainly(most, best, parents):
    """Take each node with all above it that have not been taken, if there is room for them."""
    taken = []
    for one in best:
        above = []
        while one >= 0 and one not in taken:
            above.append(one)
            one = parents[one]
        if len(taken) + len(above) <= most:
            taken += reversed(above)
    return taken


@pytest.mark.parametrize("seed", range(200))
def test_the_best_nodes_are_told_with_all_above_them_as_far_as_there_is_room(seed):
    draw = Random(seed)
    count, reach = draw.randint(1, 40), draw.choice((1, 2, 40))
    parents = {one: draw.randint(max(-1, one - reach), one - 1) for one in range(count)}
    best, most = draw.sample(range(count), count), draw.randint(1, 12)

    assert choose(most, best, parents) == plainly(most, best, parents)


def test_a_long_text_that_branches_at_every_block_is_not_walked_for_each_branch():
    trunk = 2000
    parents = Counted({one: one - 1 for one in range(trunk)})
    parents.update({trunk + one: one for one in range(trunk)})

    choose(50, list(range(2 * trunk))[::-1], parents)

    assert parents.asked < 10 * trunk
