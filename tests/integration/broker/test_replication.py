"""Three brokers with real logs over loopback: writes, leader changes, restarts, the ISR."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from broker.core.fetch_session import FetcherSession
from broker.kafka.api import DeletedRecords, FetchPartition, FetchPlan, FetchResult, ProduceResult
from broker.log import Appended
from broker.replica import fetcher
from broker.replica.limits import ReplicaLimits
from quorumlog.runtime.disk import DiskError
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError, KafkaCode
from tests.hanging_syncs import hanging_syncs
from tests.integration.broker.harness import Broker, Cluster, batch, values_of

ALL, LEADER, NONE = -1, 1, 0


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with Cluster(tmp_path) as running:
        yield running


async def write(broker: Broker, topic: str, *values: bytes, acks: int = ALL, timeout_ms: int = 10_000) -> ProduceResult:
    return await broker.replicas.produce(topic, 0, memoryview(batch(*values)), acks, timeout_ms)


async def written(broker: Broker, topic: str, *values: bytes) -> int:
    """Write with acks=all, which must succeed, and return the base offset."""
    result = await write(broker, topic, *values)
    assert result.error_code == KafkaCode.NONE, result
    return result.base_offset


def leads(broker: Broker, topic: str, index: int = 0) -> bool:
    hosted = broker.table.find(topic, index)
    return hosted is not None and hosted.serving() is not None


async def leading(cluster: Cluster, broker_id: int, topic: str, epoch: int = -1) -> Broker:
    """Return that broker, once it serves as leader."""
    broker = cluster[broker_id]

    await cluster.until(
        lambda: leads(broker, topic) and broker.hosted(topic).role_epoch >= epoch, f"{broker_id} leads {topic}"
    )
    return broker


async def fetch(broker: Broker, topic: str, offset: int, *, max_wait_ms: int = 0, min_bytes: int = 1) -> FetchResult:
    plan = FetchPlan(
        (FetchPartition(None, topic, 0, offset, 1 << 20),),
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=1 << 20,
    )
    return (await broker.replicas.fetch(plan)).results[0]


async def test_an_acknowledged_write_is_on_every_disk(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    assert await written(leader, "t", b"a", b"b") == 0
    assert await written(leader, "t", b"c") == 2
    for broker in cluster.brokers.values():
        hosted = broker.hosted("t")
        assert values_of(hosted) == [b"a", b"b", b"c"]
        assert hosted.log is not None
        assert hosted.log.flushed_offset == 3


async def test_concurrent_writes_are_appended_in_the_order_in_which_they_were_sent(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    futures = [
        leader.replicas.start_produce("t", 0, memoryview(batch(b"%d" % number)), ALL, 10_000) for number in range(200)
    ]
    results = await asyncio.gather(*futures)
    assert [result.base_offset for result in results] == list(range(200))
    assert {result.error_code for result in results} == {0}
    assert values_of(cluster[3].hosted("t")) == [b"%d" % number for number in range(200)]


async def test_a_waiting_fetch_of_a_consumer_is_answered_when_a_record_is_committed(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    waiting = asyncio.create_task(fetch(leader, "t", 0, max_wait_ms=10_000))
    await cluster.until(lambda: leader.replicas.fetches.parked >= 1, "parked")
    await written(leader, "t", b"a")
    result = await waiting
    assert (result.error_code, result.high_watermark) == (0, 1)
    assert len(result.records) > 0
    assert (await fetch(leader, "t", 1)).records == b""
    assert (await fetch(leader, "t", 2)).error_code == KafkaCode.OFFSET_OUT_OF_RANGE
    assert (await fetch(cluster[2], "t", 0)).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_acks_one_does_not_wait_for_followers(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    for follower in (2, 3):
        await cluster[follower].role.fetchers.stop()
    assert (await write(leader, "t", b"a", acks=LEADER)).error_code == KafkaCode.NONE
    assert (await write(leader, "t", b"b", acks=NONE)).error_code == KafkaCode.NONE
    assert (await write(leader, "t", b"c", timeout_ms=50)).error_code == KafkaCode.REQUEST_TIMED_OUT
    assert (await fetch(leader, "t", 0)).high_watermark == 0


async def test_other_brokers_lead_the_partitions_of_a_killed_one(cluster: Cluster) -> None:
    topic_id = cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    for number in range(20):
        await written(leader, "t", b"%d" % number)
    await leader.stop(clean=False)
    cluster.controller.fence(1)
    assert cluster.controller.partition(topic_id).leader == 2
    leader = await leading(cluster, 2, "t", epoch=1)
    assert await written(leader, "t", b"after") == 20
    await cluster[1].start()
    await cluster.controller.until(lambda image: set(cluster.controller.partition(topic_id).isr) == {1, 2, 3})
    await written(leader, "t", b"again")
    assert values_of(cluster[1].hosted("t")) == [b"%d" % number for number in range(20)] + [b"after", b"again"]


async def test_a_former_leader_truncates_uncommitted_records(cluster: Cluster) -> None:
    topic_id = cluster.controller.create("t", (1, 2, 3))
    old = await leading(cluster, 1, "t")
    await written(old, "t", b"common")
    for follower in (2, 3):
        await cluster[follower].role.fetchers.stop()
    assert (await write(old, "t", b"lost", acks=LEADER)).error_code == KafkaCode.NONE
    await old.stop(clean=False)
    for follower in (2, 3):
        await cluster[follower].stop(clean=False)
    cluster.controller.fence(1)
    for follower in (2, 3):
        await cluster[follower].start()
    await cluster.controller.until(lambda image: cluster.controller.partition(topic_id).leader in (2, 3))
    new = await leading(cluster, cluster.controller.partition(topic_id).leader, "t")
    await cluster.controller.until(lambda image: set(cluster.controller.partition(topic_id).isr) >= {2, 3})
    await written(new, "t", b"kept")
    await old.start()
    await cluster.controller.until(lambda image: 1 in cluster.controller.partition(topic_id).isr)
    assert values_of(old.hosted("t")) == [b"common", b"kept"]
    assert old.context.counters.truncations > 0


async def test_a_log_that_begins_above_the_end_of_an_unclean_leader_starts_over(cluster: Cluster) -> None:
    """Retention has deleted the common records in the longer log, so the logs have nothing in common."""
    topic_id = cluster.controller.create("t", (1, 2), unclean_leader_election_enable="true")
    old = await leading(cluster, 1, "t")
    await written(old, "t", b"a")
    await cluster[2].stop(clean=False)
    cluster.controller.fence(2)
    await written(old, "t", *(b"lost" for _ in range(4)))
    log = old.hosted("t").log
    assert log is not None
    log.advance_start_offset(5)
    await written(old, "t", b"lost, too")
    await old.stop(clean=True)
    cluster.controller.fence(1)
    await cluster[2].start()
    new = await leading(cluster, 2, "t")
    await written(new, "t", b"b")
    await old.start()
    await cluster.controller.until(lambda image: 1 in cluster.controller.partition(topic_id).isr)
    await written(new, "t", b"c")
    assert values_of(old.hosted("t")) == [b"a", b"b", b"c"]


async def test_replicas_on_a_failed_directory_are_no_longer_fetched(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the leader would send the same records repeatedly."""
    cluster.controller.create("t", (1, 2), min_insync_replicas="1")
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    follower = cluster[2].hosted("t")
    assert follower.log is not None

    def fail(*_: object) -> Appended:
        raise DiskError("no more")

    monkeypatch.setattr(follower.log, "append_as_follower", fail)
    assert (await write(leader, "t", b"b", acks=LEADER)).error_code == KafkaCode.NONE
    await cluster.until(lambda: follower.log is None, "the follower is offline")
    assert sum(cluster[2].role.fetchers.counts().values()) == 0
    assert follower.offline == "no more"


