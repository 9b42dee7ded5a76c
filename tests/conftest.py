"""Settings and fixtures for all tests."""

from __future__ import annotations

import gc
from functools import partial
from threading import Thread

import aiosqlite.core
import pytest
from hypothesis import settings

# A test that fails may leave its database open, and the interpreter would wait for aiosqlite's thread forever.
aiosqlite.core.Thread = partial(Thread, daemon=True)  # type: ignore[attr-defined, assignment]  # replaces an import

# By default hypothesis fails a test whose example takes longer than 200 ms, which happens on a busy machine.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# The modules and the tests themselves live as long as the process.  The garbage collector would traverse these hundreds
# of thousands of objects repeatedly, while they are made and during every test.
gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the objects of all loaded modules and tests from later collections."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def short_collections() -> None:
    """Exclude the objects that earlier tests have left from all later collections.

    Modules whose tests collect garbage use this.  Otherwise each of these collections would traverse those objects.
    """
    gc.collect()
    gc.freeze()
