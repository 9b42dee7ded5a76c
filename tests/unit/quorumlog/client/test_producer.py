"""The producer against brokers that fail, move and do not answer."""

from __future__ import annotations

import asyncio
import struct
from random import randbytes

import pytest

from broker.kafka import handlers
from broker.kafka.api import ProducerIdResult
from quorumlog.client import cluster as cluster_module
from quorumlog.client import partitions
from quorumlog.client.cluster import Cluster, TopicState
from quorumlog.client.producer import ACKS_NONE, Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.errors import ClusterError, ConfigError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from quorumlog.wire.record_batch import Codec, parse_header
from tests.unit.broker.kafka import fake
from tests.unit.quorumlog.client.fake_cluster import FakeBrokers, client_of, fake_brokers

NOW = 1_700_000_000_000


def batch(*values: int) -> bytearray:
    return build_batch([NewRecord(None, str(value).encode(), NOW) for value in values])


async def values_of(brokers: FakeBrokers, topic: str, index: int) -> list[int]:
    return [int(record.value or b"") for record in await brokers.records(topic, index)]


async def test_batches_arrive_in_order_and_return_their_offsets() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1, 2])
        async with Producer(cluster) as producer:
            offsets = [await producer.send("t", n % 2, batch(n, n + 100)) for n in range(10)]
        assert [offset.result() for offset in offsets] == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8]
        assert producer.delivered_records == 20
        assert await values_of(brokers, "t", 0) == [0, 100, 2, 102, 4, 104, 6, 106, 8, 108]
        log = brokers.shared.logs["t", 1]
        assert [parse_header(data).base_sequence for *_, data in log.batches] == [0, 2, 4, 6, 8]


async def test_another_broker_is_asked_for_a_producer_id_when_the_first_broker_has_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        asked: list[int] = []

        async def none_left() -> ProducerIdResult:
            asked.append(1)
            return ProducerIdResult(int(KafkaCode.COORDINATOR_LOAD_IN_PROGRESS))

        monkeypatch.setattr(brokers.replicas[1], "allocate_producer_id", none_left)
        for _ in range(2):
            assert (await cluster.new_producer_id(10))[0] > 0
        assert asked == [1]


async def test_invalid_batches_are_refused_at_once() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        async with Producer(cluster) as producer:
            with pytest.raises(struct.error):
                await producer.send("t", 0, bytearray(b"no batch"))
            async with asyncio.timeout(10):
                await producer.flush()


async def test_a_leader_killed_between_append_and_answer_causes_no_duplicate() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        async with Producer(cluster) as producer:
            await (await producer.send("t", 0, batch(0)))
            leader = brokers.replicas[1]
            leader.acknowledge.clear()
            leader.appended.clear()
            unanswered = await producer.send("t", 0, batch(1, 2))
            await producer.send("t", 0, batch(3))
            await leader.appended.wait()
            await brokers.kill(1)
            await brokers.move("t", 0, 2)
            assert await unanswered == 1
        assert await values_of(brokers, "t", 0) == [0, 1, 2, 3]
        assert len(brokers.replicas[2].produced) >= 2, "the batch was sent again"


async def test_the_pause_between_attempts_grows_to_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    go_on = asyncio.sleep

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            await brokers.move("t", 0, 2)
        await go_on(0)

    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        async with Producer(cluster, retry_pause_max_s=0.12) as producer:
            await (await producer.send("t", 0, batch(0)))
            await brokers.kill(1)
            monkeypatch.setattr(cluster.random, "uniform", lambda _low, high: high)
            monkeypatch.setattr(asyncio, "sleep", sleep)
            await (await producer.send("t", 0, batch(1)))
    assert pauses[:4] == [0.05, 0.1, 0.12, 0.12][: len(pauses)]
    assert len(pauses) >= 3


