"""Start and end of leaderships, and replicas that are damaged, removed or on failed directories."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, cast
from unittest.mock import AsyncMock, Mock
from uuid import UUID

import pytest

from broker.replica import image
from metadata.control.partitions_count import remove_partitions
from metadata.control.topics import delete_topics
from metadata.records import LOST, NO_OFFSET, BrokerChange, PartitionChange, Reason, Replica
from quorumlog.errors import CorruptStoreError
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, NoTasks, Rig, hanging_commits, running
from tests.unit.metadata.builders import registration
from tests.unit.metadata.fake_node import settle

FAILURE = DiskError("I/O error")

# -- parked produces


async def lose_leadership(rig: Rig) -> None:
    await rig.change(leader=2)


async def lose_the_topic(rig: Rig) -> None:
    rig.cluster.execute(lambda image: delete_topics(image, [TOPIC], []))
    await rig.learn()


async def lose_the_disk(rig: Rig) -> None:
    rig.hosted().take_offline(FAILURE)


async def end(rig: Rig) -> None:
    rig.replicas.close()


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (lose_leadership, KafkaCode.NOT_LEADER_OR_FOLLOWER),
        (lose_the_topic, KafkaCode.NOT_LEADER_OR_FOLLOWER),
        (lose_the_disk, KafkaCode.KAFKA_STORAGE_ERROR),
        (end, KafkaCode.NOT_LEADER_OR_FOLLOWER),
    ],
)
async def test_parked_produces_are_refused_when_the_leadership_ends(
    rig: Rig, cause: Callable[[Rig], Awaitable[None]], code: KafkaCode
) -> None:
    """The records of these produces may be truncated, so the produces must not wait for later records there."""
    await rig.create((1, 2, 3))
    parked = [rig.produce(b"a", acks=1), rig.produce(b"b", acks=-1)]
    assert not any(each.done() for each in parked)
    await cause(rig)
    assert [each.result().error_code for each in parked if each.done()] == [code, code]
    assert rig.context.parked_produces == 0


async def test_a_produce_is_not_acknowledged_by_a_later_leadership_of_another_history(rig: Rig) -> None:
    await rig.create((1, 2, 3))
    parked = rig.produce(b"a")
    await rig.change(leader=2, isr=(2,))
    await rig.role.logs.flush_all([rig.log])
    await rig.reply(2, diverging_epoch=0, diverging_end=0)
    assert rig.log.end_offset == 0
    await rig.change(leader=1, isr=(1,))
    await rig.write(b"z")
    assert rig.leader.high_watermark == 1
    assert parked.result().error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_a_leader_of_a_later_epoch_answers_the_produces_of_its_earlier_epoch(rig: Rig) -> None:
    """The broker has led without interruption, so nothing was truncated."""
    await rig.create((1, 2, 3))
    parked = rig.produce(b"a")
    await rig.change(leader=1, isr=(1, 2))
    assert not parked.done()
    await rig.role.logs.flush_all([rig.log])
    await rig.fetch(2, 1, 0)
    assert parked.result().error_code == KafkaCode.NONE


# -- registrations


async def test_a_leadership_older_than_the_registration_is_ignored(tmp_path: Path) -> None:
    """The leadership was meant for the previous incarnation, which may have had records that are lost now."""
    async with running(tmp_path) as rig:
        rig.cluster.start(1, directory_ids=rig.directories)
        rig.cluster.create(TOPIC, (1, 2))
        rig.cluster.apply([registration(1, 1, directory_ids=rig.directories, fenced=False)])
        rig.role.follower.activate(rig.cluster.epoch(1))
        await rig.learn()
        assert rig.hosted().image.leader == 1
        assert rig.hosted().leader is None
        assert rig.produce(b"a").result().error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER
        await rig.change(leader=1)
        assert rig.hosted().leader is not None
        assert not rig.produce(b"a").done()


async def test_a_leader_stops_serving_once_it_is_registered_again(rig: Rig) -> None:
    await rig.create((1, 2))
    await rig.write(b"a")
    rig.cluster.apply([registration(1, 1, directory_ids=rig.directories, fenced=False)])
    rig.role.follower.activate(rig.cluster.epoch(1))
    await rig.learn()
    assert rig.role.context.is_serving()
    assert rig.produce(b"b").result().error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert (await rig.fetch(2, 0, -1)).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER
    assert (await rig.replicas.list_offset(TOPIC, 0, -1)).error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


async def test_a_leader_refuses_produces_while_its_broker_is_fenced(rig: Rig) -> None:
    await rig.create((1, 2))
    rig.cluster.apply([BrokerChange(1, rig.cluster.epoch(1), fenced=True)])
    await rig.learn()
    assert rig.produce(b"b").result().error_code == KafkaCode.NOT_LEADER_OR_FOLLOWER


# -- failed directories


@pytest.fixture
async def two_disks(tmp_path: Path) -> AsyncIterator[Rig]:
    """Broker 1 with two directories, of which the second has failed; it is not registered yet."""
    async with running(tmp_path, directories=2) as rig:
        rig.cluster.start(1, directory_ids=rig.directories)
        rig.role.logs.disk_failed(rig.directories[1], FAILURE)
        yield rig


@pytest.mark.parametrize("isr", [(2, 1), (2,)])
async def test_a_replica_on_a_failed_directory_is_not_recreated_in_another_directory(
    two_disks: Rig, isr: tuple[int, ...]
) -> None:
    """An empty log would count as the replica in the ISR, or hide the real log once its disk works again."""
    rig = two_disks
    rig.cluster.create(TOPIC, (2, 1))
    topic_id = rig.cluster.image.topic_ids[TOPIC]
    before = rig.cluster.partition(topic_id)
    here = (Replica(2), Replica(1, rig.directories[1]))
    rig.cluster.apply(
        [PartitionChange(topic_id, 0, Reason.DIRECTORY_ASSIGNED, NO_OFFSET, before.last_offset, isr=isr, replicas=here)]
    )
    rig.role.follower.activate(rig.cluster.epoch(1))
    await rig.learn()
    assert rig.hosted().log is None
    assert "offline" in rig.hosted().offline
    assert not rig.role.logs.logs
    assert rig.unreported == []


async def test_an_isr_member_without_a_directory_is_not_recreated_while_a_directory_has_failed(
    two_disks: Rig,
) -> None:
    """The member may be in the failed directory.  The broker reports this, and the controller changes the ISR."""
    rig = two_disks
    rig.cluster.create(TOPIC, (2, 1), (2, 3))
    rig.role.follower.activate(rig.cluster.epoch(1))
    await rig.learn()
    assert rig.hosted().log is None
    assert rig.unreported == [(0, rig.directories[1])]


async def test_a_new_replica_is_created_in_a_working_directory(two_disks: Rig) -> None:
    rig = two_disks
    rig.role.follower.activate(rig.cluster.epoch(1))
    await rig.learn()
    await rig.create((2, 1))
    assert rig.log.directory_id == rig.directories[0]
    assert rig.unreported == [(0, rig.directories[0])]


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_replica_whose_directory_fails_before_the_metadata_is_known_is_offline(
    tmp_path: Path, is_known: bool
) -> None:
    """For example, the first flush after a recovery fails.  is_known: the controller knows the replica's directory."""
    folders = [tmp_path / "disk0", tmp_path / "disk1"]
    async with running(tmp_path, directories=2) as before:
        await before.register()
        await before.create((2, 1))
        await before.reply(2, make_batch((b"a",), leader_epoch=0))
        directory_id = before.log.directory_id
        if is_known:
            await before.change(replicas=(Replica(2), Replica(1, directory_id)))
    rig = Rig(folders)
    rig.cluster = before.cluster
    async with rig.role:
        rig.role.fetchers.start(cast(asyncio.TaskGroup, NoTasks()))
        rig.role.logs.disk_failed(directory_id, FAILURE)
        await rig.register(1)
        assert rig.hosted().log is None
        assert "offline" in rig.hosted().offline
        assert rig.unreported == ([] if is_known else [(0, directory_id)])
    for disk in rig._disks:
        disk.close()


