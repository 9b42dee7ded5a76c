"""Snapshots in a whole cluster in virtual time: with them, nodes rejoin that are behind, new, wiped or restarted."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from quorum.core.types import LogEnd
from quorum.snapshots import SnapshotPolicy
from quorumlog.client.cluster import Cluster
from quorumlog.client.producer import Producer
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.errors import CorruptStoreError
from quorumlog.wire import rpcs
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from quorumlog.wire.v1 import metadata_pb2
from simulation import smoke
from simulation.cluster.nodes import Host, World
from simulation.kernel.store import QuorumDisk

POLICY = SnapshotPolicy(log_bytes=1500, retain_bytes=3000)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a snapshot every few records, and keep the log as short as possible."""
    smoke.quiet()
    monkeypatch.setattr("quorumlog_server.control_plane.SnapshotPolicy", lambda **settings: POLICY)


async def create(world: World, name: str) -> None:
    plane = next(host.plane for host in world.brokers if host.plane is not None)
    request = pb.CreateTopicsRequest(topics=[pb.NewTopic(name=name, partitions=2, replication_factor=2)])
    for _ in range(100):  # the broker may still treat a killed node as the controller
        reply = await plane.service.call(rpcs.CREATE_TOPICS, request, 10_000)
        assert isinstance(reply, pb.CreateTopicsReply)
        words = {topic.result.error for topic in reply.topics} or {reply.result.error}
        if words <= {"NONE", "TOPIC_ALREADY_EXISTS"}:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(reply)


async def change(world: World, rpc: AnyRpc, request: Any) -> Any:
    """Send the request until it succeeds, through a broker that runs."""
    for _ in range(100):
        plane = next(host.plane for host in world.brokers if host.plane is not None)
        reply = await plane.service.call(rpc, request, 10_000)
        words = {reply.result.error, *(topic.result.error for topic in reply.topics)}
        if words == {"NONE"}:
            return reply
        await asyncio.sleep(0.1)
    raise AssertionError(reply)


async def placed(world: World, name: str, *broker_ids: int) -> None:
    topic = pb.NewTopic(
        name=name,
        partitions=-1,
        replication_factor=-1,
        assignment=[metadata_pb2.IntList(values=broker_ids)],
    )
    await change(world, rpcs.CREATE_TOPICS, pb.CreateTopicsRequest(topics=[topic]))


def topics_on(host: Host) -> set[str]:
    """Return the topics of which the host has a working replica."""
    assert host.broker is not None
    return {each.topic for each in host.broker.role.table if each.log is not None}


async def up(world: World) -> None:
    world.start_all()
    await world.until(lambda: world.active() is not None, "a controller is active")
    await world.until(smoke.all_ready(world), "all brokers are ready")


async def equal(world: World) -> None:
    await world.until(
        lambda: len({smoke.image_digest(host) for host in world.hosts.values()}) == 1, "all images are equal"
    )


def start_of(host: Host) -> int:
    return host.quorum_disk.log_start


def follower(world: World) -> Host:
    return next(host for host in world.voters if host is not world.active())


async def write_past(world: World, offset: int, prefix: str) -> None:
    """Create topics until every running node's log starts above `offset`."""
    number = 0
    while any(start_of(host) <= offset for host in world.hosts.values() if host.process is not None):
        await create(world, f"{prefix}{number}")
        number += 1
        assert number < 500, [start_of(host) for host in world.hosts.values()]


@pytest.mark.parametrize("seed", range(4))
def test_a_node_rejoins_after_a_long_absence_during_writes(seed: int) -> None:
    world = World(seed)

    async def scenario() -> None:
        await up(world)
        voter, broker = follower(world), world.brokers[-1]
        for away in (voter, broker):
            world.kill(away.config.node_id)
        ends = {away.name: away.quorum_disk.log_end for away in (voter, broker)}
        await write_past(world, max(ends.values()), "t")
        for away in (voter, broker):
            world.start(away.config.node_id)
        for number in range(30):
            await create(world, f"meanwhile{number}")
        await world.until(smoke.all_ready(world), "all brokers are ready")
        await equal(world)
        for away in (voter, broker):
            assert start_of(away) > ends[away.name], "it caught up with a snapshot"

    world.run(scenario())


