"""The exception of the simulators."""

from __future__ import annotations


class Violation(AssertionError):
    """An invariant does not hold."""
