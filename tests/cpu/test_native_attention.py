"""The native paged attention equals softmax in float64 over pages, windows and chunks."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import cpu

_cpu = cpu.native()
if _cpu is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

ISAS = _cpu.available_isas()
# Heads, KV heads, dim, tokens of a block.
SHAPES = [(9, 3, 64, 16), (4, 4, 16, 32), (8, 1, 80, 16), (2, 2, 128, 48)]
# New tokens and the position of the first, for each sequence: decode, a prompt, a chunk, all.
STEPS = [[(1, 0)], [(1, 700)], [(40, 0)], [(7, 530)], [(1, 33), (5, 15), (1, 1100), (20, 0)]]
TOLERANCE = {"f32": 2e-5, "bf16": 3e-2}


def rounded_to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


class Case:
    """Random keys and values of some sequences, in pages with shuffled tables."""

    def __init__(self, shape, step, page_format: str, isa: str) -> None:
        self.heads, self.kv_heads, self.dim, block = shape
        generator = np.random.default_rng(0)
        lengths = [tokens + start for tokens, start in step]
        counts = [-(-length // block) for length in lengths]
        order = generator.permutation(sum(counts)).astype(np.int32)
        self.pages = _cpu.KvPages(
            sum(counts),
            block_tokens=block,
            kv_heads=self.kv_heads,
            dim=self.dim,
            format=page_format,
        )
        tables = np.split(order, np.cumsum(counts)[:-1])
        self.sequences = [
            (tokens, start, np.ascontiguousarray(table))
            for (tokens, start), table in zip(step, tables, strict=True)
        ]
        self.kv = []
        for length, table in zip(lengths, tables, strict=True):
            keys, values = (
                generator.normal(size=(length, self.kv_heads, self.dim)).astype(np.float32)
                for _ in range(2)
            )
            at = np.arange(length)
            slots = table[at // block].astype(np.int64) * block + at % block
            self.pages.write(slots, keys, values, isa=isa)
            if page_format == "bf16":
                keys, values = rounded_to_bf16(keys), rounded_to_bf16(values)
            self.kv.append((keys, values))
        total = sum(tokens for tokens, _ in step)
        self.queries = generator.normal(size=(total, self.heads, self.dim)).astype(np.float32)

    def expected(self, scale: float, window: int) -> np.ndarray:
        out, first = np.zeros(self.queries.shape), 0
        per_kv = self.heads // self.kv_heads
        for (tokens, start, _), (keys, values) in zip(self.sequences, self.kv, strict=True):
            for token in range(tokens):
                last = start + token
                low = max(0, last - window + 1) if window else 0
                for head in range(self.heads):
                    seen = keys[low : last + 1, head // per_kv].astype(np.float64)
                    scores = seen @ self.queries[first + token, head] * scale
                    weights = np.exp(scores - scores.max())
                    weights /= weights.sum()
                    out[first + token, head] = weights @ values[low : last + 1, head // per_kv]
            first += tokens
        return out


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("page_format", ["f32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_equals_softmax_over_what_is_seen(shape, page_format, isa):
    pool = _cpu.ThreadPool(2)
    for step in STEPS:
        case = Case(shape, step, page_format, isa)
        for window in (0, 24, 600):
            scale = case.dim**-0.5
            options = {"scale": scale, "window": window, "isa": isa}

            got = _cpu.attention(case.pages, case.queries, case.sequences, pool=pool, **options)

            np.testing.assert_allclose(
                got, case.expected(scale, window), rtol=0, atol=TOLERANCE[page_format]
            )
            alone = _cpu.attention(case.pages, case.queries, case.sequences, **options)
            np.testing.assert_array_equal(got, alone)


def test_a_text_in_chunks_gives_the_bits_of_the_whole():
    case = Case(SHAPES[0], [(600, 0)], "bf16", ISAS[0])
    table = case.sequences[0][2]
    whole = _cpu.attention(case.pages, case.queries, case.sequences, scale=0.125)

    for begin, end in ((0, 1), (17, 50), (511, 513), (599, 600)):
        part = [(end - begin, begin, table)]
        got = _cpu.attention(case.pages, case.queries[begin:end], part, scale=0.125)
        np.testing.assert_array_equal(got, whole[begin:end])


def refusals(case: Case) -> dict[str, tuple[type[Exception], str, tuple]]:
    queries, (tokens, start, table) = case.queries, case.sequences[0]
    wide = np.zeros((tokens, case.heads, case.dim + 16), np.float32)
    return {
        "dtype": (TypeError, "queries has dtype float64", (queries.astype(float), [])),
        "shape": (ValueError, r"queries has shape \[5, 9, 80\]", (wide, case.sequences)),
        "stride": (ValueError, "queries is not contiguous", (queries[:, ::3], case.sequences)),
        "heads": (
            ValueError,
            "number of heads is 4, not a multiple of 3",
            (queries[:, :4].copy(), case.sequences),
        ),
        "count": (ValueError, "queries has 5 tokens, the sequences 4", (queries, [(4, 0, table)])),
        "short": (ValueError, "table has room for 16 tokens, not 21", (queries, [(5, 16, table)])),
        "block": (ValueError, "table has block 7, there are 1", (queries, [(5, start, table + 7)])),
        "table": (
            TypeError,
            "table has dtype int64, not int32",
            (queries, [(5, 0, table.astype(np.int64))]),
        ),
    }


@pytest.mark.parametrize(
    "name", ["dtype", "shape", "stride", "heads", "count", "short", "block", "table"]
)
def test_bad_arguments_are_refused_by_name(name):
    case = Case(SHAPES[0], [(5, 0)], "bf16", ISAS[0])
    kind, message, arguments = refusals(case)[name]

    with pytest.raises(kind, match=message):
        _cpu.attention(case.pages, *arguments, scale=1.0)


def test_bad_pages_are_refused_by_name():
    with pytest.raises(ValueError, match="block_tokens is 8, not a multiple of 16"):
        _cpu.KvPages(1, block_tokens=8, kv_heads=1, dim=16, format="f32")
    with pytest.raises(ValueError, match="no page format 'f16'"):
        _cpu.KvPages(1, block_tokens=16, kv_heads=1, dim=16, format="f16")
    pages = _cpu.KvPages(1, block_tokens=16, kv_heads=1, dim=16, format="f32")
    keys = np.zeros((1, 1, 16), np.float32)
    with pytest.raises(ValueError, match="slots has 16, past the pages"):
        pages.write(np.array([16]), keys, keys)
