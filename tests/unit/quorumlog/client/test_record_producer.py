"""The public producer: batching, order, failures of brokers, limits, cancellation, and nothing left after close."""

from __future__ import annotations

import asyncio
import math
import pickle
import traceback
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from itertools import count
from typing import Any

import pytest

from broker.kafka import api
from quorumlog.client import (
    ClusterError,
    ConfigError,
    Delivery,
    NewRecord,
    Producer,
    RecordMetadata,
    lane_sender,
    lanes,
    producer_topics,
)
from quorumlog.client.cluster import Cluster, TopicState
from quorumlog.client.partitioner import partition_of
from quorumlog.client.records import Record
from quorumlog.runtime.addresses import Address
from quorumlog.runtime.clock import Sources
from quorumlog.wire import compression
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import Codec, parse_header
from tests.unit.quorumlog.client.fake_cluster import FakeBrokers, fake_brokers


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110  # conditions of any kind
            await asyncio.sleep(0.01)  # conditions of any kind


@pytest.fixture
async def brokers() -> AsyncIterator[FakeBrokers]:
    async with fake_brokers() as started:
        await started.create("t", [1, 2])
        before = asyncio.all_tasks()
        yield started
        # the connections of the brokers end with those of the client
        await until(lambda: not asyncio.all_tasks() - before - {asyncio.current_task()})


async def values_of(brokers: FakeBrokers, index: int = 0, topic: str = "t") -> list[bytes | None]:
    return [record.value for record in await brokers.records(topic, index)]


async def all_records(brokers: FakeBrokers) -> list[Record]:
    return [record for index in (0, 1) for record in await brokers.records("t", index)]


async def test_a_record_is_stored_unchanged_and_its_delivery_returns_partition_and_offset(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap) as producer:
        headers = {"trace": b"1", "empty": None}
        delivery = await producer.send("t", b"v", key=b"k", headers=headers, partition=1, timestamp_ms=1234)
        assert await delivery == RecordMetadata("t", 1, 0, 1234)
        assert await producer.send_and_wait("t", None, partition=1, timestamp_ms=5) == RecordMetadata("t", 1, 1, 5)
    first, second = await brokers.records("t", 1)
    assert first == Record(0, 1234, False, b"k", b"v", (("trace", b"1"), ("empty", None)))
    assert (second.key, second.value) == (None, None)


async def test_records_sent_together_share_batches_and_keep_their_order(brokers: FakeBrokers) -> None:
    values = [b"%d" % n for n in range(1000)]
    async with Producer(brokers.bootstrap) as producer:
        deliveries = await producer.send_many("t", [NewRecord(value, partition=0) for value in values])
        places = [await delivery for delivery in deliveries]
    assert [place.offset for place in places] == list(range(1000))
    assert await values_of(brokers) == values
    assert len(brokers.shared.logs["t", 0].batches) <= 3


async def test_a_key_determines_the_partition_as_in_kafka(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap) as producer:
        for n in range(50):
            place = await producer.send_and_wait("t", b"", key=b"key-%d" % n)
            assert place.partition == partition_of(b"key-%d" % n, 2)


async def test_records_without_a_key_reach_all_partitions(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap) as producer:
        places = [await each for each in await producer.send_many("t", [b"x" * 4000] * 200)]
    assert set(Counter(place.partition for place in places)) == {0, 1}


async def test_records_without_a_key_avoid_partitions_without_a_leader(brokers: FakeBrokers) -> None:
    await brokers.create("u", [-1, 1, -1, 2, -1])
    async with Producer(brokers.bootstrap) as producer:
        deliveries = await producer.send_many("u", [b"x" * 4000] * 200)
        async with asyncio.timeout(20):
            places = [await each for each in deliveries]
    assert set(Counter(place.partition for place in places)) == {1, 3}


