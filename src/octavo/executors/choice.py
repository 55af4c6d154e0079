"""What `build` needs to know of an executor before it makes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from typing import TypeAlias

    from octavo.contract.batch import Batch
    from octavo.contract.layout import KVLayout
    from octavo.engine.loop import ModelRunner
    from octavo.executors.gpu_memory import GpuPlan
    from octavo.runner.masks import Matchers

    Observer: TypeAlias = Callable[[Batch, Any], None]
    """Receives the logits of a step, [slices that sample, vocab_size]: a tensor or an array."""

_Row = TypeVar("_Row")


class Choice(Protocol):
    """An executor that has been chosen: its memory is known, nothing is loaded."""

    @property
    def backend(self) -> str:
        """Name the backend."""
        ...

    @property
    def layout(self) -> KVLayout:
        """How its KV memory is laid out."""
        ...

    @property
    def lossy(self) -> str:
        """What makes its KV differ from exact KV, for the namespace; empty: nothing."""
        ...

    @property
    def device(self) -> str:
        """Name the device: cpu, cuda:0, …."""
        ...

    @property
    def weight_bytes(self) -> int:
        """Bytes that the weights will take, wherever they are."""
        ...

    @property
    def gpu_plan(self) -> GpuPlan | None:
        """What will lie where on its GPU, as it is now; None: there is none."""
        ...

    @property
    def depth(self) -> int:
        """Steps in flight that it is quickest with."""
        ...

    def make(
        self, num_blocks: int, on_logits: Observer | None, matchers: Matchers | None
    ) -> tuple[ModelRunner, tuple[int, ...]]:
        """Load the weights; return a runner, and the row counts in which it computes if strict.

        matchers: of grammars; None: the engine has none.
        """
        ...


@runtime_checkable
class StartsEarly(Protocol):
    """A runner that serves before all of its kernels are compiled."""

    def finish_start(self) -> None:
        """Wait for the rest of its kernels."""
        ...


def named(
    what: str, name: str, table: dict[str, _Row], *others: str, group: str | None = None
) -> _Row:
    """Return a row of a table. Raises ConfigError that lists its names, and others.

    group: of plug-ins, which are looked for if the table has no such name.
    """
    if group is not None and isinstance(name, str) and name not in table:  # pyright: ignore[reportUnnecessaryIsInstance]
        from octavo.plugins import extended

        table = extended(group, table)
    if not isinstance(name, str) or name not in table:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigError(f"{what} {name!r:.80} is not one of {', '.join((*table, *others))}")
    return table[name]
