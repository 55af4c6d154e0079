"""What releasing victims is said to give back is what it gives back."""

from __future__ import annotations

from random import Random

import pytest

from octavo.contract.retention import DEFAULT_TENANT, Retention, TenantShare
from octavo.errors import RequestError
from octavo.testing.desk import Desk

PREFIXES = ([1] * 8, [1] * 16, [2] * 12, [3, 4] * 6, [])
SHARES = (
    (),
    (TenantShare("a", 0.3, 0.6), TenantShare("b", 0.2)),
    (TenantShare("a", 0.0, 0.5), TenantShare("b", 0.4), TenantShare(DEFAULT_TENANT, 0.1, 0.9)),
)


def crowded(seed):
    """A desk that is full, its running sequences, and where to draw more from."""
    draw = Random(seed)
    shares = draw.choice(SHARES)
    names = sorted({DEFAULT_TENANT, *(one.name for one in shares)})
    desk = Desk.paged(
        draw.randint(16, 30), tenants=shares, pin_limit=0.4, partial_blocks=draw.random() < 0.5
    )
    running = []
    for turn in range(30):
        prompt = draw.choice(PREFIXES) + [10 + turn] * draw.randint(1, 9)
        pin = draw.choice((None, None, "x", "y"))
        end = draw.choice((4, 8, None))
        keep = (Retention(end=end, pin=pin),) if pin else ()
        try:
            seq = desk.waiting(prompt, tenant=draw.choice(names), retention=keep)
        except RequestError:
            continue
        if desk.admit(seq, draw.randint(1, seq.length)):
            running.append(seq)
        if running and draw.random() < 0.5:
            desk.commit()
        if running and draw.random() < 0.3:
            desk.release(running.pop(draw.randrange(len(running))))
        desk.cache.check()
    desk.commit()
    return desk, running, names, draw


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_a_shortage_falls_by_the_relief_that_was_told(first):
    for seed in range(first, first + 50):
        desk, running, names, draw = crowded(seed)
        try:
            seq = desk.waiting([99] * draw.choice((20, 30, 40)), tenant=draw.choice(names))
        except RequestError:
            continue
        hit = desk.cache.lookup(seq)
        draw.shuffle(running)
        left = [desk.cache.shortage(seq, hit)]
        told = [left[0]]
        for relief in desk.cache.relief(seq, hit, running):
            told.append(told[-1] - relief)
        for victim in running[:-1]:  # beside the last one, nothing need be left free
            desk.release(victim)
            left.append(desk.cache.shortage(seq, hit))
        assert left[0] == 0 or left == [max(0, short) for short in told[:-1]], f"seed {seed}"
