"""Brokers in one process: real logs on real disks, real connections on loopback, and a controller without Raft.

The controller decides with `metadata.control`, the real decisions, and commits immediately.  Each broker's replay gets
the batches in order.  Brokers in `Controller.held` get no batches.  Requests of brokers in `Controller.cut` are lost.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from uuid import UUID

from crc32c import crc32c

from broker.core.partition import LeaderState
from broker.kafka.listener import KafkaServer
from broker.log import PartitionLog
from broker.replica.context import ReplicaContext
from broker.replica.limits import ReplicaLimits
from broker.replica.replica import Replica
from broker.replica.service import ReplicaService
from broker.replica.table import ReplicaTable
from broker.server.role import BrokerRole, RoleConfig
from metadata.control import brokers as control_brokers
from metadata.control.decision import Decision
from metadata.control.errors import Outcome
from metadata.control.partitions import alter_partition, assign_directories
from metadata.control.reassign import Reassigned, Wanted, alter_reassignments
from metadata.control.topics import NewTopic, create_topics, delete_topics
from metadata.controller import convert
from metadata.image import ClusterImage, PartitionImage
from metadata.records import Endpoint, Record
from quorumlog.runtime.clock import Sources
from quorumlog.runtime.file_disk import FileDisk
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.unit.broker.kafka.fake import FakeNode

T = TypeVar("T")

WAIT_S = 20.0


class Replay:
    """The replay of a broker: `MetadataReplay` without a log."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self._subscribers: list[Callable[..., None]] = []

    def subscribe(self, callback: Callable[..., None]) -> Callable[[], None]:
        self._subscribers.append(callback)
        return lambda: self._subscribers.remove(callback)

    def apply(self, base_offset: int, records: tuple[Record, ...]) -> None:
        old, self.image = self.image, self.image.apply(base_offset, records)
        for subscriber in tuple(self._subscribers):
            subscriber(old, self.image, records)


