"""A pool of so many blocks."""

from __future__ import annotations

import pytest

from octavo.build import build_engine
from octavo.config import EngineConfig
from octavo.errors import ConfigError


def blocks(tiny_gguf, **settings):
    config = EngineConfig(model=str(tiny_gguf), **settings)
    built = build_engine(config, report=lambda text: None, text=False)
    built.engine.close()
    return built.num_blocks


def test_the_pool_has_as_many_blocks_as_the_settings_say(tiny_gguf):
    assert blocks(tiny_gguf, num_gpu_blocks_override=37) == 37


@pytest.mark.parametrize("count", [1, 2**50])
def test_a_number_that_memory_or_a_sequence_does_not_allow_is_refused(tiny_gguf, count):
    with pytest.raises(ConfigError, match=f"num_gpu_blocks_override is {count}, but one sequence"):
        blocks(tiny_gguf, num_gpu_blocks_override=count, block_size=1)


def test_two_sizes_of_one_pool_are_refused():
    with pytest.raises(ConfigError, match="give one of them"):
        EngineConfig(num_gpu_blocks_override=4, kv_cache_memory_bytes=4096)


def test_how_long_prompts_are_served_is_checked():
    assert EngineConfig(long_prefill_token_threshold=512).max_long_partial_prefills == 2
    with pytest.raises(ConfigError, match="max_long_partial_prefills must be at least 1"):
        EngineConfig(max_long_partial_prefills=0)
