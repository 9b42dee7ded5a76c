"""Unmodified clients read a compacted topic of a broker process, and look up times and write to it."""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from metadata.image.internal_topics import CONSUMER_OFFSETS
from quorumlog.client.cluster import Cluster
from quorumlog.client.records import Record, decode_batches, end_offset
from quorumlog.kctl import dev_cluster
from quorumlog.wire.kafka import fetch
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import iter_headers
from tests.integration import warm_nodes
from tests.integration.kafka.clients import AioKafka, Client, Confluent, KafkaPython, Received, Sent, Start

CLIENTS: tuple[Client, ...] = (Confluent(), KafkaPython(), AioKafka())
EACH_CLIENT = pytest.mark.parametrize("client", CLIENTS, ids=lambda client: type(client).__name__)
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "16384",
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "3600000",
}
WAIT_S = 60.0
T = TypeVar("T")
_numbers = count()


@contextmanager
def compacting_broker(folder: Path) -> Iterator[str]:
    """Run a broker process that compacts often, and yield its address."""
    command = [sys.executable, "-P", "-m", "broker.cli", "run", "--standalone", "--data-dir", str(folder / "data")]
    command += ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--http", "off"]
    command += ["--set", "log.cleaner.backoff.ms=100", "--set", "log.cleaner.io.max.bytes.per.second=-1"]
    with (folder / "log").open("w") as log:
        process = warm_nodes.popen(command, dev_cluster.environment(), log)
    assert process.stdout is not None
    try:
        found = re.search(r"kafka=(\S+)", process.stdout.readline())
        assert found, (folder / "log").read_text()
        yield found[1]
        assert process.poll() is None, (folder / "log").read_text()
    finally:
        process.terminate()
        assert process.wait(30) == 0, (folder / "log").read_text()
        process.stdout.close()
    assert "log not compacted" not in (folder / "log").read_text()


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with compacting_broker(tmp_path_factory.mktemp("compacting")) as address:
        yield address