async def test_a_hanging_directory_does_not_delay_copies_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Cluster(tmp_path, directories=2, lag_max_ms=600_000) as cluster:
        cluster.controller.create("t", *[(1, 2, 3)] * 6)
        leader, follower = await leading(cluster, 1, "t"), cluster[3]
        await cluster.until(lambda: follower.table.find("t", 5) is not None, "3 hosts them")
        disks = {disk.directory_id: disk.root.name for disk in follower._disks}
        homes = {}
        for index in range(6):
            partition_log = follower.hosted("t", index).log
            assert partition_log is not None
            homes[index] = disks[partition_log.directory_id]
        assert sorted(set(homes.values())) == ["3", "3b"]

        async def produce(index: int) -> list[int]:
            codes = []
            for value in (b"a", b"b"):
                result = await leader.replicas.produce("t", index, memoryview(batch(value)), ALL, 60_000)
                codes.append(result.error_code)
            return codes

        with hanging_syncs(tmp_path / "3b" / "logs", monkeypatch):
            writes = {index: asyncio.create_task(produce(index)) for index in range(6)}
            served = [writes[index] for index in range(6) if homes[index] == "3"]
            async with asyncio.timeout(30):
                assert await asyncio.gather(*served) == [[0, 0]] * len(served)
            waiting = [writes[index] for index in range(6) if homes[index] == "3b"]
            assert not any(write.done() for write in waiting)
        assert await asyncio.gather(*waiting) == [[0, 0]] * len(waiting)


