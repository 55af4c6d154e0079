"""How long blocks stay: measured on those that are followed, told when they go."""

from __future__ import annotations

from random import Random

import pytest

from octavo.build import build_engine
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.memory.residency import Residency
from octavo.testing.damage import DAMAGES
from octavo.testing.desk import Desk

TEXT = range(1, 9)  # two blocks


class Followed:
    """A desk of four blocks, what is told of them, and a clock."""

    def __init__(self, share=1.0, blocks=4):
        self.lifetimes, self.idle, self.gaps = [], [], []
        self.desk = Desk.paged(blocks, partial_blocks=False)
        self.desk.tiers[0].pool.residency = Residency(
            share, lifetime=self.lifetimes.append, idle=self.idle.append, gap=self.gaps.append
        )

    def at(self, now_s):
        self.desk.cache.pass_time(now_s)
        return self.desk


def test_an_evicted_text_tells_how_long_it_was_there_and_how_long_of_no_use():
    followed = Followed()
    seq = followed.at(10).written(TEXT)
    followed.at(13).release(seq)
    followed.at(20).running(range(50, 65))

    assert followed.lifetimes == [10, 10]
    assert followed.idle == [7, 7]
    assert followed.gaps == []


def test_a_text_that_is_used_again_tells_how_long_it_had_lain_idle():
    followed = Followed()
    followed.at(10).release(followed.at(10).written(TEXT))
    again = followed.at(14).running([*TEXT, 9])
    assert followed.gaps == [4, 4]

    followed.at(15).commit()
    followed.at(16).release(again)
    followed.at(21).running(range(50, 65))
    assert followed.idle[:2] == [5, 5]
    assert max(followed.lifetimes) == 11


def test_a_shared_use_is_no_gap():
    followed = Followed()
    followed.at(10).written(TEXT)
    followed.at(14).running([*TEXT, 9])

    assert followed.gaps == []


def test_a_block_that_was_free_again_is_followed_from_when_it_is_given_out_next():
    followed = Followed(blocks=2)
    followed.at(1).release(followed.at(1).written([1]))
    followed.at(9).release(followed.at(9).written([1, 2, 3, 4]))
    followed.at(12).running([7] * 7)

    assert followed.lifetimes == [3]


def test_only_a_share_of_the_blocks_is_followed():
    followed = Followed(share=0.25, blocks=400)
    followed.at(1).release(followed.at(1).written(range(1599)))
    followed.at(2).running(range(5000, 6599))

    assert 60 < len(followed.lifetimes) < 140


def test_beginning_again_follows_none_of_those_that_were_there():
    followed = Followed()
    followed.at(1).release(followed.at(1).written(TEXT))
    assert DAMAGES["held is wrong"](followed.desk.tiers[0], Random(1))
    followed.desk.cache.quarantine()
    followed.at(2).running(range(50, 65))

    assert followed.lifetimes == []


def test_an_engine_measures_it_on_request(tiny_gguf):
    config = EngineConfig(
        model=str(tiny_gguf), num_gpu_blocks_override=8, kv_cache_metrics=True,
        kv_cache_metrics_sample=1,
    )  # fmt: skip
    built = build_engine(config, report=lambda text: None)
    built.engine.close()

    assert built.engine.loop.block_times is not None


@pytest.mark.parametrize("share", [0, 1.5, True, "much"])
def test_a_share_of_nothing_or_of_more_than_all_is_refused(share):
    with pytest.raises(ConfigError, match="kv_cache_metrics_sample must be above 0"):
        EngineConfig(kv_cache_metrics_sample=share)
