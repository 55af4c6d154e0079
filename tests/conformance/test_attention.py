"""Every attention backend of the table keeps its promises; one that does not is caught."""

from __future__ import annotations

import pytest

from octavo.attention.reference import ReferenceAttention
from octavo.executors.torch import attention_backends
from octavo.testing.attention import check_attention_backend

BACKENDS = attention_backends()


@pytest.mark.parametrize("make", BACKENDS.values(), ids=BACKENDS)
def test_attention(make):
    check_attention_backend(make)


def broken(change):
    """Make a backend that breaks one promise."""

    class Broken(ReferenceAttention):
        def run(self, layer, q):
            return change(self, super().run(layer, q))

    return lambda arena, spec: Broken(arena, num_heads=spec.num_heads)


def test_a_backend_that_is_a_little_wrong_is_caught():
    with pytest.raises(AssertionError, match="from exact"):
        check_attention_backend(broken(lambda _, rows: rows * 1.001))


def test_a_backend_whose_result_depends_on_the_table_is_caught():
    def peek(backend, rows):
        return rows + 1e-7 * backend._inputs.groups[0].tables.float().mean()

    with pytest.raises(AssertionError, match="placement changes the result"):
        check_attention_backend(broken(peek))


def test_a_backend_that_reads_what_was_never_written_is_caught():
    def leak(backend, rows):
        return rows + 0 * backend._arena.blocks(0).flatten()[-1]

    with pytest.raises(AssertionError, match="never written"):
        check_attention_backend(broken(leak))


def test_a_backend_that_claims_to_ignore_company_and_does_not_is_caught():
    def crowd(backend, rows):
        return rows + 1e-6 * len(backend._inputs.starts)

    with pytest.raises(AssertionError, match="company or cuts change bits"):
        check_attention_backend(broken(crowd))