async def test_more_partitions_than_one_fetch_may_name_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "FetcherSession", partial(FetcherSession, 3))
    async with Cluster(tmp_path, count=2) as cluster:
        cluster.controller.create("t", *((1, 2) for _ in range(10)), min_insync_replicas="2")
        leader = await leading(cluster, 1, "t")
        for _ in range(2):
            writes = [
                leader.replicas.start_produce("t", index, memoryview(batch(b"x")), ALL, 10_000) for index in range(10)
            ]
            assert {result.error_code for result in await asyncio.gather(*writes)} == {0}
        assert [len(values_of(cluster[2].hosted("t", index))) for index in range(10)] == [2] * 10


async def test_waiting_writes_are_refused_when_leadership_is_lost(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    for follower in (2, 3):
        await cluster[follower].role.fetchers.stop()
    waiting = leader.replicas.start_produce("t", 0, memoryview(batch(b"a")), ALL, 10_000)
    cluster.controller.cut.add(1)
    cluster.controller.fence(1)
    assert (await waiting).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_that_stops_fetching_leaves_the_isr_and_rejoins(tmp_path: Path) -> None:
    async with Cluster(tmp_path, lag_max_ms=300) as cluster:
        topic_id = cluster.controller.create("t", (1, 2, 3))
        leader = await leading(cluster, 1, "t")
        await written(leader, "t", b"a")
        await cluster[3].role.fetchers.stop()
        await cluster.controller.until(lambda image: cluster.controller.partition(topic_id).isr == (1, 2))
        await written(leader, "t", b"b")
        cluster[3].role.fetchers.assign(cluster[3].hosted("t"))
        await cluster.controller.until(lambda image: cluster.controller.partition(topic_id).isr == (1, 2, 3))
        await written(leader, "t", b"c")
        assert values_of(cluster[3].hosted("t")) == [b"a", b"b", b"c"]
        counters = leader.context.counters
        assert (counters.isr_shrinks, counters.isr_expands) == (1, 1)


async def test_a_follower_that_lacks_too_many_bytes_leaves_the_isr_at_once(tmp_path: Path) -> None:
    """This holds even if it has enough time to catch up. It rejoins when it lacks no more than the limit."""
    limits = ReplicaLimits(isr_check_divisor=1_000)
    async with Cluster(tmp_path, lag_max_ms=60_000, lag_max_bytes=5_000, limits=limits) as cluster:
        topic_id = cluster.controller.create("t", (1, 2, 3), min_insync_replicas="1")
        leader = await leading(cluster, 1, "t")
        await written(leader, "t", b"a")
        await cluster[3].role.fetchers.stop()
        few = asyncio.create_task(write(leader, "t", b"b" * 2_000))
        await cluster.until(lambda: values_of(cluster[2].hosted("t"))[1:] != [], "one follower has it")
        assert not few.done()
        assert cluster.controller.partition(topic_id).isr == (1, 2, 3)
        more = asyncio.create_task(write(leader, "t", b"c" * 4_000))
        await cluster.controller.until(lambda image: cluster.controller.partition(topic_id).isr == (1, 2))
        assert (await few).error_code == (await more).error_code == KafkaCode.NONE
        cluster[3].role.fetchers.assign(cluster[3].hosted("t"))
        await cluster.controller.until(lambda image: cluster.controller.partition(topic_id).isr == (1, 2, 3))
        assert len(values_of(cluster[3].hosted("t"))) == 3


async def test_writes_below_the_minimum_isr_are_refused(tmp_path: Path) -> None:
    async with Cluster(tmp_path, lag_max_ms=300) as cluster:
        topic_id = cluster.controller.create("t", (1, 2, 3))
        leader = await leading(cluster, 1, "t")
        await written(leader, "t", b"a")
        for follower in (2, 3):
            await cluster[follower].role.fetchers.stop()
        waiting = leader.replicas.start_produce("t", 0, memoryview(batch(b"b")), ALL, 10_000)
        await cluster.controller.until(lambda image: cluster.controller.partition(topic_id).isr == (1,))
        assert (await waiting).error_code == KafkaCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        refused = await write(leader, "t", b"c")
        assert refused.error_code == KafkaCode.NOT_ENOUGH_REPLICAS
        assert "replicas in sync: 1, needed: 2" in refused.error_message
        assert values_of(leader.hosted("t")) == [b"a", b"b"]
        assert (await fetch(leader, "t", 0)).high_watermark == 1, "not moved by a too small ISR"


async def test_an_isr_change_that_is_refused_with_not_controller_is_repeated(tmp_path: Path) -> None:
    async with Cluster(tmp_path, lag_max_ms=300) as cluster:
        topic_id = cluster.controller.create("t", (1, 2, 3))
        leader = await leading(cluster, 1, "t")
        cluster.controller.refusals[rpcs.ALTER_PARTITION] = ApiError.NOT_CONTROLLER
        await cluster[3].role.fetchers.stop()
        state = leader.hosted("t").leader
        assert state is not None
        await cluster.until(lambda: state.has_pending_isr, "a proposal is under way")
        assert cluster.controller.partition(topic_id).isr == (1, 2, 3)
        del cluster.controller.refusals[rpcs.ALTER_PARTITION]
        await cluster.controller.until(lambda image: cluster.controller.partition(topic_id).isr == (1, 2))
        await written(leader, "t", b"a")


async def test_a_new_leader_reports_no_latest_offset_until_its_watermark_has_caught_up(cluster: Cluster) -> None:
    """2 has the records of 1, but they are not committed, because 3 has not fetched them."""
    topic_id = cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await cluster.until(lambda: len(leader.replicas.fetches.sessions) == 2, "both followers fetch")
    cluster.controller.held.add(3)
    await cluster[3].role.fetchers.stop()
    assert (await write(leader, "t", b"a", b"b", acks=LEADER)).error_code == KafkaCode.NONE
    await cluster.until(lambda: len(values_of(cluster[2].hosted("t"))) == 2, "2 has it")
    assert (await leader.replicas.list_offset("t", 0, -1)).offset == 0
    cluster.controller.cut.add(1)
    cluster.controller.fence(1)
    new = await leading(cluster, 2, "t", epoch=1)
    assert (await new.replicas.list_offset("t", 0, -1)).error_code == KafkaCode.OFFSET_NOT_AVAILABLE
    assert (await new.replicas.list_offset("t", 0, -2)).offset == 0
    cluster.controller.release(3)
    state = new.hosted("t").leader
    assert state is not None
    await cluster.until(state.latest_known, "the watermark reaches the end at election")
    assert (await new.replicas.list_offset("t", 0, -1)).offset == 2
    assert cluster.controller.partition(topic_id).leader == 2


async def test_a_duplicate_batch_waits_for_its_replication_like_the_original(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    first = batch(b"a", producer=(9, 0, 0))
    assert (await leader.replicas.produce("t", 0, memoryview(first), ALL, 10_000)).base_offset == 0
    again = await leader.replicas.produce("t", 0, memoryview(first), ALL, 10_000)
    assert (again.error_code, again.base_offset) == (0, 0)
    for follower in (2, 3):
        await cluster[follower].role.fetchers.stop()
    second = batch(b"b", producer=(9, 0, 1))
    assert (await leader.replicas.produce("t", 0, memoryview(second), LEADER, 10_000)).base_offset == 1
    waiting = await leader.replicas.produce("t", 0, memoryview(second), ALL, 50)
    assert (waiting.error_code, waiting.base_offset) == (KafkaCode.REQUEST_TIMED_OUT, 1)
    gap = await leader.replicas.produce("t", 0, memoryview(batch(b"c", producer=(9, 0, 5))), ALL, 50)
    assert gap.error_code == KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert values_of(leader.hosted("t")) == [b"a", b"b"]


async def test_a_deleted_topic_is_removed_and_its_name_can_be_used_again(cluster: Cluster) -> None:
    first = cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"old")
    waiting = asyncio.create_task(fetch(leader, "t", 1, max_wait_ms=10_000))
    await cluster.until(lambda: leader.replicas.fetches.parked >= 3, "parked, with both followers")
    cluster.controller.delete(first)
    assert (await waiting).error_code in (KafkaCode.UNKNOWN_TOPIC_OR_PARTITION, KafkaCode.NOT_LEADER_OR_FOLLOWER)
    await cluster.until(lambda: cluster[3].table.find("t", 0) is None, "deleted")
    assert (await write(leader, "t", b"x")).error_code == KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    second = cluster.controller.create("t", (1, 2, 3))
    await cluster.until(lambda: leader.table.find(second, 0) is not None, "created again")
    await leading(cluster, 1, "t")
    assert await written(leader, "t", b"new") == 0
    assert values_of(cluster[2].hosted("t")) == [b"new"]


async def test_replicas_deleted_while_a_broker_was_down_are_set_aside(cluster: Cluster) -> None:
    topic_id = cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    await cluster[3].stop()
    cluster.controller.delete(topic_id)
    await cluster[3].start()
    assert dict(cluster[3].role.logs.logs) == {}
    assert len(list((cluster[3].root / "strays").iterdir())) == 1


async def test_a_topic_recreated_while_a_broker_was_down_shows_no_old_records(
    cluster: Cluster,
) -> None:
    """The broker that was down led the old partition, and restarts with its records under the same name and index."""
    first = cluster.controller.create("t", (3, 1, 2))
    old = await leading(cluster, 3, "t")
    await written(old, "t", b"old", b"older")
    await old.stop(clean=False)
    cluster.controller.fence(3)
    cluster.controller.delete(first)
    second = cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"new")
    await old.start()
    await cluster.controller.until(lambda image: 3 in cluster.controller.partition(second).isr)
    assert values_of(old.hosted("t")) == [b"new"]
    assert old.table.find(first, 0) is None
    by_id = FetchPlan((FetchPartition(first, None, 0, 0, 1 << 20),), max_wait_ms=0, min_bytes=1, max_bytes=1 << 20)
    assert (await old.replicas.fetch(by_id)).results[0].error_code == KafkaCode.UNKNOWN_TOPIC_ID
    assert len(list((old.root / "strays").iterdir())) == 1
    for broker_id in (1, 2):
        await cluster[broker_id].stop()
    await leading(cluster, 3, "t", epoch=1)
    assert (await fetch(old, "t", 0)).high_watermark == 1
    assert await write(old, "t", b"x", acks=LEADER) == ProduceResult(KafkaCode.NONE, 1, 0)


