"""Prepares a Python worker of an executor for its tasks."""

from __future__ import annotations

import gc
from functools import cache

from quorumlog.runtime.garbage import keep_loaded


@cache
def prepare_worker() -> None:
    """Keep the modules that are loaded by now out of garbage collection, once per worker.

    Spark's worker daemon collects garbage after each task.  PySpark's modules and those of this source are 57,000
    objects that live as long as the worker.  A walk through them takes 0.04 s: longer than a small task itself.
    """
    gc.collect()  # the garbage so far would count as permanent, too
    keep_loaded()
