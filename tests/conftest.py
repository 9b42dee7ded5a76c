"""For all tests."""

from __future__ import annotations

import gc
from functools import partial
from threading import Thread

import aiosqlite.core
import pytest
from hypothesis import settings

# A test that fails may leave its database open, and the interpreter would wait for aiosqlite's thread without end.
aiosqlite.core.Thread = partial(Thread, daemon=True)  # type: ignore[attr-defined, assignment]  # replaces an import

# By default hypothesis fails a test whose example takes longer than 200 ms, which happens on a busy machine.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

# The modules and the tests themselves live as long as the process.  The garbage collector would traverse these hundreds
# of thousands of objects again and again, while they are made and during every test.
gc.disable()


def pytest_collection_finish() -> None:
    """Exclude everything that was loaded from later collections."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module")
def short_collections() -> None:
    """Exclude what earlier tests have left, too: a module whose tests collect garbage would walk it each time."""
    gc.collect()
    gc.freeze()
