"""The consumer against brokers that fail and logs that are truncated, and the runner for blocking callers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from random import Random

import pytest

from quorumlog.client import cluster as cluster_module
from quorumlog.client import partitions
from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST, Consumer, ListedOffset, OffsetOutOfRangeError
from quorumlog.client.kafka import KafkaConnection
from quorumlog.client.partitions import PartitionCalls
from quorumlog.client.records import NewRecord, build_batch, decode_batches
from quorumlog.client.sync import runner
from quorumlog.errors import ClusterError
from quorumlog.wire.kafka.fetch import FetchedPartition
from tests.unit.metadata.fake_node import run
from tests.unit.quorumlog.client.fake_cluster import client_of, fake_brokers, threaded_brokers

NOW = 1_700_000_000_000


def batch(*values: int) -> bytearray:
    return build_batch([NewRecord(None, str(value).encode(), NOW + value) for value in values])


async def test_a_fetch_is_sent_to_the_new_leader_after_a_failover() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        await brokers.fill("t", 0, batch(0, 1), batch(2))
        consumer = Consumer(cluster)
        fetched = await consumer.fetch("t", 0, 1)
        assert [record.value for record in decode_batches(fetched.records, 1)] == [b"1", b"2"]
        assert (fetched.log_start_offset, fetched.high_watermark) == (0, 3)
        await brokers.kill(1)
        await brokers.move("t", 0, 2)
        fetched = await consumer.fetch("t", 0, 2)
        assert [record.value for record in decode_batches(fetched.records)] == [b"2"]


async def test_a_fetch_leaves_a_hanging_leader_once_another_broker_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partitions, "LOOK_AFTER_S", 0.02)
    async with fake_brokers() as brokers, Cluster(brokers.bootstrap, request_timeout_s=10_000) as cluster:
        await brokers.create("t", [1])
        await brokers.fill("t", 0, batch(0), batch(1))
        consumer = Consumer(cluster, timeout_s=10_000, request_timeout_s=10_000)
        await consumer.fetch("t", 0, 0)
        await brokers.freeze(1)
        waiting = asyncio.create_task(consumer.fetch("t", 0, 1))
        await brokers.move("t", 0, 2)
        assert [record.value for record in decode_batches((await waiting).records, 1)] == [b"1"]


async def test_an_empty_fetch_waits_for_the_next_record() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        consumer = Consumer(cluster)
        assert len((await consumer.fetch("t", 0, 0, wait_ms=1)).records) == 0
        waiting = asyncio.create_task(consumer.fetch("t", 0, 0, wait_ms=30_000))
        while not brokers.replicas[1].fetches_parked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await brokers.fill("t", 0, batch(7))
        brokers.replicas[1].appended.set()
        assert len((await waiting).records) > 0


async def test_a_fetch_that_is_out_of_range_ends_by_its_deadline() -> None:
    """The other brokers, which could reveal a former leader, hang.  The consumer reports no missing records."""
    async with fake_brokers(3) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        consumer = Consumer(cluster, timeout_s=0.5)
        await consumer.fetch("t", 0, 0, wait_ms=10)
        await brokers.mute(2)
        await brokers.mute(3)
        async with asyncio.timeout(cluster_module.HURRY_S):  # the time that the first of these brokers would get
            with pytest.raises(ClusterError, match=r"t-0: given up after 0\.5 s"):
                await consumer.fetch("t", 0, 9)


async def test_an_out_of_range_error_names_the_available_offsets() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        await brokers.fill("t", 0, batch(0, 1))
        with pytest.raises(OffsetOutOfRangeError, match=r"t-0: offset 9 is out of range.*from 0 to 2") as caught:
            await Consumer(cluster).fetch("t", 0, 9)
        assert (caught.value.code, caught.value.start, caught.value.end) == ("OFFSET_OUT_OF_RANGE", 0, 2)


def test_all_requests_of_a_fetch_share_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fetch is repeated, because it is out of range although the bounds then contain its offset."""

    async def slow(
        calls: object, topic: str, index: int, timeout_s: float, attempt: Callable[..., object], wait_s: float = 0.0
    ) -> object:
        await asyncio.sleep(0.9 * timeout_s)
        if attempt.__qualname__.startswith("Consumer.fetch"):
            return FetchedPartition(None, "t", 0, 1, -1, -1, -1, memoryview(b""), -1, -1, -1, -1)
        return ListedOffset(7, -1)

    async def test() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(
            ClusterError, match="t-0: given up after 10 s; a leader answered that offset 7 is"
        ) as caught:
            await Consumer(Cluster("h:1"), timeout_s=10).fetch("t", 0, 7)
        assert (caught.value.code, caught.value.retriable) == ("TIMED_OUT", True), "no record is missing"
        return loop.time() - began

    monkeypatch.setattr(partitions.PartitionCalls, "call", slow)
    assert 9 < run(test()) < 10.5, "virtual seconds"


async def test_list_offsets_finds_earliest_latest_and_timed_offsets_of_many_partitions() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1, 2, 1])
        await brokers.fill("t", 1, batch(0), batch(1), batch(2, 3))
        consumer = Consumer(cluster)
        ends = await consumer.list_offsets({("t", index): LATEST for index in range(3)})
        assert [ends["t", index].offset for index in range(3)] == [0, 4, 0]
        listed = await consumer.list_offsets({("t", 0): EARLIEST, ("t", 1): NOW + 1, ("t", 2): NOW})
        assert (listed["t", 0].offset, listed["t", 1].offset, listed["t", 2].offset) == (0, 1, -1)


