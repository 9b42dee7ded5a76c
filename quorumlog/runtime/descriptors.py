"""The limit of open files of this process.

The limits of connections and of open segments are shares of this limit.
"""

from __future__ import annotations

import resource

from quorumlog.runtime.logging import get_logger

logger = get_logger("descriptors")

DESCRIPTORS_WANTED = 65_536
"""Wanted limit of open files.  A larger limit would only allow more idle connections, and open files are not free."""


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit of open files to its hard limit, at most to `DESCRIPTORS_WANTED`.

    Many systems start programs with a soft limit of 1,024, which is meant for programs that use select(2).
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_WANTED if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError) as error:  # macOS permits less than the hard limit that it reports
        logger.warning("limit of open files not raised", soft=soft, wanted=wanted, cause=str(error))


def descriptor_limit() -> int:
    """Return the number of files that this process may open; `DESCRIPTORS_WANTED` if the system sets no limit."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return DESCRIPTORS_WANTED if soft == resource.RLIM_INFINITY else soft
