"""A progress bar for long runs, on stderr."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Progress:
    """Counts answers and tokens on a bar."""

    def __init__(self, answers: int) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.progress import Progress as Bar

        self._tokens = 0
        self.bar = Bar(
            TextColumn("answers"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._task = self.bar.add_task("answers", total=answers, speed="")

    def advance(self, tokens: int, *, finished: bool) -> None:
        """Take in new tokens, and whether they end an answer."""
        self._tokens += tokens
        seconds = self.bar.tasks[0].elapsed or 0.0
        speed = f"{self._tokens / seconds:.0f} tokens/s" if seconds > 0.5 else ""
        self.bar.update(self._task, advance=int(finished), speed=speed)


@contextmanager
def progress_bar(answers: int) -> Iterator[Progress]:
    """Show a bar while the block runs; it leaves no trace on the screen."""
    progress = Progress(answers)
    with progress.bar:
        yield progress


@contextmanager
def work_bar(title: str, total: float) -> Iterator[Callable[[float], None]]:
    """Show a bar on stderr while the block runs; yields what takes in work done.

    Without a terminal nothing is shown.
    """
    from rich.console import Console
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    bar = Bar(console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task(title, total=total)
    with bar:
        yield lambda amount: bar.advance(task, amount)