async def test_strays_are_deleted_after_their_delay_and_not_before(
    cluster: Cluster,
) -> None:
    kept_ms = ReplicaLimits().strays_kept_ms
    topic_id = cluster.controller.create("t", (1, 2, 3))
    await written(await leading(cluster, 1, "t"), "t", b"a")
    strays = cluster[3].root / "strays"
    cluster.controller.delete(topic_id)
    await cluster.until(lambda: len(list(strays.iterdir())) == 1, "set aside")
    assert await cluster[3].role.logs.delete_strays(0, kept_ms) == 0
    assert await cluster[3].role.logs.delete_strays(kept_ms - 1, kept_ms) == 0
    await cluster[3].stop()
    cluster.limits = ReplicaLimits(maintenance_interval_ms=50, strays_kept_ms=0)
    await cluster[3].start()
    await cluster.until(lambda: list(strays.iterdir()) == [], "deleted")


async def test_a_partition_gets_a_leader_as_soon_as_its_replica_returns(cluster: Cluster) -> None:
    topic_id = cluster.controller.create("t", (2,))
    leader = await leading(cluster, 2, "t")
    await written(leader, "t", b"a")
    await leader.stop(clean=False)
    cluster.controller.fence(2)
    assert cluster.controller.partition(topic_id).leader == -1
    assert (await write(cluster[1], "t", b"x")).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER
    await leader.start()
    await leading(cluster, 2, "t", epoch=2)
    assert await written(leader, "t", b"b") == 1


