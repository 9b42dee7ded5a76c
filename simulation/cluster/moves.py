"""Moves of replicas between the directories of a broker (AlterReplicaLogDirs), while faults occur.

An operator moves replicas, cancels some moves, and moves some replicas back.  The fault `IN_MOVE` moves a replica and
interrupts the move: the broker crashes, or one of its two disks fails, hangs or becomes full.  Logs are small, so moves
copy a few bytes at a time in most runs.  `places.py` has the invariants.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random
from typing import NamedTuple
from unittest.mock import patch

from broker.log import copying
from broker.log import move as log_move
from quorumlog.client.cluster import Cluster
from quorumlog.errors import ClusterError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import Api
from simulation.cluster.nodes import KAFKA_PORT, Host
from simulation.cluster.plan import ClusterPlan
from simulation.cluster.world import ClusterWorld
from simulation.kernel.faults import Action, Fault, FaultInjector, with_more

MOVE = "move directory"
IN_MOVE = "failure in a move"
KINDS = (MOVE, IN_MOVE)
SHARE = 0.2
PIECES = (64, 64, 300, copying.PIECE)
PIECES_BEFORE_FLUSH = 4
HOLD_S = 1.0
"""Replaces `broker.log.move.HOLD_S`.  It is a fifth of that time, like other times in the simulator."""
CONNECT_S = 0.5
REQUEST_S = 1.0
VERSION = 2
IN_MOVE_WAIT_S = 2.0
"""Maximum wait until a requested move has begun."""
IN_MOVE_LOOK_S = 0.0007
EXPECTED = frozenset(
    {
        KafkaCode.NONE,
        KafkaCode.REPLICA_NOT_AVAILABLE,
        KafkaCode.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaCode.KAFKA_STORAGE_ERROR,
    }
)

_LOSSES = ("wipe", "last disk", "backup")
"""After these faults, the facts that a disk stores about a move may be lost or outdated."""
_WAYS = ("kill", "power", "fails", "full", "hangs")


class _Replica(NamedTuple):
    """A replica, and the number of its directory."""

    host: Host
    topic: str
    partition: int
    directory: int


def drawn(random: Random, plan: ClusterPlan) -> ClusterPlan:
    """Let an operator move replicas between directories in some runs, unless data on disks is lost.

    Disks do not fail in runs with real files.
    """
    if random.random() >= SHARE or any(fault.kind in _LOSSES for fault in plan.faults):
        return plan
    moves = random.choice((1, 2, 4, 8))
    failures = 0 if plan.real_files else random.choice((0, 1, 1, 2, 3))
    faults = []
    for kind in (*[MOVE] * moves, *[IN_MOVE] * failures):
        at_s, length_s = random.uniform(0.2, plan.chaos_s), random.uniform(0.02, 2.0)
        faults.append(Fault(0, kind, at_s, length_s, (), random.random()))
    return replace(plan, directories=2, move_piece=random.choice(PIECES), faults=with_more(plan.faults, faults))


@contextmanager
def in_pieces(plan: ClusterPlan) -> Iterator[None]:
    """Limit the bytes that moves copy at a time to `plan.move_piece`."""
    if not plan.move_piece:
        yield
        return
    piece, flush = plan.move_piece, plan.move_piece * PIECES_BEFORE_FLUSH
    with (
        patch.multiple(copying, PIECE=piece, FLUSH_BYTES=flush),
        patch.multiple(log_move, NEARLY_DONE=piece, FLUSH_BYTES=flush, HELD_BYTES_MAX=flush, HOLD_S=HOLD_S),
    ):
        yield


class DirectoryMoves:
    """The `actions` of an operator who moves replicas, and of failures in the middle of a move."""

    def __init__(self, world: ClusterWorld, injector: FaultInjector) -> None:
        self._world = world
        self._injector = injector
        self.actions: dict[str, Action] = {MOVE: self._move, IN_MOVE: self._fail_in_a_move}

    async def _move(self, fault: Fault) -> None:
        """Move a replica; then leave it alone, or request its current directory again, or move it back and forth."""
        random = self._random(fault)
        if (replica := self._chosen(random)) is None:
            return
        await self._request(replica, 1 - replica.directory, random)
        for _ in range(random.choice((0, 0, 1, 2))):
            await self._injector.wait(random.uniform(0.0, fault.length_s))
            await self._request(replica, random.randrange(2), random)

    async def _fail_in_a_move(self, fault: Fault) -> None:
        """Move a replica, and crash its broker or damage one of its disks while the move copies or is decided."""
        world, random = self._world, self._random(fault)
        if (replica := self._chosen(random)) is None:
            return
        await self._request(replica, 1 - replica.directory, random)
        host, at_decision = replica.host, random.random() < 0.5
        loop = asyncio.get_running_loop()
        end = loop.time() + IN_MOVE_WAIT_S
        while not (_is_deciding(host) if at_decision else _is_copying(host)):
            if loop.time() >= end or world.healed:
                return
            await asyncio.sleep(IN_MOVE_LOOK_S)
        await asyncio.sleep(random.uniform(0.0, 0.01))
        way = random.choice(_WAYS)
        where = " while it is decided" if _is_deciding(host) else ""
        world.watch.seen[f"failure in a move{where}"] += _is_copying(host)
        world.note(f"{way} in a move{where} of {host.name}")
        if way in ("kill", "power"):
            await self._crash(host, fault, power=way == "power")
        else:
            await self._damage(host, random.randrange(len(host.disks)), way, fault)

    async def _crash(self, host: Host, fault: Fault, *, power: bool) -> None:
        host.down += 1
        self._world.bring_down(host.config.node_id, power=power)
        await self._injector.wait(fault.length_s)
        host.down -= 1
        self._world.bring_up(host.config.node_id)

    async def _damage(self, host: Host, number: int, way: str, fault: Fault) -> None:
        """Let a disk fail once, be full for a time, or hang.

        A broker that lost the disk restarts in half of the cases.
        """
        disk = host.disks[number]
        setattr(disk, way, True)
        await self._injector.wait(fault.length_s)
        setattr(disk, way, False)
        if host.process is not None and disk.is_broken and fault.amount < 0.5:
            self._world.bring_down(host.config.node_id)
        self._world.bring_up(host.config.node_id)

    def _random(self, fault: Fault) -> Random:
        return Random(f"cluster move {self._world.plan.seed} {fault.number}")

    def _chosen(self, random: Random) -> _Replica | None:
        """Return a replica of a running broker, or None if the running brokers have no replicas."""
        found = [
            _Replica(host, each.topic, each.key.index, [disk.directory_id for disk in host.disks].index(where))
            for host in self._world.brokers
            if host.broker is not None
            for each in sorted(host.broker.role.table, key=lambda each: (each.topic, each.key.index))
            if each.log is not None and (where := each.log.directory_id)
        ]
        return random.choice(found) if found else None

    async def _request(self, replica: _Replica, directory: int, random: Random) -> None:
        """Send one request, which may get lost, to the broker, and check the answer."""
        world, host = self._world, replica.host
        path = host.config.data_dirs[directory]
        named = {"path": path, "topics": [{"name": replica.topic, "partitions": [replica.partition]}]}
        world.note(f"MOVE {replica.topic}-{replica.partition} of {host.name} to {path}")
        async with Cluster(
            world.bootstrap, request_timeout_s=REQUEST_S, connect_timeout_s=CONNECT_S, random=random
        ) as cluster:
            try:
                broker = await cluster.connection(Address(host.name, KAFKA_PORT), CONNECT_S)
                reply = await cluster.ask(broker, Api.ALTER_REPLICA_LOG_DIRS, VERSION, {"dirs": [named]}, REQUEST_S)
            except ClusterError as error:
                world.watch.seen[f"AlterReplicaLogDirs {error.code}"] += 1
                return
        codes = [KafkaCode(each.error_code) for topic in reply.results for each in topic.partitions]
        world.watch.check(
            len(codes) == 1 and codes[0] in EXPECTED, lambda: f"L2: AlterReplicaLogDirs is answered with {codes}"
        )
        world.watch.seen[f"AlterReplicaLogDirs {codes[0].name}"] += 1


def _is_copying(host: Host) -> bool:
    return host.broker is not None and host.broker.role.logs.moves._move is not None


def _is_deciding(host: Host) -> bool:
    deciding = None if host.broker is None else host.broker.role.logs.moves._deciding
    return deciding is not None and not deciding.done()
