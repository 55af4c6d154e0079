"""How layers with and without windows are split into KV groups of equal bytes."""

from __future__ import annotations

import msgspec
import pytest

from octavo.contract.layout import ANY_LENGTH, kv_layout
from octavo.testing.tiny import tiny_spec


def spec_of(full, windowed, *, window=512):
    """Describe a model whose first layers see everything and whose last ones have a window."""
    return msgspec.structs.replace(
        tiny_spec(),
        num_layers=full + windowed,
        window=window if windowed else None,
        window_layers=tuple(range(full, full + windowed)),
    )


def layout_of(full, windowed, *, window=512):
    return kv_layout(spec_of(full, windowed, window=window), block_size=16, dtype="float32")


@pytest.mark.parametrize(
    ("full", "windowed", "groups", "padding"),
    [
        (30, 0, 1, 0),  # a plain model
        (0, 32, 1, 0),  # Mistral 7B 0.1
        (3, 15, 6, 0),  # Gemma 3 270M
        (4, 22, 13, 0),  # 1B
        (5, 29, 7, 1),  # 4B
        (8, 40, 6, 0),  # 12B
        (10, 52, 13, 3),  # 27B
    ],
)  # fmt: skip
def test_models_are_split_into_few_groups_of_equal_bytes(full, windowed, groups, padding):
    layout = layout_of(full, windowed)

    assert len(layout.groups) == groups
    assert sum(group.padding for group in layout.groups) == padding
    assert sorted(i for group in layout.groups for i in group.layers) == [*range(full + windowed)]


def test_padding_is_counted_in_bytes():
    layout = layout_of(5, 29)

    assert layout.bytes_per_token == 35 * layout_of(1, 0).bytes_per_token


def test_a_window_holds_as_many_blocks_as_it_touches():
    held = layout_of(0, 1, window=32).held_blocks

    assert [held(n) for n in (1, 16, 17, 32, 33, 47, 48, 49, 1000)] == [1, 1, 2, 2, 3, 3, 2, 3, 3]


def test_gemma_at_8192_tokens_holds_less_than_a_quarter_of_full_attention():
    assert layout_of(3, 15).held_blocks(8192) * 4 <= 6 * layout_of(3, 0).held_blocks(8192)


def test_a_step_over_a_window_holds_the_window_and_the_step():
    layout = layout_of(0, 1, window=32)

    assert layout.peak_blocks(10_000, 1) == 3
    assert layout.peak_blocks(10_000, 64) == 7
    assert layout.peak_blocks(20, 64) == 2


def test_the_capacity_is_the_longest_text_whose_peak_fits():
    layout = layout_of(1, 2, window=32)
    longest = layout.capacity_tokens(50, 64)

    assert layout.peak_blocks(longest, 64) <= 50 < layout.peak_blocks(longest + 1, 64)


def test_windows_alone_hold_a_text_of_any_length():
    assert layout_of(0, 1, window=32).capacity_tokens(7, 64) == ANY_LENGTH
    assert layout_of(0, 1, window=32).capacity_tokens(6, 64) < ANY_LENGTH
