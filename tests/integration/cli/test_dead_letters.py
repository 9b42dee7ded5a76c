"""Dead letters of a share group in real processes: brokers write them to each other, also after a leader was killed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quorumlog.client import Consumer, Producer, ShareConsumer
from quorumlog.kctl.context import wait_until
from quorumlog.kctl.dev_cluster import DevCluster
from tests.integration.cli.test_doctor import examined
from tests.integration.cli.test_doctor_commands import shell
from tests.integration.cli.test_doctor_groups import shown
from tests.integration.quorum.clusters import done, kill, node_of, running

FAST = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}
WAIT_S = 120.0
GROUP, TOPIC, LETTERS = "work", "jobs", "dlq.jobs"
PARTITIONS, RECORDS = 3, 4
REJECTED, POISONED = 1, 2
"""The offset in each partition that is rejected, and the one that no member ever acknowledges as done."""
Place = tuple[int, int]
"""Partition and offset of a record of the source."""


async def work(cluster: DevCluster, wanted: set[Place], give_up: bool) -> None:
    """Complete these records.  give_up: reject and release some as described above, else accept all."""
    left = set(wanted)
    async with asyncio.timeout(WAIT_S), ShareConsumer(cluster.bootstrap, GROUP, topics=[TOPIC]) as consumer:
        while left:
            record = await consumer.get(1.0)
            if record is None:
                continue
            place = (record.partition, record.offset)
            if give_up and record.offset == REJECTED:
                await consumer.reject(record)
            elif give_up and record.offset == POISONED:
                await consumer.release(record)
                if record.deliveries < 2:
                    continue
            else:
                await consumer.accept(record)
            left.discard(place)


async def letters(cluster: DevCluster) -> dict[Place, list[Any]]:
    """Return all dead letters by the records to which they belong."""
    found: dict[Place, list[Any]] = {}
    async with Consumer(cluster.bootstrap, topics=[LETTERS], auto_offset_reset="earliest") as consumer:
        while (record := await consumer.get(1.0)) is not None:
            headers = dict(record.headers)
            assert headers["__dlq.errors.topic"] == TOPIC.encode()
            assert headers["__dlq.errors.group"] == GROUP.encode()
            place = (int(headers["__dlq.errors.partition"] or b""), int(headers["__dlq.errors.offset"] or b""))
            assert record.partition == place[0], "letters of a partition are in the partition with its number"
            found.setdefault(place, []).append(record)
    return found


async def starts(cluster: DevCluster) -> list[int | None]:
    return [row["start_offset"] for row in await done(cluster, "groups", "lag", GROUP)]


@pytest.mark.timeout(400)
async def test_dead_letters_wait_for_their_topic_and_are_written_although_a_leader_was_killed(tmp_path: Path) -> None:
    async with running(tmp_path, voters=1, brokers=3, **FAST) as cluster:
        await done(cluster, "configs", "set", "--cluster", "default.replication.factor=2",
                   "share.auto.offset.reset=earliest", "group.share.delivery.count.limit=2",
                   "share.coordinator.state.topic.num.partitions=3")  # fmt: skip
        await done(cluster, "features", "upgrade")
        await done(cluster, "configs", "set", f"errors.deadletterqueue.topic.name={LETTERS}",
                   "errors.deadletterqueue.copy.record.enable=true", "--group", GROUP)  # fmt: skip
        await done(cluster, "topics", "create", TOPIC, "--assignment", "11:12,12:13,13:11", "--wait")
        async with Producer(cluster.bootstrap) as producer:
            for number in range(PARTITIONS * RECORDS):
                await producer.send(TOPIC, b"%d" % number, key=b"k%d" % number, partition=number % PARTITIONS)
        everything = {(index, offset) for index in range(PARTITIONS) for offset in range(RECORDS)}
        await work(cluster, everything, give_up=True)
        assert await starts(cluster) == [REJECTED] * PARTITIONS, "the records count as lag until they have letters"

        # The topic is missing, so the letters wait, and doctor reports this.
        found = await shown(cluster, "DEAD_LETTERS_FAIL")
        assert f"topic {LETTERS} does not exist" in found["cause"]

        # A leader is killed.  No member fetches, so share coordinators remind its successor of the missing letters.
        await kill(node_of(cluster, 11))
        await shell(cluster, f"kctl topics create {LETTERS} --assignment 12:13,13:12,12:13 "
                             "--config errors.deadletterqueue.group.enable=true")  # fmt: skip

        async def has_started() -> bool:
            return await starts(cluster) == [RECORDS] * PARTITIONS

        await wait_until(has_started, WAIT_S, "all letters are written")
        async with ShareConsumer(cluster.bootstrap, GROUP, topics=[TOPIC]) as consumer:
            assert await consumer.get(2.0) is None, "no record is delivered of which a letter exists"
        written = await letters(cluster)
        assert set(written) == {(index, offset) for index in range(PARTITIONS) for offset in (REJECTED, POISONED)}
        for (index, offset), records in written.items():
            number = PARTITIONS * offset + index
            for record in records:
                assert (record.key, record.value) == (b"k%d" % number, b"%d" % number)
                count = dict(record.headers)["__dlq.errors.delivery.count"]
                assert count == (b"1" if offset == REJECTED else b"2")


async def test_the_commands_of_doctor_remove_each_cause_of_failing_dead_letters(tmp_path: Path) -> None:
    """Each command that the finding prints runs as printed, and removes the finding."""
    async with running(tmp_path, voters=1, brokers=1, **FAST) as cluster:
        await done(cluster, "configs", "set", "--cluster", "share.auto.offset.reset=earliest",
                   "share.coordinator.state.topic.num.partitions=1")  # fmt: skip
        await done(cluster, "features", "upgrade")
        await done(cluster, "configs", "set", f"errors.deadletterqueue.topic.name={LETTERS}", "--group", GROUP)
        await done(cluster, "topics", "create", TOPIC, "--replication-factor", "1", "--wait")
        refuse = ("configs", "set", "errors.deadletterqueue.group.enable=false", "--topic", LETTERS)
        causes = [
            (None, "for a missing topic: ", "does not exist"),
            (refuse, "for a topic that does not admit letters: ", "errors.deadletterqueue.group.enable"),
            (refuse, "to do without letters: ", "errors.deadletterqueue.group.enable"),
        ]
        for number, (cause, word, text) in enumerate(causes):
            if cause is not None:
                await done(cluster, *cause)
            await reject_one(cluster)
            found = await shown(cluster, "DEAD_LETTERS_FAIL")
            assert text in found["cause"]
            commands = dict(step.split(": ", 1) for step in found["next"].split("; ") if ": kctl " in step)
            await shell(cluster, commands[word.removesuffix(": ")])

            async def is_done(rejected: int = number + 1) -> bool:
                _, findings, _ = await examined(cluster)
                [row] = await done(cluster, "groups", "lag", GROUP)
                return "DEAD_LETTERS_FAIL" not in findings and row["start_offset"] == rejected

            await wait_until(is_done, WAIT_S, f"the record is done after: {commands[word.removesuffix(': ')]}")


async def reject_one(cluster: DevCluster) -> None:
    """Write a record, and reject it."""
    async with Producer(cluster.bootstrap) as producer:
        await producer.send(TOPIC, b"bad", partition=0)
    async with asyncio.timeout(WAIT_S), ShareConsumer(cluster.bootstrap, GROUP, topics=[TOPIC]) as consumer:
        while (record := await consumer.get(1.0)) is None:
            continue
        await consumer.reject(record)