async def test_a_batch_is_sent_to_the_new_leader_although_the_old_one_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No timeout applies: without a request to other brokers, this would wait for as long as the broker hangs."""
    monkeypatch.setattr(partitions, "LOOK_AFTER_S", 0.02)
    for_ever = 10_000.0
    async with fake_brokers(3) as brokers, Cluster(brokers.bootstrap, request_timeout_s=for_ever) as cluster:
        await brokers.create("t", [1, 1])
        async with Producer(cluster, delivery_timeout_s=for_ever, request_timeout_s=for_ever) as producer:
            for index in range(2):
                await (await producer.send("t", index, batch(0)))
            await brokers.freeze(1)
            unanswered = [await producer.send("t", index, batch(1, 2)) for index in range(2)]
            await brokers.move("t", 0, 2)
            assert await unanswered[0] == 1
            assert not unanswered[1].done(), "the leader of partition 1 is the same, and may only be slow"
            await brokers.move("t", 1, 3)
            assert await unanswered[1] == 1
        assert await values_of(brokers, "t", 0) == await values_of(brokers, "t", 1) == [0, 1, 2]


async def test_a_broker_that_hangs_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker accepts connections, but answers neither requests for the leader nor for a producer id."""
    monkeypatch.setattr(cluster_module, "HURRY_S", 0.05)
    taken: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _, writer: taken.append(writer), "127.0.0.1", 0)
    port = silent.sockets[0].getsockname()[1]
    async with fake_brokers() as brokers:
        await brokers.create("t", [2])
        first = f"127.0.0.1:{port},{brokers.bootstrap}"
        async with Cluster(first, request_timeout_s=10_000) as cluster:
            async with Producer(cluster, delivery_timeout_s=10_000) as producer:
                assert await (await producer.send("t", 0, batch(0))) == 0
            assert await cluster.partition_counts(["t"], 10_000) == {"t": 1}
            assert len(taken) <= 2, "a broker that has not answered is asked last"
    for writer in taken:
        writer.close()
    silent.close()


@pytest.mark.parametrize("renewed", [False, True])
async def test_older_metadata_of_a_lagging_broker_are_ignored(renewed: bool) -> None:
    """The broker was suspended while the leader moved (perhaps under another topic id), and is then asked for it."""
    async with fake_brokers(3) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        async with Producer(cluster) as producer:
            await (await producer.send("t", 0, batch(0)))
            await brokers.hold_back(1)
            if renewed:
                await brokers.renew("t")
            await brokers.move("t", 0, 2)
            connection = await cluster.leader("t", 0, 10.0)
            for node_id, wanted in ((3, 2), (1, 2)):
                for address in brokers.addresses.values():
                    if address != brokers.addresses[node_id]:
                        cluster._ask_last(Address(*address))
                await cluster.leader_lost("t", 0, connection)
                connection = await cluster.leader("t", 0, 10.0)
                assert (connection.host, connection.port) == brokers.addresses[wanted], (
                    f"as reported by broker {node_id}"
                )


@pytest.mark.parametrize("change", ["the leader is killed", "the leader moves", "the topic is new"])
async def test_the_client_does_not_ask_only_a_broker_whose_metadata_is_stale(change: str) -> None:
    """The broker is disconnected from the controller, but not from the client, and answered the last request."""
    async with fake_brokers(3) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        connection = await cluster.leader("t", 0, 10.0)
        cluster._last_good = Address(*brokers.addresses[3])
        await brokers.hold_back(3)
        if change == "the topic is new":
            await brokers.create("u", [2])
        else:
            await brokers.move("t", 0, 2)
        if change == "the leader is killed":
            await brokers.kill(1)
        await cluster.leader_lost("t", 0, connection)
        async with Producer(cluster, delivery_timeout_s=10) as producer:
            await (await producer.send("u" if change == "the topic is new" else "t", 0, batch(0)))
        assert len(brokers.replicas[2].produced) == 1


