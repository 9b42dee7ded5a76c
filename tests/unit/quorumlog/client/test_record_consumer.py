"""The public consumer without a group: order, positions, limits, failures, and no task left after close."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from quorumlog.client import ClusterError, ConfigError, Consumer, FetchLimits, Record, TopicPartition
from quorumlog.client.positions import Position
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.runtime.addresses import Address
from tests.unit.broker.kafka.fake import FakeLog
from tests.unit.broker.kafka.wellness import until
from tests.unit.quorumlog.client.fake_cluster import FakeBrokers, fake_brokers
from tests.unit.quorumlog.client.fake_groups import group_brokers

NOW = 1_700_000_000_000


@pytest.fixture
async def brokers() -> AsyncIterator[FakeBrokers]:
    """Topic t has partitions 0 and 1, each with the records 0 to 9 in batches of two."""
    async with fake_brokers() as started:
        await started.create("t", [1, 2])
        for index in (0, 1):
            await started.fill("t", index, *(batch(n, n + 1) for n in range(0, 10, 2)))
        before = asyncio.all_tasks()
        yield started
        async with asyncio.timeout(10):
            while asyncio.all_tasks() - before - {asyncio.current_task()}:  # noqa: ASYNC110  # no event reports it
                await asyncio.sleep(0.01)


def batch(*values: int) -> bytearray:
    return build_batch([NewRecord(None, b"%d" % value, NOW + value) for value in values])


def reading(brokers: FakeBrokers, **options: Any) -> Consumer:
    return Consumer(brokers.bootstrap, **{"topics": ["t"], "auto_offset_reset": "earliest", **options})


async def take(consumer: Consumer, count: int) -> list[Record]:
    found = []
    async with asyncio.timeout(20):
        async for record in consumer:
            found.append(record)
            if len(found) == count:
                break
    return found


def by_partition(records: list[Record]) -> dict[int, list[int]]:
    return {index: [int(each.value or b"") for each in records if each.partition == index] for index in (0, 1)}


async def test_all_records_arrive_in_the_offset_order_of_each_partition(brokers: FakeBrokers) -> None:
    async with reading(brokers) as consumer:
        found = await take(consumer, 20)
        assert by_partition(found) == {0: list(range(10)), 1: list(range(10))}
        first = next(record for record in found if record.partition == 0)
        assert first == ("t", 0, 0, NOW, False, None, b"0", ())
        assert [consumer.position(("t", index)) for index in (0, 1)] == [10, 10]
        assert await consumer.lag() == {("t", 0): 0, ("t", 1): 0}
        assert await consumer.get(timeout_s=0.05) is None


async def test_each_batch_contains_records_of_a_single_partition(brokers: FakeBrokers) -> None:
    found: list[Record] = []
    async with reading(brokers) as consumer:
        async for records in consumer.batches():
            assert {(record.topic, record.partition) for record in records} == {(records.topic, records.partition)}
            assert records.high_watermark == 10
            found += records
            if len(found) == 20:
                break
    assert by_partition(found) == {0: list(range(10)), 1: list(range(10))}


async def test_get_many_returns_at_most_max_records(brokers: FakeBrokers) -> None:
    async with reading(brokers) as consumer:
        records = await consumer.get_many(max_records=1, timeout_s=10)
        assert records is not None
        assert len(records) == 1
        assert consumer.position(records.topic_partition) == 1


async def test_auto_offset_reset_latest_reads_only_new_records(brokers: FakeBrokers) -> None:
    async with reading(brokers, auto_offset_reset="latest") as consumer:
        assert await consumer.get(timeout_s=0.2) is None
        await brokers.fill("t", 0, batch(10))
        (record,) = await take(consumer, 1)
        assert (record.partition, record.offset) == (0, 10)


async def test_seeks_discard_records_that_were_fetched_ahead(brokers: FakeBrokers) -> None:
    async with reading(brokers, topics=None) as consumer:
        consumer.assign([("t", 0)])
        assert [record.offset for record in await take(consumer, 3)] == [0, 1, 2]
        consumer.seek(("t", 0), 7)
        assert [record.offset for record in await take(consumer, 3)] == [7, 8, 9]
        await consumer.seek_to_beginning()
        assert [record.offset for record in await take(consumer, 1)] == [0]
        await consumer.seek_to_time(NOW + 4)
        assert [record.offset for record in await take(consumer, 1)] == [4]
        await consumer.seek_to_end(("t", 0))
        assert await consumer.get(timeout_s=0.05) is None


async def test_a_paused_partition_returns_no_records_and_later_continues_where_it_stopped(brokers: FakeBrokers) -> None:
    async with reading(brokers) as consumer:
        (first,) = await take(consumer, 1)
        consumer.pause(("t", first.partition))
        assert consumer.paused() == {("t", first.partition)}
        others = await take(consumer, 10)
        assert {record.partition for record in others} == {1 - first.partition}
        assert await consumer.get(timeout_s=0.05) is None
        consumer.resume(("t", first.partition))
        assert [record.offset for record in await take(consumer, 9)] == list(range(1, 10))


async def test_a_pause_gives_other_partitions_the_room_that_its_partition_has_filled(brokers: FakeBrokers) -> None:
    await brokers.create("u", [1, 2])
    await brokers.fill("u", 0, batch(0), batch(1))
    limits = FetchLimits(wait_ms=10, partition_size_max=1, buffer_size_max=1)
    async with reading(brokers, topics=["u"], fetch=limits) as consumer:
        assert [record.offset for record in await take(consumer, 1)] == [0]
        full = consumer._reading.positions[TopicPartition("u", 0)]
        await until(lambda: bool(full.chunks))
        await until(lambda: not consumer._reading.fetcher._in_flight)
        await brokers.fill("u", 1, batch(5))
        consumer.pause(("u", 0))
        (record,) = await take(consumer, 1)
        assert (record.partition, record.value) == (1, b"5")


async def test_a_pause_of_a_partition_that_is_not_assigned_changes_nothing(brokers: FakeBrokers) -> None:
    async with reading(brokers) as consumer:
        await take(consumer, 1)
        with pytest.raises(ClusterError, match="t-9 is not assigned"):
            consumer.pause(("t", 0), ("t", 1), ("t", 9))
        assert consumer.paused() == frozenset()
        consumer.pause(("t", 0), ("t", 1))
        with pytest.raises(ClusterError, match="t-9 is not assigned"):
            consumer.resume(("t", 0), ("t", 9))
        assert consumer.paused() == {("t", 0), ("t", 1)}


async def test_no_record_is_lost_or_repeated_when_a_leader_is_killed(brokers: FakeBrokers) -> None:
    async with reading(brokers, fetch=FetchLimits(partition_size_max=1)) as consumer:
        found = await take(consumer, 4)
        await brokers.kill(1)
        await brokers.move("t", 0, 2)
        await brokers.fill("t", 0, batch(10))
        found += await take(consumer, 17)
        assert by_partition(found) == {0: list(range(11)), 1: list(range(10))}


async def test_auto_offset_reset_decides_whether_a_reader_skips_deleted_records(brokers: FakeBrokers) -> None:
    await brokers.cut_front("t", 0, 2)
    async with reading(brokers, topics=None) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 1)
        assert [record.offset for record in await take(consumer, 1)] == [4]
    async with reading(brokers, topics=None, auto_offset_reset="none") as consumer:
        consumer.assign([("t", 0)])
        with pytest.raises(ClusterError, match="no offset is committed"):
            await consumer.get(timeout_s=10)
        consumer.seek(("t", 0), 1)
        with pytest.raises(ClusterError, match="offset 1 is out of range"):
            await consumer.get(timeout_s=10)


async def test_a_damaged_batch_is_an_error_until_the_user_seeks_past_it(brokers: FakeBrokers) -> None:
    log = brokers.shared.logs["t", 0]
    base, end, newest, data = log.batches[1]
    log.batches[1] = (base, end, newest, data[:-1] + bytes([data[-1] ^ 1]))
    async with reading(brokers, topics=None) as consumer:
        consumer.assign([("t", 0)])
        assert len(await take(consumer, 2)) == 2
        for _ in range(2):
            with pytest.raises(ClusterError, match="cannot be read"):
                await consumer.get(timeout_s=10)
        consumer.seek(("t", 0), 4)
        assert [record.offset for record in await take(consumer, 1)] == [4]


async def test_a_refused_partition_is_fetched_again_after_its_error_was_raised(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other partition is fetched, whose answers would lead to the next fetch."""
    refusals = [29] * 2  # TOPIC_AUTHORIZATION_FAILED, which our brokers do not send
    replicas = brokers.replicas[1]
    monkeypatch.setattr(replicas, "_refusal", lambda _topic, _index: refusals.pop() if refusals else None)
    async with reading(brokers, topics=None) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 3)
        for _ in range(2):
            with pytest.raises(ClusterError, match="TOPIC_AUTHORIZATION_FAILED"):
                await consumer.get(timeout_s=10)
        record = await consumer.get(timeout_s=10)
        assert record is not None
        assert record.offset == 3


