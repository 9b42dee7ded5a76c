"""Warnings of the data source.

They use the standard logging module, because the process belongs to a Spark program, which configures its own logging.
"""

from __future__ import annotations

import logging
from functools import lru_cache

REMEMBERED_MAX = 1000
"""Maximum number of warnings that `warn_once` remembers; above it, the least recently used is dropped."""

logger = logging.getLogger("pyspark_quorumlog")


def warn(text: str) -> None:
    logger.warning("%s", text)


@lru_cache(maxsize=REMEMBERED_MAX)
def warn_once(text: str) -> None:
    """Log a warning that this process has not logged before."""
    warn(text)
