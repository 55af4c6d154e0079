"""A shared part that ends inside a block is copied, and only the rest computed."""

from __future__ import annotations

from random import Random

import pytest

from octavo.build import EVICTION_POLICIES
from octavo.contract.batch import Copy
from octavo.errors import Corrupted
from octavo.memory.block import Block
from octavo.memory.siblings import Siblings, common_tokens
from octavo.testing.desk import Desk

TEXT = list(range(100, 112))
"""Three blocks of four."""


@pytest.fixture
def desk():
    return Desk.paged(24)


def found(desk, prompt, **options):
    return desk.cache.lookup(desk.waiting(prompt, **options)).tokens


# ── what is found ─────────────────────────────────────────────────────────────────────────


def test_a_shared_beginning_shorter_than_a_block_is_found(desk):
    desk.release(desk.written([7, 8, 9, 1, 5, 5]))

    assert found(desk, [7, 8, 9, 2, 6]) == 3


def test_a_prefix_goes_on_inside_the_block_where_the_texts_part(desk):
    desk.release(desk.written(TEXT))

    assert found(desk, [*TEXT[:10], 0, 0, 0]) == 10


def test_the_same_prompt_once_more_leaves_one_token_to_compute(desk):
    desk.release(desk.written(TEXT))

    assert found(desk, TEXT) == 11


@pytest.mark.parametrize("last", range(4))
def test_of_several_children_the_one_that_shares_most_is_found(desk, last):
    for text in ([1, 1, 1, 1], [1, 1, 2, 2], [1, 3, 3, 3], [2, 1, 1, 1]):
        desk.release(desk.written([*TEXT[:4], *text]))
    question = {0: [3, 3, 3], 1: [1, 4, 1], 2: [1, 1, 3], 3: [1, 1, 2, 0]}[last]

    assert found(desk, [*TEXT[:4], *question, 9]) == 4 + last


def test_another_namespace_shares_no_part_of_a_block(desk):
    desk.release(desk.written(TEXT, salt="one tenant"))

    assert found(desk, TEXT[:3], salt="another") == 0
    assert found(desk, TEXT[:3], salt="one tenant") == 2


def test_what_a_step_in_flight_writes_is_not_copied(desk):
    desk.running(TEXT[:4])

    assert found(desk, [*TEXT[:3], 0]) == 0

    desk.commit()
    assert found(desk, [*TEXT[:3], 0]) == 3


def test_an_evicted_block_is_not_copied():
    desk = Desk.paged(3)
    desk.release(desk.written(TEXT[:4]))
    desk.tiers[0].pool.take(3)

    assert found(desk, [*TEXT[:3], 0]) == 0


def test_without_partial_blocks_only_whole_ones_are_found():
    desk = Desk.paged(24, partial_blocks=False)
    desk.release(desk.written(TEXT))

    assert found(desk, TEXT) == 8


def test_a_prefix_that_has_to_be_loaded_goes_on_with_no_copy():
    desk = Desk.paged(4, host_blocks=8)
    desk.release(desk.written(TEXT))
    desk.arrive()
    desk.release(desk.written([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4]))
    desk.arrive()

    hit = desk.cache.lookup(desk.waiting([*TEXT[:6], 0]))

    assert (hit.tokens, hit.tails) == (4, ())
    assert [tier for tier, _ in hit.runs[0]] == [1]


# ── what an admission does ────────────────────────────────────────────────────────────────


def test_the_part_of_a_block_is_copied_into_one_of_its_own(desk):
    first = desk.written(TEXT)

    second = desk.running([*TEXT[:6], 0, 0])

    old, new = desk.blocks(first), desk.blocks(second)
    assert new[0] == old[0]
    assert new[1] not in old
    assert desk.cache.take_copies() == (Copy(old[1], new[1]),)
    assert second.cached_tokens == 6
    desk.cache.check()


def test_a_copied_block_that_becomes_full_is_found_by_others(desk):
    desk.release(desk.written(TEXT[:4]))
    desk.release(desk.written([*TEXT[:3], 0]))

    assert found(desk, [*TEXT[:3], 0, 1]) == 4
    assert found(desk, [*TEXT[:4], 1]) == 4