@pytest.mark.parametrize("directories", [1, 2])
async def test_a_directory_that_fails_while_a_replica_is_created_is_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, directories: int
) -> None:
    async with running(tmp_path, directories=directories) as rig:
        await rig.register()
        failing = min(rig._disks, key=lambda disk: disk.directory_id)  # the one that is chosen first
        monkeypatch.setattr(failing, "exists", Mock(side_effect=FAILURE))
        await rig.create((1,))
        assert set(rig.role.logs.failed_disks) == {failing.directory_id}
        if directories == 1:
            assert rig.hosted().log is None
            assert "offline" in rig.hosted().offline
        else:
            assert rig.log.directory_id != failing.directory_id


async def test_a_hanging_directory_delays_only_replicas_whose_folders_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "REMOVAL_WAIT_S", 0.01)
    async with running(tmp_path, directories=2) as rig:
        await rig.register()
        await rig.create((2, 1))
        topic_id, last_offset = rig.hosted().topic_id, rig.hosted().image.last_offset
        disk = rig._disks[rig.directories.index(rig.log.directory_id)]

        def step(**fields: Any) -> PartitionChange:
            return PartitionChange(topic_id, 0, Reason.REASSIGNMENT, NO_OFFSET, last_offset, **fields)

        works_again = hanging_commits(monkeypatch, disk)
        rig.cluster.apply([step(isr=(2,), replicas=(Replica(2),))])
        rig.cluster.create("another", (1,))
        async with asyncio.timeout(10):
            await rig.learn()
        another = rig.role.table.find("another", 0)
        assert another is not None
        assert another.leader is not None
        rig.cluster.apply([step(replicas=(Replica(2), Replica(1)), adding=(1,))])
        await rig.learn()
        assert rig.role.table.find(TOPIC, 0) is None, "its former folder still exists"
        works_again.set()
        await asyncio.wait(rig.role.follower._removals)
        await rig.role.follower._apply()
        assert (rig.log.end_offset, rig.hosted().is_joining) == (0, True)


