"""The reference kernel against torch's own attention in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from octavo.kernels.linear import linear
from octavo.kernels.reference import attend, gather_kv, write_kv

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def draw(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def exact(q, k, v, start, window=10**9):
    """Attention in float64 by torch: [tokens, heads, head_dim]."""
    behind = start + torch.arange(q.shape[0])[:, None] - torch.arange(k.shape[0])
    hidden = (behind < 0) | (behind >= window)
    q, k, v = (x.double().transpose(0, 1)[None] for x in (q, k, v))
    mask = torch.zeros(hidden.shape, dtype=torch.float64).masked_fill_(hidden, -torch.inf)
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)[0].transpose(0, 1)


@pytest.mark.parametrize("head_dim", [8, 64])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (9, 3), (8, 1)])
@pytest.mark.parametrize(
    ("start", "tokens"), [(0, 1), (0, 17), (5, 3), (63, 1), (64, 40), (130, 7)]
)
def test_attention_is_that_of_torch_in_float64(head_dim, heads, kv_heads, start, tokens):
    q = draw(tokens, heads, head_dim)
    k, v = (draw(start + tokens, kv_heads, head_dim, seed=seed) for seed in (1, 2))

    got = attend(q, k, v, start=start)

    torch.testing.assert_close(
        got.double(), exact(q, k, v, start), atol=TOLERANCE[torch.float32], rtol=0
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_inputs_are_attended_in_float32(dtype):
    q, k, v = (draw(70, heads, 16, seed=heads, dtype=dtype) for heads in (4, 2, 2))

    got = attend(q, k, v, start=0)

    assert got.dtype is dtype
    torch.testing.assert_close(got.double(), exact(q, k, v, 0), atol=TOLERANCE[dtype], rtol=0)


def test_very_large_scores_do_not_overflow():
    q, k, v = draw(5, 2, 8) * 1e4, draw(5, 2, 8, seed=1) * 1e4, draw(5, 2, 8, seed=2)

    torch.testing.assert_close(
        attend(q, k, v, start=0).double(), exact(q, k, v, 0), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("start", [0, 3, 30])
def test_what_is_written_is_gathered_through_any_table(block_size, start):
    length = start + 23
    blocks = -(-length // block_size)
    table = torch.randperm(2 * blocks, generator=torch.Generator().manual_seed(0))[:blocks]
    pages = torch.full((2 * blocks, 2, block_size, 3, 8), torch.nan)
    k, v = draw(length, 3, 8), draw(length, 3, 8, seed=1)

    for first, last in ((0, start), (start, length)):
        positions = torch.arange(first, last)
        where = table[positions // block_size], positions % block_size
        write_kv(pages, *where, k[first:last], v[first:last])
    got_k, got_v = gather_kv(pages, table, length)

    assert torch.equal(got_k, k)
    assert torch.equal(got_v, v)


@pytest.mark.parametrize("cuts", [(1,) * 80, (16, 64), (3, 61, 16), (79, 1)])
def test_a_query_has_the_same_bits_however_its_prompt_is_cut(cuts):
    q, k, v = (draw(80, heads, 16, seed=heads) for heads in (6, 2, 2))
    whole = attend(q, k, v, start=0)

    parts, start = [], 0
    for cut in cuts:
        end = start + cut
        parts.append(attend(q[start:end], k[:end], v[:end], start=start))
        start = end

    assert torch.equal(torch.cat(parts), whole)


WINDOWS = [1, 5, 16, 64, 100, 1000]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize(("start", "tokens"), [(0, 17), (63, 1), (64, 40), (130, 70)])
def test_a_window_hides_what_lies_behind_it(window, start, tokens):
    q = draw(tokens, 6, 16)
    k, v = (draw(start + tokens, 2, 16, seed=seed) for seed in (1, 2))

    got = attend(q, k, v, start=start, window=window)

    expected = exact(q, k, v, start, window)
    torch.testing.assert_close(got.double(), expected, atol=TOLERANCE[torch.float32], rtol=0)


def test_a_window_sees_its_own_position_and_those_before_it():
    q, k = torch.ones(5, 1, 8), torch.ones(5, 1, 8)
    v = torch.arange(5.0).view(5, 1, 1).expand(5, 1, 8)

    got = attend(q, k, v, start=0, window=2)

    assert got[:, 0, 0].tolist() == [0.0, 0.5, 1.5, 2.5, 3.5]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("cuts", [(1,) * 150, (16, 134), (3, 61, 70, 16)])
def test_a_query_with_a_window_has_the_same_bits_however_its_prompt_is_cut(window, cuts):
    q, k, v = (draw(150, heads, 16, seed=heads) for heads in (6, 2, 2))
    whole = attend(q, k, v, start=0, window=window)

    parts, start = [], 0
    for cut in cuts:
        end, gone = start + cut, max(0, start - window + 1)
        # What no query of the piece sees may be garbage.
        keys, values = (x[:end].clone() for x in (k, v))
        keys[:gone], values[:gone] = torch.nan, torch.nan
        parts.append(attend(q[start:end], keys, values, start=start, window=window))
        start = end

    assert torch.equal(torch.cat(parts), whole)


def test_a_window_as_long_as_the_text_changes_no_bit():
    q, k, v = (draw(150, heads, 16, seed=heads) for heads in (6, 2, 2))

    assert torch.equal(attend(q, k, v, start=0, window=150), attend(q, k, v, start=0))


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_linear_multiplies_by_the_transposed_matrix(rows, dtype):
    x, weight = draw(rows, 24, dtype=dtype), draw(10, 24, seed=1, dtype=dtype)

    got = linear(x, weight)

    assert got.dtype is dtype
    expected = x.double() @ weight.double().T
    torch.testing.assert_close(got.double(), expected, atol=10 * TOLERANCE[dtype], rtol=1e-2)