async def test_damage_in_a_full_buffer_is_an_error_each_time(brokers: FakeBrokers) -> None:
    """The buffer is full, so no fetch is in flight, whose answer would lead to the next one."""
    log = brokers.shared.logs["t", 0]
    base, end, newest, data = log.batches[0]
    log.batches[0] = (base, end, newest, data[:-1] + bytes([data[-1] ^ 1]))
    async with reading(brokers, topics=None, fetch=FetchLimits(partition_size_max=1)) as consumer:
        consumer.assign([("t", 0)])
        for _ in range(2):
            with pytest.raises(ClusterError, match="cannot be read"):
                await consumer.get(timeout_s=10)


async def test_a_cancelled_get_consumes_no_record(brokers: FakeBrokers) -> None:
    async with reading(brokers, auto_offset_reset="latest") as consumer:
        for _ in range(3):
            waiting = asyncio.ensure_future(consumer.get())
            await asyncio.sleep(0.05)
            waiting.cancel()
            await asyncio.wait({waiting})
        await brokers.fill("t", 1, batch(10, 11))
        assert [record.offset for record in await take(consumer, 2)] == [10, 11]


async def test_a_slow_user_stops_fetches_when_the_buffer_of_a_partition_is_full(brokers: FakeBrokers) -> None:
    async with reading(brokers, fetch=FetchLimits(partition_size_max=1)) as consumer:
        await take(consumer, 1)
        await asyncio.sleep(0.3)
        assert max(len(each.chunks) for each in consumer._reading.positions.values()) == 1
        assert len(await take(consumer, 19)) == 19