@pytest.mark.parametrize("failed", [(), (2, 3)])
async def test_the_client_stops_asking_a_broker_whose_metadata_is_stale(
    monkeypatch: pytest.MonkeyPatch, failed: tuple[int, ...]
) -> None:
    """The broker is disconnected from the controller, but not from the client, and leads in its own metadata."""
    monkeypatch.setattr(cluster_module, "ROTATE_S", 0.05)
    async with fake_brokers(3) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        cluster._last_good = Address(*brokers.addresses[1])
        before = await cluster.topic_states(["t"], 10.0)
        await brokers.hold_back(1)
        await brokers.move("t", 0, 2)
        cluster._last_good = Address(*brokers.addresses[1])
        for node_id in failed:  # these brokers failed at some earlier time
            cluster._ask_last(Address(*brokers.addresses[node_id]))
        async with asyncio.timeout(10):
            while await cluster.topic_states(["t"], 10.0) == before:  # noqa: ASYNC110  # no event reports the time
                await asyncio.sleep(0.02)
        for _ in range(5):  # also if the broker is asked again
            await asyncio.sleep(0.02)
            await cluster.topic_states(["t"], 10.0)
            assert cluster.known_leader("t", 0) == Address(*brokers.addresses[2])


@pytest.mark.parametrize("failed", [2, 3])
async def test_the_source_of_metadata_does_not_rotate_to_a_failed_broker(
    monkeypatch: pytest.MonkeyPatch, failed: int
) -> None:
    """The source of metadata rotates to the other broker that works."""
    monkeypatch.setattr(cluster_module, "ROTATE_S", 0.0)
    async with fake_brokers(3) as brokers, client_of(brokers) as cluster:
        cluster._last_good = Address(*brokers.addresses[1])
        await cluster.topic_states([], 10.0)
        cluster._ask_last(Address(*brokers.addresses[failed]))
        await cluster.topic_states([], 10.0)
        assert cluster._last_good == Address(*brokers.addresses[5 - failed])


async def test_a_former_leader_is_not_asked_for_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is time to prefer another broker, but besides the broker that answered last only the former leader exists."""
    monkeypatch.setattr(cluster_module, "ROTATE_S", 0.0)
    async with fake_brokers(2) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        connection = await cluster.leader("t", 0, 10.0)
        await brokers.hold_back(1)
        await brokers.move("t", 0, 2)
        cluster._last_good = Address(*brokers.addresses[2])
        assert await cluster.has_moved("t", 0, connection)


async def test_a_close_that_is_cancelled_leaves_no_connection_open() -> None:
    """The application ends, and waits no longer for a broker that reads nothing."""
    async with fake_brokers(2) as brokers:
        cluster = Cluster(brokers.bootstrap)
        opened = [await cluster.connection(Address(*address), 10.0) for address in brokers.addresses.values()]
        hanging = asyncio.Event()
        closes = [each.close for each in opened]

        async def hangs() -> None:
            await closes[0]()
            await hanging.wait()

        opened[0].close = hangs  # type: ignore[method-assign]
        closing = asyncio.ensure_future(cluster.close())
        await asyncio.sleep(0.05)
        closing.cancel()
        await asyncio.wait({closing})
        assert [each.is_open for each in opened] == [False, False]
        hanging.set()
        await cluster.close()


async def test_the_number_of_remembered_missing_topics_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "TOPICS_MAX", 5)
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        for number in range(20):
            assert await cluster.topic_states([f"missing-{number}"], 10.0) == {}
        assert len(cluster._view.missing) <= 5


async def test_the_leader_of_a_topic_that_was_created_again_is_found() -> None:
    """The new topic continues the leader epochs of the deleted one."""
    async with fake_brokers(2) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        await brokers.move("t", 0, 2)
        connection = await cluster.leader("t", 0, 10.0)
        assert connection.port == brokers.addresses[2][1]
        await brokers.delete("t")
        await brokers.create("t", [1])
        await cluster.leader_lost("t", 0, connection)
        assert (await cluster.leader("t", 0, 10.0)).port == brokers.addresses[1][1]


async def recreate(brokers: FakeBrokers, cluster: Cluster) -> TopicState:
    """Let the topic t be known with leader epoch 1, and create it again with epoch 0.  Return its former state."""
    await brokers.create("t", [1])
    await brokers.move("t", 0, 2)
    before = (await cluster.topic_states(["t"], 10.0))["t"]
    await brokers.delete("t")
    await brokers.create("t", [1], first_epoch=0)
    return before


@pytest.mark.parametrize("a_day_has_passed", [False, True])
async def test_lower_epochs_of_another_topic_id_count_only_after_a_day(
    monkeypatch: pytest.MonkeyPatch, a_day_has_passed: bool
) -> None:
    """Within a day, they come from a broker that lags.  After that, a new topic begins at epoch 0 again."""
    async with fake_brokers(2) as brokers, client_of(brokers) as cluster:
        before = await recreate(brokers, cluster)
        if a_day_has_passed:
            monkeypatch.setattr(cluster_module, "EPOCHS_GO_ON_S", 0.0)
        after = (await cluster.topic_states(["t"], 10.0))["t"]
        assert (after.topic_id, after.leader_epochs[0]) == (
            (brokers.shared.image.topic_ids["t"], 0) if a_day_has_passed else (before.topic_id, before.leader_epochs[0])
        )


async def test_a_topic_that_apache_kafka_created_again_with_lower_epochs_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its leader epochs begin at 0 again, so they do not show which answer is older."""
    monkeypatch.setattr(handlers, "HANDLERS", {api: each for api, each in handlers.HANDLERS.items() if api < 10_000})
    async with fake_brokers(2) as brokers, client_of(brokers) as cluster:
        before = await recreate(brokers, cluster)
        async with Producer(cluster, delivery_timeout_s=5.0) as producer:
            await (await producer.send("t", 0, batch(0)))
        after = (await cluster.topic_states(["t"], 10.0))["t"]
        assert before.leader_epochs[0] > after.leader_epochs[0] == 0
        assert before.topic_id != after.topic_id


