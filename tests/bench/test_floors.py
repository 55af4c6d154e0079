"""Works are timed in turns, and held against what the machine could do in the same turn."""

from __future__ import annotations

import pytest

from octavo.bench.floors import Gauge, Load, Rounds, measure_rounds


class Clock:
    """A clock that only moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Native:
    """A machine that reads a MiB and does a thousand operations in the next of some times."""

    def __init__(self, clock: Clock, read_s: list[float]) -> None:
        self.clock, self.read_s, self.calls = clock, read_s, []

    def ThreadPool(self, threads):  # noqa: N802 (as the extension names it)
        return threads

    def read_memory(self, data, *, pool):
        self.calls.append("read")
        self.clock.now += self.read_s.pop(0) if len(self.read_s) > 1 else self.read_s[0]

    def calculate(self, arithmetic, chunks, *, pool):
        self.calls.append(arithmetic)
        self.clock.now += 0.001
        return 1000.0


def gauge_of(read_s: list[float], *, seconds: float) -> Gauge:
    clock = Clock()
    native = Native(clock, read_s)
    return Gauge(native, threads=2, num_bytes=1 << 20, seconds=seconds, clock=clock)


def work_of(gauge: Gauge, seconds: float):
    def work() -> None:
        gauge.native.calls.append("work")
        gauge.clock.now += seconds

    return work


def test_the_machine_is_measured_in_every_round():
    gauge = gauge_of([0.01], seconds=0.1)
    rounds = measure_rounds(gauge, {"a": work_of(gauge, 0.05)}, arithmetic="bf16")

    assert gauge.native.calls == ["read", "bf16", "work"] * 3
    assert rounds.read_bytes_per_s == [pytest.approx((1 << 20) / 0.01)] * 3
    assert rounds.operations_per_s == [pytest.approx(1e6)] * 3


def test_short_works_are_repeated_until_their_time_is_spent():
    gauge = gauge_of([0.01], seconds=0.93)
    works = {"a": work_of(gauge, 0.039), "b": work_of(gauge, 0.05)}
    rounds = measure_rounds(gauge, works, arithmetic="bf16")

    assert len(rounds.times["a"]) == len(rounds.times["b"]) == 19


def test_works_that_take_very_long_run_once():
    gauge = gauge_of([0.01], seconds=0.1)
    rounds = measure_rounds(gauge, {"a": work_of(gauge, 2.0)}, arithmetic="bf16")

    assert len(rounds.times["a"]) == 1


def test_a_slow_minute_of_the_machine_does_not_change_what_is_reached():
    # Memory is read at 100, then at 50; the work slows down with it.
    rounds = Rounds({"a": [1.0, 2.0, 2.0]}, [100.0, 50.0, 50.0], [1000.0] * 3)
    load = Load(80.0, 10.0)

    assert rounds.reached("a", load) == pytest.approx(0.8)
    assert rounds.share_of_read("a", load) == pytest.approx(0.8)


def test_the_larger_floor_counts():
    rounds = Rounds({"a": [2.0]}, [100.0], [1000.0])

    assert rounds.floors(Load(100.0, 1500.0)) == (1.0, 1.5)
    assert rounds.reached("a", Load(100.0, 1500.0)) == pytest.approx(0.75)
    assert rounds.reached("a", Load(180.0, 1500.0)) == pytest.approx(0.9)


def test_the_best_that_arithmetic_did_in_any_round_is_its_peak():
    rounds = Rounds({"a": [1.0, 1.0, 1.0]}, [100.0] * 3, [500.0, 1000.0, 400.0])

    assert rounds.reached("a", Load(10.0, 800.0)) == pytest.approx(0.8)


def test_two_works_are_compared_round_by_round():
    rounds = Rounds({"a": [2.0, 6.0, 30.0], "b": [1.0, 3.0, 5.0]}, [1.0] * 3, [1.0] * 3)

    assert rounds.ratio("a", "b") == 2.0