def test_an_admission_with_a_copy_needs_no_more_blocks_than_without():
    for partial in (False, True):
        desk = Desk.paged(4, partial_blocks=partial)
        desk.release(desk.written(TEXT))
        seq = desk.waiting([*TEXT[:6], *range(9)])
        assert desk.cache.shortage(seq, desk.cache.lookup(seq)) == 0

        assert desk.admit(seq)
        assert desk.cache.usage().tokens == 15


def test_a_block_that_has_to_go_for_its_own_copy_is_taken_over_instead():
    desk = Desk.paged(3)
    desk.release(desk.written(TEXT[:8]))
    source = desk.cache.lookup(desk.waiting([*TEXT[:6], 0])).tails[0]
    desk.tiers[0].pool.take(1)

    seq = desk.running([*TEXT[:6], 0])

    assert source is not None
    assert desk.blocks(seq)[1] == source.id
    assert desk.cache.take_copies() == ()
    assert desk.cache.lookup(desk.waiting(TEXT)).runs == ([(0, desk.tiers[0].pool.blocks[0])],)


@pytest.mark.parametrize("blocks", range(6, 13))
def test_groups_that_take_each_others_sources_still_copy_the_right_ones(blocks):
    desk = Desk.paged(blocks, (4, 4, 4))
    memory = {}
    first = desk.written(TEXT[:4])
    for group in range(3):
        memory[desk.blocks(first, group)[0]] = f"group {group}"
    desk.release(first)

    second = desk.running([*TEXT[:3], 0])

    for copy in desk.cache.take_copies():
        memory[copy.dst] = memory[copy.src]
    assert second.cached_tokens == 3
    assert [memory[desk.blocks(second, group)[0]] for group in range(3)] == [
        "group 0", "group 1", "group 2",
    ]  # fmt: skip


def test_copies_of_one_step_stay_right_when_a_source_becomes_a_target():
    desk = Desk.paged(4)
    desk.release(desk.written([1, 1, 1, 1]), desk.written([2, 2, 2, 2]))
    desk.tiers[0].pool.take(1)
    ones, twos = (desk.cache.lookup(desk.waiting([n, 9])).tails[0].id for n in (1, 2))
    memory = {ones: "ones", twos: "twos"}

    first = desk.running([1, 9])
    second = desk.running([2, 9])

    copies = desk.cache.take_copies()
    assert [copy.src for copy in copies] == [ones, twos]
    assert copies[1].dst == copies[0].src
    for copy in copies:
        memory[copy.dst] = memory[copy.src]
    assert memory[desk.blocks(first)[0]] == "ones"
    assert memory[desk.blocks(second)[0]] == "twos"


def test_a_load_into_a_block_that_was_copied_waits_for_the_copy():
    desk = Desk.paged(6, host_blocks=8)
    desk.release(desk.written([1, 1, 1, 1]))
    desk.arrive()
    desk.tiers[0].clear()
    desk.release(desk.written([2, 2, 2, 2]))
    desk.release(desk.written([3, 3, 3, 3]))
    desk.arrive()
    source = desk.cache.lookup(desk.waiting([2, 9])).tails[0]
    desk.running([2, 9])
    desk.tiers[0].pool.take(3)

    assert desk.admit(desk.waiting([1, 1, 1, 1, 1]))

    (move,) = desk.cache.take_moves()
    assert source is not None
    assert (move.dst.block, move.after) == (source.id, desk.step)


def test_a_sequence_without_a_share_in_the_step_that_copies_falls_with_it(desk):
    desk.release(desk.written(TEXT))
    seq = desk.waiting(TEXT)
    assert desk.admit(seq, upto=0)
    assert seq.scheduled == 11

    assert desk.fail() == {seq.id}


def test_a_failed_step_leaves_what_it_copied_from(desk):
    desk.release(desk.written(TEXT))
    seq = desk.running([*TEXT[:6], 0, 0])

    doomed = desk.fail(seq)

    assert doomed == {seq.id}
    desk.release(seq)
    assert found(desk, [*TEXT[:6], 0, 0]) == 6
    desk.cache.check()