async def test_a_graceful_stop_hands_leaderships_over_first(cluster: Cluster) -> None:
    topic_id = cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a")
    await leader.stop()
    now = cluster.controller.partition(topic_id)
    assert (now.leader, set(now.isr)) == (2, {2, 3})
    new = await leading(cluster, 2, "t", epoch=1)
    assert await written(new, "t", b"b") == 1
    await leader.start()
    await cluster.controller.until(lambda image: 1 in cluster.controller.partition(topic_id).isr)
    assert leader.role._previous_epoch >= 0, "it reports that its last stop was clean"


async def test_records_survive_a_kill_of_all_brokers(cluster: Cluster) -> None:
    topic_id = cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    await written(leader, "t", b"a", b"b")
    for broker_id in (1, 2, 3):
        await cluster[broker_id].stop(clean=False)
        cluster.controller.fence(broker_id)
    assert cluster.controller.partition(topic_id).leader == -1
    for broker_id in (1, 2, 3):
        await cluster[broker_id].start()
    await cluster.controller.until(lambda image: set(cluster.controller.partition(topic_id).isr) == {1, 2, 3})
    new = await leading(cluster, cluster.controller.partition(topic_id).leader, "t")
    assert await written(new, "t", b"c") == 2
    for broker in cluster.brokers.values():
        assert values_of(broker.hosted("t")) == [b"a", b"b", b"c"]


