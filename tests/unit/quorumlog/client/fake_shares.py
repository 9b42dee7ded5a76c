"""The states of share groups; their members are in the real state machines of `fake_groups`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.requests import NamedPartitions
from broker.core.coordinator.share.requests import (
    LEAVING,
    ForgetShareStates,
    ListShareStates,
    ListShareStatesResponse,
    NoteShareStates,
    ResetShareStates,
    ShareHeartbeat,
    ShareHeartbeatResponse,
)
from broker.core.coordinator.share.states import NO_START, ShareState, StateResponse
from broker.core.fetch_session import PartitionKey
from broker.core.share.partition import Delivery, StateBatch
from broker.kafka.share_groups import NoShares
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.driver import topic_id
from tests.unit.quorumlog.client.fake_cluster import FakeBrokers
from tests.unit.quorumlog.client.fake_groups import OFFSETS, GroupsOfCluster, coordinator_of

TOPIC = "orders"
INDEXES = (0, 1)
CLIENT = Client("app", "/10.0.0.7")


class FakeShares(NoShares):
    """The topic `orders`, as share groups see it.  All brokers use it, whichever of them coordinates a group.

    done: how many records after the start offset are acknowledged, by index.
    starts: the start offsets of partitions that members have read, by index, or the error of reading the state.
    unknown: indexes of partitions whose leader does not answer.
    refusals: the errors of new start offsets, by index.
    """

    def __init__(self, brokers: FakeBrokers, groups: GroupsOfCluster) -> None:
        self.starts: dict[int, int | KafkaCode] = {}
        self.done: dict[int, int] = {}
        self.unknown: set[int] = set()
        self.refusals: dict[int, KafkaCode] = {}
        self._brokers = brokers
        self._groups = groups
        groups.topics = {TOPIC: len(INDEXES)}
        brokers.shares = self

    # -- members

    def beat(self, group: str, epoch: int = 0, topics: tuple[str, ...] | None = None) -> ShareHeartbeatResponse:
        request = ShareHeartbeat(group, "m-1", epoch, CLIENT, None, topics)
        response: ShareHeartbeatResponse = coordinator_of(self._groups, group).ask(request)
        assert response.error is KafkaCode.NONE, response
        return response

    def join(self, group: str) -> str:
        """Let a member join, and get all partitions; return its id."""
        coordinator = coordinator_of(self._groups, group)
        joined = self.beat(group, topics=(TOPIC,))
        states = [NamedPartitions(topic_id(TOPIC), TOPIC, INDEXES)]
        coordinator.take(coordinator.machine.share_initialized(group, states, coordinator.now_ms))
        return self.beat(group, joined.epoch).member_id or ""

    def leave(self, group: str) -> None:
        self.beat(group, LEAVING)

    # -- `Shares`

    async def clear_group(self, group: str) -> KafkaCode:
        listed = self._listed(group, must_be_empty=True)
        if listed.error is KafkaCode.GROUP_ID_NOT_FOUND:
            return KafkaCode.NONE
        return self._forget(group, listed.partitions) if listed.partitions else listed.error

    async def describe_offsets(
        self, group: str, wanted: Sequence[NamedPartitions] | None
    ) -> tuple[ListShareStatesResponse, list[tuple[NamedPartitions, list[StateResponse]]]]:
        listed = self._listed(group)
        return listed, [(topic, [self._state(index) for index in topic.partitions]) for topic in listed.partitions]

    async def log_ends(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        logs = self._brokers.shared.logs
        wanted = [key for key in partitions if key.partition_index not in self.unknown]
        return {key: logs[TOPIC, key.partition_index].end_offset for key in wanted}

    async def alter_offsets(
        self, group: str, offsets: Sequence[tuple[NamedPartitions, Sequence[int]]]
    ) -> tuple[ListShareStatesResponse, list[StateResponse]]:
        coordinator = coordinator_of(self._groups, group)
        partitions = tuple(NamedPartitions(topic_id(topic.topic), *topic[1:]) for topic, _ in offsets)
        reset: ListShareStatesResponse = coordinator.ask(ResetShareStates(group, partitions))
        if reset.error is not KafkaCode.NONE:
            return reset, []
        coordinator.ask(NoteShareStates(group, partitions))
        answers = []
        for topic, starts in offsets:
            for index, start in zip(topic.partitions, starts, strict=True):
                refusal = self.refusals.get(index, KafkaCode.NONE)
                answers.append(StateResponse(refusal))
                if refusal is KafkaCode.NONE:
                    self.starts[index] = start
                    self.done.pop(index, None)
        return reset, answers

    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, KafkaCode] | ListShareStatesResponse:
        listed = self._listed(group, must_be_empty=True)
        if listed.error is not KafkaCode.NONE:
            return listed
        known = {each.topic: each for each in listed.partitions}
        return {
            topic: self._forget(group, (known[topic],)) if topic in known else KafkaCode.UNKNOWN_TOPIC_OR_PARTITION
            for topic in topics
        }

    def _listed(self, group: str, *, must_be_empty: bool = False) -> ListShareStatesResponse:
        request = ListShareStates(group, must_be_empty)
        response: ListShareStatesResponse = coordinator_of(self._groups, group).ask(request)
        return response

    def _forget(self, group: str, partitions: tuple[NamedPartitions, ...]) -> KafkaCode:
        error: KafkaCode = coordinator_of(self._groups, group).ask(ForgetShareStates(group, partitions)).error
        return error

    def _state(self, index: int) -> StateResponse:
        start = self.starts.get(index, NO_START)
        if isinstance(start, KafkaCode):
            return StateResponse(start)
        done = self.done.get(index, 0)
        batches = (StateBatch(start + 1, start + 1 + done, Delivery.ACKNOWLEDGED, 1),) if done else ()
        return StateResponse(KafkaCode.NONE, None, ShareState(0, 1, 0, start, batches))


@asynccontextmanager
async def share_brokers() -> AsyncIterator[tuple[FakeBrokers, GroupsOfCluster, FakeShares]]:
    """Run two brokers; group "b" is at broker 1.  Each partition of `orders` has 3 records."""
    groups = GroupsOfCluster()
    brokers = FakeBrokers(groups.of_broker)
    shares = FakeShares(brokers, groups)
    for node_id in (1, 2):
        await brokers.start(node_id)
    try:
        await brokers.create(OFFSETS, [1, 2])
        await brokers.create(TOPIC, [1, 2])
        for index in INDEXES:
            await brokers.fill(TOPIC, index, *[build_batch([NewRecord(None, b"x", 1)]) for _ in range(3)])
        yield brokers, groups, shares
    finally:
        await brokers.close()
