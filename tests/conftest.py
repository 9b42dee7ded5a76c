"""For all tests."""

from __future__ import annotations

from functools import partial
from threading import Thread

import aiosqlite.core

# A test that fails may leave its database open, and the interpreter would wait for aiosqlite's thread without end.
aiosqlite.core.Thread = partial(Thread, daemon=True)  # type: ignore[misc, assignment]