async def test_a_stop_sets_the_folders_of_removed_replicas_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next start, after a clean stop, would trust the facts about their logs."""
    async with running(tmp_path) as rig:
        await rig.register()
        await rig.create((2, 1))
        topic_id, last_offset = rig.hosted().topic_id, rig.hosted().image.last_offset
        await rig.reply(2, make_batch((b"a",), leader_epoch=0), high_watermark=1)
        await rig.role.logs.checkpoint([rig.log])
        await rig.reply(2, make_batch((b"b",), base_offset=1, leader_epoch=0), high_watermark=2)
        (disk,) = rig._disks

        def step(**fields: Any) -> PartitionChange:
            return PartitionChange(topic_id, 0, Reason.REASSIGNMENT, NO_OFFSET, last_offset, **fields)

        with monkeypatch.context() as context:
            context.setattr(image, "REMOVAL_WAIT_S", 0.01)
            works_again = hanging_commits(context, disk)
            rig.cluster.apply([step(isr=(2,), replicas=(Replica(2),))])
            await rig.learn()
            assert rig.role.follower._removals
        rig.role._tasks.append(asyncio.create_task(rig.role.follower.run()))
        await settle()
        closing = asyncio.create_task(rig.role.close())
        await settle()
        works_again.set()
        await closing
        assert len(list((tmp_path / "disk0" / "strays").iterdir())) == 1
    again = Rig([tmp_path / "disk0"])
    again.cluster = rig.cluster
    again.cluster.apply([step(replicas=(Replica(2), Replica(1)), adding=(1,))])
    async with again.role:
        again.role.fetchers.start(cast(asyncio.TaskGroup, NoTasks()))
        await again.register(1)
        assert (again.log.end_offset, again.log.size) == (0, 0)
    for each in again._disks:
        each.close()


# -- damaged replicas


async def test_damaged_replica_that_is_assigned_again_in_one_pass_starts_over(rig: Rig) -> None:
    """The broker may learn of both steps of the repair together: the removal, and the new assignment."""
    await rig.create((2, 1))
    topic_id, last_offset = rig.hosted().topic_id, rig.hosted().image.last_offset
    rig.hosted().take_offline(CorruptStoreError("a checksum does not match"))
    await rig.change(isr=(2,), replicas=(Replica(2), Replica(1, LOST)))
    assert rig.hosted().log is None

    def step(**fields: Any) -> PartitionChange:
        return PartitionChange(topic_id, 0, Reason.REASSIGNMENT, NO_OFFSET, last_offset, **fields)

    rig.cluster.apply([step(replicas=(Replica(2),))])
    rig.cluster.apply([step(replicas=(Replica(2), Replica(1)), adding=(1,))])
    await rig.learn()
    assert rig.log.end_offset == 0
    assert rig.unreported == [(0, rig.directories[0])]


async def test_a_damaged_replica_whose_earlier_report_arrives_late_does_not_start_over(rig: Rig) -> None:
    """Otherwise its files would be deleted, although they may be the last copy."""
    await rig.create((1,))
    here = rig.log.directory_id
    rig.hosted().take_offline(CorruptStoreError("a checksum does not match"))
    await rig.change(replicas=(Replica(1, LOST),))
    rig.role.directories._unreported.clear()
    await rig.change(replicas=(Replica(1, here),))
    assert (rig.hosted().log, list(rig.role.logs.failures)) == (None, [rig.hosted().key])
    assert rig.role.logs.strays() == []
    assert rig.unreported == [(0, LOST)]


async def test_a_replica_of_a_failed_directory_whose_earlier_report_arrives_late_does_not_start_over(
    two_disks: Rig,
) -> None:
    rig = two_disks
    rig.role.follower.activate(rig.cluster.epoch(1))
    rig.cluster.create(TOPIC, (2, 1))
    topic_id = rig.cluster.image.topic_ids[TOPIC]
    last_offset = rig.cluster.partition(topic_id).last_offset

    def assign(directory_id: UUID) -> None:
        replicas = (Replica(2), Replica(1, directory_id))
        rig.cluster.apply(
            [PartitionChange(topic_id, 0, Reason.DIRECTORY_ASSIGNED, NO_OFFSET, last_offset, replicas=replicas)]
        )

    assign(rig.directories[1])
    await rig.learn()
    assign(rig.directories[0])
    await rig.learn()
    assert rig.hosted().log is None


async def test_replica_of_a_failed_directory_that_is_assigned_again_in_one_pass_starts_over(two_disks: Rig) -> None:
    rig = two_disks
    rig.role.follower.activate(rig.cluster.epoch(1))
    rig.cluster.create(TOPIC, (2, 1))
    topic_id = rig.cluster.image.topic_ids[TOPIC]
    last_offset = rig.cluster.partition(topic_id).last_offset

    def step(**fields: Any) -> PartitionChange:
        return PartitionChange(topic_id, 0, Reason.REASSIGNMENT, NO_OFFSET, last_offset, **fields)

    rig.cluster.apply([step(isr=(2,), replicas=(Replica(2), Replica(1, rig.directories[1])))])
    await rig.learn()
    assert rig.hosted().log is None
    rig.cluster.apply([step(replicas=(Replica(2),))])
    rig.cluster.apply([step(replicas=(Replica(2), Replica(1)), adding=(1,))])
    await rig.learn()
    assert rig.log.directory_id == rig.directories[0]
    assert rig.unreported == [(0, rig.directories[0])]


async def test_the_stored_high_watermark_of_an_older_copy_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unclean election may have discarded records of the older copy, so it may have another history."""
    async with running(tmp_path, directories=2) as rig:
        await rig.register()
        await rig.create((2, 1))
        topic_id, last_offset = rig.hosted().topic_id, rig.hosted().image.last_offset
        await rig.reply(2, make_batch((b"a", b"b", b"c"), leader_epoch=0), high_watermark=3)
        await rig.role.watermarks.save()
        older = rig.log.directory_id
        folders = [disk.root for disk in sorted(rig._disks, key=lambda disk: disk.directory_id == older)]
        failing = next(disk for disk in rig._disks if disk.directory_id == older)
        monkeypatch.setattr(failing.facts, "commit", AsyncMock(side_effect=FAILURE))
        rig.role.logs.disk_failed(older, FAILURE)

        def step(*to: Replica, **fields: Any) -> PartitionChange:
            return PartitionChange(topic_id, 0, Reason.REASSIGNMENT, NO_OFFSET, last_offset, replicas=to, **fields)

        for change in (step(Replica(2), isr=(2,)), step(Replica(2), Replica(1), adding=(1,))):
            rig.cluster.apply([change])
            await rig.learn()
        assert rig.log.directory_id != older
        await rig.reply(2, make_batch((b"x", b"y", b"z"), leader_epoch=0), high_watermark=1)
        rig.cluster.apply([step(Replica(2), Replica(1, rig.log.directory_id))])
    again = Rig(folders)
    again.cluster = rig.cluster
    async with again.role:
        again.role.fetchers.start(cast(asyncio.TaskGroup, NoTasks()))
        await again.register(1)
        assert again.log.directory_id != older
        assert (again.log.high_watermark, again.log.end_offset) == (1, 3)
    for each in again._disks:
        each.close()


# -- configs


async def test_the_configs_of_deleted_topics_and_of_former_topic_ids_are_dropped(rig: Rig) -> None:
    configs = rig.role.follower._configs
    await rig.create((1, 2), (1, 2))
    assert rig.log.config.message_size_max
    decision = remove_partitions(rig.cluster.image, TOPIC, 1, rig.cluster.new_id)
    rig.cluster.apply(decision.records)
    await rig.learn()
    (renewed,) = rig.cluster.image.topics
    assert set(configs._log_configs) == {renewed}
    assert set(configs._leader_limits) == {renewed}
    await lose_the_topic(rig)
    assert not configs._log_configs
    assert not configs._leader_limits
