"""Every KV codec keeps what `KVCodec` promises, and the suite sees when one does not."""

from __future__ import annotations

import pytest
import torch

from octavo.contract.formats import FORMATS, KVFormat
from octavo.executors.torch import kv_codecs
from octavo.pages.codecs.cast import CastCodec
from octavo.pages.codecs.int8 import Int8Codec
from octavo.testing.codecs import check_codec

CODECS = kv_codecs()


@pytest.mark.parametrize("make", CODECS.values(), ids=CODECS)
def test_codec(make):
    check_codec(make)


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_that_planners_count_with_is_that_of_the_codec(name):
    assert CODECS[name]().format == FORMATS[name]


@pytest.mark.parametrize(
    ("name", "exact_for"),
    [
        ("float32", {"float32", "float16", "bfloat16"}),
        ("float16", {"float16"}),
        ("bfloat16", {"bfloat16"}),
        ("int8", set()),
    ],
)
def test_a_codec_says_whose_numbers_it_keeps(name, exact_for):
    assert CODECS[name]().exact_for == exact_for


class TooWide(Int8Codec):
    """Says that it takes less than it does."""

    format = KVFormat("int8", 8, extra_bytes=2)


class OneScale(Int8Codec):
    """One scale for all vectors of a tensor."""

    def encode(self, x):
        plain = super().encode(x)
        if not x.numel():
            return plain
        wide = super().encode(x.reshape(1, -1))
        scale = wide[0, -4:].expand(*plain.shape[:-1], 4)
        return torch.cat((wide[0, :-4].view(x.shape), scale), dim=-1)


class Boastful(Int8Codec):
    """Promises half of its error."""

    def bound(self, x):
        return super().bound(x) / 2


class ClaimsExactness(CastCodec):
    """bfloat16 that says it keeps float32."""

    exact_for = frozenset(("float32", "bfloat16"))

    def __init__(self):
        super().__init__("bfloat16")


class HidesBrokenNumbers(CastCodec):
    """Replaces what is not finite."""

    def __init__(self):
        super().__init__("float32")

    def encode(self, x):
        return torch.nan_to_num(super().encode(x))


class Drifts(Int8Codec):
    """Shrinks a little whenever it is read."""

    def decode(self, stored, head_dim):
        return super().decode(stored, head_dim) * 0.999


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (TooWide, "bytes a vector, not"),
        (OneScale, "bytes depend on its neighbours"),
        (Boastful, "above its bound"),
        (ClaimsExactness, "exact_for names the dtype"),
        (HidesBrokenNumbers, "comes back finite"),
        (Drifts, "writing what was read moves it|above its bound"),
    ],
)
def test_a_broken_codec_is_caught(broken, message):
    with pytest.raises(AssertionError, match=message):
        check_codec(broken)
