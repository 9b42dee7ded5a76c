"""A directory whose disk hangs: its syncs wait until a test lets them continue."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from quorumlog.runtime.syncs import SyncJob, SyncThreads, close_all


@contextmanager
def hanging_syncs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[asyncio.Event]:
    """Make all syncs of files under `folder` wait for the event; it is set at the end."""
    released, run = asyncio.Event(), SyncThreads.run

    async def hangs(threads: SyncThreads, jobs: Sequence[SyncJob]) -> None:
        if any(folder in Path(os.readlink(f"/proc/self/fd/{job.fd}")).parents for job in jobs):
            try:
                await released.wait()
            except asyncio.CancelledError:
                close_all(jobs)
                raise
        await run(threads, jobs)

    monkeypatch.setattr(SyncThreads, "run", hangs)
    try:
        yield released
    finally:
        released.set()
