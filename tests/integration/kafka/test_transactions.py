"""Transactions with unmodified confluent-kafka, against a standalone process and a cluster whose leaders are killed."""

from __future__ import annotations

import asyncio
from itertools import count
from pathlib import Path
from signal import SIGKILL
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from broker.core.coordinator.placement import partition_of
from broker.core.coordinator.transaction_requests import Outcome
from quorumlog.client.kafka import KafkaConnection
from quorumlog.kctl import processes
from quorumlog.kctl.context import wait_until
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import TRANSACTIONAL_FLAG
from tests.integration.kafka.clients import TIMEOUT_S
from tests.integration.kafka.conftest import Standalone
from tests.integration.quorum.clusters import done, node_of, running, start
from tests.unit.broker.log.batches import make_batch

_numbers = count()


def topic_on(bootstrap: str, partitions: int = 1, replicas: int = 1) -> str:
    name = f"txn-{next(_numbers)}"
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(name, partitions, replicas)])[name].result(TIMEOUT_S)
    return name


def producer_of(bootstrap: str, transactional_id: str, **options: Any) -> Producer:
    settings = {
        "bootstrap.servers": bootstrap,
        "transactional.id": transactional_id,
        "transaction.timeout.ms": 60_000,
        "linger.ms": 0,
    }
    return Producer({**settings, **options})


