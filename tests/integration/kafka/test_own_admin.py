"""`quorumlog.client.Admin` against a real broker: every call, and how it is refused."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from itertools import count

import pytest

from quorumlog.client import (
    Admin,
    ClusterError,
    CommittedOffset,
    Consumer,
    NewRecord,
    NewTopic,
    OffsetMove,
    PartitionDescription,
    Producer,
    RefusalsError,
    ShareConsumer,
    ShareOffset,
)
from quorumlog.client import TopicPartition as Tp
from tests.integration.kafka.conftest import Standalone

RECORDS = 10
_numbers = count()


@pytest.fixture
async def admin(standalone: Standalone) -> AsyncIterator[Admin]:
    async with Admin(standalone.bootstrap, timeout_s=30) as admin:
        yield admin
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
def name() -> str:
    return f"admin-{next(_numbers)}"


@pytest.fixture
async def filled(standalone: Standalone, admin: Admin, name: str) -> str:
    """A topic of two partitions; partition 0 has ten records with the timestamps 1000, 2000, …"""
    await admin.create_topic(name, 2)
    records = [NewRecord(b"x", partition=0, timestamp_ms=1000 * (number + 1)) for number in range(RECORDS)]
    async with Producer(standalone.bootstrap) as producer:
        await producer.send_many(name, records)
        await producer.flush()
    return name


async def refusal_of(call: Awaitable[object]) -> ClusterError:
    with pytest.raises(ClusterError) as refusal:
        await call
    assert refusal.value.next_step
    return refusal.value


async def test_the_cluster_is_described(standalone: Standalone, admin: Admin) -> None:
    found = await admin.cluster()
    assert found.cluster_id
    (broker,) = found.brokers
    assert (found.controller, str(broker.address)) == (broker.broker_id, standalone.bootstrap)


async def test_a_topic_is_created_described_extended_and_deleted(admin: Admin, name: str) -> None:
    made = await admin.create_topic(name, 3, 1, {"retention.ms": "60000"})
    assert (made.name, made.partitions, made.replication_factor) == (name, 3, 1)
    assert made.configs["retention.ms"] == "60000"
    assert name in await admin.topics()
    found = await admin.describe_topic(name)
    assert (found.topic_id, found.is_internal) == (made.topic_id, False)
    assert found.partitions == tuple(PartitionDescription(index, 1, 0, (1,), (1,), ()) for index in range(3))
    await admin.add_partitions(name, 5)
    assert len((await admin.describe_topic(name)).partitions) == 5
    await admin.delete_topic(name)
    assert name not in await admin.topics()


async def test_a_new_topic_uses_the_defaults_or_its_assignment(admin: Admin, name: str) -> None:
    assert (await admin.create_topic(name)).partitions == 1
    made = await admin.create_topics([NewTopic(f"{name}-b", assignment=[[1], [1]])])
    assert made[f"{name}-b"].partitions == 2


async def test_a_call_with_validate_only_changes_nothing(admin: Admin, name: str) -> None:
    assert (await admin.create_topic(name, 2, validate_only=True)).partitions == 2
    assert name not in await admin.topics()
    await admin.create_topic(name, 2)
    await admin.add_partitions(name, 4, validate_only=True)
    await admin.set_configs({"retention.ms": "1"}, topic=name, validate_only=True)
    assert len((await admin.describe_topic(name)).partitions) == 2
    assert (await admin.get_configs(topic=name))["retention.ms"].source == "default"


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda admin, name: admin.create_topic(name), "TOPIC_ALREADY_EXISTS"),
        (lambda admin, name: admin.create_topic(f"{name}-b", -5), "INVALID_PARTITIONS"),
        (lambda admin, name: admin.create_topic(f"{name}-b", 1, 9), "INVALID_REPLICATION_FACTOR"),
        (lambda admin, name: admin.create_topic(f"{name}-b", configs={"no.such": "1"}), "INVALID_CONFIG"),
        (lambda admin, name: admin.create_topic(f"{name}/"), "INVALID_TOPIC_EXCEPTION"),
        (lambda admin, name: admin.create_topics([NewTopic(f"{name}-b", assignment=[[7]])]),
         "INVALID_REPLICA_ASSIGNMENT"),
        (lambda admin, name: admin.delete_topic(f"{name}-missing"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda admin, name: admin.describe_topic(f"{name}-missing"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda admin, name: admin.add_partitions(f"{name}-missing", 9), "UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda admin, name: admin.add_partitions(name, 1), "INVALID_PARTITIONS"),
        (lambda admin, name: admin.get_configs(topic=f"{name}-missing"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda admin, name: admin.set_configs({"retention.ms": f"{name}"}, topic=name), "INVALID_CONFIG"),
        (lambda admin, name: admin.set_configs({"a": "1"}, topic=f"{name}-missing"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda admin, name: admin.unset_configs(["a"], topic=f"{name}-missing"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda admin, name: admin.delete_records({(f"{name}-missing", 0): 1}), "UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda admin, name: admin.offsets(f"{name}-missing"), "UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda admin, name: admin.offsets_at([(name, 2)], 5), "UNKNOWN_TOPIC_OR_PARTITION"),
        (lambda admin, name: admin.set_group_offsets(name, {(name, 9): 5}), "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)  # fmt: skip
async def test_a_refusal_names_the_resource_and_has_an_error_code(
    admin: Admin, filled: str, call: Callable[[Admin, str], Awaitable[object]], code: str
) -> None:
    error = await refusal_of(call(admin, filled))
    assert (error.code, error.retriable) == (code, False)
    assert filled in error.message


@pytest.mark.parametrize("call", ["describe_group", "delete_group", "delete_group_offsets"])
async def test_the_refusal_about_a_missing_group_names_the_group(admin: Admin, name: str, call: str) -> None:
    arguments = ([("orders", 0)],) if call == "delete_group_offsets" else ()
    error = await refusal_of(getattr(admin, call)(name, *arguments))
    assert error.code == "GROUP_ID_NOT_FOUND"
    assert name in error.message
    assert error.next_step == "list_groups() lists the groups"


async def test_configs_are_set_and_unset(admin: Admin, name: str) -> None:
    await admin.create_topic(name)
    await admin.set_configs({"retention.ms": "1000", "cleanup.policy": "compact"}, topic=name)
    found = await admin.get_configs(topic=name)
    assert (found["retention.ms"].value, found["retention.ms"].source) == ("1000", "topic")
    assert found["retention.ms"].documentation
    await admin.unset_configs(["retention.ms"], topic=name)
    found = await admin.get_configs(topic=name)
    assert (found["retention.ms"].source, found["cleanup.policy"].value) == ("default", "compact")


async def test_configs_of_one_broker_are_read_and_configs_of_all_brokers_are_changed(admin: Admin) -> None:
    own = await admin.get_configs(broker=1)
    assert own["node.id"].is_read_only
    key = "log.retention.ms" if "log.retention.ms" in await admin.get_configs(broker="all") else "retention.ms"
    await admin.set_configs({key: "123456789"}, broker="all")
    changed = (await admin.get_configs(broker="all"))[key]
    assert (changed.value, changed.source) == ("123456789", "cluster")
    await admin.unset_configs([key], broker="all")
    assert (await admin.get_configs(broker="all"))[key].source == "default"


async def test_a_group_may_have_its_own_configs_after_an_upgrade_of_metadata_version(
    standalone: Standalone, admin: Admin, filled: str
) -> None:
    """The group begins at the oldest record, unlike groups without configs of their own."""
    group, lock = f"share-{filled}", "share.record.lock.duration.ms"
    reset = {"share.auto.offset.reset": "earliest", lock: "45000"}
    error = await refusal_of(admin.set_configs(reset, group=group))
    assert error.code == "UNSUPPORTED_VERSION"
    assert "kctl features upgrade" in error.message
    command = ["--controllers", standalone.control, "features", "upgrade", "--wait"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "quorumlog.kctl.main", *command)
    assert await process.wait() == 0
    await admin.set_configs(reset, group=group)
    found = await admin.get_configs(group=group)
    assert (found[lock].value, found[lock].source) == ("45000", "group")
    assert (found["share.delivery.count.limit"].value, found["share.delivery.count.limit"].source) == ("5", "default")
    assert (await refusal_of(admin.set_configs({lock: "1"}, group=group))).code == "INVALID_CONFIG"
    async with asyncio.timeout(120), ShareConsumer(standalone.bootstrap, group, topics=[filled]) as consumer:
        record = await consumer.get()
        assert record is not None
        assert (record.partition, record.offset) == (0, 0)
    await admin.unset_configs([lock], group=group)
    assert (await admin.get_configs(group=group))[lock].source == "default"


async def test_offsets_are_found_by_end_and_by_time(admin: Admin, filled: str) -> None:
    first, second = Tp(filled, 0), Tp(filled, 1)
    assert await admin.offsets(filled) == {first: RECORDS, second: 0}
    assert await admin.offsets([first], "earliest") == {first: 0}
    assert await admin.offsets_at([filled], 3500) == {first: 3, second: None}
    assert await admin.offsets_at([first], datetime.fromtimestamp(5, UTC)) == {first: 4}


async def test_records_are_deleted_up_to_an_offset_and_up_to_the_end(admin: Admin, filled: str) -> None:
    first, second = Tp(filled, 0), Tp(filled, 1)
    assert await admin.delete_records({first: 4}) == {first: 4}
    assert await admin.offsets([first], "earliest") == {first: 4}
    error = await refusal_of(admin.delete_records({first: 5, second: 7}))
    assert isinstance(error, RefusalsError)
    assert error.code == "OFFSET_OUT_OF_RANGE"
    assert error.done == {first: 5}
    assert list(error.refusals) == [second]
    assert await admin.delete_records({first: "latest"}) == {first: RECORDS}


async def test_the_offsets_of_a_group_are_set_reset_and_deleted(admin: Admin, filled: str) -> None:
    group, first, second = f"group-{filled}", Tp(filled, 0), Tp(filled, 1)
    assert await admin.group_offsets(group) == {}
    assert (await refusal_of(admin.reset_group_offsets(group, "latest"))).code == "OFFSET_NOT_COMMITTED"
    error = await refusal_of(admin.set_group_offsets(group, {first: 7, second: 1}))
    assert error.code == "OFFSET_OUT_OF_RANGE"
    assert f"{second}: 1 is not in 0 to 0" in error.message
    assert await admin.group_offsets(group) == {}
    await admin.set_group_offsets(group, {first: 7})
    assert await admin.group_offsets(group) == {first: CommittedOffset(7)}
    assert await admin.reset_group_offsets(group, 2500, dry_run=True) == {first: OffsetMove(7, 2)}
    assert await admin.group_offsets(group) == {first: CommittedOffset(7)}
    now_ms = int(time.time() * 1000)
    moves = await admin.reset_group_offsets(group, now_ms, partitions=filled)
    assert moves == {first: OffsetMove(7, RECORDS), second: OffsetMove(None, 0)}
    assert await admin.reset_group_offsets(group, "earliest", partitions=[first]) == {first: OffsetMove(RECORDS, 0)}
    assert await admin.group_offsets(group) == {first: CommittedOffset(0), second: CommittedOffset(0)}
    await admin.delete_group_offsets(group, [second])
    assert await admin.group_offsets(group) == {first: CommittedOffset(0)}
    assert group in [each.group for each in await admin.list_groups(["Empty"])]
    assert "__consumer_offsets" in await admin.topics(internal=True)
    assert "__consumer_offsets" not in await admin.topics()
    await admin.delete_group(group)
    assert group not in [each.group for each in await admin.list_groups()]


async def test_the_offsets_of_a_share_group_are_set_before_its_first_member_joins(
    standalone: Standalone, admin: Admin, filled: str
) -> None:
    group, first, second = f"share-{filled}", Tp(filled, 0), Tp(filled, 1)
    assert (await refusal_of(admin.share_group_offsets(group))).code == "GROUP_ID_NOT_FOUND"
    error = await refusal_of(admin.set_share_group_offsets(group, {first: RECORDS + 1}))
    assert error.code == "OFFSET_OUT_OF_RANGE"
    await admin.set_share_group_offsets(group, {first: 7, second: 0})
    assert await admin.share_group_offsets(group) == {first: ShareOffset(7, RECORDS - 7), second: ShareOffset(0, 0)}
    async with asyncio.timeout(60), ShareConsumer(standalone.bootstrap, group, topics=[filled]) as consumer:
        record = await consumer.get()
        assert record is not None
        assert (record.partition, record.offset) == (0, 7)
    async with asyncio.timeout(90):
        while (await admin.describe_group(group)).members:  # noqa: ASYNC110  # its departure sends no event
            await asyncio.sleep(0.1)
    await admin.delete_share_group_offsets(group, [filled])
    assert await admin.share_group_offsets(group) == {}
    await admin.delete_group(group)


async def test_a_group_with_members_keeps_its_offsets(standalone: Standalone, admin: Admin, filled: str) -> None:
    group, first = f"group-{filled}", Tp(filled, 0)
    async with Consumer(standalone.bootstrap, topics=[filled], group=group, auto_offset_reset="earliest") as consumer:
        assert await consumer.get(timeout_s=30) is not None
        await consumer.commit()
        found = await admin.describe_group(group)
        assert (found.state, len(found.members)) == ("Stable", 1)
        for call in (
            admin.set_group_offsets(group, {first: 5}),
            admin.reset_group_offsets(group, "latest"),
            admin.delete_group_offsets(group, [first]),
            admin.delete_group(group),
        ):
            assert "stop the members" in (await refusal_of(call)).next_step
        assert (await admin.group_offsets(group))[first].offset == 1


async def test_many_calls_run_at_once(admin: Admin, name: str) -> None:
    names = [f"{name}-{number}" for number in range(20)]
    await asyncio.gather(*(admin.create_topic(each) for each in names))
    assert set(names) <= set(await admin.topics())
    await asyncio.gather(*(admin.delete_topic(each) for each in names))
    assert not set(names) & set(await admin.topics())