async def test_the_neighbour_of_partitions_without_a_leader_gets_no_more_records_than_others(
    brokers: FakeBrokers,
) -> None:
    await brokers.create("u", [-1, -1, -1, 1, 2])
    sources = Sources.seeded(1, lambda: 1_700_000_000_000)
    async with Producer(brokers.bootstrap, batch_size_max_bytes=20_000, sources=sources) as producer:
        places = [await each for each in await producer.send_many("u", [b"x" * (16 << 10)] * 100)]
    drawn = Counter(place.partition for place in places)
    assert drawn.keys() == {3, 4}
    assert min(drawn.values()) > 30


async def test_a_custom_partitioner_is_used_and_an_invalid_partition_is_an_error(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap, partitioner=lambda key, count: len(key or b"")) as producer:
        assert (await producer.send_and_wait("t", b"", key=b"1")).partition == 1
        with pytest.raises(ValueError, match="has no partition 2, only 0 to 1"):
            await producer.send("t", b"", key=b"12")


async def test_records_can_be_sent_to_a_partition_that_was_just_added(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap) as producer:
        await producer.send_and_wait("t", b"first", partition=1)
        await brokers.hold_back(1)  # the first answer may come from a broker that is behind
        await brokers.add_partition("t", 2)
        assert (await producer.send_and_wait("t", b"second", partition=2)).partition == 2
        with pytest.raises(ValueError, match="has no partition 3, only 0 to 2"):
            await producer.send("t", b"", partition=3)


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
async def test_batches_are_compressed(brokers: FakeBrokers, codec: Codec) -> None:
    name: Any = next(name for name, each in compression.CODEC_NAMES.items() if each is codec)
    async with Producer(brokers.bootstrap, compression=name, linger_ms=50) as producer:
        await producer.send_many("t", [NewRecord(b"x" * 100, partition=0)] * 100)
    assert parse_header(brokers.shared.logs["t", 0].batches[-1][3]).codec is codec
    assert await values_of(brokers) == [b"x" * 100] * 100


async def test_a_cancelled_send_adds_no_record(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap) as producer:
        await producer.send_and_wait("t", b"first", partition=0)
        added = [b"first"]
        for n in range(10):
            sending = asyncio.create_task(producer.send("t", b"%d" % n, partition=0))
            await asyncio.sleep(0)  # until it waits, or has returned
            sending.cancel()
            await asyncio.wait([sending])
            added += [] if sending.cancelled() else [b"%d" % n]
            await producer.flush()
    assert await values_of(brokers) == added


async def test_linger_collects_separately_sent_records_in_one_batch(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap, linger_ms=60_000, delivery_timeout_s=120) as producer:
        for n in range(5):
            await producer.send("t", b"%d" % n, partition=0)
            await asyncio.sleep(0.01)
        assert await values_of(brokers) == []
        await producer.flush()  # does not wait for the rest of the minute
    assert len(brokers.shared.logs["t", 0].batches) == 1


async def test_a_killed_leader_causes_neither_loss_nor_duplicate(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap) as producer:
        deliveries = []
        for n in range(300):
            deliveries.append(await producer.send("t", b"%d" % n, partition=0))
            if n == 100:
                brokers.replicas[1].acknowledge.clear()  # the next answers are lost
            if n == 200:
                await asyncio.sleep(0.05)
                await brokers.kill(1)
                await brokers.move("t", 0, 2)
            await asyncio.sleep(0)
        places = [await delivery for delivery in deliveries]
    assert [place.offset for place in places] == list(range(300))
    assert await values_of(brokers) == [b"%d" % n for n in range(300)]