def read(bootstrap: str, topic: str, partition: int = 0, *, committed: bool = True) -> list[bytes | None]:
    """Return the values of a partition up to its end, as a reader of committed or of all records sees it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"reader-{next(_numbers)}",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
    values: list[bytes | None] = []
    try:
        while True:
            message: Message | None = consumer.poll(TIMEOUT_S)
            assert message is not None, "no record and no end in time"
            if message.error() is not None:
                return values
            values.append(message.value())
    finally:
        consumer.close()


def latest(bootstrap: str, topic: str, *, committed: bool) -> int:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    place = TopicPartition(topic, 0)
    newest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # the client is not annotated
    found = admin.list_offsets({place: newest}, isolation_level=level)
    return int(found[place].result(TIMEOUT_S).offset)


class KafkaAdminConnection:
    """Requests about transactions that no client for Python has, on a connection of our own."""

    def __init__(self, bootstrap: str) -> None:
        self._host, _, self._port = bootstrap.rpartition(":")
        self._runner = asyncio.Runner()

    def __enter__(self) -> KafkaAdminConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self._runner.close()

    def _ask(self, api: Api, version: int, values: dict[str, Any]) -> Any:
        async def ask() -> Any:
            connection = KafkaConnection(self._host, int(self._port))
            await connection.connect(TIMEOUT_S)
            async with connection:
                return await connection.ask(api, version, values, TIMEOUT_S)

        return self._runner.run(ask())

    def describe(self, transactional_id: str) -> dict[str, Any]:
        [state] = self._ask(Api.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [transactional_id]}).transaction_states
        return {
            "error_code": int(state.error_code),
            "transaction_state": state.transaction_state,
            "topics": {topic.topic: list(topic.partitions) for topic in state.topics},
        }

    def listed(self, state: str) -> set[str]:
        listed = self._ask(Api.LIST_TRANSACTIONS, 1, {"state_filters": [state], "duration_filter": -1})
        return {each.transactional_id for each in listed.transaction_states}

    def open_transactions(self, topic: str) -> list[int]:
        """Return the first offset of each open transaction in partition 0."""
        wanted = {"topics": [{"name": topic, "partition_indexes": [0]}]}
        producers = self._ask(Api.DESCRIBE_PRODUCERS, 0, wanted).topics[0].partitions[0].active_producers
        return [each.current_txn_start_offset for each in producers if each.current_txn_start_offset >= 0]


def test_a_reader_sees_committed_transactions_only(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = topic_on(bootstrap, partitions=2)
    producer = producer_of(bootstrap, "plain")
    producer.init_transactions(TIMEOUT_S)
    for number, commit in enumerate([True, False, True, False]):
        producer.begin_transaction()
        for partition in (0, 1):
            for record in range(3):
                producer.produce(topic, b"%d-%d" % (number, record), partition=partition)
        producer.flush(TIMEOUT_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)
    wanted = [b"%d-%d" % (number, record) for number in (0, 2) for record in range(3)]
    for partition in (0, 1):
        assert read(bootstrap, topic, partition) == wanted
        assert len(read(bootstrap, topic, partition, committed=False)) == 12
    assert latest(bootstrap, topic, committed=True) == 16


def test_readers_of_committed_records_do_not_pass_an_open_transaction(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = topic_on(bootstrap)
    producer, plain = producer_of(bootstrap, "open"), Producer({"bootstrap.servers": bootstrap})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    producer.flush(TIMEOUT_S)
    plain.produce(topic, b"plain")
    plain.flush(TIMEOUT_S)
    assert read(bootstrap, topic) == []
    assert latest(bootstrap, topic, committed=True) == 0
    assert latest(bootstrap, topic, committed=False) == 2
    producer.commit_transaction(TIMEOUT_S)
    assert read(bootstrap, topic) == [b"open", b"plain"]


def test_a_second_producer_with_the_same_id_fences_the_first(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = topic_on(bootstrap)
    first = producer_of(bootstrap, "fenced")
    first.init_transactions(TIMEOUT_S)
    first.begin_transaction()
    first.produce(topic, b"lost")
    first.flush(TIMEOUT_S)
    second = producer_of(bootstrap, "fenced")
    second.init_transactions(TIMEOUT_S)
    with pytest.raises(KafkaException) as raised:
        first.commit_transaction(TIMEOUT_S)
    assert raised.value.args[0].fatal(), raised.value
    second.begin_transaction()
    second.produce(topic, b"kept")
    second.commit_transaction(TIMEOUT_S)
    assert read(bootstrap, topic) == [b"kept"]


def test_a_transaction_whose_producer_sends_nothing_more_is_aborted_after_its_timeout(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = topic_on(bootstrap)
    producer = producer_of(bootstrap, "silent", **{"transaction.timeout.ms": 1_000})
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"lost")
    producer.flush(TIMEOUT_S)
    while latest(bootstrap, topic, committed=True) < 2:  # the record and its marker; the timeout of the test ends this
        pass
    assert read(bootstrap, topic) == []


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consume_transform_produce_copies_each_record_once(standalone: Standalone, protocol: str) -> None:
    bootstrap = standalone.bootstrap
    source, target = topic_on(bootstrap), topic_on(bootstrap)
    plain = Producer({"bootstrap.servers": bootstrap})
    for number in range(30):
        plain.produce(source, b"%d" % number)
    plain.flush(TIMEOUT_S)
    group = f"transform-{target}"
    seen = 0
    for attempt in range(4):
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.subscribe([source])
        producer = producer_of(bootstrap, f"transform-{target}")
        producer.init_transactions(TIMEOUT_S)
        batch = consumer.consume(10, TIMEOUT_S)
        producer.begin_transaction()
        for message in batch:
            producer.produce(target, (message.value() or b"") + b"!")
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata(), TIMEOUT_S
        )
        if attempt == 1:
            producer.abort_transaction(TIMEOUT_S)
        else:
            producer.commit_transaction(TIMEOUT_S)
            seen += len(batch)
        consumer.close()
    assert seen == 30
    assert read(bootstrap, target) == [b"%d!" % number for number in range(30)]


KILLED = "killed"
PARTITIONS = 3


class Writer:
    """A producer whose transactions write one number to every partition.

    committed, unknown: the numbers of transactions that were committed, and of those whose commit was not answered.
    """

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.bootstrap, self.topic = bootstrap, topic
        self.committed: list[int] = []
        self.unknown: set[int] = set()
        self.number = 0
        self._producer: Producer | None = None

    def write(self, transactions: int) -> None:
        """Commit this many transactions, and abort one of four in between."""
        wanted = len(self.committed) + transactions
        while len(self.committed) < wanted:
            self.number += 1
            self._attempt(self.number)

    def _attempt(self, number: int) -> None:
        try:
            if self._producer is None:
                self._producer = producer_of(self.bootstrap, KILLED)
                self._producer.init_transactions(TIMEOUT_S)
            producer = self._producer
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(self.topic, b"%d" % number, partition=partition)
            producer.flush(TIMEOUT_S)
            if number % 4 == 0:
                producer.abort_transaction(TIMEOUT_S)
                return
            self.unknown.add(number)
            producer.commit_transaction(TIMEOUT_S)
            self.unknown.discard(number)
            self.committed.append(number)
        except KafkaException as failure:
            error = failure.args[0]
            if self._producer is not None and error.txn_requires_abort():
                self.unknown.discard(number)
                try:
                    self._producer.abort_transaction(TIMEOUT_S)
                except KafkaException:
                    self._producer = None
            else:
                self._producer = None  # the next one continues under the same id, and aborts what is open

    def check(self) -> None:
        """Check that readers of committed records see whole transactions only, in order and without a loss."""
        views = [read(self.bootstrap, self.topic, partition) for partition in range(PARTITIONS)]
        assert views[0] == views[1] == views[2]
        found = [int(value or b"-1") for value in views[0]]
        assert found == sorted(set(found))
        assert set(found) - set(self.committed) <= self.unknown
        assert set(self.committed) <= set(found)


async def test_transactions_survive_the_kills_of_leaders_and_coordinators(tmp_path: Path) -> None:
    fast = {"broker_session_timeout_ms": 1_500, "broker_heartbeat_interval_ms": 300}
    async with running(tmp_path, voters=3, brokers=3, **fast) as cluster:
        topic = await asyncio.to_thread(topic_on, cluster.bootstrap, PARTITIONS, 3)
        writer = Writer(cluster.bootstrap, topic)
        await asyncio.to_thread(writer.write, 5)
        for of in (topic, "__transaction_state"):
            [described] = await done(cluster, "topics", "describe", of)
            index = 0 if of == topic else partition_of(KILLED, len(described["partitions"]))
            begun = len(writer.committed)
            writing = asyncio.create_task(asyncio.to_thread(writer.write, 10))

            async def is_writing(begun: int = begun) -> bool:
                return len(writer.committed) > begun

            await wait_until(is_writing, TIMEOUT_S, "a transaction is committed", 0.02)  # the kill meets the next one
            processes.send(node_of(cluster, described["partitions"][index]["leader"]).pid, SIGKILL)
            await writing
            await start(cluster)
            await asyncio.to_thread(writer.write, 3)
        await asyncio.to_thread(writer.check)
        assert len(writer.committed) >= 31


def test_admin_requests_show_the_state_of_transactions(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = topic_on(bootstrap)
    producer = producer_of(bootstrap, "described")
    producer.init_transactions(TIMEOUT_S)
    with KafkaAdminConnection(bootstrap) as admin:
        assert admin.describe("described")["transaction_state"] == "Empty"
        producer.begin_transaction()
        producer.produce(topic, b"open")
        producer.flush(TIMEOUT_S)
        found = admin.describe("described")
        assert (found["transaction_state"], found["topics"]) == ("Ongoing", {topic: [0]})
        assert "described" in admin.listed("Ongoing")
        assert admin.open_transactions(topic) == [0]
        producer.abort_transaction(TIMEOUT_S)
        assert admin.describe("unknown")["error_code"] == KafkaCode.TRANSACTIONAL_ID_NOT_FOUND


class NewerClient:
    """A client of transaction version 2 (KIP-890), which Python's clients do not have: it adds no partitions."""

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._host, _, port = bootstrap.rpartition(":")
        self._port = int(port)
        self._id = transactional_id
        self.producer = (-1, -1)
        self._sequences: dict[tuple[str, int], int] = {}

    async def __aenter__(self) -> NewerClient:
        self._connection = await KafkaConnection(self._host, self._port).__aenter__()
        await self._connection.connect(TIMEOUT_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._connection.close()

    async def ask(self, api: Api, version: int, **values: Any) -> Any:
        """Ask until the answer is not an error that clients retry."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                named = {"transactional_id": self._id, "key": self._id, "coordinator_keys": [self._id], **values}
                reply = await self._connection.ask(api, version, named, TIMEOUT_S)
                if api is Api.TXN_OFFSET_COMMIT:
                    code = int(reply.topics[0].partitions[0].error_code)
                    assert code in (KafkaCode.NONE, *RETRIED)
                else:
                    code = int(getattr(reply, "error_code", 0))
                if code not in RETRIED:
                    return reply
                await asyncio.sleep(0.02)

    async def begin(self) -> None:
        await self.ask(Api.FIND_COORDINATOR, 4, key_type=1)
        reply = await self.ask(Api.INIT_PRODUCER_ID, 5, transaction_timeout=60_000, producer_id=-1, producer_epoch=-1)
        assert reply.error_code == KafkaCode.NONE
        self._continue(reply)

    def _continue(self, reply: Any) -> None:
        self.producer = reply.producer_id, reply.producer_epoch
        self._sequences.clear()

    async def write(self, topic: str, index: int, value: bytes) -> int:
        """Send one record; return the error code."""
        sequence = self._sequences.get((topic, index), 0)
        batch = make_batch([value], producer=(*self.producer, sequence), attributes=TRANSACTIONAL_FLAG)
        data = [{"name": topic, "partition_data": [{"index": index, "records": batch}]}]
        reply = await self.ask(Api.PRODUCE, 12, acks=-1, timeout=10_000, topic_data=data)
        code = int(reply.responses[0].partition_responses[0].error_code)
        if code == KafkaCode.NONE:
            self._sequences[topic, index] = sequence + 1
        return code

    async def commit_offset(self, group: str, topic: str, offset: int) -> None:
        topics = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": offset}]}]
        member = {"generation_id": -1, "member_id": "", "group_id": group, "topics": topics}
        await self.ask(Api.TXN_OFFSET_COMMIT, 5, **self._fields(self.producer), **member)

    async def end(self, *, commit: bool, producer: tuple[int, int] | None = None) -> int:
        fields = self._fields(producer or self.producer)
        reply = await self.ask(Api.END_TXN, 5, committed=commit, **fields)
        if reply.error_code == KafkaCode.NONE:
            self._continue(reply)
        return int(reply.error_code)

    async def outcomes(self, topic: str, producer: tuple[int, int]) -> list[int]:
        """Return the answer of each coordinator about a transaction in partition 0."""
        reply = await self.ask(Api.FIND_OUTCOME, 0, topic=topic, partition=0, **self._fields(producer))
        assert [each.partition for each in reply.coordinators] == list(range(50))
        return [int(each.outcome) for each in reply.coordinators]

    def _fields(self, producer: tuple[int, int]) -> dict[str, int]:
        return {"producer_id": producer[0], "producer_epoch": producer[1]}


RETRIED = (
    KafkaCode.COORDINATOR_NOT_AVAILABLE,
    KafkaCode.NOT_COORDINATOR,
    KafkaCode.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaCode.CONCURRENT_TRANSACTIONS,
)


async def test_each_transaction_of_a_newer_client_has_its_own_producer_epoch(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = await asyncio.to_thread(topic_on, bootstrap, 2)
    wanted: list[bytes] = []
    async with NewerClient(bootstrap, "newer") as client:
        await client.begin()
        first = client.producer
        for number in range(6):
            commit = number % 3 != 2
            for index in (0, 1):
                value = b"%d" % number
                assert await client.write(topic, index, value) == KafkaCode.NONE
                assert await client.write(topic, index, value + b"'") == KafkaCode.NONE
            wanted += [b"%d" % number, b"%d'" % number] if commit else []
            before = client.producer
            assert set(await client.outcomes(topic, before)) == {Outcome.UNKNOWN, Outcome.OPEN}
            assert await client.end(commit=commit) == KafkaCode.NONE
            assert client.producer == (before[0], before[1] + 1)
            assert await client.end(commit=commit, producer=before) == KafkaCode.NONE
            assert client.producer == (before[0], before[1] + 1)
        assert client.producer == (first[0], first[1] + 6)
        following, client.producer = client.producer, first
        assert await client.write(topic, 0, b"late") == KafkaCode.INVALID_PRODUCER_EPOCH
        client.producer = following
    for index in (0, 1):
        assert await asyncio.to_thread(read, bootstrap, topic, index) == wanted


async def test_a_newer_client_commits_offsets_without_adding_the_group(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = await asyncio.to_thread(topic_on, bootstrap)
    group = f"group-{next(_numbers)}"

    def committed() -> int:
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        try:
            return int(consumer.committed([TopicPartition(topic, 0)], TIMEOUT_S)[0].offset)
        finally:
            consumer.close()

    async with NewerClient(bootstrap, "newer-offsets") as client:
        await asyncio.to_thread(committed)  # the topic of groups exists from now on
        await client.begin()
        for offset, commit in ((5, True), (9, False)):
            await client.commit_offset(group, topic, offset)
            assert await client.end(commit=commit) == KafkaCode.NONE
            assert await asyncio.to_thread(committed) == 5
