"""In which order requests are served: classes, and who is next inside a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from octavo.contract.request import Request
from octavo.sched.depth_first import DepthFirst
from octavo.sched.longest_prefix import LongestPrefix
from octavo.sched.turns import Turns


class Order(Protocol):
    """Puts requests into classes; inside a class the earlier one is served first."""

    def urgency(self, request: Request) -> int:
        """Return the class of a request; a lower one may displace a running higher one."""
        ...


class TakesTurns(Order, Protocol):
    """An order that says who is next inside a class; without `turns` it is the earlier one."""

    def turns(self) -> Turns:
        """Return what chooses inside one queue; each tenant has its own."""
        ...


class Fcfs:
    """First come, first served: one class for all."""

    def urgency(self, request: Request) -> int:
        """Return the same class for every request."""
        return 0


class Priority:
    """Lower priority numbers first, as in vLLM; equal numbers in order of arrival."""

    def urgency(self, request: Request) -> int:
        """Return the request's own number."""
        return request.priority


ORDERS: dict[str, Callable[..., Order]] = {
    "fcfs": Fcfs,
    "priority": Priority,
    "longest_prefix": LongestPrefix,
    "depth_first": DepthFirst,
}
"""Orders by name. Parameters are keyword arguments with defaults."""
