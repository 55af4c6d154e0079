"""Runs independent replays of one trace, in this process or in several."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Protocol, TypeAlias, TypeVar

from octavo.errors import ConfigError
from octavo.replay.trace import Trace

Advance: TypeAlias = Callable[[float], None]
"""Told how many requests were replayed since its last call."""

Result_co = TypeVar("Result_co", covariant=True)


class Task(Protocol[Result_co]):
    """One replay; picklable for more than one process."""

    def run(self, trace: Trace, advance: Advance | None = None) -> Result_co:
        """Replay a trace; tells `advance` of each of its requests."""
        ...


def run_tasks(
    trace: Trace, tasks: list[Task[Result_co]], jobs: int, advance: Advance | None
) -> list[Result_co]:
    """Run all tasks in up to `jobs` processes; results come in the order of the tasks.

    jobs: 1: in this process. Raises ConfigError if a process dies.
    """
    jobs = min(jobs, len(tasks))
    run = _run_here if jobs == 1 else _run_beside
    found = dict(run(trace, tasks, jobs, advance))
    return [found[number] for number in range(len(tasks))]


def _run_here(
    trace: Trace, tasks: list[Task[Result_co]], jobs: int, advance: Advance | None
) -> Iterator[tuple[int, Result_co]]:
    for number, task in enumerate(tasks):
        yield number, task.run(trace, advance)


def _run_beside(
    trace: Trace, tasks: list[Task[Result_co]], jobs: int, advance: Advance | None
) -> Iterator[tuple[int, Result_co]]:
    # Not forked: this process may have threads, a progress bar's for one.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=_end_with_parent)
    try:
        numbers = {pool.submit(task.run, trace): number for number, task in enumerate(tasks)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()
            if advance is not None:
                advance(len(trace.requests))
    except BrokenProcessPool:
        raise ConfigError(
            f"one of {jobs} processes ended before its replay did, perhaps for lack of memory: "
            "give fewer --jobs"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End at once by Ctrl-C, without a traceback, and when the process that waits is gone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_leave_after_parent, daemon=True).start()


def _leave_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was started by nobody"
    parent.join()
    os._exit(1)
