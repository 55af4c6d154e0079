"""A pool of so many blocks, and how long prompts share steps."""

from __future__ import annotations

import pytest

from octavo.build import build_engine
from octavo.config import EngineConfig
from octavo.contract.request import Request
from octavo.contract.sampling import SamplingParams
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
    with pytest.raises(ConfigError, match="long_prefill_token_threshold must be at least 0"):
        EngineConfig(long_prefill_token_threshold=-1)
    with pytest.raises(ConfigError, match="max_long_partial_prefills must be at least 1"):
        EngineConfig(max_long_partial_prefills=0)


@pytest.mark.parametrize(
    ("given", "pieces"), [(None, [128, 128, 44]), (200, [200, 100]), (0, [300])]
)
def test_a_cpu_computes_short_pieces_of_long_prompts_unless_told(tiny_gguf, given, pieces):
    config = EngineConfig(
        model=str(tiny_gguf),
        device="cpu",
        kv_cache_memory_bytes=4 << 20,
        long_prefill_token_threshold=given,
    )
    built = build_engine(config, report=lambda text: None, text=False)
    computed: list[int] = []
    loop = built.engine.loop
    loop.show_plans(lambda batch, at_s: computed.append(len(batch.slices[0].tokens)))
    prompt = tuple(3 + place % 90 for place in range(300))
    params = SamplingParams(max_tokens=1)
    loop.add(Request(id="r", prompt=prompt, sampling=params, seed=0, namespace=built.namespace))

    while loop.busy:
        loop.step()
    built.engine.close()

    assert computed == pieces
    assert built.long_prefill_tokens == (128 if given is None else given)
