"""The exception of the simulators."""

from __future__ import annotations


class Violation(AssertionError):
    """A promise is broken."""