def test_a_fork_of_a_copy_copies_it_once_more(desk):
    desk.release(desk.written(TEXT))
    parent = desk.written([*TEXT[:5], 0])
    child = desk.fork(parent)
    desk.cache.take_copies()

    desk.extend(child, 1)

    assert len(desk.cache.take_copies()) == 1
    desk.cache.check()


@pytest.mark.parametrize("policy", ["lru", "arc", "lfu", "bonus", "cost"])  # go by the last use
@pytest.mark.parametrize(("shared", "kept"), [(1, False), (2, True)])
def test_copying_half_of_a_block_is_a_use_of_it(policy, shared, kept):
    desk = Desk.paged(8, policy=EVICTION_POLICIES[policy])
    pool = desk.tiers[0].pool
    desk.release(desk.written([1, 1, 1, 1]), desk.written([2, 2, 2, 2]))
    pool.take(5)
    desk.release(desk.running([*[1] * shared, 9]))

    pool.take(2)

    assert (found(desk, [1, 1, 1, 1, 5]) == 4) is kept


# ── where a text ends inside a block ──────────────────────────────────────────────────────


@pytest.mark.parametrize("length", [2, 6, 11])
def test_a_text_that_goes_on_finds_all_of_what_it_goes_on_from(desk, length):
    desk.release(desk.written(TEXT[:length]))

    assert found(desk, [*TEXT[:length], 1, 2]) == length
    assert found(desk, [*TEXT[: length - 1], 1, 2]) == length - 1


def test_the_end_of_a_text_is_taken_over_by_the_one_that_goes_on(desk):
    first = desk.written(TEXT[:6])
    end = desk.blocks(first)[1]
    desk.release(first)

    second = desk.running([*TEXT[:6], 1, 2])

    assert desk.blocks(second)[1] == end
    assert desk.cache.take_copies() == ()
    desk.cache.check()


def test_a_text_that_leaves_it_before_its_end_gets_a_copy(desk):
    first = desk.written(TEXT[:7])
    end = desk.blocks(first)[1]
    desk.release(first)

    second = desk.running([*TEXT[:6], 1, 2])

    assert desk.cache.take_copies() == (Copy(end, desk.blocks(second)[1]),)
    assert found(desk, [*TEXT[:7], 1]) == 7


def test_an_end_that_others_have_already_is_not_kept_twice(desk):
    desk.release(desk.written(TEXT))
    cached = desk.tiers[0].pool.cached

    desk.release(desk.written(TEXT[:6]))

    assert desk.tiers[0].pool.cached == cached


def test_of_an_end_that_a_step_in_flight_writes_nothing_is_kept(desk):
    seq = desk.running(TEXT[:6])

    desk.cache.release(seq, desk.step)

    assert found(desk, [*TEXT[:6], 1]) <= 4  # the first block is tentative


def test_of_an_end_that_goes_on_in_flight_the_committed_part_is_kept(desk):
    seq = desk.written(TEXT[:6])
    desk.extend(seq, TEXT[6])

    desk.cache.release(seq, desk.step)

    assert found(desk, [*TEXT[:7], 1]) == 6


def test_of_an_end_that_is_being_copied_nothing_is_kept(desk):
    parent = desk.written(TEXT[:6])
    child = desk.fork(parent)
    desk.extend(child, 1)

    desk.cache.release(child, desk.step)

    assert found(desk, [*TEXT[:6], 1, 2]) == 4


def test_an_end_that_a_fork_holds_too_is_not_kept(desk):
    parent = desk.written(TEXT[:6])
    desk.fork(parent)

    desk.release(parent)

    assert found(desk, [*TEXT[:6], 1]) == 4


def test_after_a_failed_step_no_end_is_kept(desk):
    seq = desk.written(TEXT[:5])
    desk.extend(seq, TEXT[5])
    desk.fail(seq)

    desk.release(seq)

    assert found(desk, [*TEXT[:6], 1]) == 4


def test_behind_a_window_the_end_is_kept_too():
    desk = Desk.paged(64, (4, 4), windows=(None, 4))
    desk.release(desk.written(range(18)))

    assert found(desk, [*range(18), 99]) == 18


