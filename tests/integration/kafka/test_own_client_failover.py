"""`quorumlog.client` in a cluster whose leaders and coordinator are killed: no loss, no duplicate, no lost commit."""

from __future__ import annotations

import asyncio
from pathlib import Path
from signal import SIGKILL

from broker.core.coordinator.placement import partition_of
from quorumlog.client import Consumer, Delivery, Producer
from quorumlog.kctl import processes
from tests.integration.quorum.clusters import done, node_of, running

OFFSETS = "__consumer_offsets"
TOPIC = "orders"
GROUP = "billing"
PARTITIONS = 3
RECORDS = 3_000
FAST = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}


def reading(bootstrap: str) -> Consumer:
    return Consumer(
        bootstrap, topics=[TOPIC], group=GROUP, auto_offset_reset="earliest", auto_commit=False,
        heartbeat_interval_s=0.3, session_timeout_s=10,
    )  # fmt: skip


async def test_a_kill_of_the_coordinator_loses_and_repeats_no_record_and_loses_no_commit(tmp_path: Path) -> None:
    async with running(tmp_path, voters=3, brokers=3, **FAST) as cluster:
        await done(cluster, "configs", "set", "--cluster", "group.initial.rebalance.delay.ms=100")
        await done(cluster, "topics", "create", TOPIC, "--partitions", str(PARTITIONS), "--replication-factor", "3")
        before = asyncio.all_tasks()
        async with (
            asyncio.timeout(100),
            Producer(cluster.bootstrap) as producer,
            reading(cluster.bootstrap) as consumer,
        ):
            deliveries: list[Delivery] = []
            committed: dict[int, int] = {}
            seen: dict[int, list[int]] = {index: [] for index in range(PARTITIONS)}

            async def produce() -> None:
                for number in range(RECORDS):
                    value = b"%d" % number
                    deliveries.append(await producer.send(TOPIC, value, partition=number % PARTITIONS))
                    if number % 10 == 0:
                        await asyncio.sleep(0.01)
                await producer.flush()

            sending = asyncio.ensure_future(produce())
            killed = False
            while sum(map(len, seen.values())) < RECORDS:
                batch = await consumer.get_many(timeout_s=60)
                assert batch is not None
                for record in batch:
                    assert record.offset == len(seen[record.partition]), "neither a gap nor a repeat"
                    seen[record.partition].append(int(record.value or b""))
                committed.update({key.partition: offset for key, offset in (await consumer.commit()).items()})
                if not killed and sum(map(len, seen.values())) > RECORDS // 3:
                    killed = True
                    [offsets] = await done(cluster, "topics", "describe", OFFSETS)
                    index = partition_of(GROUP, len(offsets["partitions"]))
                    processes.send(node_of(cluster, offsets["partitions"][index]["leader"]).pid, SIGKILL)
            await sending
            places = [await delivery for delivery in deliveries]
            assert [place.offset for place in places] == [number // PARTITIONS for number in range(RECORDS)]
            assert seen == {index: list(range(index, RECORDS, PARTITIONS)) for index in range(PARTITIONS)}
            assert await consumer.committed() == {(TOPIC, index): RECORDS // PARTITIONS for index in range(PARTITIONS)}
            assert set(committed.values()) == {RECORDS // PARTITIONS}
        assert asyncio.all_tasks() == before