async def test_a_backlog_of_one_topic_does_not_delay_another_topic_of_the_same_broker(brokers: FakeBrokers) -> None:
    for topic, partitions in {"a": 2, "b": 1}.items():
        await brokers.create(topic, [1] * partitions)
        for index in range(partitions):
            await brokers.fill(topic, index, *(batch(n, n + 1) for n in range(0, 20, 2)))
    one_batch = FetchLimits(size_max=1)
    async with reading(brokers, topics=["a", "b"], fetch=one_batch) as consumer:
        found = await take(consumer, 12)
        assert {record.topic for record in found} == {"a", "b"}


async def test_get_fails_within_the_failure_timeout_if_no_broker_is_reachable(brokers: FakeBrokers) -> None:
    async with reading(brokers, failure_timeout_s=1.0) as consumer:
        await take(consumer, 20)
        for node_id in list(brokers.servers):
            await brokers.kill(node_id)
        with pytest.raises(ClusterError, match="no success for 1 s") as failure:
            await consumer.get(timeout_s=30)
        assert failure.value.retriable


async def test_an_internal_error_of_a_fetch_is_reported(brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bool:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Position, "add", broken)
    async with reading(brokers) as consumer:
        with pytest.raises(ClusterError, match="the consumer failed: RuntimeError") as failure:
            await consumer.get(timeout_s=10)
        assert failure.value.code == "FAILED"


