"""Fetches whose reads take time, and changes during the read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from broker.core.fetch_session import FULL_FETCH_NEW_SESSION
from broker.kafka.api import MAX_TIMESTAMP, FetchPartition, FetchPlan, FetchReply
from broker.log import PartitionLog
from broker.replica.replica import Replica
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig
from tests.unit.metadata.fake_node import settle


class SlowReads:
    """Reads wait until the test lets them continue, except the first `quick` ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on = asyncio.Event()
        self.begun = 0
        self.quick = 0
        read = Replica.read

        async def slowly(replica: Replica, offset: int, max_bytes: int, up_to_offset: int) -> bytes | memoryview:
            records = await read(replica, offset, max_bytes, up_to_offset)
            self.begun += 1
            if self.begun > self.quick:
                await self.go_on.wait()
            return records

        monkeypatch.setattr(Replica, "read", slowly)


@pytest.fixture
async def reads(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> SlowReads:
    await rig.create((1, 2), (1, 2))
    for index in (0, 1):
        rig.replicas.start_produce(TOPIC, index, memoryview(make_batch([b"a"])), -1, 60_000)
    return SlowReads(monkeypatch)


def plan(rig: Rig, *indexes: int, session: tuple[int, int] = (0, FULL_FETCH_NEW_SESSION)) -> FetchPlan:
    """Return a fetch by broker 2 of these partitions from their start."""
    topic_id = rig.hosted().topic_id
    partitions = tuple(FetchPartition(topic_id, None, index, 0, 1 << 20, 0, -1) for index in indexes)
    return FetchPlan(partitions, 0, 1, 1 << 20, 2, rig.cluster.epoch(2), *session)


async def begun(rig: Rig, reads: SlowReads, wanted: FetchPlan) -> asyncio.Task[FetchReply]:
    """Start a fetch, and return it once it waits for its read."""
    fetch = asyncio.create_task(rig.replicas.fetch(wanted))
    await settle()
    assert reads.begun == reads.quick + 1
    assert not fetch.done()
    return fetch


async def test_records_are_sent_when_the_read_is_done(rig: Rig, reads: SlowReads) -> None:
    fetch = await begun(rig, reads, plan(rig, 0))
    reads.go_on.set()
    assert bytes((await fetch).results[0].records) == rig.log.read(0, 1 << 20, 1)


async def test_records_are_not_sent_by_a_leader_that_resigned_during_the_read(rig: Rig, reads: SlowReads) -> None:
    fetch = await begun(rig, reads, plan(rig, 0))
    await rig.change(leader=2)
    reads.go_on.set()
    result = (await fetch).results[0]
    assert (result.error_code, bytes(result.records)) == (KafkaCode.NOT_LEADER_OR_FOLLOWER, b"")


async def test_a_replica_that_goes_offline_during_a_read_answers_without_records(rig: Rig, reads: SlowReads) -> None:
    fetch = await begun(rig, reads, plan(rig, 0))
    rig.hosted().take_offline(DiskError("I/O error"))
    reads.go_on.set()
    assert (await fetch).results[0].error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_a_fetch_that_arrives_during_a_read_replaces_the_earlier_fetch(rig: Rig, reads: SlowReads) -> None:
    """The older fetch returns no records, because the newer fetch may have removed that partition from the session."""
    reads.go_on.set()
    session_id = (await rig.replicas.fetch(plan(rig, 0, 1))).session_id
    reads.go_on.clear()
    reads.begun, reads.quick = 0, 1
    older = await begun(rig, reads, plan(rig, 0, 1, session=(session_id, 1)))
    newer = asyncio.create_task(rig.replicas.fetch(plan(rig, 1, session=(session_id, 2))))
    await settle()
    reads.go_on.set()
    assert (await older).results == ()
    assert [len(each.records) > 0 for each in (await newer).results] == [True, True]


@pytest.mark.parametrize(
    ("timestamp", "look_up"), [(0, "offset_for_timestamp"), (MAX_TIMESTAMP, "max_timestamp_offset")]
)
async def test_a_look_up_by_timestamp_is_refused_if_the_leader_resigned_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, timestamp: int, look_up: str
) -> None:
    """The broker may have truncated the record that was found."""
    await rig.create((1, 2))
    await rig.write(b"a")
    await rig.fetch(2, 1, 0)
    assert (await rig.replicas.list_offset(TOPIC, 0, timestamp)).offset == 0
    find = getattr(PartitionLog, look_up)

    async def resigns_meanwhile(*arguments: Any) -> Any:
        found = await find(*arguments)
        await rig.change(leader=2)
        return found

    monkeypatch.setattr(PartitionLog, look_up, resigns_meanwhile)
    found = await rig.replicas.list_offset(TOPIC, 0, timestamp)
    assert (found.error_code, found.offset) == (KafkaCode.NOT_LEADER_OR_FOLLOWER, -1)