def in_thread(work: Callable[[], T]) -> T:
    """Run `work`, which blocks, and may run an event loop of its own."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(work).result(2 * WAIT_S)


def new_topic(bootstrap: str) -> str:
    name = f"compacted-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, 1, 1, config=CONFIGS)])[name].result(30)
    return name


async def stored(bootstrap: str, topic: str) -> bytes:
    """All batches of partition 0."""
    data = b""
    async with Cluster(bootstrap) as cluster:
        connection = await cluster.leader(topic, 0, 10)
        position = 0
        while True:
            wanted = [fetch.PartitionToFetch(topic, 0, position, 10 << 20)]
            body = fetch.encode_request(fetch.CLIENT_VERSION, wanted, max_wait_ms=0, min_bytes=0, max_bytes=10 << 20)
            reply = await connection.call(Api.FETCH, fetch.CLIENT_VERSION, body, 10)
            (partition,) = fetch.decode_response(reply, fetch.CLIENT_VERSION).partitions
            assert partition.error_code == 0
            if not (end := end_offset(partition.records)):
                return data
            data += bytes(partition.records)
            position = end


def write(bootstrap: str, topic: str) -> dict[bytes, bytes | None]:
    """Write to few keys with every client and codec; return the latest values."""
    latest: dict[bytes, bytes | None] = {}
    number = 0
    for round_ in range(3):
        for client in CLIENTS:
            for compression in client.compressions:
                records = []
                for _ in range(40):
                    key = b"rare-%d" % number if number % 500 == 3 else b"key-%d" % (number % 7)
                    value = None if number % 11 == 0 else b"%d " % number * 20
                    records.append(Sent(value, key, 1_000_000 + number))
                    latest[key] = value
                    number += 1
                client.produce(bootstrap, topic, records, compression=compression, idempotent=round_ == 1)
    return latest


async def compacted(bootstrap: str, topic: str) -> list[Record]:
    """Wait until at most one record of each key is left, not counting the active segment; return all records."""
    deadline = time.monotonic() + WAIT_S
    while True:
        data = await stored(bootstrap, topic)
        records = list(decode_batches(data))
        early = [one.key for one in records if one.offset < records[-1].offset - 400]
        if len(early) == len(set(early)) and len(early) < 20:
            assert any(not header.record_count for _, header in iter_headers(data)), "no filler"
            return records
        assert time.monotonic() < deadline, f"{len(records)} records are left"
        await asyncio.sleep(0.2)  # another process, which sends no event: poll


@pytest.fixture(scope="module")
def written(bootstrap: str) -> tuple[str, list[Record], dict[bytes, bytes | None]]:
    topic = new_topic(bootstrap)
    latest = in_thread(lambda: write(bootstrap, topic))
    return topic, asyncio.run(compacted(bootstrap, topic)), latest


@EACH_CLIENT
def test_each_client_reads_past_removed_records(
    bootstrap: str, written: tuple[str, list[Record], dict[bytes, bytes | None]], client: Client
) -> None:
    topic, records, latest = written
    assert {one.key: one.value for one in records} == latest

    def consume(start: Start, count: int) -> list[Received]:
        return in_thread(lambda: client.consume(bootstrap, topic, start, count))

    found = consume("beginning", len(records))
    assert [(one.offset, one.timestamp, one.key, one.value) for one in found] == [
        (one.offset, one.timestamp_ms, one.key, one.value) for one in records
    ]
    gap = next(at for at, one in enumerate(records) if at and one.offset - records[at - 1].offset > 5)
    inside = records[gap].offset - 3
    (first,) = consume(inside, 1)
    assert first.offset == records[gap].offset
    wanted = next(one for one in records if one.timestamp_ms >= 1_000_050)
    (found_by_time,) = consume(("timestamp", 1_000_050), 1)
    assert found_by_time.offset == wanted.offset


@EACH_CLIENT
def test_a_record_without_key_is_refused(bootstrap: str, client: Client) -> None:
    topic = new_topic(bootstrap)

    def produce(record: Sent, compression: str) -> list[int]:
        return in_thread(lambda: client.produce(bootstrap, topic, [record], compression=compression))

    for compression in ("none", "gzip"):
        # aiokafka does not know the code INVALID_RECORD.
        with pytest.raises(Exception, match=r"(?i)invalid.?record|validation|UnknownError"):
            produce(Sent(b"value"), compression)
    assert produce(Sent(b"value", b"key"), "none") == [0]


def test_committed_offsets_survive_compaction_and_a_restart(tmp_path: Path) -> None:
    """A restarted coordinator reads the compacted records of its groups.

    The first group commits once, so compaction reaches its only records.  The topic of the offsets gets its small
    segments while it is in use.
    """
    commits, groups = 400, [f"group-{number}" for number in range(4)]
    where = [TopicPartition("data", index) for index in range(2)]

    def commit(consumer: Consumer, number: int) -> None:
        for each in where:
            each.offset = number + each.partition
        consumer.commit(offsets=where, asynchronous=False)

    def record_count(bootstrap: str) -> int:
        data = in_thread(lambda: asyncio.run(stored(bootstrap, CONSUMER_OFFSETS)))
        return sum(header.record_count for _, header in iter_headers(data))

    def committed(bootstrap: str, group: str) -> list[int]:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        try:
            return [each.offset for each in consumer.committed(where, timeout=WAIT_S)]
        finally:
            consumer.close()

    with compacting_broker(tmp_path) as bootstrap:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for made in admin.create_topics([NewTopic("data", 2, 1), NewTopic(CONSUMER_OFFSETS, 1, 1)]).values():
            made.result(WAIT_S)
        consumers = [Consumer({"bootstrap.servers": bootstrap, "group.id": group}) for group in groups]
        commit(consumers[0], 7)
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in (("segment.bytes", "16384"), ("min.cleanable.dirty.ratio", "0"))
        ]
        resource = ConfigResource("topic", CONSUMER_OFFSETS, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(30)
        for number in range(commits):
            for consumer in consumers[1:]:
                commit(consumer, number)
        for consumer in consumers:
            consumer.close()
        segments = f"logs/{CONSUMER_OFFSETS}-*/*.log"
        deadline = time.monotonic() + WAIT_S
        while record_count(bootstrap) > 3 * commits or not any(
            is_compacted(path) for path in (tmp_path / "data").glob(segments)
        ):
            assert time.monotonic() < deadline, "not compacted"
            time.sleep(0.1)  # another process, which sends no event: poll
    with compacting_broker(tmp_path) as bootstrap:
        assert committed(bootstrap, groups[0]) == [7, 8]
        for group in groups[1:]:
            assert committed(bootstrap, group) == [commits - 1, commits]


def is_compacted(segment: Path) -> bool:
    return any(not header.record_count for _, header in iter_headers(segment.read_bytes()))