async def test_a_fenced_broker_serves_no_client(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2, 3))
    leader = await leading(cluster, 1, "t")
    cluster.controller.cut.add(1)
    cluster.controller.fence(1)
    assert not leader.context.is_serving()
    assert (await write(leader, "t", b"a")).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER
    cluster.controller.cut.discard(1)
    async with asyncio.timeout(10):
        await leader.role.wait_serving()


async def test_a_former_leader_with_old_metadata_acknowledges_nothing(cluster: Cluster) -> None:
    """The old leader does not know that it was deposed; the others do, so no replica confirms its writes."""
    topic_id = cluster.controller.create("t", (1, 2, 3))
    old = await leading(cluster, 1, "t")
    await written(old, "t", b"a")
    cluster.controller.held.add(1)
    cluster.controller.cut.add(1)
    cluster.controller.fence(1)
    new = await leading(cluster, 2, "t", epoch=1)
    lost = await write(old, "t", b"lost", timeout_ms=300)
    assert lost.error_code == KafkaCode.REQUEST_TIMED_OUT
    assert await written(new, "t", b"kept") == 1
    cluster.controller.cut.discard(1)
    cluster.controller.release(1)
    await cluster.controller.until(lambda image: 1 in cluster.controller.partition(topic_id).isr)
    await written(new, "t", b"more")
    assert values_of(old.hosted("t")) == [b"a", b"kept", b"more"]