class Controller:
    """Decides immediately, on the committed image."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.log: list[tuple[int, tuple[Record, ...]]] = []
        self.replays: dict[int, Replay] = {}
        self.held: set[int] = set()
        self.cut: set[int] = set()
        self.refusals: dict[AnyRpc, ApiError] = {}
        """By method: the reply that replaces a decision."""
        self.answers: list[tuple[AnyRpc, str]] = []
        self._random = Random(7)
        self._changed = asyncio.Event()

    def commit(self, records: tuple[Record, ...]) -> None:
        if records:
            base = self.image.end_offset
            self.image = self.image.apply(base, records)
            self.log.append((base, records))
            for broker_id in sorted(self.replays):
                self._deliver(broker_id)
            self._changed.set()
            self._changed = asyncio.Event()

    def join(self, broker_id: int) -> Replay:
        replay = self.replays[broker_id] = Replay()
        self._deliver(broker_id)
        return replay

    def _deliver(self, broker_id: int) -> None:
        if broker_id not in self.held:
            replay = self.replays[broker_id]
            for base, records in self.log:
                if base >= replay.image.end_offset:
                    replay.apply(base, records)

    def release(self, broker_id: int) -> None:
        self.held.discard(broker_id)
        self._deliver(broker_id)

    def decide(self, decision: Callable[[ClusterImage], Decision[T]]) -> T:
        while True:
            made = decision(self.image)
            self.commit(made.records)
            if not made.more:
                return made.reply

    def fence(self, broker_id: int) -> None:
        self.decide(lambda image: control_brokers.fence(image, broker_id))

    def create(self, name: str, *assignment: tuple[int, ...], **configs: str) -> UUID:
        topic = NewTopic(
            name, assignment=assignment, configs=tuple((k.replace("_", "."), v) for k, v in configs.items())
        )

        def new_id() -> UUID:
            return UUID(int=self._random.getrandbits(128), version=4)

        created = self.decide(lambda image: create_topics(image, [topic], new_id))[0]
        assert created.outcome.ok, created
        assert created.topic_id is not None
        return created.topic_id

    def reassign(self, topic: str, *replicas: int, index: int = 0, **options: Any) -> Reassigned:
        """Without replicas: cancel."""
        wanted = [Wanted(topic, index, replicas)]
        answer = self.decide(lambda image: alter_reassignments(image, wanted, **options))
        assert answer.outcome.ok, answer
        return answer

    def delete(self, topic_id: UUID) -> None:
        answers = self.decide(lambda image: delete_topics(image, [], [topic_id]))
        assert answers[0].outcome.ok, answers

    def partition(self, topic_id: UUID, index: int = 0) -> PartitionImage:
        found = self.image.partition(topic_id, index)
        assert found is not None, (topic_id, index)
        return found

    async def until(self, condition: Callable[[ClusterImage], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition(self.image):
                await self._changed.wait()

    async def call(self, broker_id: int, rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
        await asyncio.sleep(0)
        if broker_id in self.cut:
            await asyncio.sleep(0.02)  # the time limit of a lost request
            return _REPLIES[rpc](result=convert.result(Outcome(ApiError.OUTCOME_UNKNOWN)))
        if rpc in self.refusals:
            return _REPLIES[rpc](result=convert.result(Outcome(self.refusals[rpc])))
        reply = self._handle(rpc, request)
        self.answers.append((rpc, reply.result.error))
        return reply

    def _handle(self, rpc: AnyRpc, request: Any) -> Any:
        match rpc:
            case rpcs.REGISTER_BROKER:
                registration = convert.registration(request)
                return convert.registered(
                    self.decide(lambda image: control_brokers.register(image, registration, session_live=False))
                )
            case rpcs.BROKER_HEARTBEAT:
                beat, calls = convert.heartbeat(request), count()
                return convert.heartbeat_answer(
                    self.decide(
                        lambda image: control_brokers.heartbeat(
                            image, beat, others_applied=1 << 60, again=next(calls) > 0
                        )
                    )
                )
            case rpcs.ALTER_PARTITION:
                changes = convert.isr_changes(request)
                return convert.altered(
                    self.decide(lambda image: alter_partition(image, request.broker_id, request.broker_epoch, changes))
                )
            case rpcs.ASSIGN_DIRECTORIES:
                items = convert.assignments(request)
                return convert.assigned(
                    self.decide(lambda image: assign_directories(image, request.broker_id, request.broker_epoch, items))
                )
            case rpcs.ALLOCATE_PRODUCER_IDS:
                return convert.allocated(
                    self.decide(
                        lambda image: control_brokers.allocate_producer_ids(
                            image, request.broker_id, request.broker_epoch
                        )
                    )
                )
        raise AssertionError(rpc)


_REPLIES: dict[AnyRpc, Any] = {
    rpcs.REGISTER_BROKER: pb.RegisterBrokerReply,
    rpcs.BROKER_HEARTBEAT: pb.BrokerHeartbeatReply,
    rpcs.ALTER_PARTITION: pb.AlterPartitionReply,
    rpcs.ASSIGN_DIRECTORIES: pb.AssignDirectoriesReply,
    rpcs.ALLOCATE_PRODUCER_IDS: pb.AllocateProducerIdsReply,
}


class Broker:
    """One broker: start, stop, crash."""

    def __init__(self, cluster: Cluster, broker_id: int, *roots: Path) -> None:
        self.cluster = cluster
        self.id = broker_id
        self.root, self.roots = roots[0], roots
        self.role: BrokerRole
        self.server: KafkaServer
        self._disks: list[FileDisk] = []
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._clean = True

    @property
    def replicas(self) -> ReplicaService:
        return self.role.replicas

    @property
    def table(self) -> ReplicaTable:
        return self.role.table

    @property
    def context(self) -> ReplicaContext:
        return self.role.context

    def hosted(self, topic: str, index: int = 0) -> Replica:
        found = self.table.find(topic, index)
        assert found is not None, (topic, index)
        return found

    def log(self, topic: str, index: int = 0) -> PartitionLog:
        log = self.hosted(topic, index).log
        assert log is not None, (topic, index)
        return log

    def led(self, topic: str, index: int = 0) -> LeaderState:
        leader = self.hosted(topic, index).leader
        assert leader is not None, (topic, index)
        return leader

    async def start(self, wait: bool = True) -> None:
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._task = asyncio.create_task(self._run(started))
        await asyncio.wait({self._task, started}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            self._task.result()
        if wait:
            async with asyncio.timeout(WAIT_S):
                await self.role.wait_serving()

    async def _run(self, started: asyncio.Future[None]) -> None:
        sources = Sources.real()
        controller = self.cluster.controller
        self._disks = []
        try:
            for root in self.roots:
                self._disks.append(FileDisk.acquire(root, self.id, "test", sources.uuid4))
            self.role = BrokerRole(
                self.cluster.config(self.id),
                sources,
                self._disks,
                controller.join(self.id),
                lambda rpc, request, timeout_ms: controller.call(self.id, rpc, request, timeout_ms),
                self.cluster.limits,
            )
            await self.role.__aenter__()
            self.server = KafkaServer(
                self.replicas,
                _no_controller,
                ["PLAINTEXT=127.0.0.1:0"],
                node=FakeNode(),
                node_id=self.id,
                cluster_id="test",
            )
            await self.server.start()
            async with asyncio.TaskGroup() as group:
                self.role.start(group, [Endpoint("PLAINTEXT", "127.0.0.1", self.server.endpoints[0].port)])
                started.set_result(None)
                await self._stop.wait()
                if self._clean:
                    await self.role.stop()
                await self.server.close()
                await self.role.close(clean=self._clean)
        finally:
            for disk in self._disks:
                disk.close()

    async def stop(self, clean: bool = True) -> None:
        """clean=False: no handover and no mark of a clean stop.  The controller learns of the stop only by `fence`."""
        assert self._task is not None
        self._clean = clean
        self._stop.set()
        async with asyncio.timeout(WAIT_S):
            await self._task
        self._task = None
        self.cluster.controller.replays.pop(self.id, None)


async def _no_controller(rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
    raise AssertionError(rpc)


class Cluster:
    """Brokers 1 to `count`, which run in its `async with` block."""

    def __init__(
        self,
        root: Path,
        count: int = 3,
        *,
        lag_max_ms: int = 2_000,
        lag_max_bytes: int = -1,
        limits: ReplicaLimits | None = None,
        directories: int = 1,
    ) -> None:
        self.controller = Controller()
        self.lag_max_ms = lag_max_ms
        self.lag_max_bytes = lag_max_bytes
        self.limits = limits
        letters = ["", *"bcd"][:directories]
        self.brokers = {
            id_: Broker(self, id_, *(root / f"{id_}{one}" for one in letters)) for id_ in range(1, count + 1)
        }

    def config(self, broker_id: int) -> RoleConfig:
        return RoleConfig(
            broker_id,
            heartbeat_interval_ms=100,
            lag_max_ms=self.lag_max_ms,
            lag_max_bytes=self.lag_max_bytes,
            shutdown_timeout_ms=5_000,
        )

    async def __aenter__(self) -> Cluster:
        for broker in self.brokers.values():
            await broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for broker in self.brokers.values():
            if broker._task is not None:
                await broker.stop(clean=False)

    def __getitem__(self, broker_id: int) -> Broker:
        return self.brokers[broker_id]

    async def until(self, condition: Callable[[], bool], expected: str = "") -> None:
        """Wait for state that no event reports (another broker's log).  expected: describes it in the error."""
        try:
            async with asyncio.timeout(WAIT_S):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(0.005)  # no event reports the state; see above
        except TimeoutError:
            raise AssertionError(f"not within {WAIT_S} s: {expected}") from None


_BODY = struct.Struct(">hiqqqhii")


def batch(*values: bytes, producer: tuple[int, int, int] = (-1, -1, -1), base: int = 0, epoch: int = -1) -> bytes:
    """Return an uncompressed record batch; producer = (id, epoch, base sequence)."""
    records = b""
    for position, value in enumerate(values):
        body = b"\0" + _varint(0) + _varint(position) + _varint(-1) + _varint(len(value)) + value + _varint(0)
        records += _varint(len(body)) + body
    count = len(values)
    rest = _BODY.pack(0, count - 1, 1_700_000_000_000, 1_700_000_000_000, *producer, count) + records
    return struct.pack(">qiib", base, len(rest) + 9, epoch, 2) + struct.pack(">I", crc32c(rest)) + rest


def _varint(value: int) -> bytes:
    zigzag = (value << 1) ^ (value >> 63)
    out = bytearray()
    while True:
        low = zigzag & 0x7F
        zigzag >>= 7
        if zigzag == 0:
            return bytes((*out, low))
        out.append(low | 0x80)


def values_of(hosted: Replica) -> list[bytes]:
    """Return the values of all records in a replica's log, whose batches were made by `batch`."""
    assert hosted.log is not None
    data = hosted.log.read(hosted.log.start_offset, 1 << 30, hosted.log.end_offset)
    found: list[bytes] = []
    position = 0
    while position < len(data):
        length = struct.unpack_from(">i", data, position + 8)[0]
        count = struct.unpack_from(">i", data, position + 57)[0]
        at = position + 61
        for _ in range(count):
            size, at = _read_varint(data, at)
            record = data[at : at + size]
            at += size
            inner = 1
            for _ in range(3):
                _, inner = _read_varint(record, inner)
            value_size, inner = _read_varint(record, inner)
            found.append(bytes(record[inner : inner + value_size]))
        position += 12 + length
    return found


def _read_varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    shift = result = 0
    while True:
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return (result >> 1) ^ -(result & 1), at
