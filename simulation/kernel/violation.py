"""The exception of the simulators, and the errors with which a process ends."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant does not hold."""


def causes_of(error: BaseException) -> list[BaseException]:
    """Return the errors in a group, or the error itself.  Several tasks of a process may fail at the same moment."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for inner in error.exceptions for cause in causes_of(inner)]
    return [error]