async def test_calls_without_the_group_or_assignment_that_they_need_are_refused(brokers: FakeBrokers) -> None:
    async with reading(brokers) as consumer:
        with pytest.raises(ClusterError, match="without a group cannot commit"):
            await consumer.commit()
        with pytest.raises(ClusterError, match="x-3 is not assigned"):
            consumer.seek(("x", 3), 0)
        with pytest.raises(ClusterError, match="either subscribes"):
            consumer.assign([("t", 0)])
    with pytest.raises(ClusterError, match="was closed"):
        await consumer.get()


@pytest.mark.parametrize("group", [None, "g"])
async def test_a_consumer_without_topics_and_partitions_is_refused_records_at_once(
    brokers: FakeBrokers, group: str | None
) -> None:
    async with reading(brokers, topics=None, group=group) as consumer:
        for call in (consumer.get, consumer.get_many, consumer.__anext__, consumer.batches().__anext__):
            with pytest.raises(ClusterError, match="no topics and no partitions") as failure:
                async with asyncio.timeout(5):
                    await call()
            assert (failure.value.code, failure.value.retriable) == ("INVALID_REQUEST", False)
            assert "assign" in failure.value.next_step
        consumer.assign([("t", 0)])
        assert consumer.assignment() == {("t", 0)}
        consumer.assign([])
        with pytest.raises(ClusterError, match="no topics and no partitions"):
            await consumer.get()


def missing_topics(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == "quorumlog.client"]


