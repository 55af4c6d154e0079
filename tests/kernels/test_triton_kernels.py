"""Triton's small kernels against plain torch: odd sizes, all dtypes, outputs full of garbage."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("triton", reason="Triton is not installed: pip install 'octavo[gpu]'")

from octavo.kernels.triton.blocks import copy_blocks, settle_tokens
from octavo.kernels.triton.gate import gate
from octavo.kernels.triton.likeliest import Likeliest, find_likeliest
from octavo.kernels.triton.matmul import multiply
from octavo.kernels.triton.norm import add_rms_norm
from octavo.kernels.triton.pool import add_rows
from octavo.kernels.triton.rotary import HeadArithmetic, rotate_and_write
from octavo.kernels.triton.row import multiply_row

ON_GPU = torch.cuda.is_available()
DTYPES = {"float16": (torch.float16, 3e-3), "float32": (torch.float32, 2e-6)}
if ON_GPU:  # the interpreter multiplies no bfloat16
    DTYPES["bfloat16"] = (torch.bfloat16, 2e-2)
EPS = 1e-5


def numbers(*shape, seed=0, dtype=torch.float32, device="cpu"):
    source = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=source).to(device=device, dtype=dtype)


def normed(x, weight):
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + EPS) * weight.float()


@pytest.fixture(params=DTYPES.values(), ids=DTYPES)
def precision(request):
    return request.param


# ── norms and gates ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("hidden", [64, 576, 1000])
def test_what_is_added_lands_in_the_residual_and_its_norm_comes_back(
    device, precision, rows, hidden
):
    dtype, close = precision
    x, delta = (numbers(rows, hidden, seed=i, dtype=dtype, device=device) for i in (0, 1))
    weight = numbers(hidden, seed=2, dtype=dtype, device=device)
    total = (x.float() + delta.float()).to(dtype)

    out = add_rms_norm(x, delta, weight, eps=EPS)

    torch.testing.assert_close(x, total, atol=0, rtol=0)
    torch.testing.assert_close(out.float(), normed(total, weight), atol=close, rtol=close)


def test_a_norm_may_come_before_the_addition(device):
    x, delta = numbers(3, 80, device=device), numbers(3, 80, seed=1, device=device)
    weight, post = numbers(80, seed=2, device=device), numbers(80, seed=3, device=device)
    total = x + normed(delta, post)

    out = add_rms_norm(x, delta, weight, eps=EPS, post_weight=post)

    torch.testing.assert_close(x, total, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(out, normed(total, weight), atol=1e-6, rtol=1e-6)


def test_without_anything_to_add_the_residual_stays(device):
    x, weight = numbers(2, 48, device=device), numbers(48, seed=1, device=device)
    before = x.clone()

    out = add_rms_norm(x, None, weight, eps=EPS)

    assert torch.equal(x, before)
    torch.testing.assert_close(out, normed(x, weight), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("gelu", [False, True])
@pytest.mark.parametrize("width", [140, 1536])
def test_a_gate_multiplies_the_other_half(device, precision, gelu, width):
    dtype, close = precision
    both = numbers(3, 2 * width, dtype=dtype, device=device)
    first, second = both.float().chunk(2, dim=-1)
    active = F.gelu(first, approximate="tanh") if gelu else F.silu(first)

    torch.testing.assert_close(
        gate(both, gelu=gelu).float(), active * second, atol=close, rtol=close
    )


# ── heads ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim"), [(4, 2, 16), (9, 3, 64), (6, 1, 80), (16, 8, 32)]
)
@pytest.mark.parametrize("options", [(), ("bias",), ("norm",), ("bias", "norm")], ids=str)
def test_heads_are_turned_and_stored(device, heads, kv_heads, head_dim, options):
    rows, total, half = 5, heads + 2 * kv_heads, head_dim // 2
    qkv = numbers(rows, total * head_dim, device=device)
    bias = numbers(total * head_dim, seed=1, device=device) if "bias" in options else None
    norm = numbers(heads + kv_heads, head_dim, seed=2, device=device) if "norm" in options else None
    angles = numbers(40, half, seed=3, device=device)
    turns = torch.cat((angles.cos(), angles.sin()), dim=-1)
    positions = torch.tensor([7, 0, 39, 3, 12], dtype=torch.int32, device=device)
    blocks = torch.tensor([2, 0, -1, 5, 2], dtype=torch.int32, device=device)
    offsets = torch.tensor([1, 3, 0, 2, 0], dtype=torch.int32, device=device)
    memory = torch.full((6, 3, 2, 4, kv_heads, head_dim), float("nan"), device=device)
    pages = memory[:, 1]

    q = rotate_and_write(
        qkv,
        HeadArithmetic(heads, kv_heads, turns, bias, norm, EPS),
        positions,
        blocks,
        offsets,
        pages,
    )

    states = (qkv if bias is None else qkv + bias).view(rows, total, head_dim)
    turned = states[:, : heads + kv_heads]
    if norm is not None:
        turned = normed(turned, norm)
    low, high = turned.split(half, dim=-1)
    cos, sin = turns[positions.long()].split(half, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    turned = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)
    torch.testing.assert_close(q, turned[:, :heads], atol=1e-5, rtol=1e-5)
    expected = torch.full_like(memory, float("nan"))
    for row, (block, offset) in enumerate(zip(blocks.tolist(), offsets.tolist(), strict=True)):
        if block >= 0:
            expected[block, 1, 0, offset] = turned[row, heads:]
            expected[block, 1, 1, offset] = states[row, heads + kv_heads :]
    torch.testing.assert_close(memory, expected, atol=1e-5, rtol=1e-5, equal_nan=True)


# ── tokens and blocks ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("vocab", [50, 4096, 10_000])
def test_the_likeliest_token_of_each_row_is_found(device, precision, vocab):
    dtype, _ = precision
    logits = numbers(4, vocab, dtype=dtype, device=device) * 3
    into = Likeliest.empty(7, torch.device(device))

    find_likeliest(logits, into)

    logprobs = logits.float().log_softmax(dim=-1)
    assert into.tokens[:4].tolist() == logits.argmax(dim=-1).tolist()
    torch.testing.assert_close(into.logprobs[:4], logprobs.amax(dim=-1), atol=1e-4, rtol=1e-4)
    assert not into.broken.any()
    assert not into.tokens[4:].any()


def test_of_equally_likely_tokens_the_first_is_taken(device):
    logits = torch.zeros(2, 9000, device=device)
    logits[0, [8000, 5000, 6000]] = 1.0
    into = Likeliest.empty(2, torch.device(device))

    find_likeliest(logits, into)

    assert into.tokens.tolist() == [5000, 0]


def test_logits_that_are_not_finite_are_counted(device):
    logits = numbers(3, 5000, device=device)
    logits[1, 17] = float("nan")
    logits[1, 4500] = float("inf")
    logits[2, 3] = float("-inf")
    into = Likeliest.empty(3, torch.device(device))

    find_likeliest(logits, into)

    assert into.broken.tolist() == [0, 2, 1]


def test_blocks_are_copied_whole(device):
    raw = torch.randint(0, 256, (6, 4104), dtype=torch.uint8, device=device)
    before = raw.clone()

    copy_blocks(raw, torch.tensor([[0, 3], [5, 1]], dtype=torch.int32, device=device))

    before[3], before[1] = before[0], before[5]
    assert torch.equal(raw, before)


def test_pending_tokens_are_those_that_were_chosen_last(device):
    tokens = torch.tensor([5, -1, 9, -3], dtype=torch.int32, device=device)
    newest = torch.tensor([40, 41, 42], dtype=torch.int32, device=device)

    assert settle_tokens(tokens, newest).tolist() == [5, 40, 9, 42]


# ── sums ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [64, 100])
def test_means_are_those_of_rows_added_in_order_whatever_their_pieces(device, precision, width):
    rows = numbers(40, width, dtype=precision[0], device=device) * 100
    totals = torch.full((3, width), float("nan"), dtype=torch.float64, device=device)

    def add(*pools, told):
        table = torch.tensor(pools, dtype=torch.int32, device=device)
        return add_rows(rows, table, totals, told)

    # First row, rows, how many came before, place of the total.
    whole = add((3, 21, 0, -1), (30, 1, 0, -1), told=2)
    assert add((3, 1, 0, 2), (30, 4, 0, 0), told=0).shape == (0, width)
    add((4, 12, 1, 2), told=0)
    (pieces,) = add((16, 8, 13, 2), (0, 9, 4, 0), told=1)

    expected = np.add.accumulate(rows[3:24].double().cpu().numpy())[-1] / 21
    assert torch.equal(whole[0].cpu(), torch.from_numpy(expected).float())
    assert torch.equal(whole[1], rows[30].float())
    assert torch.equal(pieces, whole[0])


# ── products ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("rows", "inner", "columns"), [(1, 64, 30), (65, 100, 48), (130, 256, 96)])
def test_rows_are_multiplied_by_a_matrix(device, precision, rows, inner, columns):
    dtype, close = precision
    x, weight = (numbers(n, inner, seed=n, dtype=dtype, device=device) for n in (rows, columns))
    expected = x.double() @ weight.double().T

    out = multiply(x, weight)

    torch.testing.assert_close(out.double(), expected, atol=close * inner**0.5, rtol=close)


@pytest.mark.parametrize(("inner", "columns"), [(64, 30), (2100, 48)])
def test_one_row_is_multiplied_by_a_matrix(device, precision, inner, columns):
    dtype, close = precision
    x = numbers(1, inner, dtype=dtype, device=device)
    weight = numbers(columns, inner, seed=1, dtype=dtype, device=device)
    expected = x.double() @ weight.double().T

    out = multiply_row(x, weight)

    torch.testing.assert_close(out.double(), expected, atol=close * inner**0.5, rtol=close)


@pytest.mark.parametrize("rows", [1, 5, 64])
def test_a_row_has_the_same_bits_however_many_are_multiplied(device, precision, rows):
    dtype, _ = precision
    x = numbers(64, 512, dtype=dtype, device=device)
    weight = numbers(200, 512, seed=1, dtype=dtype, device=device)

    assert torch.equal(multiply(x[:rows], weight), multiply(x, weight)[:rows])


@pytest.mark.skipif(not ON_GPU, reason="the interpreter adds in another order than a GPU")
def test_a_row_has_the_same_bits_in_small_tiles_and_in_large_ones(device):
    x = numbers(300, 4096, dtype=torch.bfloat16, device=device)
    weight = numbers(1000, 4096, seed=1, dtype=torch.bfloat16, device=device)
    together = multiply(x, weight)

    for first, count in ((0, 1), (7, 64), (100, 65), (299, 1)):
        part = slice(first, first + count)
        assert torch.equal(multiply(x[part].contiguous(), weight), together[part])
