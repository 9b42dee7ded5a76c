"""Three real nodes in one process: gRPC over loopback, SQLite in a temporary folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from quorum.core.config import RaftConfig
from quorum.core.types import Batch, LeaderChange, Role, Voters
from quorum.node import QuorumNode
from quorum.ports import LeadershipLostError, NotLeaderError
from quorum.store import SqliteQuorumStore
from quorum.transport.grpc import GrpcTransport
from quorumlog.errors import ConfigError, CorruptStoreError
from quorumlog.runtime.clock import Sources
from tests.without_snapshots import MachineWithoutSnapshots

ELECTION_TIMEOUT_MS = 300
FETCH_TIMEOUT_MS = 600


class Machine(MachineWithoutSnapshots):
    """Keeps the applied batches, and lets tests wait for them."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.leaders: list[tuple[int, int | None, bool]] = []
        self.changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    def apply(self, batch: Batch) -> None:
        self.batches.append(batch)
        self._tell()

    def leadership(self, epoch: int, leader_id: int | None, is_leader: bool) -> None:
        self.leaders.append((epoch, leader_id, is_leader))
        self._tell()

    def _tell(self) -> None:
        self._tasks.append(asyncio.ensure_future(self._notify()))

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(30), self.changed:
            await self.changed.wait_for(condition)

    @property
    def payloads(self) -> list[bytes]:
        return [batch.payload for batch in self.batches if batch.control is None]


class Running:
    """One node, run as a process would: in a task that can be stopped, or cancelled as if it were killed."""

    def __init__(self, config: RaftConfig, folder: Path, transport: GrpcTransport) -> None:
        self.machine = Machine()
        self.node = QuorumNode(
            config, SqliteQuorumStore(folder, Sources.real()), transport, self.machine, Sources.real()
        )
        self._stop = asyncio.Event()
        self._entered = asyncio.Event()
        self.task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        try:
            async with self.node:
                self._entered.set()
                await self._stop.wait()
        finally:
            self._entered.set()

    async def entered(self) -> Running:
        await self._entered.wait()
        if self.task.done():
            await self.task
        return self

    async def stop(self) -> None:
        self._stop.set()
        await self.task

    async def kill(self) -> None:
        """End the node without a farewell or a handover."""
        self.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self.task


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.addresses: dict[int, str] = {}
        self.running: dict[int, Running] = {}
        self._transports: dict[int, GrpcTransport] = {}

    def _transport(self, node_id: int) -> GrpcTransport:
        transport = GrpcTransport(self.addresses.get(node_id, "127.0.0.1:0"))
        self.addresses[node_id] = transport.bind()
        return transport

    def reserve(self, *node_ids: int) -> None:
        """Bind the ports of these nodes, so that each node can be started with the ports of the others."""
        for node_id in node_ids:
            self._transports[node_id] = self._transport(node_id)

    async def start(self, node_id: int, voters: tuple[int, ...] = (), **settings: Any) -> Running:
        transport = self._transports.pop(node_id, None) or self._transport(node_id)
        config = RaftConfig(
            node_id,
            self.addresses[node_id],
            bootstrap=tuple(address for other, address in self.addresses.items() if other != node_id),
            initial_voters=tuple((voter, self.addresses[voter]) for voter in voters),
            new_cluster_id=f"made-by-{node_id}",
            election_timeout_ms=ELECTION_TIMEOUT_MS,
            fetch_timeout_ms=FETCH_TIMEOUT_MS,
        )
        config = replace(config, **settings)
        self.running[node_id] = Running(config, self.folder / str(node_id), transport)
        return await self.running[node_id].entered()

    async def voters(self, *node_ids: int) -> None:
        self.reserve(*node_ids)
        for node_id in node_ids:
            await self.start(node_id, node_ids)

    async def leader(self, besides: tuple[int, ...] = ()) -> Running:
        """Return the node that leads, once it has applied its LeaderChange."""
        candidates = [one for node_id, one in self.running.items() if node_id not in besides and not one.task.done()]

        async def leading(one: Running) -> Running:
            await one.machine.until(
                lambda: (
                    one.node.role is Role.LEADER
                    and any(
                        isinstance(batch.control, LeaderChange) and batch.epoch == one.node.epoch
                        for batch in one.machine.batches
                    )
                )
            )
            return one

        return await first(*(leading(one) for one in candidates))

    async def append(self, *payloads: bytes) -> int:
        """Append through the current leader, and return the committed end offset."""
        leader = await self.leader()
        node, epoch = leader.node, leader.node.epoch
        end = 0
        for payload in payloads:
            end = node.append(epoch, payload, 1) + 1
        async with asyncio.timeout(30):
            await node.committed(end, epoch)
        return end

    async def applied(self, end: int) -> None:
        async with asyncio.timeout(30):
            await asyncio.gather(*(one.node.applied(end) for one in self.running.values() if not one.task.done()))


