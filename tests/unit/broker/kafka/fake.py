"""A broker's data plane in memory, for tests of the Kafka listener.

`FakeReplicas` stores batches unchanged, checks them as a broker does, knows producers' sequences, and can hold back
acknowledgements.  `FakeController` creates and deletes topics in the same image.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from broker.core.coordinator.transaction_requests import TransactionSupport
from broker.kafka import api
from broker.kafka.listener import KafkaServer
from metadata.controller.admin import add_partitions, unregister_broker
from metadata.controller.configs import alter_configs
from metadata.controller.elections import elect_leaders
from metadata.controller.features import upgrade_feature
from metadata.controller.reassignments import alter_reassignments, describe_reassignments
from metadata.image import ClusterImage
from metadata.records import (
    BrokerChange,
    Endpoint,
    Partition,
    RegisterBroker,
    RemoveTopic,
    Replica,
    Topic,
)
from quorumlog.wire import record_batch, rpcs
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.rpcs import AnyRpc
from quorumlog.wire.v1 import controller_pb2 as pb

MESSAGE_MAX_BYTES = 1_048_588
FINE = pb.Result(error="NONE")


@dataclass
class FakeLog:
    """batches: (base offset, end offset, max timestamp, bytes)."""

    batches: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    sequences: dict[tuple[int, int, int, int], int] = field(default_factory=dict)
    next_sequence: dict[tuple[int, int], int] = field(default_factory=dict)
    start_offset: int = 0

    @property
    def end_offset(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    def append(self, header: record_batch.BatchHeader, data: memoryview) -> int:
        base = self.end_offset
        stored = bytearray(data)
        record_batch.patch(stored, base, 0)
        self.batches.append((base, base + header.record_count, header.max_timestamp, bytes(stored)))
        return base

    def read(self, offset: int, max_bytes: int) -> bytes:
        out = b""
        for base, end, _, data in self.batches:
            if end <= offset:
                continue
            if out and len(out) + len(data) > max_bytes:
                break
            out += data
            assert base <= offset or out
        return out


class FakeReplicas:
    """Broker `node_id` leads every partition."""

    def __init__(self, node_id: int = 1) -> None:
        self.node_id = node_id
        self.image = ClusterImage()
        self.logs: dict[tuple[str, int], FakeLog] = defaultdict(FakeLog)
        self.acknowledge = asyncio.Event()
        """While it is cleared, produced batches are appended, but not answered."""
        self.acknowledge.set()
        self.appended = asyncio.Event()
        self.produced: list[tuple[str, int, int, bytes]] = []
        """(topic, index, acks, received bytes), in the order of the calls."""
        self.deletion_timeouts: list[int] = []
        self.moves: list[api.RequestedMove] = []
        self.futures: list[api.HostedLog] = []
        self.plans: list[api.FetchPlan] = []
        self.fetches_parked = 0
        self._held: list[tuple[asyncio.Future[api.ProduceResult], api.ProduceResult]] = []
        self._next_producer_id = 1000

    # --- metadata ---

    def apply(self, *records: Any) -> None:
        self.image = self.image.apply(self.image.end_offset, records)

    def register(self, *endpoints: Endpoint, node_id: int | None = None, fenced: bool = False) -> None:
        broker_id = self.node_id if node_id is None else node_id
        offset = self.image.end_offset
        directory = UUID(int=broker_id + 1)
        self.apply(RegisterBroker(broker_id, UUID(int=broker_id + 77), tuple(endpoints), (directory,), rack="r1"))
        if not fenced:
            self.apply(BrokerChange(broker_id, offset, fenced=False))

    def create(self, name: str, partitions: int = 1, leader: int | None = None) -> UUID:
        topic_id = UUID(int=(self.image.end_offset << 64) + 5)
        leader = self.node_id if leader is None else leader
        replicas = (Replica(self.node_id),)
        made = [
            Partition(topic_id, index, replicas, (self.node_id,), leader, self.image.first_leader_epoch(name, index))
            for index in range(partitions)
        ]
        self.apply(Topic(topic_id, name), *made)
        return topic_id

    def delete(self, name: str) -> None:
        topic = self.image.topic(name)
        assert topic is not None
        self.apply(RemoveTopic(topic.topic_id))
        for key in [key for key in self.logs if key[0] == name]:
            del self.logs[key]

    def _refusal(self, topic: str, index: int) -> KafkaCode | None:
        image = self.image.topic(topic)
        partition = None if image is None else image.partition(index)
        if partition is None:
            return KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
        return None if partition.leader == self.node_id else KafkaCode.NOT_LEADER_OR_FOLLOWER

    # --- data ---

    def start_produce(
        self,
        topic: str,
        index: int,
        batches: memoryview,
        acks: int,
        timeout_ms: int,
        transactional_id: str | None = None,
        support: TransactionSupport | None = None,
    ) -> asyncio.Future[api.ProduceResult]:
        self.produced.append((topic, index, acks, bytes(batches)))
        future: asyncio.Future[api.ProduceResult] = asyncio.get_running_loop().create_future()
        result = self._append(topic, index, batches)
        if result.error_code or self.acknowledge.is_set() or acks == 0:
            future.set_result(result)
        else:
            self._held.append((future, result))
        self.appended.set()
        return future

    def _append(self, topic: str, index: int, batches: memoryview) -> api.ProduceResult:
        if (refusal := self._refusal(topic, index)) is not None:
            leader = 2 if refusal is KafkaCode.NOT_LEADER_OR_FOLLOWER else -1
            return api.ProduceResult(int(refusal), leader_id=leader, leader_epoch=0 if leader == 2 else -1)
        headers = record_batch.validate_batches(batches, MESSAGE_MAX_BYTES)
        if isinstance(headers, record_batch.BatchRefusal):
            return api.ProduceResult(int(headers.code), error_message=headers.reason)
        log = self.logs[topic, index]
        base, position = -1, 0
        for header in headers:
            part = batches[position : position + header.size]
            position += header.size
            if header.has_producer_id:
                key = (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence)
                if key in log.sequences:
                    return api.ProduceResult(0, log.sequences[key], 0)
                due = log.next_sequence.get(key[:2], 0)
                if header.base_sequence != due:
                    reason = f"sequence {header.base_sequence}, due is {due}"
                    return api.ProduceResult(int(KafkaCode.OUT_OF_ORDER_SEQUENCE_NUMBER), error_message=reason)
                log.next_sequence[key[:2]] = header.last_sequence + 1
                log.sequences[key] = log.end_offset
            offset = log.append(header, part)
            base = offset if base == -1 else base
        return api.ProduceResult(0, base, 0)

    def acknowledge_one(self) -> None:
        """Send the oldest answer that is held back."""
        future, result = self._held.pop(0)
        future.set_result(result)

    def acknowledge_all(self) -> None:
        self.acknowledge.set()
        held, self._held = self._held, []
        for future, result in held:
            if not future.done():
                future.set_result(result)
        self.appended.set()

    async def produce(
        self, topic: str, index: int, batches: memoryview, acks: int, timeout_ms: int
    ) -> api.ProduceResult:
        return await self.start_produce(topic, index, batches, acks, timeout_ms)

    async def fetch(self, request: api.FetchPlan) -> api.FetchReply:
        self.plans.append(request)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(request.max_wait_ms, 30_000) / 1000
        while True:
            self.appended.clear()
            results = self._read_all(request)
            size = sum(len(result.records) for result in results)
            left = deadline - loop.time()
            if size >= request.min_bytes or left <= 0 or any(result.error_code for result in results):
                return api.FetchReply(0, 0, results)
            self.fetches_parked += 1
            try:
                async with asyncio.timeout(left):
                    await self.appended.wait()
            except TimeoutError:
                pass
            finally:
                self.fetches_parked -= 1

    def _read_all(self, request: api.FetchPlan) -> tuple[api.FetchResult, ...]:
        """Read in the order of the request.  Partitions for which the answer has no more room get no records."""
        results: list[api.FetchResult] = []
        size = 0
        for item in request.partitions:
            result = self._read(item, request.max_bytes - size)
            if size and size + len(result.records) > request.max_bytes:
                result = msgspec.structs.replace(result, records=b"")
            size += len(result.records)
            results.append(result)
        return tuple(results)

    def _read(self, item: api.FetchPartition, max_bytes: int) -> api.FetchResult:
        name = item.topic
        if name is None:
            topic = self.image.topics.get(item.topic_id) if item.topic_id is not None else None
            if topic is None:
                return api.FetchResult(item.topic_id, None, item.index, int(KafkaCode.UNKNOWN_TOPIC_ID))
            name = topic.name
        if (refusal := self._refusal(name, item.index)) is not None:
            return api.FetchResult(item.topic_id, name, item.index, int(refusal))
        log = self.logs[name, item.index]
        start, end = log.start_offset, log.end_offset
        if not start <= item.fetch_offset <= end:
            return api.FetchResult(item.topic_id, name, item.index, int(KafkaCode.OFFSET_OUT_OF_RANGE), end, end, start)
        records = log.read(item.fetch_offset, min(item.max_bytes, max_bytes))
        return api.FetchResult(item.topic_id, name, item.index, 0, end, end, start, records)

    def start_delete(self, topic: str, index: int, offset: int, timeout_ms: int) -> asyncio.Future[api.DeletedRecords]:
        self.deletion_timeouts.append(timeout_ms)
        future: asyncio.Future[api.DeletedRecords] = asyncio.get_running_loop().create_future()
        refusal = self._refusal(topic, index)
        log = self.logs[topic, index]
        offset = log.end_offset if offset == api.UP_TO_WATERMARK else offset
        if refusal is not None or not 0 <= offset <= log.end_offset:
            future.set_result(api.DeletedRecords(int(refusal or KafkaCode.OFFSET_OUT_OF_RANGE)))
        else:
            log.start_offset = max(log.start_offset, offset)
            future.set_result(api.DeletedRecords(0, log.start_offset))
        return future

    async def list_offset(
        self, topic: str, index: int, timestamp: int, current_leader_epoch: int = -1, *, read_committed: bool = False
    ) -> api.ListOffsetResult:
        if (refusal := self._refusal(topic, index)) is not None:
            return api.ListOffsetResult(int(refusal))
        log = self.logs[topic, index]
        if timestamp in (api.EARLIEST_TIMESTAMP, api.EARLIEST_LOCAL_TIMESTAMP):
            return api.ListOffsetResult(0, log.start_offset, -1, 0)
        if timestamp == api.LATEST_TIMESTAMP:
            return api.ListOffsetResult(0, log.end_offset, -1, 0)
        if timestamp < api.EARLIEST_LOCAL_TIMESTAMP:
            return api.ListOffsetResult(0)
        found = [(base, newest) for base, _, newest, _ in log.batches if newest >= timestamp]
        if timestamp == api.MAX_TIMESTAMP:
            found = sorted(found, key=lambda item: -item[1])
        return api.ListOffsetResult(0, found[0][0], found[0][1], 0) if found else api.ListOffsetResult(0)

    def epoch_end(
        self, topic: str, index: int, leader_epoch: int, current_leader_epoch: int = -1
    ) -> api.EpochEndResult:
        if (refusal := self._refusal(topic, index)) is not None:
            return api.EpochEndResult(int(refusal))
        return api.EpochEndResult(0, 0, self.logs[topic, index].end_offset)

    def hosted_logs(self) -> list[api.HostedLog]:
        return [
            api.HostedLog(DIRECTORY, name, index, sum(len(batch[3]) for batch in log.batches), 0)
            for (name, index), log in sorted(self.logs.items(), reverse=True)
        ] + self.futures

    async def move_replicas(self, moves: Sequence[api.RequestedMove]) -> list[KafkaCode]:
        known = [(each.topic, each.index) in self.logs for each in moves]
        self.moves += [each for each, is_known in zip(moves, known, strict=True) if is_known]
        return [KafkaCode.NONE if is_known else KafkaCode.REPLICA_NOT_AVAILABLE for is_known in known]

    def active_producers(self, topic: str, index: int) -> list[api.ActiveProducer] | int:
        if (refusal := self._refusal(topic, index)) is not None:
            return int(refusal)
        sequences = self.logs[topic, index].next_sequence
        return [api.ActiveProducer(*key, following - 1) for key, following in sorted(sequences.items())]

    async def allocate_producer_id(self) -> api.ProducerIdResult:
        self._next_producer_id += 1
        return api.ProducerIdResult(0, self._next_producer_id, 0)


DIRECTORY = UUID(int=900)


class FakeNode:
    """A process with three data directories, the second of which has failed, and a quorum of two nodes."""

    def __init__(self) -> None:
        self.state: api.QuorumState | None = api.QuorumState(
            1,
            7,
            90,
            (
                api.QuorumReplica(1, UUID(int=11), "127.0.0.1:9093", 100, 5_000, 5_000),
                api.QuorumReplica(2, UUID(int=12), "[::1]:9094", 95, 4_990, 4_900),
            ),
            (api.QuorumReplica(3, UUID(int=13), "127.0.0.1:9095", 90, -1, -1),),
        )

    def directories(self) -> list[api.DataDirectory]:
        return [
            api.DataDirectory(DIRECTORY, "/data/a", False, 1000, 400),
            api.DataDirectory(UUID(int=901), "/data/b", True, 1000, 0),
            api.DataDirectory(UUID(int=902), "/data/c", False, 1000, 1000),
        ]

    def settings(self) -> Sequence[api.NodeSetting]:
        return (
            api.NodeSetting("node.id", api.SettingType.INTEGER, "1", None, True, "id of this node"),
            api.NodeSetting("broker.rack", api.SettingType.TEXT, None, None, False, "rack of this node"),
            api.NodeSetting("quorum.auto.join", api.SettingType.BOOLEAN, "true", "false", True, "become a voter"),
        )

    async def quorum(self, timeout_ms: int) -> api.QuorumState | None:
        return self.state


class AtOnce:
    """The part of the controller that its handlers need: decide on the current image, and commit immediately."""

    def __init__(self, replicas: FakeReplicas) -> None:
        self.replicas = replicas

    async def execute(self, decide: Any, timeout_ms: float) -> Any:
        decision = decide(self.replicas.image)
        self.replicas.apply(*decision.records)
        return decision.reply

    def elect_soon(self) -> None: ...


DECIDED: dict[AnyRpc, Any] = {
    rpcs.ADD_PARTITIONS: add_partitions,
    rpcs.ALTER_CONFIGS: alter_configs,
    rpcs.ALTER_REASSIGNMENTS: alter_reassignments,
    rpcs.ELECT_LEADERS: elect_leaders,
    rpcs.UNREGISTER_BROKER: unregister_broker,
    rpcs.UPGRADE_FEATURE: upgrade_feature,
}


class FakeController:
    def __init__(self, replicas: FakeReplicas) -> None:
        self.replicas = replicas
        self.requests: list[tuple[AnyRpc, Any]] = []
        self.failure: pb.Result | None = None
        self.voters_changed = pb.ChangeVotersReply(result=FINE, changed=True, offset=1)

    async def call(self, rpc: AnyRpc, request: Any, timeout_ms: int) -> Any:
        request.header.timeout_ms = timeout_ms
        self.requests.append((rpc, request))
        if rpc == rpcs.CREATE_TOPICS:
            if self.failure is not None:
                return pb.CreateTopicsReply(result=self.failure)
            return pb.CreateTopicsReply(result=FINE, topics=[self._create(t) for t in request.topics])
        if rpc in (*DECIDED, rpcs.LIST_REASSIGNMENTS) and self.failure is not None:
            return rpc.reply_of(self.failure)
        if rpc == rpcs.CHANGE_VOTERS:
            return self.voters_changed
        if rpc == rpcs.LIST_REASSIGNMENTS:
            return await describe_reassignments(self.replicas.image, request)
        if rpc in DECIDED:
            return await DECIDED[rpc](AtOnce(self.replicas), request, 1000)
        assert rpc == rpcs.DELETE_TOPICS, rpc
        return pb.DeleteTopicsReply(result=FINE, topics=[self._delete(name) for name in request.names])

    def _create(self, topic: pb.NewTopic) -> pb.CreatedTopic:
        if self.replicas.image.topic(topic.name) is not None:
            refusal = pb.Result(error="TOPIC_ALREADY_EXISTS", message=f"topic {topic.name} exists")
            return pb.CreatedTopic(name=topic.name, result=refusal)
        partitions = len(topic.assignment) or max(1, topic.partitions)
        topic_id = self.replicas.create(topic.name, partitions)
        return pb.CreatedTopic(
            name=topic.name,
            result=FINE,
            topic_id=topic_id.bytes,
            partitions=partitions,
            replication_factor=1,
            offset=self.replicas.image.end_offset,
        )

    def _delete(self, name: str) -> pb.DeletedTopic:
        topic = self.replicas.image.topic(name)
        if topic is None:
            refusal = pb.Result(error="UNKNOWN_TOPIC_OR_PARTITION", message=f"no topic {name}")
            return pb.DeletedTopic(name=name, result=refusal)
        self.replicas.delete(name)
        return pb.DeletedTopic(name=name, topic_id=topic.topic_id.bytes, result=FINE)


@asynccontextmanager
async def listening(replicas: FakeReplicas, **options: Any) -> AsyncIterator[KafkaServer]:
    """Run one listener of node 1 over these replicas.  options: further arguments of `KafkaServer`."""
    controller = FakeController(replicas)
    server = KafkaServer(
        replicas, controller.call, ("127.0.0.1:0",), node=FakeNode(), node_id=1, cluster_id="c", **options
    )
    await server.start()
    try:
        yield server
    finally:
        await server.close()