@pytest.mark.parametrize("seed", range(2))
def test_a_broker_that_rejoins_from_a_snapshot_has_exactly_its_current_replicas(seed: int) -> None:
    world = World(seed)

    async def scenario() -> None:
        await up(world)
        away = world.brokers[-1]
        own, other = away.config.node_id, world.brokers[0].config.node_id
        for name in ("kept", "deleted", "made anew"):
            await placed(world, name.replace(" ", "-"), other, own)
        await world.until(lambda: len(topics_on(away)) == 3, "it has all three")
        async with Cluster(world.bootstrap, random=world.random) as cluster:

            async def write(value: bytes, *topics: str) -> None:
                async with Producer(cluster, delivery_timeout_s=120) as producer:
                    for topic in topics:
                        await producer.send(topic, 0, build_batch([NewRecord(None, value, 0)]))

            await write(b"old", "kept", "deleted", "made-anew")
            world.kill(own)
            before = away.quorum_disk.log_end
            await change(world, rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(names=["deleted", "made-anew"]))
            await placed(world, "made-anew", other, own)
            await placed(world, "new", own, other)
            await write_past(world, before, "t")
            world.start(own)
            await world.until(smoke.all_ready(world), "all brokers are ready", 120)
            assert start_of(away) > before, "it caught up with a snapshot"
            wanted = {"kept", "made-anew", "new"}
            await world.until(
                lambda: wanted <= topics_on(away) and "deleted" not in topics_on(away),
                "the broker has exactly the current topics",
            )
            await write(b"new", "made-anew")
            broker = away.broker
            assert broker is not None
            hosted = broker.role.table.find("made-anew", 0)
            assert hosted is not None
            copy = hosted.log
            assert copy is not None
            await world.until(lambda: copy.end_offset == 1, "it has the one record, and nothing of the topic before")
        logs = broker.role.logs
        assert sorted(stray.folder.split(".")[0] for stray in logs.strays()) == ["deleted-0", "made-anew-0"]
        await world.until(lambda: not logs.strays(), "logs that were set aside are deleted later", 300)
        assert topics_on(away) >= wanted

    world.run(scenario(), 1200)


@pytest.mark.parametrize("seed", range(2))
def test_a_new_disk_is_filled_from_a_snapshot(seed: int) -> None:
    world = World(seed)

    async def scenario() -> None:
        await up(world)
        voter = follower(world)
        world.kill(voter.config.node_id)
        await write_past(world, 20, "t")
        voter.quorum_disk = QuorumDisk(world.random)
        world.start(voter.config.node_id)
        await equal(world)
        assert start_of(voter) > 0

    world.run(scenario())


@pytest.mark.parametrize("seed", range(2))
def test_restarted_nodes_continue_from_their_snapshots_and_elect_leaders(seed: int) -> None:
    world = World(seed)

    async def scenario() -> None:
        await up(world)
        await write_past(world, 20, "a")
        for round_ in range(3):
            active = world.active()
            assert active is not None
            world.kill(active.config.node_id)
            await world.until(lambda: world.active() is not None, "another controller is active")
            await create(world, f"round{round_}")
            world.start(active.config.node_id)
            await equal(world)
        for host in world.hosts.values():
            world.kill(host.config.node_id)
        world.start_all()
        await world.until(smoke.all_ready(world), "all brokers are ready again")
        await equal(world)
        image = world.voters[0].plane.replay.image if world.voters[0].plane is not None else None
        assert image is not None
        assert all(image.topic(f"round{round_}") is not None for round_ in range(3))

    world.run(scenario())


def test_a_damaged_snapshot_is_skipped_for_an_older_one_or_stops_the_node_if_all_are_damaged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = SnapshotPolicy(log_bytes=1500, retain_bytes=16_000)
    monkeypatch.setattr("quorumlog_server.control_plane.SnapshotPolicy", lambda **settings: policy)
    world = World(3)

    async def scenario() -> None:
        await up(world)
        voter = follower(world)
        disk = voter.quorum_disk
        await write_past(world, 20, "a")
        number = 0
        while sum(disk.log_start <= end.offset for end in disk.snapshots) < 2:
            await create(world, f"b{number}")
            number += 1
            assert number < 200, (disk.log_start, sorted(disk.snapshots))
        world.kill(voter.config.node_id)
        ends = sorted(disk.snapshots, key=lambda end: end.offset)
        disk.snapshots[ends[-1]] = damaged(disk, ends[-1])
        world.start(voter.config.node_id)
        await equal(world)  # an older snapshot and the log gave the same image
        world.kill(voter.config.node_id)
        for end in disk.snapshots.keys() - {ends[-1]}:
            disk.snapshots[end] = damaged(disk, end)
        world.start(voter.config.node_id)
        while voter.failure is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert isinstance(voter.failure, CorruptStoreError)

    world.run(scenario())


@pytest.mark.parametrize("seed", range(3))
def test_a_leader_replaces_a_damaged_snapshot_for_a_node_that_is_behind(seed: int) -> None:
    """No client writes meanwhile, so no later snapshot becomes due."""
    world = World(seed)

    async def scenario() -> None:
        await up(world)
        away = follower(world)
        world.kill(away.config.node_id)
        await write_past(world, away.quorum_disk.log_end, "t")
        active = world.active()
        assert active is not None
        disk = active.quorum_disk
        newest = max(disk.snapshots, key=lambda end: end.offset)
        rotten = {end: damaged(disk, end) for end in disk.snapshots}
        disk.snapshots.update(rotten)
        world.start(away.config.node_id)
        await equal(world)
        await world.until(lambda: start_of(away) >= newest.offset, "it caught up with a snapshot")
        await world.until(lambda: not disk.snapshots.items() & rotten.items(), "the damaged ones are deleted")
        assert disk.snapshots, "and another one exists"
        assert world.active() is active, "and no other node had to lead"

    world.run(scenario())


def damaged(disk: QuorumDisk, end: LogEnd) -> bytes:
    """Return the snapshot with one bit flipped."""
    data = disk.snapshots[end]
    middle = 2 * len(data) // 3
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
