"""Transactions of quorumlog.client on a real broker, together with confluent-kafka."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quorumlog.client import ClusterError, Consumer, NewRecord, Producer, TopicPartition
from quorumlog.kctl.context import wait_until
from tests.integration.kafka.clients import TIMEOUT_S
from tests.integration.kafka.conftest import Standalone
from tests.integration.kafka.test_transactions import producer_of, read, topic_on


async def values_of(consumer: Consumer, count: int) -> list[bytes | None]:
    async with asyncio.timeout(TIMEOUT_S):
        return [(await anext(consumer)).value for _ in range(count)]


async def test_a_consumer_reads_committed_transactions_only_unless_it_asks_for_all(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = await asyncio.to_thread(topic_on, bootstrap)
    producer = producer_of(bootstrap, "own-reader")

    def write(name: bytes, *, commit: bool) -> None:
        producer.begin_transaction()
        producer.produce(topic, name + b"-0")
        producer.produce(topic, name + b"-1")
        producer.flush(TIMEOUT_S)
        (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)

    await asyncio.to_thread(producer.init_transactions, TIMEOUT_S)
    await asyncio.to_thread(write, b"lost", commit=False)
    await asyncio.to_thread(write, b"kept", commit=True)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    await asyncio.to_thread(producer.flush, TIMEOUT_S)

    place = (topic, 0)
    async with Consumer(bootstrap, topics=[topic], auto_offset_reset="earliest") as consumer:
        assert await values_of(consumer, 2) == [b"kept-0", b"kept-1"]
        assert await consumer.end_offsets([place]) == {place: 6}  # two records and a marker, twice
        with pytest.raises(TimeoutError):  # the broker answers fetches up to the open transaction only
            async with asyncio.timeout(0.7):
                await anext(consumer)
        await asyncio.to_thread(producer.commit_transaction, TIMEOUT_S)
        assert await values_of(consumer, 1) == [b"open"]
    everything = Consumer(bootstrap, topics=[topic], auto_offset_reset="earliest", isolation_level="read_uncommitted")
    async with everything as consumer:
        assert await values_of(consumer, 5) == [b"lost-0", b"lost-1", b"kept-0", b"kept-1", b"open"]


async def test_the_latest_position_is_before_a_transaction_that_is_open(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = await asyncio.to_thread(topic_on, bootstrap)
    producer = producer_of(bootstrap, "own-latest")
    await asyncio.to_thread(producer.init_transactions, TIMEOUT_S)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    await asyncio.to_thread(producer.flush, TIMEOUT_S)
    async with Consumer(bootstrap, topics=[topic], auto_offset_reset="latest") as consumer:

        async def is_placed() -> bool:
            return consumer.position((topic, 0)) is not None

        await wait_until(is_placed, TIMEOUT_S, "the consumer has a position")
        await asyncio.to_thread(producer.commit_transaction, TIMEOUT_S)
        assert await values_of(consumer, 1) == [b"open"]


async def committed(bootstrap: str, topic: str, partition: int = 0) -> list[bytes | None]:
    """Return what confluent-kafka reads of a partition with read_committed."""
    return await asyncio.to_thread(read, bootstrap, topic, partition)


async def test_a_transaction_block_commits_its_records_or_aborts_them_after_an_error(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = await asyncio.to_thread(topic_on, bootstrap, 2)
    async with Producer(bootstrap, transactional_id="own-block") as producer:
        async with producer.transaction():
            for partition in (0, 1):
                await producer.send(topic, b"kept", partition=partition)
        with pytest.raises(KeyError):
            await fail_in_a_transaction(producer, topic)
        async with producer.transaction():
            pass
        async with producer.transaction():
            await producer.send_many(topic, [NewRecord(b"%d" % number, partition=1) for number in range(3)])
        with pytest.raises(ClusterError, match="no transaction is open") as refused:
            await producer.send(topic, b"outside")
        assert refused.value.code == "INVALID_TXN_STATE"
    assert await committed(bootstrap, topic, 0) == [b"kept"]
    assert await committed(bootstrap, topic, 1) == [b"kept", b"0", b"1", b"2"]


async def fail_in_a_transaction(producer: Producer, topic: str) -> None:
    async with producer.transaction():
        await producer.send_and_wait(topic, b"lost", partition=0)
        await producer.send(topic, b"never sent, or lost", partition=1)
        raise KeyError


async def send_too_much(producer: Producer, topic: str) -> None:
    async with producer.transaction():
        await producer.send(topic, b"lost", partition=0)
        await producer.send(topic, bytes(3 << 20), partition=1)


async def test_a_transaction_with_a_refused_record_can_only_be_aborted(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = await asyncio.to_thread(topic_on, bootstrap, 2)
    async with Producer(bootstrap, transactional_id="own-refused") as producer:
        with pytest.raises(ClusterError) as refused:
            await send_too_much(producer, topic)
        assert refused.value.code == "TRANSACTION_ABORTABLE"
        assert "can only be aborted, because" in refused.value.message
        async with producer.transaction():
            for partition in (0, 1):
                await producer.send(topic, b"kept", partition=partition)
    assert [await committed(bootstrap, topic, partition) for partition in (0, 1)] == [[b"kept"]] * 2


async def test_a_second_producer_of_an_id_fences_the_first(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    topic = await asyncio.to_thread(topic_on, bootstrap)
    async with Producer(bootstrap, transactional_id="own-fenced") as first:
        first.begin_transaction()
        await first.send_and_wait(topic, b"lost")
        async with Producer(bootstrap, transactional_id="own-fenced") as second:
            with pytest.raises(ClusterError) as fenced:
                await first.commit_transaction()
            assert fenced.value.code == "PRODUCER_FENCED"
            for call in (first.commit_transaction, first.abort_transaction):
                with pytest.raises(ClusterError, match="another producer uses it"):
                    await call()
            async with second.transaction():
                await second.send(topic, b"kept")
    assert await committed(bootstrap, topic) == [b"kept"]


async def test_consume_transform_produce_copies_each_record_once_with_our_clients(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    source, target = [await asyncio.to_thread(topic_on, bootstrap) for _ in range(2)]
    async with Producer(bootstrap) as plain:
        await plain.send_many(source, [b"%d" % number for number in range(30)])
    for attempt in range(4):
        consumer = Consumer(
            bootstrap, topics=[source], group=f"group-{target}", auto_commit=False, auto_offset_reset="earliest"
        )
        async with consumer, Producer(bootstrap, transactional_id=f"transform-{target}") as producer:
            producer.begin_transaction()
            for value in await values_of(consumer, 10):
                await producer.send(target, (value or b"") + b"!")
            await producer.send_offsets(consumer)
            if attempt == 1:
                await producer.abort_transaction()
            else:
                await producer.commit_transaction()
    assert await committed(bootstrap, target) == [b"%d!" % number for number in range(30)]
    with pytest.raises(ClusterError, match="commits automatically"):
        Consumer(bootstrap, topics=[source], group=f"group-{target}").group_metadata()


async def test_a_rebalance_during_a_transaction_aborts_it_and_every_record_is_copied_once(
    standalone: Standalone,
) -> None:
    bootstrap = standalone.bootstrap
    source = await asyncio.to_thread(topic_on, bootstrap, 2)
    target = await asyncio.to_thread(topic_on, bootstrap)
    everything = {b"%d-%d" % (partition, number) for partition in (0, 1) for number in range(3)}
    async with Producer(bootstrap) as plain:
        for value in sorted(everything):
            await plain.send(source, value, partition=int(value[:1]))

    def member() -> Consumer:
        settings: dict[str, Any] = {"group": f"group-{target}", "auto_commit": False, "heartbeat_interval_s": 0.3}
        return Consumer(bootstrap, topics=[source], auto_offset_reset="earliest", **settings)

    async def copy(consumer: Consumer, producer: Producer, count: int) -> None:
        for value in await values_of(consumer, count):
            await producer.send(target, value)

    async def copy_all_and_rebalance(first: Consumer, second: Consumer, producer: Producer) -> None:
        async with producer.transaction():
            await copy(first, producer, 6)
            await second.start()
            async with asyncio.timeout(TIMEOUT_S):
                while len(first.assignment()) != 1 or len(second.assignment()) != 1:
                    await first.get(timeout_s=0.05)  # the members look for records, so that the group can rebalance
            await producer.send_offsets(first)

    async with (
        member() as first,
        Producer(bootstrap, transactional_id=f"first-{target}") as producer,
        Producer(bootstrap, transactional_id=f"second-{target}") as other_producer,
    ):
        second = member()
        try:
            with pytest.raises(ClusterError, match="were taken from the consumer") as refused:
                await copy_all_and_rebalance(first, second, producer)
            assert refused.value.code == "ILLEGAL_GENERATION"
            assert await first.committed([(source, 0), (source, 1)]) == {}
            for consumer, own in ((first, producer), (second, other_producer)):
                [partition] = consumer.assignment()
                consumer.seek(partition, 0)
                async with own.transaction():
                    await copy(consumer, own, 3)
                    await own.send_offsets(consumer)
            assert sorted((await first.committed([(source, 0), (source, 1)])).values()) == [3, 3]
        finally:
            await second.close()
    copied = await committed(bootstrap, target)
    assert len(copied) == len(everything)
    assert set(copied) == everything


async def test_records_of_a_partition_that_was_lost_meanwhile_cannot_be_committed(standalone: Standalone) -> None:
    bootstrap = standalone.bootstrap
    source, target = [await asyncio.to_thread(topic_on, bootstrap) for _ in range(2)]
    async with Producer(bootstrap) as plain:
        await plain.send_many(source, [b"0", b"1"])
    settings: dict[str, Any] = {"group": f"group-{target}", "auto_commit": False, "auto_offset_reset": "earliest"}
    async with (
        Consumer(bootstrap, topics=[source], **settings) as consumer,
        Producer(bootstrap, transactional_id=f"lost-{target}") as producer,
    ):
        group = consumer._group
        assert group is not None

        async def copy(count: int, *, loses: bool) -> None:
            async with producer.transaction():
                for value in await values_of(consumer, count):
                    await producer.send(target, value)
                if loses:  # as after a session that ended, while the records are processed
                    group.lose(consumer.assignment())
                await producer.send_offsets(consumer)

        with pytest.raises(ClusterError, match="were taken from the consumer") as refused:
            await copy(1, loses=True)
        assert refused.value.code == "ILLEGAL_GENERATION"
        await group.assigned(frozenset({TopicPartition(source, 0)}))
        await copy(2, loses=False)
    assert await committed(bootstrap, target) == [b"0", b"1"]
