"""Fetches whose reads take time: what happens meanwhile counts."""

from __future__ import annotations

import asyncio

import pytest

from broker.core.errors import Code
from broker.core.fetch_session import FULL_FETCH_NEW_SESSION
from broker.kafka.api import FetchPartition, FetchPlan, FetchReply
from broker.replica.replica import Replica
from quorumlog.runtime.disk import DiskError
from tests.unit.broker.replica.rig import Rig
from tests.unit.metadata.fake_node import settle


class SlowReads:
    """Reads wait until the test lets them go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = asyncio.Event()
        self.begun = 0
        read = Replica.read

        async def slowly(replica: Replica, offset: int, max_bytes: int, up_to_offset: int) -> bytes:
            records = await read(replica, offset, max_bytes, up_to_offset)
            self.begun += 1
            await self.go_on.wait()
            return records

        monkeypatch.setattr(Replica, "read", slowly)


@pytest.fixture
async def reads(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> SlowReads:
    await rig.create((1, 2))
    await rig.write(b"a")
    return SlowReads(monkeypatch)


def plan(rig: Rig, session_id: int = 0, session_epoch: int = FULL_FETCH_NEW_SESSION, offset: int = 0) -> FetchPlan:
    """Broker 2 fetches partition 0."""
    partition = FetchPartition(rig.hosted().topic_id, None, 0, offset, 1 << 20, 0, 0 if offset else -1)
    return FetchPlan((partition,), 0, 1, 1 << 20, 2, rig.cluster.epoch(2), session_id, session_epoch)


async def begun(rig: Rig, reads: SlowReads, wanted: FetchPlan) -> asyncio.Task[FetchReply]:
    """A fetch that waits for its read."""
    fetch = asyncio.create_task(rig.replicas.fetch(wanted))
    await settle()
    assert reads.begun == 1
    assert not fetch.done()
    return fetch


async def test_records_are_sent_when_the_read_is_done(rig: Rig, reads: SlowReads) -> None:
    fetch = await begun(rig, reads, plan(rig))
    reads.go_on.set()
    assert bytes((await fetch).results[0].records) == rig.log.read(0, 1 << 20, 1)


async def test_records_are_not_sent_by_a_leader_that_resigned_during_the_read(rig: Rig, reads: SlowReads) -> None:
    fetch = await begun(rig, reads, plan(rig))
    await rig.change(leader=2)
    reads.go_on.set()
    result = (await fetch).results[0]
    assert (result.error_code, bytes(result.records)) == (Code.NOT_LEADER_OR_FOLLOWER, b"")


async def test_a_replica_that_goes_offline_during_a_read_answers_without_records(rig: Rig, reads: SlowReads) -> None:
    fetch = await begun(rig, reads, plan(rig))
    rig.hosted().take_offline(DiskError("I/O error"))
    reads.go_on.set()
    assert (await fetch).results[0].error_code == Code.NOT_LEADER_OR_FOLLOWER


async def test_a_fetch_that_arrives_during_a_read_takes_over(rig: Rig, reads: SlowReads) -> None:
    """It may have forgotten the partition that is being read."""
    reads.go_on.set()
    session_id = (await rig.replicas.fetch(plan(rig))).session_id
    reads.go_on.clear()
    reads.begun = 0
    older = await begun(rig, reads, plan(rig, session_id, 1))
    newer = asyncio.create_task(rig.replicas.fetch(plan(rig, session_id, 2, offset=1)))
    await settle()
    reads.go_on.set()
    assert (await older).results == ()
    assert (await newer).error_code == Code.NONE