async def test_a_moved_leader_is_found_although_the_old_connection_stays_open() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        async with Producer(cluster) as producer:
            await (await producer.send("t", 0, batch(0)))
            await brokers.move("t", 0, 2)
            await (await producer.send("t", 0, batch(1)))
        assert len(brokers.replicas[1].produced) == 2
        assert len(brokers.replicas[2].produced) == 1
        assert await values_of(brokers, "t", 0) == [0, 1]


async def test_a_broker_that_restarts_on_its_address_is_used_again() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        async with Producer(cluster) as producer:
            await (await producer.send("t", 0, batch(0)))
            await brokers.kill(1)
            delivered = await producer.send("t", 0, batch(1))
            await brokers.start(1)
            await brokers.move("t", 0, 1)
            assert await delivered == 1
        assert await values_of(brokers, "t", 0) == [0, 1]


async def test_a_delivery_timeout_names_the_partition_and_fails_later_batches() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        with pytest.raises(ClusterError, match=r"t-0: given up after 0\.4 s") as caught:  # noqa: PT012
            async with Producer(cluster, delivery_timeout_s=0.4) as producer:
                await brokers.kill(1)
                first = await producer.send("t", 0, batch(0))
                second = await producer.send("t", 0, batch(1))
        assert caught.value.code == "TIMED_OUT"
        assert first.exception() is second.exception() is caught.value
        with pytest.raises(ClusterError, match="given up"):
            await producer.send("t", 0, batch(2))


async def test_a_producer_fails_if_acknowledged_records_were_lost() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        with pytest.raises(ClusterError, match="acknowledged records were deleted or lost") as caught:  # noqa: PT012
            async with Producer(cluster) as producer:
                await (await producer.send("t", 0, batch(0)))
                brokers.shared.logs["t", 0].next_sequence.clear()
                brokers.shared.logs["t", 0].sequences.clear()
                await producer.send("t", 0, batch(1))
        assert caught.value.code == "OUT_OF_ORDER_SEQUENCE_NUMBER"
        assert not caught.value.retriable