async def first(*waits: Awaitable[Running]) -> Running:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    return done.pop().result()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    async with AsyncExitStack() as stack:
        yield cluster
        for one in cluster.running.values():
            if not one.task.done():
                stack.push_async_callback(one.kill)


async def test_a_single_voter_founds_commits_and_restarts(cluster: Cluster) -> None:
    one = await cluster.start(1, standalone=True)
    async with asyncio.timeout(30):
        assert await one.node.joined() == "made-by-1"
    end = await cluster.append(b"a", b"b")
    await cluster.applied(end)
    assert one.machine.payloads == [b"a", b"b"]
    assert isinstance(one.machine.batches[0].control, Voters)
    assert one.node.is_caught_up()
    assert one.node.describe().voters[0].replica.address == cluster.addresses[1]
    epoch, directory = one.node.epoch, one.node.directory_id
    await one.stop()
    one = await cluster.start(1, standalone=True)
    end = await cluster.append(b"c")
    await cluster.applied(end)
    assert one.machine.payloads == [b"a", b"b", b"c"]
    assert one.node.epoch > epoch
    assert one.node.directory_id == directory


async def test_three_voters_elect_commit_and_agree(cluster: Cluster) -> None:
    await cluster.voters(1, 2, 3)
    payloads = [bytes([number]) * 10 for number in range(50)]
    end = await cluster.append(*payloads)
    await cluster.applied(end)
    logs = [one.machine.batches[:] for one in cluster.running.values()]
    assert logs[0] == logs[1] == logs[2]
    assert cluster.running[1].machine.payloads == payloads
    leader = await cluster.leader()
    for one in cluster.running.values():
        assert one.node.leader_id == leader.node.node_id
        assert one.node.cluster_id == "made-by-1"
    node, meter = leader.node, leader.node.meter
    assert node.role is Role.LEADER
    assert node.high_watermark == node.log_end_offset == node.applied_offset == end
    assert meter.appends == 50
    assert meter.fsyncs < 50, "proposals that wait share a write"
    assert meter.commit_s is not None


async def test_a_killed_leader_is_replaced_and_no_committed_record_is_lost(cluster: Cluster) -> None:
    await cluster.voters(1, 2, 3)
    await cluster.append(b"before")
    old = await cluster.leader()
    old_epoch = old.node.epoch
    await old.kill()
    new = await cluster.leader()
    assert new.node.epoch > old_epoch
    end = await cluster.append(b"after")
    await cluster.applied(end)
    for one in cluster.running.values():
        if not one.task.done():
            assert one.machine.payloads == [b"before", b"after"]
    back = await cluster.start(old.node.node_id, (1, 2, 3))
    await cluster.applied(end)
    assert back.machine.payloads == [b"before", b"after"]
    assert back.node.role is Role.FOLLOWER


async def test_records_survive_a_kill_and_restart_of_all_nodes(cluster: Cluster) -> None:
    await cluster.voters(1, 2, 3)
    end = await cluster.append(b"a", b"b")
    await cluster.applied(end)
    cluster_id = cluster.running[1].node.cluster_id
    for one in cluster.running.values():
        await one.kill()
    for node_id in (1, 2, 3):
        await cluster.start(node_id)  # an existing cluster needs no voter list
    end = await cluster.append(b"c")
    await cluster.applied(end)
    for one in cluster.running.values():
        assert one.machine.payloads == [b"a", b"b", b"c"]
        assert one.node.cluster_id == cluster_id


async def test_a_leader_that_stops_hands_over(cluster: Cluster) -> None:
    await cluster.voters(1, 2, 3)
    await cluster.append(b"a")
    old = await cluster.leader()
    await old.stop()
    new = await cluster.leader()
    assert new.node.epoch > old.node.epoch
    assert old.node.role in (Role.RESIGNED, Role.FOLLOWER), "it gave up leadership before it stopped"


