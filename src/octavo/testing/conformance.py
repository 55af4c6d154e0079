"""What every row of a table must keep: one suite per protocol, for ours and for yours.

Each suite raises AssertionError with the promise that is broken. Nothing here needs pytest.
"""

from __future__ import annotations

from collections.abc import Callable

from octavo.contract.request import FinishReason, Sequence
from octavo.memory.reservation import Reservation
from octavo.sched.limits import Limits
from octavo.sched.order import Order
from octavo.testing.desk import Desk
from octavo.testing.driver import Driver, make_cache, make_request
from octavo.testing.eviction_suite import check_eviction_policy
from octavo.testing.fake_grammars import fake_form
from octavo.testing.grammar_suite import check_grammar_maker
from octavo.testing.runner_suite import check_runner

__all__ = [
    "check_cache",
    "check_eviction_policy",
    "check_grammar_maker",
    "check_order",
    "check_reservation",
    "check_runner",
]

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
        _who_begins_again_is_answered(make_driver(depth))
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
        form = fake_form(i) if i % 3 == 1 else None
        driver.add(
            make_request(
                f"r{i}", prompt, n=1 + i % 2, max_tokens=1 + i, seed=i, structured_outputs=form
            )
        )
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


def _who_begins_again_is_answered(driver: Driver) -> None:
    for i in range(6):
        driver.add(make_request(f"r{i}", [i, 7, 7], n=1 + i % 2, max_tokens=12, seed=i))
    for _ in range(5):
        driver.step()
    driver.settle()
    while driver.cache.open_moves:
        driver.step()
        driver.settle()
    out = driver.quarantine()
    assert out == 0, f"nothing was wrong, and {out} blocks are out"
    assert driver.cache.usage().blocks_used == 0, "somebody has blocks, though all begin again"
    driver.run()
    driver.check_answers()
    _check_empty(driver)


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
