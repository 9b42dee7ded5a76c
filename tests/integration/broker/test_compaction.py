"""Replicas of a compacted topic: each compacts its own log, and followers copy compacted leaders."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from broker.log import PartitionLog
from broker.replica.limits import ReplicaLimits
from quorumlog.client.records import NewRecord, Record, build_batch, decode_batches
from quorumlog.wire.record_batch import iter_headers
from tests.integration.broker.harness import Broker, Cluster
from tests.integration.broker.test_reassign import is_in_sync, replicas_are
from tests.integration.broker.test_replication import leading
from tests.unit.broker.log.compaction_rig import read_all

CONFIGS = {"cleanup_policy": "compact", "segment_bytes": "16384", "min_cleanable_dirty_ratio": "0"}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path, 3, lag_max_ms=500, limits=ReplicaLimits(fetcher_backoff_max_ms=100)) as running:
        yield running


async def write(broker: Broker, latest: dict[bytes | None, bytes | None], first: int, count: int) -> None:
    for number in range(first, first + count):
        record = NewRecord(b"key-%d" % (number % 5), b"%d " % number * 100, timestamp_ms=1_000 + number)
        result = await broker.replicas.produce("t", 0, memoryview(build_batch([record])), -1, 10_000)
        assert result.error_code == 0, result
        latest[record.key] = record.value


def records(log: PartitionLog) -> list[Record]:
    return list(decode_batches(read_all(log)))


def newest(log: PartitionLog) -> dict[bytes | None, bytes | None]:
    return {one.key: one.value for one in records(log)}


async def compact(broker: Broker) -> None:
    """Compact until nothing is due; fail if the log could not be compacted."""
    while await broker.role.cleaner.clean_next():
        assert not broker.role.cleaner.uncleanable
    log = broker.log("t")
    assert log.marks.cleaned_offset > 0
    assert any(not header.record_count for _, header in iter_headers(read_all(log)))


async def test_a_follower_that_was_down_continues_to_copy_a_compacted_leader(cluster: Cluster) -> None:
    latest: dict[bytes | None, bytes | None] = {}
    cluster.controller.create("t", (1, 2, 3), **CONFIGS)
    leader = await leading(cluster, 1, "t")
    await write(leader, latest, 0, 70)
    await cluster.controller.until(is_in_sync(2, "t"))
    await cluster[2].stop(clean=True)
    await write(leader, latest, 70, 170)
    for broker in (leader, cluster[3]):  # the end of the log of broker 2 is within a filler now
        await cluster.until(lambda broker=broker: broker.log("t").high_watermark == 240)  # type: ignore[misc]
        await compact(broker)
    assert [one.offset for one in records(leader.log("t")) if one.offset < 75] == []

    await cluster[2].start()
    await cluster.controller.until(is_in_sync(2, "t"))
    for broker in cluster.brokers.values():
        assert newest(broker.log("t")) == latest
    await cluster.until(lambda: cluster[2].log("t").high_watermark == 240)
    await compact(cluster[2])
    await write(leader, latest, 240, 5)
    await cluster.until(lambda: all(one.log("t").end_offset == 245 for one in cluster.brokers.values()))
    assert newest(cluster[2].log("t")) == latest


@pytest.mark.parametrize("clean", [True, False])
async def test_a_new_replica_copies_a_compacted_log_and_leads(cluster: Cluster, clean: bool) -> None:
    latest: dict[bytes | None, bytes | None] = {}
    cluster.controller.create("t", (1, 2), **CONFIGS)
    leader = await leading(cluster, 1, "t")
    await write(leader, latest, 0, 200)
    await compact(leader)
    size = leader.log("t").size
    await leader.stop(clean)
    if not clean:
        cluster.controller.fence(1)
    await leader.start()
    assert leader.log("t").size == size
    assert newest(leader.log("t")) == latest
    await cluster.controller.until(is_in_sync(2, "t"))

    other = await leading(cluster, 2, "t")
    await cluster.until(lambda: other.log("t").high_watermark == 200)
    await compact(other)
    compacted = read_all(other.log("t"))  # before the reassignment, after which broker 2 removes its replica
    cluster.controller.reassign("t", 3)
    await cluster.controller.until(replicas_are("t", 3))
    last = await leading(cluster, 3, "t")
    assert read_all(last.log("t")) == compacted
    await write(last, latest, 200, 5)
    assert newest(last.log("t")) == latest
    assert last.log("t").end_offset == 205
