"""Philox against the known answers published with Random123."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.runner.philox import philox, uniforms

ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def words(*rows):
    return np.array(rows, dtype=np.uint64)


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_the_published_answers_are_reproduced(counter, key, answer):
    assert philox(words(counter), words(key)).tolist() == [list(answer)]


def test_many_rows_give_what_each_gives_alone():
    counters, keys, answers = (list(column) for column in zip(*KNOWN, strict=True))

    assert philox(words(*counters), words(*keys)).tolist() == [list(one) for one in answers]


def test_a_number_is_the_upper_53_bits_of_the_first_two_words():
    (number,) = uniforms([0], [0])

    assert number == (0x6627E8D5E169C58D >> 11) / 2**53


def test_seed_and_position_are_64_bits_each():
    seeds = [0, 1, 1 << 32, (1 << 64) - 1, -1]
    positions = [0, 1, 1 << 32, (1 << 63) + 5]

    drawn = {
        (seed % 2**64, position): float(uniforms([seed], [position])[0])
        for seed in seeds
        for position in positions
    }

    assert len(set(drawn.values())) == 16


def test_numbers_are_uniform_in_the_unit_interval():
    count = 100_000
    drawn = uniforms([12345] * count, range(count))

    assert drawn.min() >= 0
    assert drawn.max() < 1
    observed = np.histogram(drawn, bins=50, range=(0, 1))[0]
    chi_squared = ((observed - count / 50) ** 2 / (count / 50)).sum()
    assert chi_squared < 85.4  # 49 degrees of freedom, one in a thousand