async def test_a_refused_batch_is_not_retried() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        with pytest.raises(ClusterError, match="MESSAGE_TOO_LARGE") as caught:
            async with Producer(cluster) as producer:
                await producer.send("t", 0, build_batch([NewRecord(None, bytes(2_000_000), NOW)]))
        assert not caught.value.retriable
        assert str(caught.value).startswith("t-0: a batch of 1 record was answered with MESSAGE_TOO_LARGE (")
        assert str(caught.value) == caught.value.message, "the broker's explanation is part of both"
        assert caught.value.next_step.startswith("split the record")
        assert len(brokers.replicas[1].produced) == 1


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
async def test_a_batch_that_is_too_large_is_divided(monkeypatch: pytest.MonkeyPatch, codec: Codec) -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        records = [
            NewRecord(None if n % 3 == 0 else b"k%d" % n, randbytes(60), NOW + n, (("h", None), ("h", b"%d" % n)))
            for n in range(21)
        ]
        monkeypatch.setattr(fake, "MESSAGE_MAX_BYTES", 500)
        async with Producer(cluster, divides=True) as producer:
            await producer.send("t", 0, batch(-1))
            first = await producer.send("t", 0, build_batch(records, codec))
            await producer.send("t", 0, batch(-2))
        assert first.result() == 1
        assert producer.delivered_records == 23
        stored = await brokers.records("t", 0)
        assert [each.value for each in stored[:1] + stored[-1:]] == [b"-1", b"-2"]
        assert [NewRecord(each.key, each.value, each.timestamp_ms, each.headers) for each in stored[1:-1]] == records
        log = brokers.shared.logs["t", 0]
        assert {parse_header(data).codec for _, _, _, data in log.batches[1:-1]} == {codec}


async def test_a_record_that_is_too_large_fails_its_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        monkeypatch.setattr(fake, "MESSAGE_MAX_BYTES", 500)
        records = [NewRecord(None, bytes(size), NOW) for size in (10, 10, 600, 10)]
        producer = Producer(cluster, divides=True)
        with pytest.raises(ClusterError, match="t-0: a batch of 1 record was answered with MESSAGE_TOO_LARGE"):
            async with producer:
                await producer.send("t", 0, build_batch(records))
        assert producer.delivered_records == len(await brokers.records("t", 0)) == 2


async def test_a_single_record_is_sent_although_smaller_batches_were_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of the topic was raised meanwhile."""
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        monkeypatch.setattr(fake, "MESSAGE_MAX_BYTES", 500)
        async with Producer(cluster, divides=True) as producer:
            await producer.send("t", 0, build_batch([NewRecord(None, bytes(300), NOW)] * 2))
            await producer.flush()
            monkeypatch.setattr(fake, "MESSAGE_MAX_BYTES", 5_000)
            await producer.send("t", 0, build_batch([NewRecord(None, bytes(2_000), NOW)]))
        assert [len(each.value or b"") for each in await brokers.records("t", 0)] == [300, 300, 2_000]


async def test_a_batch_that_was_appended_before_it_became_too_large_is_not_written_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is lost, and the limit of the topic is lowered meanwhile."""
    async with fake_brokers(2) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        brokers.replicas[1].acknowledge.clear()
        with pytest.raises(ClusterError, match=r"sequence 0 .* OUT_OF_ORDER_SEQUENCE_NUMBER"):  # noqa: PT012
            async with Producer(cluster, divides=True) as producer:
                await producer.send("t", 0, build_batch([NewRecord(None, b"%d" % n, NOW) for n in range(100)]))
                await brokers.replicas[1].appended.wait()
                await brokers.kill(1)
                monkeypatch.setattr(fake, "MESSAGE_MAX_BYTES", 500)
                await brokers.move("t", 0, 2)
        assert await values_of(brokers, "t", 0) == list(range(100))


