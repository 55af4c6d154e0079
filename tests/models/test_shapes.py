"""Published shapes: as large as the models whose names they have, and runnable by name."""

from __future__ import annotations

import math

import pytest

from octavo.errors import ConfigError
from octavo.models.families import FAMILIES
from octavo.models.shapes import SHAPES, find_shape
from octavo.models.weights import weight_shapes

# Numbers of weights, as the models' publishers and their safetensors files state them.
WEIGHTS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "mistral-7b": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_has_as_many_weights_as_the_published_model(name):
    shapes = weight_shapes(SHAPES[name])

    assert sum(math.prod(shape) for shape in shapes.values()) == WEIGHTS[name]


@pytest.mark.parametrize("spec", SHAPES.values(), ids=SHAPES)
def test_a_shape_is_of_a_known_family_and_has_what_its_models_have(spec):
    family = FAMILIES[spec.family]

    assert (spec.qkv_bias, spec.qk_norm) == (family.qkv_bias, family.qk_norm)
    assert (spec.experts is None) == (family.experts is None)


def test_the_shape_of_the_goals_is_the_one_that_they_were_set_on():
    spec = find_shape("llama-3.1-8b")

    assert (spec.hidden_size, spec.intermediate_size, spec.num_layers) == (4096, 14_336, 32)
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim) == (32, 8, 128)
    assert (spec.vocab_size, spec.context, spec.tied_embeddings) == (128_256, 131_072, False)
    assert (spec.rope_theta, spec.norm_eps) == (500_000.0, 1e-5)


def test_an_unknown_shape_is_refused_with_those_that_are_known():
    with pytest.raises(ConfigError, match=r"'gpt-5' is not one of llama-2-7b, .*config\.json"):
        find_shape("gpt-5")