async def test_batches_that_the_broker_finds_too_large_are_divided(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.broker.kafka.fake.MESSAGE_MAX_BYTES", 20_000)
    async with Producer(brokers.bootstrap, linger_ms=20) as producer:
        deliveries = await producer.send_many("t", [NewRecord(b"%04d" % n * 250, partition=0) for n in range(100)])
        large = await producer.send("t", b"x" * 30_000, partition=0)
        after = await producer.send("t", b"after", partition=0)
        assert [(await each).offset for each in deliveries] == list(range(100))
        with pytest.raises(ClusterError) as failure:
            await large
        assert failure.value.code == "MESSAGE_TOO_LARGE"
        assert (await after).offset == 100, "the sequence goes on after a batch that was refused"
    assert len(await values_of(brokers)) == 101


async def test_a_batch_that_is_too_large_does_not_make_later_batches_needlessly_small(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.broker.kafka.fake.MESSAGE_MAX_BYTES", 20_000)
    records = [NewRecord(b"%04d" % n * 250, partition=0) for n in range(100)]
    async with Producer(brokers.bootstrap, linger_ms=20) as producer:
        await producer.send_many("t", records)
        await producer.send_many("t", [*records[:50], NewRecord(b"x" * 30_000, partition=0), *records[50:]])
        with pytest.raises(ClusterError, match="1 record not delivered"):
            await producer.flush()
        before = len(brokers.shared.logs["t", 0].batches)
        await producer.send_many("t", records)
    assert len(brokers.shared.logs["t", 0].batches) - before <= 11, "later batches may use half of the limit"


async def test_a_later_refusal_of_a_larger_batch_does_not_raise_the_learned_size_limit(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.broker.kafka.fake.MESSAGE_MAX_BYTES", 20_000)
    sizes = (100, 30_000, 30_000, 30_000)  # the halves are refused at 30 and 60 KB
    async with Producer(brokers.bootstrap, linger_ms=20) as producer:
        await producer.send_many("t", [NewRecord(bytes(size), partition=0) for size in sizes])
        with pytest.raises(ClusterError, match="3 records not delivered"):
            await producer.flush()
        assert producer._topics.known["t"].lanes[0].size_max < 20_000


async def test_a_batch_is_divided_although_a_former_leader_refused_it_first(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.broker.kafka.fake.MESSAGE_MAX_BYTES", 20_000)
    async with Producer(brokers.bootstrap, linger_ms=20) as producer:
        await producer.send_and_wait("t", b"first", partition=0)
        await brokers.move("t", 0, 2)  # the first leader refuses the next batch
        deliveries = await producer.send_many("t", [NewRecord(b"%04d" % n * 250, partition=0) for n in range(100)])
        assert [(await each).offset for each in deliveries] == list(range(1, 101))


async def test_a_batch_that_may_be_in_the_log_is_not_sent_again_under_new_sequence_numbers(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch was appended, its answer was lost, and the next leader accepts smaller batches only."""
    async with Producer(brokers.bootstrap, linger_ms=20) as producer:
        await producer.send_and_wait("t", b"first", partition=0)
        brokers.replicas[1].acknowledge.clear()
        deliveries = await producer.send_many("t", [NewRecord(b"%04d" % n * 250, partition=0) for n in range(100)])
        await until(lambda: len(brokers.shared.logs["t", 0].batches) == 2)
        monkeypatch.setattr("tests.unit.broker.kafka.fake.MESSAGE_MAX_BYTES", 20_000)
        await brokers.kill(1)
        await brokers.move("t", 0, 2)
        for delivery in deliveries:
            with pytest.raises(ClusterError, match="OUT_OF_ORDER_SEQUENCE_NUMBER"):
                await delivery
        await producer.send_and_wait("t", b"last", partition=0)
    values = await values_of(brokers)
    assert (len(values), len(set(values))) == (102, 102)


async def test_a_record_that_expired_fails_and_the_next_one_is_delivered(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap, delivery_timeout_s=0.5, request_timeout_s=0.2) as producer:
        assert await producer.send_and_wait("t", b"0", partition=0)
        for broker in brokers.replicas.values():
            broker.acknowledge.clear()
        with pytest.raises(ClusterError) as failure:
            await producer.send_and_wait("t", b"1", partition=0)
        assert failure.value.code == "TIMED_OUT"
        for broker in brokers.replicas.values():
            broker.acknowledge_all()
        assert (await producer.send_and_wait("t", b"2", partition=0)).offset == 2
    assert await values_of(brokers) == [b"0", b"1", b"2"], "the outcome of a record that expired is unknown"


async def test_a_partition_whose_log_lost_records_fails_one_batch_and_continues(brokers: FakeBrokers) -> None:
    """After an unclean election, the log lacks the batch that the producer's sequence numbers continue."""
    async with Producer(brokers.bootstrap, acks="leader") as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        brokers.shared.logs["t", 0].next_sequence.clear()
        brokers.shared.logs["t", 0].sequences.clear()
        with pytest.raises(ClusterError, match="acknowledged records were deleted or lost") as failure:
            await producer.send_and_wait("t", b"1", partition=0)
        assert failure.value.code == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        await producer.send_and_wait("t", b"2", partition=0)
    assert await values_of(brokers) == [b"0", b"2"]


@pytest.mark.parametrize("was_sent_before", [False, True])
async def test_only_a_batch_that_was_sent_before_can_be_a_duplicate(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch, was_sent_before: bool
) -> None:
    """A new batch whose numbers the log knows was not stored, so it must not count as delivered."""
    broker = brokers.replicas[1]
    codes = [KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND] * was_sent_before + [KafkaCode.DUPLICATE_SEQUENCE_NUMBER]
    append = broker._append

    def answer(topic: str, index: int, batches: memoryview) -> api.ProduceResult:
        if codes and codes[0] is KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND:
            append(topic, index, batches)
        return api.ProduceResult(int(codes.pop(0))) if codes else append(topic, index, batches)

    monkeypatch.setattr(broker, "_append", answer)
    async with Producer(brokers.bootstrap) as producer:
        if was_sent_before:
            assert (await producer.send_and_wait("t", b"0", partition=0)).offset == -1
        else:
            with pytest.raises(ClusterError, match="its numbers belong to an earlier batch") as failure:
                await producer.send_and_wait("t", b"0", partition=0)
            assert failure.value.code == "DUPLICATE_SEQUENCE_NUMBER"
        await producer.send_and_wait("t", b"1", partition=0)
    assert await values_of(brokers) == [b"0"] * was_sent_before + [b"1"]


async def test_flush_reports_each_failure_that_was_not_retrieved_exactly_once(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap) as producer:
        seen = await producer.send("t", b"x" * 2_000_000, partition=0)
        with pytest.raises(ClusterError, match="MESSAGE_TOO_LARGE"):
            await seen
        await producer.flush()
        await producer.send("t", b"x" * 2_000_000, partition=0)
        with pytest.raises(ClusterError, match="1 record not delivered"):
            await producer.flush()
        await producer.flush()


async def test_a_failure_that_is_retrieved_twice_does_not_hide_another_failure(brokers: FakeBrokers) -> None:
    for broker in brokers.replicas.values():
        broker.acknowledge.clear()
    async with Producer(brokers.bootstrap, delivery_timeout_s=0.3, linger_ms=10) as producer:
        seen, _ = await producer.send_many("t", [NewRecord(b"x", partition=0)] * 2)
        for _ in range(2):
            with pytest.raises(ClusterError, match="t-0"):
                await seen
        with pytest.raises(ClusterError, match="1 record not delivered"):
            await producer.flush()


async def test_failed_records_keep_no_data_in_memory(brokers: FakeBrokers) -> None:
    """`flush` reports up to 1000 batches that failed, whose data would need half a gigabyte."""
    async with Producer(brokers.bootstrap) as producer:
        delivery = await producer.send(
            "t", b"x" * 2_000_000, key=b"k", headers={"h": b"v"}, partition=0, timestamp_ms=5
        )
        with pytest.raises(ClusterError, match="MESSAGE_TOO_LARGE"):
            await delivery
        assert [batch.records for batch in producer._buffer._failed] == [[(5, None, None, ())]]


async def test_close_reports_a_failed_delivery(brokers: FakeBrokers) -> None:
    producer = Producer(brokers.bootstrap)
    await producer.start()
    await producer.send("t", b"x" * 2_000_000)
    with pytest.raises(ClusterError, match="MESSAGE_TOO_LARGE"):
        await producer.close()


async def test_a_close_that_is_cancelled_leaves_no_connection_open(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    producer = Producer(brokers.bootstrap)
    await producer.start()
    await producer.send_and_wait("t", b"x")
    ending = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(producer._topics, "cancel", lambda: [ending])  # a task that takes long to end
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0.05)
    closing.cancel()
    await asyncio.wait({closing})
    assert closing.cancelled()
    assert not producer._cluster._connections


async def test_a_full_buffer_makes_send_wait_for_a_limited_time(brokers: FakeBrokers) -> None:
    for broker in brokers.replicas.values():
        broker.acknowledge.clear()
    async with Producer(brokers.bootstrap, buffer_size_max_bytes=1000, max_block_s=0.3) as producer:
        await producer.send("t", b"x" * 900, partition=0)
        with pytest.raises(ClusterError, match="no room for the record") as failure:
            await producer.send("t", b"y" * 900, partition=0)
        assert failure.value.code == "TIMED_OUT"
        with pytest.raises(ClusterError, match="does not fit into the buffer"):
            await producer.send("t", b"z" * 1000, partition=0)
        waiting = asyncio.ensure_future(producer.send("t", b"w" * 900, partition=0))
        cancelled = asyncio.ensure_future(producer.send("t", b"c" * 900, partition=0))
        await asyncio.sleep(0)
        cancelled.cancel()
        for broker in brokers.replicas.values():
            broker.acknowledge_all()
        assert (await (await waiting)).offset == 1
        await asyncio.wait({cancelled})
        assert cancelled.cancelled()
    assert await values_of(brokers) == [b"x" * 900, b"w" * 900], "a cancelled send has added nothing"


async def test_a_cancelled_wait_does_not_cancel_the_delivery(brokers: FakeBrokers) -> None:
    brokers.replicas[1].acknowledge.clear()
    async with Producer(brokers.bootstrap) as producer:
        first = await producer.send("t", b"1", partition=0)
        waiting = asyncio.ensure_future(_wait(first))
        await asyncio.sleep(0.02)
        waiting.cancel()
        await asyncio.wait({waiting})
        second = await producer.send("t", b"2", partition=0)
        brokers.replicas[1].acknowledge_all()
        assert [(await first).offset, (await second).offset] == [0, 1]


async def _wait(delivery: Delivery) -> RecordMetadata:
    return await delivery


async def test_a_missing_topic_is_an_error_within_max_block_s(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap, max_block_s=0.5) as producer:
        with pytest.raises(ClusterError, match="topic absent does not exist") as failure:
            await producer.send("absent", b"x")
        assert failure.value.code == "UNKNOWN_TOPIC_OR_PARTITION"
        await brokers.create("absent", [1])
        await producer.send_and_wait("absent", b"x")


async def test_one_late_answer_does_not_prove_that_a_topic_is_missing(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No broker answered for a while, and the first one that restarts does not know the topic yet."""
    monkeypatch.setattr("quorumlog.client.producer_topics.UNKNOWN_TOPIC_TIMEOUT_S", 0.3)
    await brokers.hold_back(1)
    await brokers.create("new", [2])
    asked = Cluster.topic_states
    numbers = count()

    async def late(cluster: Cluster, topics: Iterable[str] | None, timeout_s: float) -> dict[str, TopicState]:
        if next(numbers) == 0:
            await asyncio.sleep(0.4)
        return await asked(cluster, topics, timeout_s)

    monkeypatch.setattr(Cluster, "topic_states", late)
    async with Producer(brokers.bootstrap) as producer:
        assert (await producer.send_and_wait("new", b"x")).offset == 0


async def test_records_can_be_sent_to_a_topic_that_was_deleted_and_created_again(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorumlog.client.partitions.UNKNOWN_TOPIC_TIMEOUT_S", 0.2)
    async with Producer(brokers.bootstrap, delivery_timeout_s=1) as producer:
        await producer.send_and_wait("t", b"old", partition=0)
        await brokers.delete("t")
        with pytest.raises(ClusterError):
            await producer.send_and_wait("t", b"lost", partition=0)
        await brokers.create("t", [1, 2])
        async with asyncio.timeout(10):
            while True:
                try:
                    await producer.send_and_wait("t", b"new", partition=0)
                    break
                except ClusterError:
                    await asyncio.sleep(0.1)
    assert set(await values_of(brokers)) == {b"new"}


async def test_the_producer_notices_a_recreated_topic_and_sends_records_to_it(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap) as producer:
        await producer.send_and_wait("t", b"old", partition=0)
        topic = producer._topics.known["t"]
        await brokers.delete("t")
        await brokers.create("t", [1, 2])
        producer._topics._stale.set()
        await until(lambda: producer._topics.known.get("t") is not topic)
        await producer.send_and_wait("t", b"new", partition=0)
    assert await values_of(brokers) == [b"new"]


async def renewed(brokers: FakeBrokers, producer: Producer) -> None:
    """Remove a partition of topic t, which gets another id, and wait until the producer has noticed that."""
    await brokers.remove_last_partition("t")
    await dropped(producer, "t")


async def dropped(producer: Producer, name: str) -> None:
    """Wait until the producer has noticed that a topic was deleted or has another id."""
    topic = producer._topics.known[name]
    producer._topics._stale.set()
    await until(lambda: producer._topics.known.get(name) is not topic)


async def test_records_are_not_treated_as_duplicates_after_the_topic_id_changed(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap) as producer:
        assert (await producer.send_and_wait("t", b"0", partition=0)).offset == 0
        await renewed(brokers, producer)
        assert (await producer.send_and_wait("t", b"1", partition=0)).offset == 1
    assert await values_of(brokers) == [b"0", b"1"]


async def test_sequence_numbers_do_not_begin_again_after_more_topics_were_dropped_than_are_kept(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producer_topics, "FORMER_TOPICS_MAX", 1, raising=False)
    async with Producer(brokers.bootstrap) as producer:
        assert (await producer.send_and_wait("t", b"0", partition=0)).offset == 0
        await renewed(brokers, producer)
        for name in ("u", "v"):
            await brokers.create(name, [1])
            await producer.send_and_wait(name, b"x")
            await brokers.delete(name)
            await dropped(producer, name)
        assert list(producer._topics._former) == ["v"]
        assert (await producer.send_and_wait("t", b"1", partition=0)).offset == 1


async def test_records_keep_their_order_while_the_topic_id_changes(brokers: FakeBrokers) -> None:
    broker = brokers.replicas[1]
    async with Producer(brokers.bootstrap) as producer:
        await producer.send_and_wait("t", b"0", partition=0)
        broker.acknowledge.clear()
        broker.appended.clear()
        sent = [await producer.send("t", b"1", partition=0)]
        await broker.appended.wait()
        sent.append(await producer.send("t", b"2", partition=0))
        await renewed(brokers, producer)
        sent.append(await producer.send("t", b"3", partition=0))
        await asyncio.sleep(0.2)  # time for a new lane to overtake the old one
        broker.acknowledge_all()
        assert [(await each).offset for each in sent] == [1, 2, 3]
    assert await values_of(brokers) == [b"0", b"1", b"2", b"3"]


async def test_a_topic_that_one_broker_does_not_know_is_not_treated_as_deleted(brokers: FakeBrokers) -> None:
    """New lanes would send later records beside those that wait in the old ones, which changes their order."""
    await brokers.hold_back(2)
    await brokers.create("new", [1])
    async with Producer(brokers.bootstrap) as producer:
        await producer.send_and_wait("new", b"0")
        topic = producer._topics.known["new"]
        producer._cluster._last_good = Address(*brokers.addresses[2])
        producer._cluster._failed.clear()
        producer._topics._stale.set()
        before = producer._cluster._refreshes
        await until(lambda: producer._cluster._refreshes >= before + 2)
        await producer.send_and_wait("new", b"1")
        assert producer._topics.known["new"] is topic


async def test_a_topic_that_is_added_during_a_look_up_is_not_treated_as_deleted(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    await brokers.create("new", [1])
    async with Producer(brokers.bootstrap) as producer:
        await producer.send_and_wait("t", b"0")
        look_up = producer._cluster.topic_states
        looked = asyncio.Event()

        async def slowly(topics: Any, timeout_s: float) -> Any:
            states = await look_up(topics, timeout_s)
            if "t" in topics:
                await producer.send_and_wait("new", b"0")
                looked.set()
            return states

        monkeypatch.setattr(producer._cluster, "topic_states", slowly)
        producer._topics._stale.set()
        await looked.wait()
        topic = producer._topics.known["new"]
        await asyncio.sleep(0)
        assert producer._topics.known["new"] is topic
        assert not topic.is_deleted


async def test_the_producer_notices_new_partitions(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_topics, "METADATA_AGE_MAX_S", 0.05)
    async with Producer(brokers.bootstrap) as producer:
        assert await producer.partitions("t") == 2
        await brokers.add_partition("t", 1)
        topic = producer._topics.known["t"]
        await until(lambda: len(topic.lanes) == 3)
        assert await producer.partitions("t") == 3
        assert (await producer.send_and_wait("t", b"", partition=2)).partition == 2


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"value": "text"}, "the value of a record is bytes or None, not str; encode it first"),
        ({"value": b"", "key": 5}, "the key of a record is bytes or None, not int"),
        ({"value": b"", "headers": {"a": "b"}}, "the header of a record is bytes or None, not str"),
        ({"value": b"", "headers": [(b"a", b"b")]}, "the name of a header is a str, not bytes"),
        ({"value": b"", "timestamp_ms": -5}, "timestamp_ms is -5, not a time since 1970"),
        ({"value": b"", "timestamp_ms": 2**64}, "not a time since 1970"),
        ({"value": b"", "timestamp_ms": 1700000000000.5}, "timestamp_ms is an int, not float; round it first"),
        ({"value": b"", "headers": {"\ud800": b"b"}}, "the name of a header is not valid text"),
        ({"value": b"", "partition": 9}, "topic t has no partition 9, only 0 to 1"),
    ],
)
async def test_a_malformed_record_is_refused_and_changes_nothing(
    brokers: FakeBrokers, arguments: dict[str, Any], error: str
) -> None:
    async with Producer(brokers.bootstrap) as producer:
        with pytest.raises((TypeError, ValueError), match=error):
            await producer.send("t", **arguments)
        await producer.send_and_wait("t", bytearray(b"good"))  # type: ignore[arg-type]  # other bytes are converted
    assert [record.value for record in await all_records(brokers)] == [b"good"]


async def test_a_topic_name_that_is_not_valid_text_is_refused_and_changes_nothing(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap) as producer:
        good = await producer.send("t", b"good", partition=0)
        for call in (
            producer.send("t\ud800", b""),
            producer.send_many("t\ud800", [b""]),
            producer.partitions("t\ud800"),
        ):
            with pytest.raises(ConfigError, match=r"topic is not valid text: 't\\ud800'"):
                await call
        assert producer._buffer.size <= len(b"good") + lanes.RECORD_OVERHEAD_BYTES
        assert producer._topics.known.keys() == {"t"}
        assert not producer._topics._look_ups
        assert (await good).offset == 0
        await producer.send_and_wait("t", b"more", partition=0)
    assert await values_of(brokers) == [b"good", b"more"]


def test_names_that_a_request_cannot_contain_are_wrong_arguments() -> None:
    with pytest.raises(ConfigError) as failure:
        Producer("h:1", client_id="\ud800", transactional_id="\udfff")
    assert failure.value.problems == (
        "client_id is not valid text: '\\ud800'", "transactional_id is not valid text: '\\udfff'",
    )  # fmt: skip
    for client_id, problem in (
        ("\ud800", "is not valid text"),
        ("ü" * 2**14, "has 32768 bytes"),
        (7, "is 7, not a str"),
    ):
        with pytest.raises(ConfigError, match=f"client_id {problem}"):
            Cluster("h:1", client_id=client_id)  # type: ignore[arg-type]


async def test_all_problems_of_a_configuration_are_reported_together() -> None:
    with pytest.raises(ConfigError) as failure:
        Producer("h:1", acks="most", compression="zip", linger_ms=-1, batch_size_max_bytes=0)  # type: ignore[arg-type]
    assert [problem.split(" is ")[0] for problem in failure.value.problems] == [
        "acks", "compression", "linger_ms", "batch_size_max_bytes",
    ]  # fmt: skip
    with pytest.raises(ClusterError, match="bootstrap servers"):
        Producer("nonsense")


@pytest.mark.parametrize("timeout_s", [0, 2_147_484, math.inf, math.nan])
async def test_a_timeout_that_the_protocol_cannot_express_is_a_wrong_argument(timeout_s: float) -> None:
    with pytest.raises(ConfigError) as failure:
        Producer("h:1", request_timeout_s=timeout_s, transactional_id="t", transaction_timeout_s=timeout_s)
    names = [problem.split(" is ")[0] for problem in failure.value.problems]
    assert names == ["request_timeout_s", "transaction_timeout_s"]


async def test_an_unreachable_cluster_is_an_error_within_max_block_s() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(ClusterError) as failure:
        await Producer("127.0.0.1:1", max_block_s=0.3).__aenter__()
    assert failure.value.code == "TIMED_OUT"
    assert asyncio.all_tasks() == before


async def test_a_producer_that_is_not_open_refuses_records(brokers: FakeBrokers) -> None:
    producer = Producer(brokers.bootstrap)
    with pytest.raises(ClusterError, match="was not started"):
        await producer.send("t", b"")
    await producer.start()
    await producer.close()
    with pytest.raises(ClusterError, match="was closed"):
        await producer.send("t", b"")
    await producer.close()


async def frames_of(call: Callable[[], Any]) -> int:
    with pytest.raises(ClusterError) as failure:
        await call()
    return len(list(traceback.walk_tb(failure.value.__traceback__)))


async def test_the_traceback_of_an_error_that_is_raised_again_does_not_grow(brokers: FakeBrokers) -> None:
    """Each raise of one object adds to its traceback, which keeps the frames of all callers in memory."""
    producer = Producer(brokers.bootstrap)
    await producer.start()
    delivery = await producer.send("t", b"x" * 2_000_000, partition=0)
    with pytest.raises(ClusterError, match="MESSAGE_TOO_LARGE"):
        await delivery
    assert await frames_of(lambda: _wait(delivery)) == await frames_of(lambda: _wait(delivery))
    await producer.close()
    assert await frames_of(lambda: producer.send("t", b"")) == await frames_of(lambda: producer.send("t", b""))
    assert await frames_of(producer.flush) == await frames_of(producer.flush)


async def test_an_error_in_the_block_fails_records_that_were_not_delivered(brokers: FakeBrokers) -> None:
    brokers.replicas[1].acknowledge.clear()
    deliveries = []

    async def work() -> None:
        async with Producer(brokers.bootstrap) as producer:
            deliveries.append(await producer.send("t", b"", partition=0))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await work()
    with pytest.raises(ClusterError, match="the producer was closed"):
        await deliveries[0]


async def test_a_send_with_acks_none_returns_no_offset(brokers: FakeBrokers) -> None:
    async with Producer(brokers.bootstrap, acks="none") as producer:
        assert (await producer.send_and_wait("t", b"x", partition=0)).offset == -1
        await until(lambda: bool(brokers.shared.logs["t", 0].batches))
    assert await values_of(brokers) == [b"x"]


async def test_an_internal_error_fails_waiting_and_later_sends(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytearray:
        raise ZeroDivisionError("a bug")

    async with Producer(brokers.bootstrap) as producer:
        monkeypatch.setattr(lane_sender, "build_batch", broken)
        with pytest.raises(ClusterError, match="the producer failed: ZeroDivisionError"):
            await producer.send_and_wait("t", b"")
        with pytest.raises(ClusterError, match="the producer failed"):
            await producer.send("t", b"")
        monkeypatch.undo()


def test_records_that_were_read_can_be_pickled() -> None:
    from quorumlog.wire._record_scan import decode, encode

    body, _ = encode([(5, b"k", b"v", (("a", None),))], 5, 0)
    ((record,), *_) = decode(body, 1, "t", 3, 7, 0, 5, None, 0, 100)
    assert pickle.loads(pickle.dumps(record)) == record == ("t", 3, 7, 5, False, b"k", b"v", (("a", None),))
