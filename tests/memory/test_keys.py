"""Keys: content only, the same everywhere; a collision never shows another text."""

from __future__ import annotations

import struct
from array import array
from hashlib import blake2b
from itertools import accumulate

import msgspec
import pytest

from octavo.contract.namespace import Namespace
from octavo.memory import keys
from octavo.memory.keys import chain, extend_keys, token_bytes
from octavo.testing.desk import Desk


def digest(data):
    return blake2b(data, digest_size=16).digest()


def replace_keys(monkeypatch, key_of):
    """Let units have the keys that `key_of`, given the one before and the text, returns."""

    def chain_all(parent, units):
        return list(accumulate(units, key_of, initial=parent))[1:]

    monkeypatch.setattr(keys, "chain_all", chain_all)


def ints(*tokens):
    return struct.pack(f"<{len(tokens)}i", *tokens)


@pytest.mark.parametrize(
    ("namespace", "root"),
    [
        (Namespace(), "0a3e316f0fac7d7f446da742145adc28"),
        (
            Namespace(model="smollm2@sha256:8f1b", revision="main", salt="tenant-é"),
            "fd78bce4ab1f44532beb2b105bb9d469",
        ),
    ],
    ids=["empty", "three fields"],
)
def test_the_root_of_a_namespace_is_the_same_on_every_machine(namespace, root):
    assert namespace.root().hex() == root


def test_chained_keys_are_the_same_on_every_machine():
    first = chain(Namespace().root(), ints(1, 2, 3, 4))
    second = chain(first, ints(5, 6, 7, 131071))

    assert first.hex() == "e2818c882a811bc18cfb5be8c693c1e8"
    assert second.hex() == "5db56655466b5a882b8e14aa9dd2ddee"


def test_a_block_of_sixteen_tokens_has_its_golden_key():
    root = Namespace(model="smollm2@sha256:8f1b", revision="main", salt="tenant-é").root()

    assert chain(root, ints(*range(16))).hex() == "a47a61dc9fd6b2d0b84301e2489f418c"


def test_a_key_is_the_plain_digest_of_the_key_before_and_the_tokens():
    parent = Namespace().root()

    assert chain(parent, ints(7)) == digest(parent + ints(7))


def test_token_ids_are_spelled_as_little_endian_int32():
    assert token_bytes(array("i", [1, 256, 131071])).hex() == "0100000000010000ffff0100"


@pytest.mark.parametrize("field", Namespace.__struct_fields__)
def test_every_field_of_a_namespace_changes_the_root(field):
    base = Namespace(model="m", revision="r", adapter="a", salt="s", media="d", lossy="l")

    assert msgspec.structs.replace(base, **{field: "other"}).root() != base.root()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Namespace(model="ab"), Namespace(model="a", revision="b")),
        (Namespace(model="a"), Namespace(revision="a")),
        (Namespace(adapter="x", salt=""), Namespace(adapter="", salt="x")),
        (Namespace(model="\0"), Namespace(model="\0\0")),
    ],
)
def test_fields_cannot_run_into_each_other(one, other):
    assert one.root() != other.root()


def test_a_namespace_with_an_unknown_field_is_an_error():
    with pytest.raises(TypeError):
        Namespace(tenant="x")


def test_a_key_depends_on_everything_before_it():
    root = Namespace().root()

    assert chain(chain(root, ints(1)), ints(3)) != chain(chain(root, ints(2)), ints(3))


def test_only_full_units_have_keys():
    seq = Desk.paged(8).waiting(range(11))

    extend_keys(seq, 4, seq.length)

    assert seq.units == [ints(0, 1, 2, 3), ints(4, 5, 6, 7)]
    assert len(seq.keys) == 2


def test_growing_a_text_hashes_only_the_new_units(monkeypatch):
    seq = Desk.paged(8).waiting(range(400))
    extend_keys(seq, 4, seq.length)
    hashed = []
    replace_keys(monkeypatch, lambda parent, data: hashed.append(data) or digest(parent + data))
    seq.tokens.extend([1, 2, 3, 4, 5])

    extend_keys(seq, 4, seq.length)

    assert hashed == [ints(1, 2, 3, 4)]


def test_keys_made_piece_by_piece_equal_keys_made_at_once():
    desk = Desk.paged(8)
    slow, fast = desk.waiting(range(23)), desk.waiting(range(23))

    for upto in range(24):
        extend_keys(slow, 3, upto)
    extend_keys(fast, 3, 23)

    assert slow.keys == fast.keys


@pytest.mark.parametrize("digest_bytes", [0, 1])
def test_a_collision_of_keys_never_shows_another_text(monkeypatch, digest_bytes):
    replace_keys(monkeypatch, lambda parent, data: digest(parent + data)[:digest_bytes])
    desk = Desk.paged(400)
    texts = [[n, n + 1, n + 2, n + 3, 5 * n, 5, 5, 5, 9] for n in range(60)]
    for text in texts:
        desk.release(desk.written(text))

    for text in texts:
        hit = desk.cache.lookup(desk.waiting(text))
        found = b"".join(block.tokens for _, block in hit.runs[0])

        assert found == ints(*text)[: 4 * hit.tokens]


def test_a_collision_in_the_middle_of_two_texts_is_a_miss(monkeypatch):
    replace_keys(monkeypatch, lambda parent, data: b"all the same")
    desk = Desk.paged(16)
    desk.release(desk.written([1, 2, 3, 4, 9, 9, 9, 9]))

    hit = desk.cache.lookup(desk.waiting([5, 6, 7, 8, 9, 9, 9, 9, 0]))

    assert hit.tokens == 0


def test_different_salts_never_share():
    desk = Desk.paged(16)
    desk.written(range(12), salt="one tenant")

    assert desk.cache.lookup(desk.waiting(range(12), salt="another")).tokens == 0
    assert desk.cache.lookup(desk.waiting(range(12), salt="one tenant")).tokens == 11
