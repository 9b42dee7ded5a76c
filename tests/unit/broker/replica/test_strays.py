"""Logs on disk that are not in the metadata."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import AsyncMock
from uuid import UUID

import pytest

from broker.log import LogConfig, LogKey
from broker.replica.strays import GENERATION
from quorumlog.runtime.disk import DiskError
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import Rig, running


async def with_strays(rig: Rig) -> list[LogKey]:
    """Put one log into each directory of a broker that is not registered yet."""
    keys = [LogKey(UUID(int=number), 0, 1) for number in range(len(rig.directories))]
    for key, directory_id in zip(keys, rig.directories, strict=True):
        log = rig.role.logs.create(key, "gone", directory_id, LogConfig())
        log.append_as_follower(make_batch((b"a",), leader_epoch=0), 0, 0)
        await rig.role.logs.flush_all([log])
    return keys


@pytest.mark.parametrize("generation", [0, 1])
async def test_a_failing_directory_does_not_affect_the_strays_in_other_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, generation: int
) -> None:
    """Otherwise the other directories would keep the data of deleted topics until the broker is started again."""
    async with running(tmp_path, directories=2) as rig:
        await with_strays(rig)
        strays, failing = rig.role.strays, rig._disks[0]
        monkeypatch.setattr(strays, "_generation", lambda: generation)
        monkeypatch.setattr(failing.facts, "commit", AsyncMock(side_effect=DiskError("no room")))
        await rig.register()
        assert list(rig.role.logs.failed_disks) == [failing.directory_id]
        (stray,) = rig.role.logs.strays()
        assert (stray.directory_id, stray.is_kept) == (rig.directories[1], generation == 1)
        for now_ms in (0, rig.context.limits.strays_kept_ms):
            await strays.delete_old(now_ms)
        assert bool(rig.role.logs.strays()) == (generation == 1), "strays that a rebuilt quorum does not know are kept"


async def test_a_directory_that_cannot_store_the_generation_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, directories=2) as rig:
        strays, failing = rig.role.strays, rig._disks[0]
        monkeypatch.setattr(strays, "_generation", lambda: 1)
        monkeypatch.setattr(failing.facts, "commit", AsyncMock(side_effect=DiskError("no room")))
        await rig.register()
        assert list(rig.role.logs.failed_disks) == [failing.directory_id]
        stored = rig._disks[1].facts.load(GENERATION)
        assert (strays.are_known, stored) == (True, {GENERATION: b"1"})
