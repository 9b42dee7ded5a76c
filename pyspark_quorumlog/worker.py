"""Prepares a Python worker of an executor for its tasks."""

from __future__ import annotations

import gc
from functools import cache

from quorumlog.runtime.garbage import made_to_last


@cache
def load_codec() -> None:
    """Import the compiled codec, once per worker, and keep its modules out of garbage collection.

    The import takes over a second of CPU time, so only tasks pay for it, and not the driver.

    Spark's worker daemon collects garbage after each task.  The imported modules are over 100,000 objects that live as
    long as the worker, and a walk through them takes about 0.1 s: far longer than a small task itself.
    """
    gc.collect()  # the garbage so far would count as permanent, too
    with made_to_last():
        import pyspark_quorumlog.arrow  # noqa: F401