async def test_one_warning_names_the_topics_that_do_not_exist(
    brokers: FakeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading(brokers, topics=["t", "nope", "mayb"], metadata_age_s=0.05) as consumer:
        assert len(await take(consumer, 20)) == 20
        assert await consumer.get(timeout_s=0.3) is None
        (warning,) = missing_topics(caplog)
        assert warning.startswith("topics mayb and nope do not exist; the consumer waits until they are created")
        await brokers.create("nope", [1])
        await brokers.fill("nope", 0, batch(7))
        assert [each.topic for each in await take(consumer, 1)] == ["nope"]
        await brokers.delete("nope")
        await until(lambda: ("nope", 0) not in consumer.assignment())
    assert len(missing_topics(caplog)) == 1, "a topic that existed at first is deleted later without a warning"


async def test_a_topic_that_the_first_broker_does_not_know_yet_causes_no_warning(
    brokers: FakeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    await brokers.hold_back(1)
    await brokers.create("u", [2])
    await brokers.fill("u", 0, batch(1))
    async with reading(brokers, topics=["u"], metadata_age_s=60) as consumer:
        assert len(await take(consumer, 1)) == 1
    assert not missing_topics(caplog)


async def test_a_topic_that_the_look_up_creates_is_read_at_once_and_causes_no_warning(
    brokers: FakeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    async def create() -> None:
        await until(lambda: consumer._cluster.cluster_id is not None)
        await brokers.create("u", [2])
        await brokers.fill("u", 0, batch(1))

    consumer = reading(brokers, topics=["u"], metadata_age_s=60)
    creation = asyncio.ensure_future(create())
    async with consumer:
        assert len(await take(consumer, 1)) == 1
    await creation
    assert not missing_topics(caplog)


async def test_a_pattern_that_matches_no_topic_causes_no_warning(
    brokers: FakeBrokers, caplog: pytest.LogCaptureFixture
) -> None:
    async with reading(brokers, topics=None, pattern="nope.*", metadata_age_s=0.05) as consumer:
        assert await consumer.get(timeout_s=0.2) is None
    assert not missing_topics(caplog)


async def test_a_member_of_a_group_warns_of_a_topic_that_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:
    async with (
        group_brokers() as (brokers, _),
        reading(brokers, topics=["nope"], group="g", metadata_age_s=0.05) as member,
    ):
        await until(lambda: bool(missing_topics(caplog)))
        assert await member.get(timeout_s=0.2) is None
    (warning,) = missing_topics(caplog)
    assert warning.startswith("topic nope does not exist; the consumer waits until it is created")


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_partition_that_was_removed_and_added_again_is_read_from_its_start(
    brokers: FakeBrokers, noticed: bool
) -> None:
    """noticed: the consumer looks for partitions while the partition is missing."""
    async with reading(brokers, metadata_age_s=0.2, fetch=FetchLimits(wait_ms=50)) as consumer:
        assert len(await take(consumer, 20)) == 20
        consumer.pause(("t", 0))
        await brokers.remove_last_partition("t")
        if noticed:
            await until(lambda: consumer.assignment() == {("t", 0)})
        await brokers.add_partition("t", 2)
        await brokers.fill("t", 1, *(batch(n) for n in range(100, 115)))  # more than the former position
        # Without the look in between, records at the former position may arrive before the first ones.
        found = [int(each.value or b"") for each in await take(consumer, 15 if noticed else 20)]
        assert found[-15:] == list(range(100, 115))
        assert consumer.assignment() == {("t", 0), ("t", 1)}
        assert consumer.position(("t", 0)) == 10, "the other partition keeps its records, and so its position"
        assert consumer.paused() == {("t", 0)}
        assert await consumer.get(timeout_s=0.5) is None


@pytest.mark.parametrize("noticed", [True, False])
async def test_a_topic_that_was_created_again_is_read_from_its_start(brokers: FakeBrokers, noticed: bool) -> None:
    async with reading(brokers, metadata_age_s=0.2, fetch=FetchLimits(wait_ms=50)) as consumer:
        assert len(await take(consumer, 20)) == 20
        await brokers.delete("t")
        if noticed:
            await until(lambda: not consumer.assignment())
        await brokers.create("t", [1])
        await brokers.fill("t", 0, *(batch(n) for n in range(100, 115)))
        # Without the look in between, records at the former position may arrive before the first ones.
        found = [int(each.value or b"") for each in await take(consumer, 15 if noticed else 20)]
        assert found[-15:] == list(range(100, 115))
        assert consumer.assignment() == {("t", 0)}
        assert await consumer.get(timeout_s=0.5) is None


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_a_position_that_was_already_reset_in_a_new_topic_stays(brokers: FakeBrokers, policy: str) -> None:
    """A second reset would skip records with `latest`, and repeat records with `earliest`."""
    async with reading(brokers, auto_offset_reset=policy, fetch=FetchLimits(wait_ms=50)) as consumer:
        if policy == "earliest":
            await take(consumer, 20)
        await until(lambda: consumer.position(("t", 0)) == 10)
        await brokers.delete("t")
        await brokers.create("t", [1])
        await until(lambda: consumer.position(("t", 0)) == 0)  # the former position is out of range
        await brokers.fill("t", 0, *(batch(n) for n in range(4)))
        assert [record.offset for record in await take(consumer, 2)] == [0, 1]
        await consumer._all_partitions.look()
        assert consumer.assignment() == {("t", 0)}
        assert [record.offset for record in await take(consumer, 2)] == [2, 3]


@pytest.mark.parametrize("is_above", [True, False])
async def test_a_topic_that_is_created_again_after_a_reset_is_read_from_its_start(
    brokers: FakeBrokers, is_above: bool
) -> None:
    """is_above: the position was above the end of the log, as in a new log.  The next look knows this log."""
    await brokers.cut_front("t", 0, 2)
    async with reading(brokers, topics=["t"]) as consumer:
        consumer.seek(("t", 0), 99 if is_above else 1)
        await until(lambda: consumer.position(("t", 0)) == 4)  # the offset is out of range
        if is_above:
            await consumer._all_partitions.look()
        consumer.pause(("t", 0))  # so that the new leader does not refuse the position
        await brokers.delete("t")
        await brokers.create("t", [1])
        await brokers.fill("t", 0, *(batch(n) for n in range(10)))
        await consumer._all_partitions.look()
        consumer.resume(("t", 0))
        assert (await take(consumer, 1))[0].offset == 0


async def test_an_election_does_not_move_a_consumer_of_a_topic_that_lost_partitions(brokers: FakeBrokers) -> None:
    """A partition with an unchanged epoch was not removed, and so the partitions before it were not removed either."""
    await brokers.create("u", [1, 2, 1])
    for index in range(3):
        await brokers.fill("u", index, batch(index))
    async with reading(brokers, topics=["u"], metadata_age_s=0.2, fetch=FetchLimits(wait_ms=50)) as consumer:
        assert len(await take(consumer, 3)) == 3
        await brokers.move("u", 0, 2)
        await brokers.remove_last_partition("u")
        await until(lambda: consumer.assignment() == {("u", 0), ("u", 1)})
        assert await consumer.get(timeout_s=0.3) is None


@pytest.mark.parametrize("policy", ["earliest", "latest"])
async def test_elections_in_all_remaining_partitions_do_not_move_a_consumer(brokers: FakeBrokers, policy: str) -> None:
    """The logs have records of the former epoch, so they are not new.  Otherwise records would be lost or repeated."""
    await brokers.create("u", [1, 2])
    await brokers.fill("u", 0, batch(0), batch(1))
    options = {"metadata_age_s": 0.2, "fetch": FetchLimits(wait_ms=50), "auto_offset_reset": policy}
    async with reading(brokers, topics=["u"], **options) as consumer:
        await until(lambda: consumer.position(("u", 0)) is not None)
        consumer.seek(("u", 0), 1)
        assert len(await take(consumer, 1)) == 1
        await brokers.move("u", 0, 2)
        await brokers.remove_last_partition("u")
        await brokers.fill("u", 0, batch(2))
        await until(lambda: consumer.assignment() == {("u", 0)})
        assert [each.value for each in await take(consumer, 1)] == [b"2"]
        assert await consumer.get(timeout_s=0.5) is None


async def test_a_broker_that_is_behind_removes_no_partition_of_a_consumer(brokers: FakeBrokers) -> None:
    """Otherwise the partition would be read again from its start."""
    old = brokers.shared.image
    await brokers.create("u", [2])
    await brokers.fill("u", 0, batch(1))
    async with reading(brokers, topics=["u"], metadata_age_s=0.05, fetch=FetchLimits(wait_ms=20)) as consumer:
        assert len(await take(consumer, 1)) == 1
        brokers.replicas[1].behind = old
        for _ in range(10):
            consumer._cluster._last_good = Address(*brokers.addresses[1])  # the next look begins at broker 1
            assert await consumer.get(timeout_s=0.06) is None
        assert consumer.assignment() == {("u", 0)}


def test_all_problems_of_a_configuration_are_reported_together() -> None:
    with pytest.raises(ConfigError) as failure:
        Consumer("h:1", topics=["t"], pattern="(", group="", assignors=["best"], heartbeat_interval_s=99)
    assert len(failure.value.problems) == 5


def test_names_that_a_request_cannot_contain_are_wrong_arguments() -> None:
    with pytest.raises(ConfigError) as failure:
        Consumer("h:1", client_id="a\ud800", topics=["t", "b\ud800"], group="c\ud800", group_instance_id="d\ud800")
    assert failure.value.problems == tuple(
        f"{what} is not valid text: '{letter}\\ud800'"
        for what, letter in (("client_id", "a"), ("topic", "b"), ("group", "c"), ("group_instance_id", "d"))
    )


@pytest.mark.parametrize("timeout_s", [0, 2_147_484, math.inf, math.nan])
def test_a_timeout_that_the_protocol_cannot_express_is_a_wrong_argument(timeout_s: float) -> None:
    with pytest.raises(ConfigError) as failure:
        Consumer("h:1", topics=["t"], group="g", session_timeout_s=timeout_s, max_poll_interval_s=timeout_s)
    assert {"session_timeout_s", "max_poll_interval_s"} <= {each.split(" is ")[0] for each in failure.value.problems}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wait_ms", -1),
        ("wait_ms", 2**31),
        ("size_min", 2**31),
        ("size_max", 2**31),
        ("size_max", 0),
        ("partition_size_max", 2**31),
        ("partition_size_max", 0),
        ("buffer_size_max", 0),
        ("request_timeout_s", math.inf),
    ],
)
def test_fetch_limits_that_no_request_can_use_are_refused(name: str, value: float) -> None:
    with pytest.raises(ConfigError) as failure:
        Consumer("h:1", topics=["t"], fetch=FetchLimits(**{name: value}))  # type: ignore[arg-type]
    (problem,) = failure.value.problems
    assert problem.startswith(f"fetch.{name} is {value}")


async def test_topics_that_a_request_cannot_contain_are_refused_and_change_nothing(brokers: FakeBrokers) -> None:
    async with reading(brokers, topics=None, group="g") as consumer:
        consumer.assign([("t", 0)])
        bad = ("\ud800", 0)
        with pytest.raises(ConfigError, match="topic is not valid text"):
            consumer.assign([bad])
        for call in (consumer.commit({bad: 5}), consumer.committed([bad]), consumer.offsets_for_time(0, [bad])):
            with pytest.raises(ConfigError, match=r"topic is not valid text: '\\ud800'"):
                await call
        assert consumer.assignment() == {("t", 0)}


async def test_times_and_offsets_outside_the_range_of_the_protocol_are_refused_at_once(brokers: FakeBrokers) -> None:
    bad_times: list[tuple[Any, type[Exception]]] = [(1_700_000_000_000.5, TypeError), (-1, ValueError)]  # -1: the end
    bad_offsets: list[tuple[Any, type[Exception]]] = [(5.0, TypeError), (-1, ValueError), (2**63, ValueError)]
    async with reading(brokers, topics=None) as consumer:
        consumer.assign([("t", 0)])
        for time, error in bad_times:
            with pytest.raises(error, match="timestamp_ms"):
                await consumer.seek_to_time(time)
            with pytest.raises(error, match="timestamp_ms"):
                await consumer.offsets_for_time(time, [("t", 0)])
        for offset, error in bad_offsets:
            with pytest.raises(error, match="offset"):
                consumer.seek(("t", 0), offset)
            with pytest.raises(error, match="offset"):
                await consumer.commit({("t", 0): offset})
        record = await consumer.get(timeout_s=10)
        assert record is not None
        assert record.offset == 0


@pytest.mark.parametrize("is_assigned", [False, True])
async def test_the_consumer_leaves_a_former_leader_that_still_answers(
    brokers: FakeBrokers, monkeypatch: pytest.MonkeyPatch, is_assigned: bool
) -> None:
    """The former leader is disconnected from the other brokers, but not from the consumer, and has no new records."""
    monkeypatch.setattr("quorumlog.client.cluster.ROTATE_S", 0.05)
    given: dict[str, Any] = {"topics": None} if is_assigned else {}
    async with reading(brokers, metadata_age_s=0.1, fetch=FetchLimits(wait_ms=50), **given) as consumer:
        if is_assigned:
            consumer.assign([("t", 0), ("t", 1)])
        await take(consumer, 20)
        log = brokers.shared.logs["t", 0]
        brokers.replicas[1].logs = defaultdict(FakeLog, {("t", 0): FakeLog(list(log.batches))})
        await brokers.hold_back(1)
        await brokers.move("t", 0, 2)
        await brokers.fill("t", 0, batch(10, 11))
        assert by_partition(await take(consumer, 2))[0] == [10, 11]


async def test_a_former_leader_does_not_decide_that_a_position_is_out_of_range(brokers: FakeBrokers) -> None:
    async with reading(brokers, topics=None) as consumer:
        consumer.assign([("t", 0)])
        await take(consumer, 10)
        log = brokers.shared.logs["t", 0]
        brokers.replicas[1].logs = defaultdict(FakeLog, {("t", 0): FakeLog(list(log.batches))})
        await brokers.hold_back(1)
        await brokers.move("t", 0, 2)
        await brokers.fill("t", 0, batch(10, 11), batch(12, 13))
        consumer._cluster._last_good = Address(*brokers.addresses[1])
        consumer.seek(("t", 0), 13)
        assert [record.value for record in await take(consumer, 1)] == [b"13"]


async def truncate(brokers: FakeBrokers, consumer: Consumer, end: int) -> None:
    """Let an unclean election lose the records of t-0 from `end` on, and wait until the consumer notices that."""
    position = consumer._reading.positions[TopicPartition("t", 0)]
    version = position.version
    brokers.shared.logs["t", 0].batches.clear()
    await brokers.fill("t", 0, batch(*range(end)))
    async with asyncio.timeout(20):
        while position.version == version and position.error is None:  # noqa: ASYNC110  # no event reports it
            await asyncio.sleep(0.01)


@asynccontextmanager
async def truncated(brokers: FakeBrokers, policy: str, position: int) -> AsyncIterator[Consumer]:
    """Yield a consumer that has read `position` of ten records; four of them are left, and two new records follow."""
    brokers.shared.logs["t", 0].batches.clear()
    await brokers.fill("t", 0, batch(*range(10)))
    async with reading(brokers, topics=None, auto_offset_reset=policy) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek(("t", 0), 0)
        await take(consumer, position)
        await truncate(brokers, consumer, 4)
        await brokers.fill("t", 0, batch(14, 15))
        yield consumer


@pytest.mark.parametrize("policy", ["earliest", "latest", "none"])
async def test_a_truncation_after_the_position_loses_and_repeats_no_record(brokers: FakeBrokers, policy: str) -> None:
    async with truncated(brokers, policy, position=2) as consumer:
        assert [record.value for record in await take(consumer, 4)] == [b"2", b"3", b"14", b"15"]


@pytest.mark.parametrize(("policy", "first"), [("earliest", [0, 1, 2, 3]), ("latest", [])])
async def test_new_records_at_the_offsets_of_truncated_ones_are_read(
    brokers: FakeBrokers, policy: str, first: list[int]
) -> None:
    async with truncated(brokers, policy, position=6) as consumer:
        expected = [*first, 14, 15]
        assert [int(record.value or b"") for record in await take(consumer, len(expected))] == expected


async def test_the_records_of_paused_partitions_do_not_stop_other_partitions(brokers: FakeBrokers) -> None:
    size = len(batch(0, 1))
    async with reading(brokers, fetch=FetchLimits(partition_size_max=1, buffer_size_max=size)) as consumer:
        (first,) = await take(consumer, 1)
        paused = TopicPartition("t", 1 - first.partition)
        consumer.pause(paused)
        others = await take(consumer, 9)
        assert [record.offset for record in others] == list(range(1, 10))
        consumer.resume(paused)
        assert [record.offset for record in await take(consumer, 10)] == list(range(10))


async def test_paused_partitions_keep_their_records_while_others_fill_the_buffer(brokers: FakeBrokers) -> None:
    size = len(batch(0, 1))
    async with reading(brokers, fetch=FetchLimits(partition_size_max=1, buffer_size_max=size)) as consumer:
        positions = list(consumer._reading.positions.values())
        await until(lambda: all(each.buffered_bytes for each in positions))
        consumer.pause(("t", 0))
        assert not consumer._reading.fetcher._make_room()
        assert all(each.buffered_bytes for each in positions)


def test_the_time_of_a_failure_does_not_include_pauses() -> None:
    error = ClusterError("BROKER_UNAVAILABLE", "it is down", retriable=True)
    position = Position(TopicPartition("t", 0))
    position.failed(error, 10, 0.5)
    position.pause(12)
    position.pause(13)
    position.resume(20)
    position.resume(25)
    assert position.failing_since == 18
    position.succeeded()
    position.pause(30)
    position.failed(error, 35, 0.5)
    position.resume(40)
    assert position.failing_since == 40


async def test_a_partition_that_was_paused_while_its_leader_failed_causes_no_error(brokers: FakeBrokers) -> None:
    async with reading(brokers, failure_timeout_s=1.0) as consumer:
        assert len(await take(consumer, 20)) == 20
        position = consumer._reading.positions[TopicPartition("t", 0)]
        await brokers.kill(1)
        await until(lambda: position.failing_since is not None)
        consumer.pause(("t", 0))
        await brokers.move("t", 0, 2)
        assert await consumer.get(timeout_s=2.5) is None
        consumer.resume(("t", 0))
        await brokers.fill("t", 0, batch(10))
        assert [record.offset for record in await take(consumer, 1)] == [10]
