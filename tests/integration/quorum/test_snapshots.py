"""Snapshots over gRPC and SQLite: a voter that was down, a voter with an empty disk, and a restart of the others."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from quorum.core.types import Role
from quorum.snapshot_file import snapshot_name
from quorum.snapshots import SnapshotPolicy
from quorum.transport.grpc import GrpcTransport
from quorumlog.runtime.addresses import Address, InitialVoter
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.config import NodeConfig
from quorumlog_server.control_plane import ControlPlane, make_store
from tests.integration.quorum.test_control_plane import configure, create, free_ports, ready, register

POLICY = SnapshotPolicy(log_bytes=1000, retain_bytes=2000)


def plane(config: NodeConfig) -> ControlPlane:
    sources = Sources.real()
    return ControlPlane(
        config, sources, make_store(config, sources), GrpcTransport(config.control_listen), snapshots=POLICY
    )


async def grow(one: ControlPlane, first: int) -> None:
    """Write changes until this node's log starts above `first`."""
    number = 0
    while one.node.core.log.start <= first:
        await register(one, 100 + number)
        number += 1
        assert number < 500, one.node.core.log.start


async def same(*planes: ControlPlane) -> None:
    async with asyncio.timeout(30):
        while len(ends := {one.replay.image.end_offset for one in planes}) > 1:
            for one in planes:
                await one.replay.wait_for(max(ends))
    assert len({one.replay.image.digest() for one in planes}) == 1


async def test_voters_rejoin_by_snapshot_during_writes(tmp_path: Path) -> None:
    ports = free_ports(3)
    voters = tuple(InitialVoter(number, Address("127.0.0.1", port)) for number, port in enumerate(ports, 1))
    configs = [configure(tmp_path, number, port, initial_voters=voters) for number, port in enumerate(ports, 1)]
    async with plane(configs[0]) as one, plane(configs[1]) as two:
        async with plane(configs[2]) as three:
            await ready(one, two, three)
            away_at = three.node.log_end_offset
        await grow(one, away_at)
        async with plane(configs[2]) as three:
            writes = asyncio.create_task(_register_all(one, range(1000, 1030)))
            await ready(three)
            await writes
            await same(one, two, three)
            assert three.node.core.log.start > away_at
        shutil.rmtree(tmp_path / "3")
        async with plane(configs[2]) as three:
            await ready(three)
            await same(one, two, three)
            assert three.node.core.log.start > away_at
    async with plane(configs[0]) as one, plane(configs[1]) as two:
        await ready(one, two)
        await same(one, two)
        assert set(range(1000, 1030)) <= set(one.replay.image.brokers)
        assert (await create(one, "still-decides")).result.error != "NOT_CONTROLLER"


async def test_a_damaged_snapshot_of_the_leader_is_replaced_for_a_voter(tmp_path: Path) -> None:
    ports = free_ports(3)
    voters = tuple(InitialVoter(number, Address("127.0.0.1", port)) for number, port in enumerate(ports, 1))
    configs = [configure(tmp_path, number, port, initial_voters=voters) for number, port in enumerate(ports, 1)]
    async with plane(configs[0]) as one, plane(configs[1]) as two:
        async with plane(configs[2]) as three:
            await ready(one, two, three)
            away_at = three.node.log_end_offset
        leader = one if one.node.role is Role.LEADER else two
        await grow(leader, away_at)
        snapshot = leader.node.core.snapshot
        assert snapshot is not None
        file = tmp_path / str(leader.node.node_id) / "quorum" / snapshot_name(snapshot)
        rotten = bytearray(file.read_bytes())
        rotten[len(rotten) // 2] ^= 1
        file.write_bytes(rotten)
        async with plane(configs[2]) as three:
            await ready(three)
            await same(one, two, three)
            assert three.node.core.log.start >= snapshot.offset
        assert not file.exists() or file.read_bytes() != rotten


async def _register_all(one: ControlPlane, ids: range) -> None:
    for broker_id in ids:
        await register(one, broker_id)
