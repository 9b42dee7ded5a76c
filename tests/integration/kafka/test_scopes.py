"""Transaction scopes at real processes: readers of committed records see each winner once, and no loser."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from signal import SIGKILL

import pytest

from broker.core.coordinator.placement import partition_of
from quorumlog.client import Producer as RecordProducer
from quorumlog.client.cluster import Cluster
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.client.scope_client import OpenScope, ScopeClient, StagedProducer
from quorumlog.errors import ClusterError
from quorumlog.kctl import processes
from tests.integration.kafka.clients import TIMEOUT_S
from tests.integration.kafka.conftest import Standalone
from tests.integration.kafka.test_transactions import read, topic_on
from tests.integration.quorum.clusters import done, node_of, running, start

PARTITIONS = 3


@asynccontextmanager
async def client_of(bootstrap: str) -> AsyncIterator[tuple[Cluster, ScopeClient]]:
    async with Cluster(bootstrap) as cluster:
        yield cluster, ScopeClient(cluster)


async def staged(
    cluster: Cluster, client: ScopeClient, scope: OpenScope, attempt: str, topic: str, value: bytes, partitions: int
) -> StagedProducer:
    """Return a producer that has written a record to each partition."""
    producer = await client.begin(scope, attempt, TIMEOUT_S)
    async with Producer(cluster, transaction=producer, delivery_timeout_s=TIMEOUT_S) as writer:
        for index in range(partitions):
            await writer.send(topic, index, build_batch([NewRecord(None, value, 1_000)]))
    return producer


async def committed(bootstrap: str, topic: str, partition: int, count: int) -> list[bytes | None]:
    """Return the committed records of a partition once there are `count` of them: markers follow their decision."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            found = await asyncio.to_thread(read, bootstrap, topic, partition)
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)


async def test_the_end_of_a_scope_shows_only_the_records_of_winners(standalone: Standalone) -> None:
    topic = await asyncio.to_thread(topic_on, standalone.bootstrap, 2)
    async with client_of(standalone.bootstrap) as (cluster, client):
        assert await client.is_served(TIMEOUT_S)
        scope = await client.open("job", "query-1", "run-1", TIMEOUT_S)
        assert scope.last_sequence == -1
        winner = await staged(cluster, client, scope, "0-0", topic, b"winner", 2)
        await staged(cluster, client, scope, "0-1", topic, b"loser", 2)
        described = await client.describe("job", TIMEOUT_S)
        assert [each.partitions for each in described.producers] == [2, 2]
        assert await asyncio.to_thread(read, standalone.bootstrap, topic) == []
        assert await client.end(scope, 5, [winner.winner], TIMEOUT_S) == (True, 5)
        assert await client.end(scope, 5, [winner.winner], TIMEOUT_S) == (False, 5)
        for partition in range(2):
            assert await committed(standalone.bootstrap, topic, partition, 1) == [b"winner"]

        with pytest.raises(ClusterError, match="query-1") as stranger:
            await client.open("job", "query-2", "run-1", TIMEOUT_S)
        assert stranger.value.code == "DUPLICATE_RESOURCE"
        newer = await client.open("job", "query-1", "run-2", TIMEOUT_S)
        assert newer.last_sequence == 5
        with pytest.raises(ClusterError) as fenced:
            await client.end(scope, 6, [], TIMEOUT_S)
        assert fenced.value.code == "PRODUCER_FENCED"

        aborted = await staged(cluster, client, newer, "1-0", topic, b"aborted", 1)
        await client.abort(newer, TIMEOUT_S)
        with pytest.raises(ClusterError) as refused:
            await client.end(newer, 6, [aborted.winner], TIMEOUT_S)
        assert refused.value.code == "INVALID_TXN_STATE"
        assert await committed(standalone.bootstrap, topic, 0, 1) == [b"winner"]
        await client.delete(newer, TIMEOUT_S)
        await client.delete(newer, TIMEOUT_S)
        with pytest.raises(ClusterError) as missing:
            await client.describe("job", TIMEOUT_S)
        assert missing.value.code == "RESOURCE_NOT_FOUND"


async def test_records_of_the_public_producer_belong_to_the_scope(standalone: Standalone) -> None:
    topic = await asyncio.to_thread(topic_on, standalone.bootstrap, 2)
    async with ScopeClient(standalone.bootstrap) as scopes:
        scope = await scopes.open(f"of-{topic}", "query", "run-1")
        winner, loser = [await scopes.begin(scope, attempt) for attempt in ("0", "1")]
        for each, value in ((winner, b"winner"), (loser, b"loser")):
            async with RecordProducer(standalone.bootstrap, staged=each) as producer:
                for partition in range(2):
                    await producer.send(topic, value, partition=partition)
        assert await asyncio.to_thread(read, standalone.bootstrap, topic) == []
        assert await scopes.end(scope, 1, [winner.winner]) == (True, 1)
        for partition in range(2):
            assert await committed(standalone.bootstrap, topic, partition, 1) == [b"winner"]

        with pytest.raises(ClusterError):  # the end has decided this producer
            async with RecordProducer(standalone.bootstrap, staged=loser) as producer:
                await producer.send(topic, b"late", partition=0)
        with pytest.raises(ClusterError) as refused:
            _ = loser.winner
        assert refused.value.code == "TRANSACTION_ABORTABLE"


async def test_ends_of_a_scope_survive_the_kill_of_their_coordinator(tmp_path: Path) -> None:
    fast = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}
    async with running(tmp_path, voters=3, brokers=3, **fast) as processes_of:
        bootstrap = processes_of.bootstrap
        topic = await asyncio.to_thread(topic_on, bootstrap, PARTITIONS, 3)
        async with client_of(bootstrap) as (cluster, client):
            scope = await client.open("killed", "query-1", "run-1", TIMEOUT_S)

            async def write(sequence: int) -> None:
                """Write one micro-batch as a driver does: attempts that fail are tried again under another name."""
                attempt = 0
                while True:
                    try:
                        winner = await staged(
                            cluster, client, scope, f"{sequence}-{attempt}", topic, b"%d" % sequence, PARTITIONS
                        )
                        await staged(cluster, client, scope, f"{sequence}-{attempt}-lost", topic, b"lost", PARTITIONS)
                        break
                    except ClusterError:  # a task that failed
                        attempt += 1
                await client.end(scope, sequence, [winner.winner], TIMEOUT_S)

            for sequence in range(3):
                await write(sequence)
            [described] = await done(processes_of, "topics", "describe", "__transaction_state")
            index = partition_of("killed", len(described["partitions"]))
            coordinator = node_of(processes_of, described["partitions"][index]["leader"])
            for each in range(3, 6):
                await staged(cluster, client, scope, f"{each}-open", topic, b"lost", PARTITIONS)
            ending = asyncio.create_task(client.end(scope, 3, [], TIMEOUT_S))
            await asyncio.sleep(0)
            processes.send(coordinator.pid, SIGKILL)
            await ending
            for sequence in range(4, 10):
                await write(sequence)
            await start(processes_of)
        expected = [b"%d" % sequence for sequence in range(10) if sequence != 3]
        for partition in range(PARTITIONS):
            assert await committed(bootstrap, topic, partition, len(expected)) == expected