async def test_producer_ids_are_never_given_twice(cluster: Cluster) -> None:
    found = [await cluster[id_].replicas.allocate_producer_id() for id_ in (1, 2, 3, 1, 2, 3)]
    assert {result.error_code for result in found} == {0}
    assert len({result.producer_id for result in found}) == 6


async def test_new_producers_begin_while_no_controller_answers(cluster: Cluster) -> None:
    broker = cluster[1]
    reserve = broker.context.limits.producer_id_low_water

    def blocks() -> int:
        return sum(rpc == rpcs.ALLOCATE_PRODUCER_IDS for rpc, _ in cluster.controller.answers)

    await cluster.until(lambda: blocks() == 3, "a block for each broker, before the first producer")
    cluster.controller.cut.add(1)
    found = [await broker.replicas.allocate_producer_id() for _ in range(reserve)]
    assert {result.error_code for result in found} == {0}
    assert len({result.producer_id for result in found}) == reserve
    cluster.controller.cut.discard(1)
    await cluster.until(lambda: blocks() == 4, "the next block, without a request")


async def test_many_partitions_fail_over_together(tmp_path: Path) -> None:
    async with Cluster(tmp_path) as cluster:
        count = 60
        topic_id = cluster.controller.create("t", *[(1, 2, 3) if n % 2 else (2, 3, 1) for n in range(count)])
        for index in range(count):
            leader = cluster[1] if index % 2 else cluster[2]
            await cluster.until(partial(leads, leader, "t", index), f"leader of {index}")
            result = await leader.replicas.produce("t", index, memoryview(batch(b"%d" % index)), ALL, 10_000)
            assert result.error_code == 0, (index, result)
        await cluster[1].stop(clean=False)
        cluster.controller.fence(1)
        for index in range(1, count, 2):
            leader = cluster[cluster.controller.partition(topic_id, index).leader]
            await cluster.until(partial(leads, leader, "t", index), f"new leader of {index}")
            result = await leader.replicas.produce("t", index, memoryview(batch(b"more")), ALL, 10_000)
            assert (result.error_code, result.base_offset) == (0, 1)


async def test_deleted_records_are_deleted_on_every_replica(cluster: Cluster) -> None:
    cluster.controller.create("t", (1, 2, 3))
    first = await leading(cluster, 1, "t")
    for number in range(5):
        await written(first, "t", b"%d" % number)
    async with asyncio.timeout(30):
        assert await first.replicas.start_delete("t", 0, 3, 30_000) == DeletedRecords(0, 3)
    assert [cluster[number].log("t").durable_start_offset for number in (1, 2, 3)] == [3, 3, 3]
    async with asyncio.timeout(30):
        assert await first.replicas.start_delete("t", 0, -1, 30_000) == DeletedRecords(0, 5)
    assert [cluster[number].log("t").start_offset for number in (1, 2, 3)] == [5, 5, 5]
    await written(first, "t", b"later")
    await cluster[2].stop()
    async with asyncio.timeout(30):
        assert await first.replicas.start_delete("t", 0, 6, 30_000) == DeletedRecords(0, 6), "2 is not waited for"
    await cluster[2].start()
    await cluster.until(lambda: cluster[2].log("t").start_offset == 6, "2 has the new start")
