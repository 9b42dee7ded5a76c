"""kctl groups about a share group whose partitions are led by three brokers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from quorumlog.client import Producer, ShareConsumer
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from tests.integration.quorum.clusters import done, kctl, running

FAST = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}
WAIT_S = 120.0
GROUP, TOPIC = "work", "jobs"
BROKERS = RECORDS = 3
LEFT = 1
"""The offset in each partition that no member accepts."""


async def work(consumer: ShareConsumer) -> None:
    """Accept all records but one of each partition."""
    seen: set[tuple[int, int]] = set()
    while len(seen) < BROKERS * RECORDS:
        record = await consumer.get(WAIT_S)
        assert record is not None, seen
        seen.add((record.partition, record.offset))
        if record.offset != LEFT:
            await consumer.accept(record)


async def lags(cluster: DevCluster) -> list[tuple[int, int | None, int | None, str | None]]:
    rows = await done(cluster, "groups", "lag", GROUP)
    assert {(row["group"], row["topic"]) for row in rows} <= {(GROUP, TOPIC)}
    return [(row["partition"], row["start_offset"], row["lag"], row["problem"]) for row in rows]


@pytest.mark.timeout(300)
async def test_kctl_shows_resets_and_deletes_a_share_group(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=BROKERS, **FAST) as cluster:
        await done(cluster, "configs", "set", "--cluster", "default.replication.factor=1",
                   "group.share.record.lock.duration.ms=60000", "share.auto.offset.reset=earliest",
                   "share.coordinator.state.topic.num.partitions=3")  # fmt: skip
        await done(cluster, "topics", "create", TOPIC, "--assignment", "11,12,13", "--wait")
        async with Producer(cluster.bootstrap) as producer:
            for number in range(BROKERS * RECORDS):
                await producer.send(TOPIC, b"%d" % number, partition=number % BROKERS)
        expected = [(index, LEFT, 1, None) for index in range(BROKERS)]
        async with asyncio.timeout(WAIT_S), ShareConsumer(cluster.bootstrap, GROUP, topics=[TOPIC]) as consumer:
            await work(consumer)
            assert await lags(cluster) == expected
            described = await done(cluster, "groups", "describe", GROUP)
            assert (described["type"], described["state"]) == ("share", "Stable")
            (member,) = described["members"]
            assert member["assignment"] == [{"topic": TOPIC, "partitions": [0, 1, 2]}]
            (total,) = await done(cluster, "groups", "lag")
            assert (total["group"], total["partitions"], total["lag"], total["unknown"]) == (GROUP, 3, 3, 0)
            assert (await kctl(cluster, "groups", "delete", GROUP))[0] == 5

        async def is_empty() -> bool:
            return bool((await done(cluster, "groups", "describe", GROUP))["state"] == "Empty")

        await wait_until(is_empty, WAIT_S, "the member has left")
        assert await lags(cluster) == expected
        await done(cluster, "groups", "reset-offsets", GROUP, "--all-topics", "--to-earliest")
        assert await lags(cluster) == [(index, 0, RECORDS, None) for index in range(BROKERS)]
        deleted = await done(cluster, "groups", "delete-offsets", GROUP, TOPIC)
        assert (deleted["changed"], deleted["partitions"]) == (True, [0, 1, 2])
        assert await lags(cluster) == []
        assert (await done(cluster, "groups", "delete", GROUP))["changed"] is True
        assert await done(cluster, "groups", "list") == []
