"""In which order requests are served: one small class each."""

from __future__ import annotations

from typing import Protocol

from octavo.contract.request import Request


class Order(Protocol):
    """Puts requests into classes; inside a class the earlier one is served first."""

    def urgency(self, request: Request) -> int:
        """Return the class of a request; a lower one may displace a running higher one."""
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


ORDERS = {"fcfs": Fcfs, "priority": Priority}