# ── groups and windows ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("sizes", "shared", "tokens"),
    [((4, 8), 13, 13), ((4, 8), 15, 15), ((4, 6), 11, 11), ((4, 6), 15, 15), ((3, 3, 3), 5, 5)],
)
def test_groups_of_any_block_sizes_share_to_the_token(sizes, shared, tokens):
    desk = Desk.paged(64, sizes)
    first = desk.written(range(24))

    second = desk.running([*range(shared), 99, 98])

    assert second.cached_tokens == tokens
    for group, size in enumerate(sizes):
        whole = tokens // size
        assert desk.blocks(second, group)[:whole] == desk.blocks(first, group)[:whole]
    assert len(desk.cache.take_copies()) == sum(tokens % size > 0 for size in sizes)
    desk.cache.check()


def test_a_prefix_is_as_long_as_the_group_that_has_least_of_it():
    desk = Desk.paged(64, (4, 8))
    desk.written(range(12))  # of the second group one block has become full so far

    assert found(desk, [*range(11), 99]) == 8


def test_a_window_holds_only_what_it_sees_from_where_the_text_goes_on():
    desk = Desk.paged(64, (4, 4), windows=(None, 4))
    desk.release(desk.written(range(20)))

    seq = desk.running([*range(18), 99, 98])

    assert seq.cached_tokens == 18
    assert desk.blocks(seq, 1)[:3] == [-1, -1, -1]
    desk.cache.check()


# ── siblings ──────────────────────────────────────────────────────────────────────────────


def text(*tokens):
    return b"".join(token.to_bytes(4, "little", signed=True) for token in tokens)


def member(number, tokens, parent=b"root", group=0):
    block = Block(number)
    block.tokens, block.parent, block.group, block.key = tokens, parent, group, b"%d" % number
    return block


@pytest.mark.parametrize(
    ("first", "second", "shared"),
    [
        (text(), text(), 0),
        (text(1, 2), text(1, 2), 2),
        (text(1, 2), text(1, 2, 3), 2),
        (text(1, 2), text(1, 258), 1),  # they differ in the second byte
        (text(1, 2), text(16777217, 2), 0),  # in the fourth
        (text(5), text(6), 0),
    ],
)
def test_common_tokens_are_whole_ones(first, second, shared):
    assert common_tokens(first, second) == common_tokens(second, first) == shared


def test_the_best_sibling_is_the_one_that_a_search_of_all_finds():
    draw = Random(3)
    siblings, blocks = Siblings(1), dict[bytes, Block]()
    for number in range(4000):
        tokens = text(*(draw.randrange(3) for _ in range(8)))
        if tokens in blocks and draw.random() < 0.7:
            siblings.remove_all([blocks.pop(tokens)])
        elif tokens not in blocks:
            blocks[tokens] = member(number, tokens)
            siblings.add_all([blocks[tokens]])
        if number % 50 == 0:
            siblings.check(blocks.values())
        question = text(*(draw.randrange(3) for _ in range(draw.randint(1, 8))))
        best = max((common_tokens(one, question) for one in blocks), default=0)
        answer = siblings.best(0, b"root", question)
        assert (answer[1] if answer else 0) == best


def test_siblings_know_groups_and_parents_apart():
    siblings = Siblings(2)
    siblings.add_all([member(1, text(1, 2))])
    siblings.add_all([member(2, text(1, 3), group=1)])
    siblings.add_all([member(3, text(1, 4), parent=b"other")])

    best = [siblings.best(*place, text(1, 4)) for place in ((0, b"root"), (1, b"root"))]

    assert [(block.id, shared) for block, shared in best] == [(1, 1), (2, 1)]
    assert siblings.best(1, b"other", text(1, 4)) is None


def test_check_finds_a_committed_block_without_its_siblings():
    siblings = Siblings(1)

    with pytest.raises(Corrupted, match=r"committed blocks \[4\] are not among"):
        siblings.check([member(4, text(1))])


def test_check_finds_a_sibling_that_is_no_committed_block():
    siblings = Siblings(1)
    siblings.add_all([member(4, text(1))])

    with pytest.raises(Corrupted, match="siblings of group 0"):
        siblings.check([])
