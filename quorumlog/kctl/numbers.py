"""Parsers for numbers in options and arguments.

They are stricter than `int` and `float`, which accept `1_0` for 10 and `nan` for a time.
"""

from __future__ import annotations

import math
import re
from typing import Any

import click

_WHOLE = re.compile(r"[+-]?[0-9]+")
_DIGITS_MAX = 19
"""Maximum number of digits after leading zeros.  Longer numbers are refused here, before Python refuses to convert
them."""


def whole(text: str) -> int:
    """Parse a whole number; spaces around it are permitted.

    Raises:
        ValueError: the text is not a whole number, or has more than 19 digits after leading zeros.
    """
    given = text.strip()
    if not _WHOLE.fullmatch(given) or len(given.lstrip("+-0")) > _DIGITS_MAX:
        raise ValueError(f"{text!r} is not a whole number")
    return int(given)


class IntRange(click.IntRange):
    """A whole number within a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and not _WHOLE.fullmatch(value.strip()):
            self.fail(f"{value!r} is not a whole number.", param, ctx)
        return super().convert(value, param, ctx)


class FloatRange(click.FloatRange):
    """A number within a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            is_number = "_" not in str(value) and not math.isnan(float(value))
        except ValueError:
            is_number = False
        if not is_number:
            self.fail(f"{value!r} is not a number.", param, ctx)
        return super().convert(value, param, ctx)
