"""Events that one part of the broker reports and others subscribe to.  Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec

P = ParamSpec("P")


class Event(Generic[P]):
    """Call it to report the event.  Subscribers are called immediately, in the order in which they subscribed."""

    __slots__ = ("_subscribers",)

    def __init__(self) -> None:
        self._subscribers: list[Callable[P, object]] = []

    def subscribe(self, callback: Callable[P, object]) -> None:
        """Call `callback` with each later event.  It must not raise."""
        self._subscribers.append(callback)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for callback in self._subscribers:
            callback(*args, **kwargs)
