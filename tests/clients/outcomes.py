"""The outcomes of rows, and the exceptions that lead to them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Word(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    NOT_SERVED = "not served"
    """The brokers do not advertise a request that the row needs."""
    NOT_OFFERED = "not offered"
    """The client has no such feature."""
    SKIPPED = "skipped"
    """A runtime or a package is missing on this machine."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one row.  detail: the reason, unless the row passed.  version: the client's, if it was started."""

    program: str
    row: str
    word: Word
    detail: str = ""
    version: str = ""
    seconds: float = 0.0


class RowFailed(Exception):
    """The client, the brokers or a check failed."""


class NotOffered(Exception):
    """The client has no such feature; the argument is the reason."""


class Skipped(Exception):
    """A runtime or a package is missing; the argument names it."""


def expect(what: str, found: object, wanted: object) -> None:
    """Compare two values.  what: their name for the error.

    Raises:
        RowFailed: they differ.
    """
    if found != wanted:
        raise RowFailed(f"{what}: {shortened(found)}, not {shortened(wanted)}")


def shortened(value: object, length: int = 300) -> str:
    text = str(value)
    return text if len(text) <= length else f"{text[:length]}…"