async def test_the_error_of_a_timeout_contains_the_last_answer() -> None:
    async with fake_brokers() as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        await brokers.move("t", 0, -1)
        with pytest.raises(ClusterError, match=r"t-0: given up after 0\.2 s.*LEADER_NOT_AVAILABLE"):
            await Consumer(cluster, timeout_s=0.2).fetch("t", 0, 0)
        with pytest.raises(ClusterError, match=r"given up after 0\.2 s"):
            await Consumer(cluster, timeout_s=0.2).list_offsets({("t", 0): LATEST})


async def test_a_topic_that_is_unknown_until_a_short_timeout_is_reported_as_missing() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        with pytest.raises(ClusterError, match=r"^nope-0 does not exist") as caught:
            await Consumer(cluster, timeout_s=0.3).list_offset("nope", 0, LATEST)
        assert (caught.value.code, caught.value.retriable) == ("UNKNOWN_TOPIC_OR_PARTITION", False)


async def test_a_topic_that_became_unknown_just_before_the_timeout_may_still_exist() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [99])  # its leader is not available
        waiting = asyncio.create_task(Consumer(cluster, timeout_s=2.0).list_offset("t", 0, LATEST))
        await asyncio.sleep(1.5)  # more than half of the time
        await brokers.delete("t")
        with pytest.raises(ClusterError) as caught:
            await waiting
        assert (caught.value.code, caught.value.retriable) == ("TIMED_OUT", True)


async def test_another_broker_can_be_asked_for_metadata() -> None:
    async with fake_brokers(2) as brokers, client_of(brokers) as cluster:
        await brokers.hold_back(1)
        await brokers.create("t", [2])
        assert await cluster.topic_states(["t"], 5) == {}, "broker 1 is asked first"
        cluster.ask_another_broker()
        found = await cluster.topic_states(["t"], 5)
        assert found["t"].leader_epochs == {0: 0}
        assert found == await cluster.topic_states(["t"], 5), "the broker that answered is asked again"


async def test_topic_states_contain_the_topic_id_and_whether_a_topic_is_internal() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        cluster.ask_another_broker()  # no broker is known yet
        await brokers.create("__consumer_offsets", [1, 1])
        await brokers.create("t", [1])
        found = await cluster.topic_states(None, 5)
        assert {name: state.is_internal for name, state in found.items()} == {"__consumer_offsets": True, "t": False}
        assert found["t"].topic_id == brokers.shared.image.topic_ids["t"]
        await brokers.delete("t")
        await brokers.create("t", [1])
        (again,) = (await cluster.topic_states(["t"], 5)).values()
        assert (again.topic_id, again.leader_epochs) == (brokers.shared.image.topic_ids["t"], {0: 1})


def test_the_runner_reuses_connections_and_sends_before_it_waits() -> None:
    with threaded_brokers(1) as threaded:
        brokers = threaded.brokers
        threaded.run(brokers.create("t", [1]))
        threaded.run(brokers.fill("t", 0, batch(5)))
        here = runner()
        assert runner() is here
        cluster = here.cluster([brokers.bootstrap], "test")
        assert here.cluster([brokers.bootstrap], "test") is cluster
        consumer = Consumer(cluster)
        assert here.run(consumer.list_offset("t", 0, LATEST)).offset == 1
        fetch = here.start(consumer.fetch("t", 0, 0))
        while not brokers.replicas[1].plans:  # the request arrives although the loop does not run
            threaded.run(asyncio.sleep(0))
        assert len(here.run(fetch).records) > 0
        here.cancel(here.start(consumer.fetch("t", 0, 1, wait_ms=100)))
        assert here.run(consumer.list_offset("t", 0, LATEST)).offset == 1
        here.run(cluster.close())


def test_a_forked_worker_has_a_runner_of_its_own() -> None:
    mine = runner()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writable, b"own" if runner() is not mine else b"parents")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(readable, 10) == b"own"
    os.close(readable)
    os.close(writable)


async def test_the_look_up_of_a_leader_counts_towards_the_timeout_of_the_request() -> None:
    class Leaders:
        random = Random(1)

        async def leader(self, topic: str, index: int, timeout_s: float) -> KafkaConnection:
            await asyncio.sleep(0.1)  # so that less time is left
            return KafkaConnection("127.0.0.1", 1)

        async def leader_lost(self, topic: str, index: int, connection: KafkaConnection) -> None: ...

        async def has_moved(self, topic: str, index: int, connection: KafkaConnection) -> bool:
            return False

    async def attempt(connection: KafkaConnection, left_s: float) -> float:
        return left_s

    assert await PartitionCalls(Leaders()).call("t", 0, 5.0, attempt) < 4.91


async def test_a_fetch_from_a_partition_without_a_leader_points_to_the_explanation() -> None:
    async with fake_brokers(1) as brokers, client_of(brokers) as cluster:
        await brokers.create("t", [1])
        await brokers.move("t", 0, -1)
        with pytest.raises(ClusterError, match="LEADER_NOT_AVAILABLE") as caught:
            await Consumer(cluster, timeout_s=0.5).fetch("t", 0, 0)
    assert caught.value.next_step == "kctl explain t-0"
