"""Lives in which counts go wrong: what is wrong is found and set right, and all are answered."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest

from octavo.errors import Corrupted
from octavo.testing.damage import DAMAGES, damage
from octavo.testing.lives import Life

LIVES = 70


class DamagedLife(Life):
    """A life in which one count after the other is wrong, and checked before anything else."""

    def __init__(self, seed: int, **options) -> None:
        super().__init__(seed, **options)
        self.seen: Counter[str] = Counter()

    def _act(self) -> None:
        super()._act()
        if self.random.random() < 0.06 and not self.driver.cache.open_moves:
            self._go_wrong()

    def _go_wrong(self) -> None:
        driver, device = self.driver, self.driver.cache.device
        driver.settle()
        if driver.cache.open_moves:
            return
        before = len(device.pool.quarantined)
        kind = damage(device, self.random)
        self.seen[kind] += 1
        with pytest.raises(Corrupted):
            driver.cache.check()
        try:
            out = driver.quarantine()
        except Corrupted as error:
            raise Hopeless from error
        driver.cache.check()
        pool = device.pool
        usage = driver.cache.usage()
        assert before <= len(pool.quarantined) <= before + 1, f"{kind}: {pool.quarantined}"
        assert out == len(pool.quarantined)
        assert usage.blocks_used == usage.blocks_cached == 0
        assert pool.available + out == pool.size


class Hopeless(Exception):
    """More than half of the blocks are out."""


def live(seed: int, **options) -> DamagedLife:
    life = DamagedLife(seed, **options)
    with suppress(Hopeless):
        life.live()
    return life


@pytest.mark.parametrize("tenants", [False, True])
def test_whatever_count_goes_wrong_all_are_answered(tenants):
    seen: Counter[str] = Counter()
    for seed in range(LIVES):
        seen += live(50_000 + seed, tenants=tenants).seen

    assert set(seen) == set(DAMAGES), f"never tried: {set(DAMAGES) - set(seen)}"
