"""What every row of a table must keep: one suite per protocol, for ours and for yours.

Each suite raises AssertionError with the promise that is broken. Nothing here needs pytest.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from octavo.contract.hint import CacheHint
from octavo.contract.request import FinishReason, Sequence
from octavo.memory.block import Block
from octavo.memory.eviction import EvictionPolicy
from octavo.memory.reservation import Reservation
from octavo.sched.limits import Limits
from octavo.sched.order import Order
from octavo.testing.desk import Desk
from octavo.testing.driver import Driver, make_cache, make_request
from octavo.testing.runner_suite import check_runner

__all__ = [
    "check_cache",
    "check_eviction_policy",
    "check_order",
    "check_reservation",
    "check_runner",
]

# ── eviction policies ─────────────────────────────────────────────────────────────────────

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


# ── orders ────────────────────────────────────────────────────────────────────────────────


def check_order(make: Callable[[], Order]) -> None:
    """Check an order of service. make: returns a new one."""
    order = make()
    requests = [make_request(f"r{i}", [i + 1] * 6, priority=i % 3, max_tokens=3) for i in range(9)]
    classes = [order.urgency(request) for request in requests]
    assert all(type(number) is int for number in classes), f"a class must be an int: {classes}"
    again = [order.urgency(request) for request in reversed(requests)][::-1]
    assert classes == again, "the class of a request must not depend on the calls before"
    driver = Driver(make_cache(200), limits=Limits(1, 64, 1000, 800), order=make())
    driver.add_all(requests)
    ended: list[str] = []
    while driver.scheduler.busy:
        ended += [news.request_id for news in driver.step() if news.finish]
    truth = [request.id for _, request in sorted(zip(classes, requests, strict=True), key=_first)]
    assert ended == truth, f"served {ended}, by class and arrival it is {truth}"
    driver.check_answers()


def _first(pair: tuple[int, object]) -> int:
    return pair[0]


# ── reservation rules ─────────────────────────────────────────────────────────────────────


def check_reservation(rule: Reservation) -> None:
    """Check a rule's arithmetic; `check_cache` checks the cache that follows it."""
    assert rule.name, "a rule needs a name"
    if rule.tokens is None:
        assert not rule.together, f"{rule.name}: without regions there is no fixed batch"
        return
    for longest in (8, 64, 2048):
        for prompt in (1, 3, longest // 2, longest - 1):
            for output in (1, 2, 5, longest // 3, longest):
                slots = rule.tokens(prompt, output, longest)
                case = f"{rule.name}({prompt}, {output}, {longest}) = {slots}"
                assert slots <= longest, f"{case}: a region is no longer than the longest text"
                assert slots >= min(longest, prompt + output), f"{case}: too short for its text"
                again = rule.tokens(prompt, output, longest)
                assert slots == again, f"{case}, then {again}: a rule must not remember"


# ── caches ────────────────────────────────────────────────────────────────────────────────


def check_cache(make_driver: Callable[[int], Driver]) -> None:
    """Check a cache through a scheduler and a fake runner that refuses to be misled.

    make_driver: given the number of steps in flight, returns a new driver, with memory for at
    least one text of 32 tokens and at least 2 sequences at once.
    """
    for depth in (1, 2):
        _every_request_is_answered(make_driver(depth))
        _an_abort_gives_everything_back(make_driver(depth))
    _a_full_cache_refuses_and_changes_nothing(make_driver(1))
    _limits_leave_room_for_an_answer(make_driver(1))


def _check_counts(driver: Driver) -> None:
    driver.cache.check()
    usage = driver.cache.usage()
    inside = usage.tokens + usage.reserved + usage.internal
    assert 0 <= inside <= usage.allocated <= usage.slots, f"the shares do not add up: {usage}"
    assert usage.blocks_used <= usage.blocks_logical, f"used more than all tables name: {usage}"


def _check_empty(driver: Driver) -> None:
    while driver.cache.open_moves:  # a move holds its blocks until its outcome is known
        driver.step()
    used = driver.cache.usage().blocks_used
    assert used == 0, f"{used} blocks are held though every sequence has ended"


def _every_request_is_answered(driver: Driver) -> None:
    for i in range(12):
        prompt = [1] * (4 * (i % 3)) + [i] * (1 + i % 5)
        driver.add(make_request(f"r{i}", prompt, n=1 + i % 2, max_tokens=1 + i, seed=i))
    while driver.scheduler.busy:
        driver.step()
        _check_counts(driver)
        driver.check_answers()
    for (request_id, index), answer in driver.answers.items():
        truth = int(request_id[1:]) + 1
        assert answer.finish is FinishReason.LENGTH, f"{request_id}/{index}: {answer}"
        assert len(answer.tokens) == truth, f"{request_id}/{index}: not {truth} tokens: {answer}"
    _check_empty(driver)


def _an_abort_gives_everything_back(driver: Driver) -> None:
    for steps in range(6):
        driver.add(make_request(f"r{steps}", [3] * 11, n=2, max_tokens=9))
        for _ in range(steps):
            driver.step()
        driver.scheduler.abort(f"r{steps}")
        _check_counts(driver)
        _check_empty(driver)
    driver.run()
    _check_counts(driver)


def _a_full_cache_refuses_and_changes_nothing(driver: Driver) -> None:
    desk = Desk(driver.cache)
    admitted: list[Sequence] = []
    while True:
        seq = desk.waiting([len(admitted)] * 9, output=8)
        before = desk.cache.usage()
        hit = desk.cache.lookup(seq)
        assert hit.tokens < seq.length, "at least one token must be left to compute"
        refused = bool(desk.cache.shortage(seq, hit))
        if not desk.admit(seq):
            break
        assert not refused, "a shortage was reported, but the sequence was admitted"
        admitted.append(seq)
    assert admitted, "not even one text of 17 tokens fits"
    assert refused, "no shortage was reported, but the sequence was refused"
    assert desk.cache.usage() == before, "a refused admission changed something"
    relief = list(desk.cache.relief(seq, hit, admitted))
    assert desk.cache.shortage(seq, hit) <= sum(relief), "releasing everybody is not enough"
    for victim in admitted:
        desk.release(victim)
        desk.release(victim)  # without blocks: no effect
        desk.cache.check()
    _check_empty(driver)
    assert desk.admit(seq), "an empty cache refuses what fitted before"
    desk.release(seq)


def _limits_leave_room_for_an_answer(driver: Driver) -> None:
    for prompt, output, limit in ((1, 1, 2), (3, 5, 20), (7, 16, 9)):
        longest = driver.cache.limit(prompt, output, limit)
        assert prompt + 1 <= longest <= limit, (
            f"limit({prompt}, {output}, {limit}) is {longest}: "
            f"it must leave one token and not exceed {limit}"
        )
