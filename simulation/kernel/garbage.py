"""Runs without the garbage collector, which would traverse the whole world repeatedly."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache


@contextmanager
def collected_afterwards() -> Iterator[None]:
    """Disable the garbage collector inside the context, and collect afterwards.

    That collection skips the program itself.
    """
    gc.disable()
    _freeze_program()
    try:
        yield
    finally:
        gc.enable()
        gc.collect()


@cache
def _freeze_program() -> None:
    """Exclude all objects that exist before the first world from later collections."""
    gc.freeze()
