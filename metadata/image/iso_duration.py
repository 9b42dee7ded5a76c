"""Durations in the notation of ISO 8601, as Java's `Duration` reads them: `PT1H30M`, `P2DT0.5S`."""

from __future__ import annotations

import re

CHARS_MAX = 40
"""Maximum length of a duration.  A longer one is refused."""
DURATION_MAX_MS = 2**63 - 1

_PATTERN = re.compile(
    r"P(?:([0-9]{1,19})D)?(?:T(?=[0-9])(?:([0-9]{1,19})H)?(?:([0-9]{1,19})M)?(?:([0-9]{1,19})(?:\.([0-9]{0,9}))?S)?)?",
    re.IGNORECASE,
)


def duration_ms(text: str) -> int | None:
    """Return a duration in ms, rounded down; None if it is malformed, negative, or above `DURATION_MAX_MS`.

    The units are days, hours, minutes and seconds; at least one is required.
    """
    found = _PATTERN.fullmatch(text) if len(text) <= CHARS_MAX else None
    if found is None or not any(found.groups()):
        return None
    days, hours, minutes, seconds = (int(each or 0) for each in found.groups()[:4])
    fraction_ms = int((found.group(5) or "")[:3].ljust(3, "0"))
    total_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000 + fraction_ms
    return total_ms if total_ms <= DURATION_MAX_MS else None
