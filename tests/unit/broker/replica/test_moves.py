"""Replicas move between the two directories of broker 1 while they lead and follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest

from broker.kafka.api import HostedLog, RequestedMove
from broker.log import move
from broker.replica import moves
from metadata.control.partitions import Assignment, assign_directories
from metadata.controller import convert
from metadata.records import LOST, NO_LEADER, UNASSIGNED, Config, ConfigScope, RemoveTopic, Replica
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, NoTasks, Rig, running

RATE = "replica.alter.log.dirs.io.max.bytes.per.second"


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(tmp_path, directories=2) as rig:
        await rig.register()
        yield rig


def other(rig: Rig) -> UUID:
    (found,) = [each for each in rig.directories if each != rig.log.directory_id]
    return found


async def request(rig: Rig, directory_id: UUID, index: int = 0) -> KafkaCode:
    (code,) = await rig.replicas.move_replicas([RequestedMove(TOPIC, index, directory_id)])
    return code


async def run_moves(rig: Rig) -> None:
    task = asyncio.create_task(rig.role.logs.moves.run(lambda: 1_000))
    async with asyncio.timeout(20):
        while rig.role.logs.moves.targets:  # noqa: ASYNC110 -- nothing reports it
            await asyncio.sleep(0.005)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await rig.role.logs.moves.close()


async def test_a_leader_keeps_its_role_while_its_log_moves(rig: Rig) -> None:
    await rig.create((1, 2))
    leader, log, target = rig.leader, rig.log, other(rig)
    for number in range(20):
        await rig.write(b"%d" % number)
    before = rig.produce(b"acknowledged by the follower", acks=-1)
    rig.role.directories._unreported.clear()
    assert await request(rig, target) is KafkaCode.NONE
    assert rig.replicas.hosted_logs()[1:] == [HostedLog(target, TOPIC, 0, 0, 21, is_future=True)]
    await run_moves(rig)
    assert (rig.leader, rig.log, rig.log.directory_id) == (leader, log, target)
    assert rig.unreported == [(0, target)]
    assert [each.directory_id for each in rig.replicas.hosted_logs()] == [target]
    after = rig.produce(b"after the move", acks=1)
    await rig.role.logs.flush_all([rig.log])
    assert (await after).error_code == 0
    assert not before.done()
    reply = await rig.fetch(2, 0, -1)
    assert len(reply.records) == rig.log.size
    await rig.fetch(2, 22, 0)
    assert (await before).error_code == 0


async def moved_without_a_report(tmp_path: Path, *, strays_deleted: bool = False) -> tuple[Rig, UUID]:
    """Move the only replica; end the broker before the controller knows of it; return its rig, and the target."""
    async with running(tmp_path, directories=2) as rig:
        await rig.register()
        await rig.create((1,))
        await rig.write(b"a")
        await assigned(rig, rig.log.directory_id)
        target = other(rig)
        await request(rig, target)
        await run_moves(rig)
        assert rig.log.directory_id == target
        if strays_deleted:
            await delete_strays(rig)
    return rig, target


@asynccontextmanager
async def started_again(
    before: Rig, folders: list[Path], prepare: Callable[[Rig], None] = lambda _: None
) -> AsyncIterator[Rig]:
    """The same broker with these directories.  prepare: called before its logs are opened."""
    rig = Rig(folders)
    rig.cluster = before.cluster
    prepare(rig)
    async with rig.role:
        await rig.register(1)
        yield rig
    for each in rig._disks:
        each.close()


async def delete_strays(rig: Rig) -> None:
    """Let maintenance delete the strays that it has seen long ago."""
    for now_ms in (0, rig.context.limits.strays_kept_ms):
        await rig.role.strays.delete_old(now_ms)


async def assigned(rig: Rig, directory_id: UUID) -> None:
    """Record in the metadata that the replica is in this directory."""
    await rig.change(replicas=(Replica(1, directory_id),))


async def test_a_replica_that_moves_back_reports_its_directory_again(rig: Rig) -> None:
    """The report about the first move may still be on its way when the replica is in its old directory again."""
    await rig.create((1,))
    here, there = rig.log.directory_id, other(rig)
    await assigned(rig, here)
    await request(rig, there)
    await run_moves(rig)
    assert rig.unreported == [(0, there)]
    rig.role.directories._unreported.clear()  # it was sent, but the metadata does not contain it yet
    await request(rig, here)
    await run_moves(rig)
    assert rig.unreported == [(0, here)]
    await assigned(rig, here)
    assert rig.log.marks.unknown_moves() == [there]


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Rig]:
    async with running(tmp_path, directories=3) as rig:
        await rig.register()
        yield rig


@pytest.mark.parametrize("moves_count", [1, 2])
async def test_a_moved_replica_leads_again_although_its_former_directory_has_failed(
    three: Rig, moves_count: int
) -> None:
    rig = three
    await rig.create((1,))
    left = rig.log.directory_id
    await assigned(rig, left)
    await rig.write(b"acknowledged")
    for target in [each for each in rig.directories if each != left][:moves_count]:
        await request(rig, target)
        await run_moves(rig)
    rig.cluster.beat(1, directories_offline=(left,))
    await rig.learn()
    assert (rig.hosted().image.leader, rig.hosted().leader) == (NO_LEADER, None)
    await report(rig)
    assert (rig.leader.isr, rig.log.end_offset) == ((1,), 1)


async def report(rig: Rig, *, is_learned_first: bool = False) -> None:
    """Let the broker send its reports, and apply the decisions of the controller.

    is_learned_first: the broker applies the decision before it gets the answer.
    """

    async def controller(_: AnyRpc, request: Any, timeout_ms: int) -> Any:
        wanted = convert.assignments(request)
        rig.cluster.execute(lambda image: assign_directories(image, 1, request.broker_epoch, wanted))
        if is_learned_first:
            await rig.learn()
        return pb.AssignDirectoriesReply(result=pb.Result(error="NONE"))

    rig.role.directories._call = controller
    reports = asyncio.create_task(rig.role.directories.run())
    async with asyncio.timeout(20):
        while rig.unreported:  # noqa: ASYNC110 -- nothing reports it
            await asyncio.sleep(0.005)
    reports.cancel()
    await rig.learn()


async def test_a_moved_replica_leads_again_if_its_former_directory_fails_at_the_next_start(tmp_path: Path) -> None:
    """The broker ended before the controller knew of the move."""
    before, target = await moved_without_a_report(tmp_path)
    (left,) = [each for each in before.directories if each != target]

    def break_source(rig: Rig) -> None:
        rig._disks[rig.directories.index(left)]._set_failure(DiskError("broken"))

    async with started_again(before, [tmp_path / f"disk{number}" for number in range(2)], break_source) as rig:
        rig.cluster.beat(1, directories_offline=(left,))
        await rig.learn()
        assert (rig.hosted().image.isr, rig.hosted().image.leader) == ((1,), NO_LEADER)
        await report(rig)
        assert (rig.leader.isr, rig.log.end_offset) == ((1,), 1)


@pytest.mark.parametrize("is_learned_first", [False, True])
async def test_a_log_drops_its_former_directory_once_the_controller_knows_the_current_one(
    tmp_path: Path, is_learned_first: bool
) -> None:
    """A later backup of that directory must not claim that it has all records."""
    before, target = await moved_without_a_report(tmp_path)
    (left,) = [each for each in before.directories if each != target]
    folders = [tmp_path / f"disk{number}" for number in range(2)]
    async with started_again(before, folders) as first:
        assert list(first.log.moved_from) == [left]
        await report(first, is_learned_first=is_learned_first)
        assert first.hosted().image.replica(1) == Replica(1, target)
    async with started_again(first, folders) as second:
        assert not second.log.moved_from


async def test_an_outdated_directory_in_the_metadata_is_corrected(rig: Rig) -> None:
    await rig.create((1,))
    await assigned(rig, rig.log.directory_id)
    rig.role.directories._unreported.clear()
    await assigned(rig, other(rig))
    assert rig.unreported == [(0, rig.log.directory_id)]


async def test_a_moved_replica_does_not_start_over_in_its_former_directory(tmp_path: Path) -> None:
    """The broker ended before the controller knew of the move, and the new directory fails at the next start."""
    before, target = await moved_without_a_report(tmp_path, strays_deleted=True)

    def break_target(rig: Rig) -> None:
        rig._disks[rig.directories.index(target)]._set_failure(DiskError("broken"))

    async with started_again(before, [tmp_path / f"disk{number}" for number in range(2)], break_target) as rig:
        assert rig.hosted().image.isr == (1,)
        assert (rig.hosted().log, rig.hosted().offline) == (
            None,
            f"its log may be in directory {target}, which is offline",
        )
        assert rig.unreported == [(0, target)]


async def test_a_moved_replica_does_not_start_over_if_its_new_directory_was_removed(tmp_path: Path) -> None:
    """The broker ended before the controller knew of the move, and starts without the new directory."""
    before, target = await moved_without_a_report(tmp_path)
    async with started_again(before, [tmp_path / f"disk{1 - before.directories.index(target)}"]) as rig:
        assert rig.hosted().image.isr == (1,)
        assert rig.hosted().log is None
        assert rig.hosted().offline == f"its log moved to directory {target}, which this broker no longer has"
        assert rig.unreported == [(0, LOST)]
        lost = Assignment(rig.hosted().topic_id, 0, LOST)
        rig.cluster.apply(assign_directories(rig.cluster.image, 1, rig.cluster.epoch(1), [lost]).records)
        assert rig.cluster.partition(lost.topic_id).leader == NO_LEADER


async def test_a_replica_that_may_be_in_several_failed_directories_is_reported_as_lost(tmp_path: Path) -> None:
    """An empty replica in a directory that was guessed would count as the member of the ISR."""
    async with running(tmp_path, directories=3) as before:
        await before.register()
        await before.create((1,))
        await before.write(b"a")
        home = before.log.directory_id

    def break_two(rig: Rig) -> None:
        another = next(each for each in rig.directories if each != home)
        for directory_id in (home, another):
            rig._disks[rig.directories.index(directory_id)]._set_failure(DiskError("broken"))

    async with started_again(before, [tmp_path / f"disk{number}" for number in range(3)], break_two) as rig:
        assert rig.hosted().image.replica(1) == Replica(1, UNASSIGNED)
        assert rig.hosted().log is None
        assert rig.hosted().offline == "its log may be in one of several directories that are offline"
        assert rig.unreported == [(0, LOST)]


async def test_an_older_copy_is_not_used_while_the_assigned_directory_is_offline(tmp_path: Path) -> None:
    """The replica started over in the other directory while this one was offline.  Then the other one fails at a start.

    A report of the older copy could reach the controller before the heartbeat that reports the failed directory.  The
    controller would elect the older copy, because the replica is in the ISR.
    """
    async with running(tmp_path, directories=2) as before:
        await before.register()
        await before.create((1,))
        await before.write(b"a")
        here, there = before.log.directory_id, other(before)
    before.alter(replicas=(Replica(1, there),))

    def break_assigned(rig: Rig) -> None:
        rig._disks[rig.directories.index(there)]._set_failure(DiskError("broken"))

    async with started_again(before, [tmp_path / f"disk{number}" for number in range(2)], break_assigned) as rig:
        assert rig.hosted().image.isr == (1,)
        assert rig.hosted().log is None
        assert rig.hosted().offline == f"its directory {there} is offline, and {here} holds an older copy"
        assert not rig.unreported


async def test_a_replica_whose_directory_was_removed_can_be_assigned_again(tmp_path: Path) -> None:
    """The replica is removed from the broker and assigned again, before the broker applies either change."""
    before, target = await moved_without_a_report(tmp_path)

    def start_fetchers(rig: Rig) -> None:
        rig.role.fetchers.start(cast(asyncio.TaskGroup, NoTasks()))

    folders = [tmp_path / f"disk{1 - before.directories.index(target)}"]
    async with started_again(before, folders, start_fetchers) as rig:
        await assigned(rig, LOST)
        assert rig.hosted().log is None
        second = Replica(2, rig.cluster.image.brokers[2].directory_ids[0])
        rig.alter(replicas=(second,), isr=(2,), leader=2)
        rig.alter(replicas=(second, Replica(1, UNASSIGNED)), adding=(1,))
        await rig.learn()
        assert rig.log.directory_id == rig.directories[0]


@pytest.mark.parametrize("is_reported", [True, False])
async def test_a_replica_that_moved_twice_is_expected_only_in_its_last_directory(
    tmp_path: Path, is_reported: bool
) -> None:
    """is_reported: the first directory is removed and the second is offline; otherwise the second is removed."""
    async with running(tmp_path, directories=3) as before:
        await before.register()
        await before.create((1,))
        await before.write(b"a")
        source = before.log.directory_id
        await assigned(before, source)
        first, second = (each for each in before.directories if each != source)
        for target in (first, second):
            await request(before, target)
            await run_moves(before)
            if is_reported:
                await assigned(before, target)
        assert before.log.directory_id == second
        removed = first if is_reported else second
        kept = [number for number, each in enumerate(before.directories) if each != removed]
    rig = Rig([tmp_path / f"disk{number}" for number in kept])
    rig.cluster = before.cluster
    if is_reported:
        rig._disks[rig.directories.index(second)]._set_failure(DiskError("broken"))
    async with rig.role:
        await rig.register(1)
        assert rig.hosted().log is None
        if is_reported:
            assert rig.hosted().offline == f"its directory {second} is offline"
            assert not rig.unreported, "the metadata already name the right directory"
        else:
            assert rig.hosted().offline == f"its log moved to directory {second}, which this broker no longer has"
            assert rig.unreported == [(0, LOST)]
    for each in rig._disks:
        each.close()


async def test_the_source_of_a_move_is_deleted_once_the_metadata_name_the_directory_of_the_log(rig: Rig) -> None:
    """After two moves that were not reported, the metadata name a directory that has nothing but a stray."""
    await rig.create((1,))
    await rig.write(b"a")
    first, second = rig.log.directory_id, other(rig)
    await assigned(rig, second)
    for target in (second, first):
        await request(rig, target)
        await run_moves(rig)
    await delete_strays(rig)
    assert {stray.directory_id for stray in rig.role.logs.strays()} == {first, second}
    await assigned(rig, first)
    await delete_strays(rig)
    assert rig.role.logs.strays() == []


async def test_the_source_of_a_move_is_deleted_after_its_topic_was_deleted(rig: Rig) -> None:
    await rig.create((1,))
    await rig.write(b"a")
    await assigned(rig, rig.log.directory_id)
    await request(rig, other(rig))
    await run_moves(rig)
    rig.cluster.apply([RemoveTopic(rig.hosted().topic_id)])
    await rig.learn()
    await delete_strays(rig)
    assert rig.role.logs.strays() == []


async def test_a_follower_continues_to_replicate_after_a_move(rig: Rig) -> None:
    await rig.create((2, 1))
    await rig.reply(2, make_batch([b"a"], base_offset=0, leader_epoch=0), high_watermark=1)
    target = other(rig)
    assert await request(rig, target) is KafkaCode.NONE
    await run_moves(rig)
    assert rig.log.directory_id == target
    await rig.reply(2, make_batch([b"b"], base_offset=1, leader_epoch=0), high_watermark=2)
    assert (rig.log.end_offset, rig.log.flushed_offset, rig.log.high_watermark) == (2, 2, 2)


async def test_a_move_to_the_current_directory_cancels_an_earlier_move(rig: Rig) -> None:
    await rig.create((1,))
    here = rig.log.directory_id
    assert await request(rig, other(rig)) is KafkaCode.NONE
    assert await request(rig, here) is KafkaCode.NONE
    assert not rig.role.logs.moves.targets
    assert [each.is_future for each in rig.replicas.hosted_logs()] == [False]
    assert await request(rig, here) is KafkaCode.NONE


async def test_a_replica_is_created_in_the_directory_that_was_requested_before_its_creation(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moves, "PREFERENCES_MAX", 3)
    for index in range(4):  # the oldest choice is dropped
        assert await request(rig, rig.directories[1], index) is KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
    await rig.create((1,), (1,), (1,), (1,), (1,))
    assert all(each.image.replicas[0].directory_id == UNASSIGNED for each in rig.role.table)
    in_second = {each.index for each in rig.replicas.hosted_logs() if each.directory_id == rig.directories[1]}
    assert in_second >= {1, 2, 3}
    assert not rig.replicas.moves._preferred.keys() & {(TOPIC, index) for index in (1, 2, 3)}


async def test_a_move_without_a_local_replica_is_refused_differently_than_in_a_missing_partition(rig: Rig) -> None:
    await rig.create((2,))
    assert await request(rig, rig.directories[1], 0) is KafkaCode.REPLICA_NOT_AVAILABLE
    assert await request(rig, rig.directories[1], 1) is KafkaCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_move_of_an_offline_replica_is_refused(rig: Rig) -> None:
    await rig.create((1,))
    target = other(rig)
    rig.role.logs.disk_failed(rig.log.directory_id, DiskError("broken"))
    assert await request(rig, target) is KafkaCode.KAFKA_STORAGE_ERROR


async def test_a_move_is_refused_if_the_directory_fails_during_the_request(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.create((1,))

    async def fail(*_: object) -> None:
        raise DiskError("broken")

    disk = rig.role.logs.disk_of(rig.log)
    monkeypatch.setattr(disk.facts, "commit", fail)
    assert await request(rig, other(rig)) is KafkaCode.KAFKA_STORAGE_ERROR
    assert rig.hosted().log is None


async def test_a_broker_config_limits_the_rate_of_moves(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(move, "THROTTLE_LOOK_S", 0.01)
    await rig.create((1,))
    for number in range(20):
        await rig.write(b"%d" % number)
    rig.cluster.apply([Config(ConfigScope.BROKER, "1", RATE, "0")])
    await rig.learn()
    target = other(rig)
    await request(rig, target)
    task = asyncio.create_task(rig.role.logs.moves.run(lambda: 1_000))
    while not rig.replicas.moves.futures()[0].size:  # noqa: ASYNC110 -- nothing reports it
        await asyncio.sleep(0.005)
    assert rig.log.directory_id != target
    rig.cluster.apply([Config(ConfigScope.BROKER, "1", RATE, None)])
    await rig.learn()
    while rig.role.logs.moves.targets:  # noqa: ASYNC110 -- nothing reports it
        await asyncio.sleep(0.005)
    assert rig.log.directory_id == target
    task.cancel()
    await rig.role.logs.moves.close()


async def test_the_deletion_of_a_topic_ends_the_move_of_its_replica(rig: Rig) -> None:
    await rig.create((1,))
    await rig.write(b"a")
    await request(rig, other(rig))
    rig.cluster.apply([RemoveTopic(rig.hosted().topic_id)])
    await rig.learn()
    assert rig.replicas.hosted_logs() == []
    await run_moves(rig)
    for disk in rig._disks:
        assert (disk.list("logs"), disk.list("futures")) == ([], [])
        assert disk.facts.load("moving/") == {}
