"""Brokers that coordinate groups: real state machines and listeners, with one log that all brokers share.

The leader of a partition of `__consumer_offsets` coordinates its groups.  `FakeBrokers.move` moves it; the next leader
replays the records, as a real one does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.client import Client
from broker.core.coordinator.fields import int16, int32, string
from broker.core.coordinator.placement import partition_of
from broker.kafka.api import Groups
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.driver import Cluster, Coordinator, subscription
from tests.unit.broker.kafka.fake import FakeReplicas
from tests.unit.quorumlog.client.fake_cluster import FakeBrokers

OFFSETS = "__consumer_offsets"
PARTITIONS = 2


class GroupsOfCluster:
    """The coordinators of all brokers.

    refusal: given instead of any answer while it is set.  hangs: brokers whose calls are never answered.  lost: this
    many answers are replaced by `lost_code`, although the requests were applied.  topics: those that consumer groups
    and share groups see, each with its number of partitions.  creations: how often a broker was to create the topic.
    """

    def __init__(self) -> None:
        self.by_place: dict[tuple[int, int], Coordinator] = {}
        self.refusal: KafkaCode | None = None
        self.hangs: set[int] = set()
        self.lost = 0
        self.lost_code = KafkaCode.COORDINATOR_NOT_AVAILABLE
        self.topics: dict[str, int] = {}
        self.asked: list[tuple[int, g.GroupRequest]] = []
        self.creations = 0
        self.waiting: list[tuple[Coordinator, int, asyncio.Future[Any]]] = []

    def coordinator(self, partition: int, epoch: int) -> Coordinator:
        """Return the coordinator of a partition in this leader epoch, with the records of the epoch before."""
        found = self.by_place.get((partition, epoch))
        if found is None:
            earlier = [each for (index, _), each in self.by_place.items() if index == partition]
            found = earlier[-1].reload() if earlier else Coordinator(cluster=Cluster(**self.topics))
            self.by_place[partition, epoch] = found
        return found

    def of_broker(self, node_id: int, replicas: FakeReplicas) -> Groups:
        return _GroupsOfBroker(self, node_id, replicas)

    def settle(self) -> None:
        """Send the answers that have become due."""
        for coordinator, call, future in self.waiting:
            if call in coordinator.answers and not future.done():
                future.set_result(coordinator.answers[call])


class _GroupsOfBroker:
    def __init__(self, groups: GroupsOfCluster, node_id: int, replicas: FakeReplicas) -> None:
        self._groups = groups
        self._node_id = node_id
        self._replicas = replicas

    async def prepare(self) -> str:
        self._groups.creations += 1
        return "this broker creates no topics"

    def partition(self, group: str) -> int:
        return partition_of(group, PARTITIONS)

    def led(self) -> Sequence[int]:
        topic = self._replicas.image.topic(OFFSETS)
        partitions = [] if topic is None else [topic.partition(index) for index in range(PARTITIONS)]
        return [each.index for each in partitions if each is not None and each.leader == self._node_id]

    def call(self, partition: int, request: g.GroupRequest, size: int) -> asyncio.Future[Any]:
        groups = self._groups
        groups.asked.append((self._node_id, request))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        topic = self._replicas.image.topic(OFFSETS)
        state = None if topic is None else topic.partition(partition)
        if self._node_id in groups.hangs:
            return future
        if state is None or state.leader != self._node_id:
            future.set_result(KafkaCode.NOT_COORDINATOR)
        elif groups.refusal is not None:
            future.set_result(groups.refusal)
        else:
            coordinator = groups.coordinator(partition, state.leader_epoch)
            call = coordinator.send(request)
            groups.waiting.append((coordinator, call, future))
            if groups.lost:
                groups.lost -= 1
                future.set_result(groups.lost_code)
            groups.settle()
        return future


def coordinator_of(groups: GroupsOfCluster, group: str) -> Coordinator:
    """Return the coordinator of a group, which has not moved."""
    return groups.coordinator(partition_of(group, PARTITIONS), 0)


def begin_join(groups: GroupsOfCluster, group: str, topic: str = "orders") -> int:
    """Let another member send JoinGroup; return the number of its call."""
    protocols = (g.MemberProtocol("range", subscription(topic)),)
    client = Client("app", "/10.0.0.7")
    request = g.JoinGroup(group, "", None, client, "consumer", protocols, 10_000, 30_000, needs_member_id=False)
    return coordinator_of(groups, group).send(request)


def join_member(groups: GroupsOfCluster, group: str, topic: str = "orders") -> str:
    """Let one member join the group and get partition 0 of the topic; return its id."""
    coordinator = coordinator_of(groups, group)
    call = begin_join(groups, group, topic)
    coordinator.pass_time(3_000)
    joined = coordinator.answers[call]
    assignment = int16(0) + int32(1) + string(topic) + int32(1) + int32(0) + int32(-1)
    assignments = (g.MemberAssignment(joined.member_id, assignment),)
    coordinator.ask(g.SyncGroup(group, joined.member_id, None, joined.generation, "consumer", "range", assignments))
    return str(joined.member_id)


def commit_offsets(groups: GroupsOfCluster, group: str, *offsets: int, topic: str = "orders") -> None:
    """Commit offsets of the partitions of a topic, from 0 on, as a client that is not a member."""
    wanted = tuple(g.OffsetToCommit(topic, index, offset, -1, "") for index, offset in enumerate(offsets))
    request = g.OffsetCommit(group, "", None, -1, wanted)
    response = coordinator_of(groups, group).ask(request)
    assert {each.error for each in response.results} == {KafkaCode.NONE}, response


@asynccontextmanager
async def group_brokers(count: int = 2) -> AsyncIterator[tuple[FakeBrokers, GroupsOfCluster]]:
    """Run brokers; broker 1 coordinates partition 0 of `__consumer_offsets`, the last broker partition 1."""
    groups = GroupsOfCluster()
    brokers = FakeBrokers(groups.of_broker)
    for node_id in range(1, count + 1):
        await brokers.start(node_id)
    await brokers.create(OFFSETS, [1, count])
    try:
        yield brokers, groups
    finally:
        await brokers.close()
