"""The free space of directories, without waiting for their file systems.

`statvfs` does not return if the mount hangs (NFS, CIFS, FUSE).  So a task samples the directories in a thread, one
after the other, and readers get the latest samples.  A mount that hangs blocks one thread and the later samples; the
ages of the samples show that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

SAMPLE_S = 10.0
"""Time between two rounds of samples."""


class Space(NamedTuple):
    """The space on the file system of `path`.  free_bytes: available to this process."""

    path: str
    free_bytes: int
    total_bytes: int


class SpaceSamples:
    """The latest sample of each directory.

    paths: called in each round.  A directory that the system cannot examine has no sample.
    """

    def __init__(self, paths: Callable[[], Sequence[str]]) -> None:
        self._paths = paths
        self._latest: dict[str, tuple[Space, float]] = {}  # with the loop's time of the request

    def latest(self) -> list[Space]:
        """Return the samples in the order of the paths.  Never waits."""
        return [self._latest[path][0] for path in self._paths() if path in self._latest]

    def ages_s(self) -> dict[str, float]:
        """Return the age of each sample of `latest`, by path."""
        now = asyncio.get_running_loop().time()
        return {path: now - self._latest[path][1] for path in self._paths() if path in self._latest}

    async def run(self) -> None:
        """Sample forever.  A cancellation leaves a hanging sample in its thread."""
        loop = asyncio.get_running_loop()
        while True:
            for path in self._paths():
                asked_at = loop.time()
                space = await loop.run_in_executor(None, space_of, path)
                if space is None:
                    self._latest.pop(path, None)
                else:
                    self._latest[path] = (space, asked_at)
            await asyncio.sleep(SAMPLE_S)


def space_of(path: str) -> Space | None:
    """Ask the system for the free space, which takes as long as the mount hangs.  None: the system reports an error."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    return Space(path, stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize)