async def test_observers_follow_and_catch_up(cluster: Cluster) -> None:
    await cluster.voters(1, 2, 3)
    await cluster.append(*(b"%d" % number for number in range(300)))
    observer = await cluster.start(11)
    async with asyncio.timeout(30):
        assert await observer.node.joined() == "made-by-1"
    end = await cluster.append(b"last")
    await cluster.applied(end)
    assert len(observer.machine.payloads) == 301
    assert observer.node.is_caught_up()
    assert observer.node.role is Role.FOLLOWER
    leader = await cluster.leader()
    assert [status.replica.key.node_id for status in leader.node.describe().observers] == [11]
    await observer.kill()
    end = await cluster.append(b"missed")
    observer = await cluster.start(11)
    await cluster.applied(end)
    assert len(observer.machine.payloads) == 302


async def test_an_observer_gets_batches_that_are_only_in_the_store_of_the_leader(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("quorum.log_disk.RECENT_MAX_BYTES", 1000)
    await cluster.voters(1, 2, 3)
    for one in cluster.running.values():
        one.node.core.log._recent_max_bytes = 1000
    payloads = [b"%03d" % number * 100 for number in range(100)]
    end = await cluster.append(*payloads)
    await cluster.applied(end)
    observer = await cluster.start(11, fetch_max_bytes=2000)
    await cluster.applied(end)
    assert observer.machine.payloads == payloads


async def test_nodes_that_do_not_lead_refuse_proposals(cluster: Cluster) -> None:
    await cluster.voters(1, 2, 3)
    leader = await cluster.leader()
    epoch = leader.node.epoch
    for one in cluster.running.values():
        if one is not leader:
            with pytest.raises(NotLeaderError):
                one.node.append(epoch, b"x", 1)
            with pytest.raises(LeadershipLostError):
                await one.node.committed(1, epoch)
    with pytest.raises(NotLeaderError):
        leader.node.append(epoch - 1, b"x", 1)


async def test_a_lost_leadership_ends_the_wait_for_a_commit(cluster: Cluster) -> None:
    await cluster.voters(1, 2, 3)
    leader = await cluster.leader()
    epoch = leader.node.epoch
    for one in cluster.running.values():
        if one is not leader:
            await one.kill()
    end = leader.node.append(epoch, b"never committed", 1) + 1
    waiting = asyncio.ensure_future(leader.node.committed(end, epoch))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await leader.node.resign("a test")
        with pytest.raises(LeadershipLostError):
            await waiting


async def test_a_node_of_another_cluster_id_ends_with_an_error(cluster: Cluster) -> None:
    await cluster.start(1, standalone=True)
    await cluster.append(b"a")
    stranger = await cluster.start(2, cluster_id="another")
    with pytest.raises(ConfigError, match="belongs to cluster another"):
        async with asyncio.timeout(30):
            await stranger.task


async def test_k15_a_failing_disk_ends_the_node(cluster: Cluster) -> None:
    one = await cluster.start(1, standalone=True)
    await cluster.append(b"a")
    store = one.node._store
    assert isinstance(store, SqliteQuorumStore)
    await store._run(lambda connection: connection.execute("DROP TABLE batches"))
    one.node.append(one.node.epoch, b"x", 1)
    with pytest.raises(CorruptStoreError):
        async with asyncio.timeout(30):
            await one.task


async def test_k15_a_failing_state_machine_ends_the_node(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    one = await cluster.start(1, standalone=True)
    await cluster.append(b"a")

    def broken(batch: Batch) -> None:
        raise AssertionError("cannot apply this")

    monkeypatch.setattr(one.machine, "apply", broken)
    one.node.append(one.node.epoch, b"x", 1)
    with pytest.raises(AssertionError, match="cannot apply this"):
        async with asyncio.timeout(30):
            await one.task


async def test_an_append_while_a_batch_is_applied_fails_an_assertion(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start(1, standalone=True)
    await cluster.append(b"a")

    def reentrant(batch: Batch) -> None:
        one.node.append(batch.epoch, b"more", 1)

    monkeypatch.setattr(one.machine, "apply", reentrant)
    one.node.append(one.node.epoch, b"x", 1)
    with pytest.raises(AssertionError, match="while a batch is applied"):
        async with asyncio.timeout(30):
            await one.task
