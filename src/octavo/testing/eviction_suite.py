"""What every eviction policy must keep; raises AssertionError with the promise that is broken."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from octavo.contract.hint import CacheHint
from octavo.memory.block import Block
from octavo.memory.eviction import EvictionPolicy, in_bulk
from octavo.testing.desk import Desk

_HINTS = (None, CacheHint("continues"), CacheHint("closed", source="other"), CacheHint(0.8))


def check_eviction_policy(make: Callable[[], EvictionPolicy]) -> None:
    """Check an eviction policy. make: returns a new, empty bag."""
    _an_empty_bag_is_empty(make())
    _a_bag_gives_back_what_it_was_given(make())
    _a_removed_block_is_gone(make())
    _blocks_added_together_go_in_that_order(make())
    _a_hit_moves_nothing(make())
    _a_block_comes_back_with_another_text(make())
    _the_same_calls_give_the_same_victims(make)
    _several_at_once_are_one_after_the_other(make)
    _a_long_life_loses_nothing(make())
    _a_suffix_goes_before_its_prefix(make)


def _blocks(count: int) -> list[Block]:
    """Blocks of one text, the deepest first, as a release adds them."""
    blocks = [Block(i) for i in range(count)]
    for block in blocks:
        block.depth = count - 1 - block.id
        block.key = bytes([1 + block.depth]) * 16
        block.parent = bytes([block.depth]) * 16 if block.depth else b""
        block.filled = 4
    return blocks


def _fields(blocks: list[Block]) -> list[tuple[object, ...]]:
    return [tuple(getattr(block, name) for name in Block.__slots__) for block in blocks]


def _pop_fails(bag: EvictionPolicy) -> bool:
    try:
        bag.pop()
    except IndexError:
        return True
    return False


def _an_empty_bag_is_empty(bag: EvictionPolicy) -> None:
    assert len(bag) == 0, f"a new bag holds {len(bag)} blocks"
    assert _pop_fails(bag), "pop of an empty bag must raise IndexError"


def _a_bag_gives_back_what_it_was_given(bag: EvictionPolicy) -> None:
    blocks = _blocks(6)
    before = _fields(blocks)
    for count, block in enumerate(blocks, 1):
        bag.add(block)
        assert len(bag) == count, f"len is {len(bag)} after {count} blocks were added"
    popped = [bag.pop() for _ in blocks]
    assert len(bag) == 0, "a popped block is still counted"
    assert sorted(block.id for block in popped) == list(range(6)), (
        f"pop gave blocks {[block.id for block in popped]} of 0 to 5: each must come once"
    )
    assert _fields(blocks) == before, "a policy must not write a block's fields"
    bag.add(blocks[0])
    assert bag.pop() is blocks[0], "a block that was popped could not be added again"


def _a_removed_block_is_gone(bag: EvictionPolicy) -> None:
    blocks = _blocks(6)
    for block in blocks:
        bag.add(block)
    bag.remove(blocks[2])
    blocks[4].key = None  # its text was withdrawn
    bag.remove(blocks[4])
    assert len(bag) == 4, f"len is {len(bag)} after two of six blocks were removed"
    popped = {bag.pop().id for _ in range(4)}
    assert popped == {0, 1, 3, 5}, f"blocks 2 and 4 were removed, pop gave {sorted(popped)}"
    assert _pop_fails(bag), "a removed block came back"


def _blocks_added_together_go_in_that_order(bag: EvictionPolicy) -> None:
    blocks = _blocks(8)
    for block in blocks:
        bag.add(block)
    order = [bag.pop().id for _ in blocks]
    assert order == list(range(8)), (
        f"blocks of one release were evicted in the order {order}: tail first, as they were added"
    )


def _hit(bag: EvictionPolicy, block: Block) -> None:
    hit = getattr(bag, "hit", None)
    if hit is not None:
        hit(block)


def _a_hit_moves_nothing(bag: EvictionPolicy) -> None:
    blocks = _blocks(4)
    for block in blocks:
        _hit(bag, block)  # held, and never cached up to now
    assert len(bag) == 0, "a hit of a held block put it into the bag"
    for block in blocks:
        bag.add(block)
    bag.remove(blocks[3])
    _hit(bag, blocks[3])
    assert len(bag) == 3, f"len is {len(bag)} after a block was removed and hit"
    popped = sorted(bag.pop().id for _ in range(3))
    assert popped == [0, 1, 2], f"block 3 was removed and hit, pop gave {popped}"


def _a_block_comes_back_with_another_text(bag: EvictionPolicy) -> None:
    blocks = _blocks(3)
    for turn in range(40):
        for block in blocks:
            block.key = bytes([turn, block.id]) * 8
            block.parent = b""
            bag.add(block)
        popped = sorted(bag.pop().id for _ in blocks)
        assert popped == [0, 1, 2], f"blocks with new texts: pop gave {popped} of 0 to 2"
        assert len(bag) == 0, f"blocks with new texts: {len(bag)} are left after all were popped"


def _a_long_life_loses_nothing(bag: EvictionPolicy) -> None:
    """Many texts pass through few blocks, as in an engine: chains come, return and go."""
    draw, blocks = Random(1), _blocks(40)
    free, cached = list(blocks), dict[bytes, Block]()
    for _ in range(600):
        chain = bytes([draw.randrange(12)])
        held: list[Block] = []
        for depth in range(draw.randint(1, 8)):
            key = (chain * (depth + 1)).ljust(16, b"-")
            block = cached.pop(key, None)
            if block is not None:
                bag.remove(block)
            else:
                if not free:
                    victim = bag.pop()
                    known = cached.pop(victim.key or b"", None)
                    assert known is victim, f"{victim} is not in the bag, but was its victim"
                    free.append(victim)
                block = free.pop()
                block.key, block.depth = key, depth
                block.parent = held[-1].key or b"" if held else b""
            block.hint = draw.choice(_HINTS)
            if draw.random() < 0.2:
                _hit(bag, block)
            held.append(block)
        for block in reversed(held):
            assert block.key is not None
            cached[block.key] = block
            bag.add(block)
        assert len(bag) == len(cached), f"len is {len(bag)}, the bag holds {len(cached)} blocks"
    left = {bag.pop().id for _ in range(len(cached))}
    assert left == {block.id for block in cached.values()}, "a block was lost in a long life"


def _the_same_calls_give_the_same_victims(make: Callable[[], EvictionPolicy]) -> None:
    for seed in range(20):
        first, second = (_victims(make(), Random(seed)) for _ in range(2))
        assert first == second, f"the same calls (seed {seed}) gave different victims"


def _victims(bag: EvictionPolicy, draw: Random) -> list[int]:
    """Use a bag at random beside a set; return its victims."""
    blocks, inside, victims = _blocks(24), set[int](), list[int]()
    for _ in range(300):
        outside = sorted({block.id for block in blocks} - inside)
        action = draw.random()
        if action < 0.5 and outside:
            block = blocks[draw.choice(outside)]
            block.hint = draw.choice(_HINTS)
            bag.add(block)
            inside.add(block.id)
        elif action < 0.75 and inside:
            block = blocks[draw.choice(sorted(inside))]
            bag.remove(block)
            inside.remove(block.id)
        elif inside:
            victim = bag.pop()
            assert victim.id in inside, f"block {victim.id} is not in the bag, but was its victim"
            inside.remove(victim.id)
            victims.append(victim.id)
        assert len(bag) == len(inside), f"len is {len(bag)}, the bag holds {len(inside)} blocks"
    return victims


class _Singly:
    """Hides all of a bag but the verbs for one block."""

    def __init__(self, bag: EvictionPolicy) -> None:
        self.add, self.remove, self.pop, self.size = bag.add, bag.remove, bag.pop, bag.__len__

    def __len__(self) -> int:
        return self.size()


def _several_at_once_are_one_after_the_other(make: Callable[[], EvictionPolicy]) -> None:
    for seed in range(20):
        at_once = _victims_of_runs(make(), Random(seed))
        singly = _victims_of_runs(_Singly(make()), Random(seed))
        assert at_once == singly, f"blocks given and taken together (seed {seed}): other victims"


def _victims_of_runs(bag: EvictionPolicy, draw: Random) -> list[int]:
    """Let texts of several blocks come, be used again in part, and go; return the victims."""
    add_all, remove_all, pop_all = in_bulk(bag)
    blocks = _blocks(40)
    free, cached, victims = list(blocks), list[Block](), list[int]()
    for number in range(300):
        if draw.random() < 0.5 and free:
            run = [free.pop() for _ in range(min(len(free), draw.randint(1, 8)))]
            for depth, block in enumerate(reversed(run)):
                block.key, block.depth = number.to_bytes(8, "big") + bytes([depth] * 8), depth
                block.parent = number.to_bytes(8, "big") + bytes([depth - 1] * 8) if depth else b""
                block.hint = draw.choice(_HINTS)
            add_all(run)
            cached += run
        elif draw.random() < 0.6 and cached:
            start = draw.randrange(len(cached))
            again = cached[start : start + draw.randint(1, 8)]
            remove_all(again[::-1])
            add_all(again)
        elif cached:
            gone = pop_all(draw.randint(1, len(cached)))
            victims += [block.id for block in gone]
            cached = [block for block in cached if block not in gone]
            free += gone
        assert len(bag) == len(cached), f"len is {len(bag)}, the bag holds {len(cached)} blocks"
    return victims


def _a_suffix_goes_before_its_prefix(make: Callable[[], EvictionPolicy]) -> None:
    text = list(range(32))
    alone = Desk.paged(9, policy=make)
    alone.release(alone.written(text))
    _goes_tail_first(alone, text)
    for ends in (1, 2), (1, 2, 3):
        shared = Desk.paged(8 + len(ends), policy=make)
        together = [shared.running([*text, last]) for last in ends]
        shared.commit()
        shared.release(*together)  # the end of each is cached too
        _goes_tail_first(shared, text)
    said = Desk.paged(9, policy=make)
    said.release(said.written(text, hints=(CacheHint("closed", 20), CacheHint("continues"))))
    _goes_tail_first(said, text)


def _goes_tail_first(desk: Desk, text: list[int]) -> None:
    """Evict a text of eight blocks one by one, after what else is cached."""
    pool = desk.tiers[0].pool
    pool.take(pool.available - 8)
    for left in range(8, 0, -1):
        found = desk.cache.lookup(desk.waiting([*text, 0])).tokens
        assert found == 4 * left, (
            f"{left} of 8 blocks are left, but only {found} leading tokens are found"
        )
        pool.take(1)