async def test_a_failed_partition_fails_waiting_batches() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1, 2])
        brokers.replicas[2].acknowledge.clear()
        with pytest.raises(ClusterError, match="MESSAGE_TOO_LARGE"):  # noqa: PT012
            async with Producer(cluster) as producer:
                waiting = await producer.send("t", 1, batch(1))
                await brokers.replicas[2].appended.wait()
                await producer.send("t", 0, build_batch([NewRecord(None, bytes(2_000_000), NOW)]))
                with pytest.raises(ClusterError, match="MESSAGE_TOO_LARGE"):
                    await waiting
                brokers.replicas[2].acknowledge_all()
        assert producer.delivered_records == 0


async def test_metadata_of_a_lagging_broker_does_not_reduce_the_partition_count() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        await brokers.hold_back(1)
        await brokers.add_partition("t", 2)
        counts = []
        for _ in range(4):
            counts.append((await cluster.partition_counts(["t"], 10))["t"])
            cluster.ask_another_broker()
        assert (counts, counts[-1]) == (sorted(counts), 2)


async def test_a_cancelled_write_leaves_no_task_behind() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        brokers.replicas[1].acknowledge.clear()

        async def write() -> None:
            async with Producer(cluster) as producer:
                await producer.send("t", 0, batch(0))

        writing = asyncio.create_task(write())
        await brokers.replicas[1].appended.wait()
        before = asyncio.all_tasks()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        assert not [task for task in asyncio.all_tasks() & before if "Producer._run" in repr(task)]
        brokers.replicas[1].acknowledge_all()


async def test_send_waits_while_the_buffer_is_full() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        leader = brokers.replicas[1]
        leader.acknowledge.clear()
        size = len(batch(0))
        async with Producer(cluster, buffer_size_max_bytes=2 * size) as producer:
            for value in range(2):
                await producer.send("t", 0, batch(value))
            third = asyncio.create_task(producer.send("t", 0, batch(2)))
            await leader.appended.wait()
            assert not third.done()
            leader.acknowledge_all()
            await third
        assert await values_of(brokers, "t", 0) == [0, 1, 2]


async def test_batches_with_acks_0_have_no_producer_id() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        async with Producer(cluster, acks=ACKS_NONE) as producer:
            assert await (await producer.send("t", 0, batch(0))) == -1
        await brokers.replicas[1].appended.wait()
        ((_, _, acks, data),) = brokers.replicas[1].produced
        assert (acks, parse_header(data).producer_id) == (0, -1)


async def test_an_unknown_topic_fails_before_the_delivery_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quorumlog.client.partitions.UNKNOWN_TOPIC_TIMEOUT_S", 0.1)
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        with pytest.raises(ClusterError, match="nope-0 does not exist"):
            async with Producer(cluster) as producer:
                await producer.send("nope", 0, batch(0))


async def test_the_error_of_an_unreachable_cluster_contains_its_address() -> None:
    async with fake_brokers(1) as brokers:
        address = brokers.bootstrap
        await brokers.kill(1)
    async with Cluster(address) as cluster:
        with pytest.raises(ClusterError, match=address):
            async with Producer(cluster, delivery_timeout_s=0.2):
                pass


async def test_an_invalid_topic_name_does_not_fail_the_metadata_request_of_other_callers() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        outcomes = await asyncio.gather(
            cluster.topic_states(["\ud800"], 5),
            cluster.find_leader("\ud800", 0, 5),
            cluster.topic_states(["t"], 5),
            return_exceptions=True,
        )
        assert [type(each) for each in outcomes] == [ConfigError, ConfigError, dict]


async def test_text_that_cannot_be_encoded_is_a_wrong_argument_of_any_request() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        connection = await cluster.any_broker(5)
        values = {"key_type": 0, "coordinator_keys": ["\ud800"]}
        with pytest.raises(ConfigError, match=r"FIND_COORDINATOR: not valid text: '\\ud800'"):
            await cluster.ask(connection, Api.FIND_COORDINATOR, 4, values, 5)
        assert await cluster.any_broker(5) is connection
