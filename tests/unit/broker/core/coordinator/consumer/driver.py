"""Members of a consumer group, so that tests read as sentences."""

from __future__ import annotations

from typing import Any

from broker.core.coordinator import group_requests as g
from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.group import ConsumerGroup
from broker.core.coordinator.consumer.partitions import Partitions, each
from broker.core.coordinator.consumer.requests import (
    AWAY,
    JOINING,
    LEAVING,
    NO_TIMEOUT,
    ConsumerGroupDescription,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    ConsumerLimits,
    DescribeConsumerGroups,
)
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.core.coordinator.driver import GROUP, LIMITS, Cluster, Coordinator

SESSION_MS = ConsumerLimits().session_timeout_ms
REBALANCE_MS = 30_000

Named = set[tuple[str, int]]
"""Partitions by the name of their topic."""


def limits(**consumer: Any) -> g.GroupLimits:
    return g.GroupLimits(
        **{
            **{name: getattr(LIMITS, name) for name in LIMITS.__struct_fields__},
            "consumer": ConsumerLimits(**{"assignment_interval_ms": 0, **consumer}),
        }
    )


def coordinator(limits: g.GroupLimits = LIMITS, **partitions: int) -> Coordinator:
    """Return a coordinator of a cluster with these topics."""
    return Coordinator(limits, cluster=Cluster(**partitions))


def named(coordinator: Coordinator, partitions: Partitions | None) -> Named:
    names = coordinator.cluster.topic_name
    return {(names(topic) or "?", index) for topic, index in each(partitions or {})}


def group_of(coordinator: Coordinator, name: str = GROUP) -> ConsumerGroup:
    group = coordinator.machine._groups[name]
    assert isinstance(group, ConsumerGroup)
    return group


def described(coordinator: Coordinator, name: str = GROUP) -> ConsumerGroupDescription:
    (description,) = coordinator.ask(DescribeConsumerGroups((name,))).groups
    assert isinstance(description, ConsumerGroupDescription)
    return description


class ConsumerClient:
    """A client of the newer protocol.  owned: the partitions that it uses."""

    def __init__(
        self,
        coordinator: Coordinator,
        member_id: str,
        topics: tuple[str, ...] = ("sales",),
        *,
        regex: str | None = None,
        instance_id: str | None = None,
        assignor: str | None = None,
        group: str = GROUP,
    ) -> None:
        self.coordinator = coordinator
        self.member_id = member_id
        self.topics: tuple[str, ...] | None = topics
        self.regex = regex
        self.instance_id = instance_id
        self.assignor = assignor
        self.group = group
        self.epoch = JOINING
        self.owned: Partitions = {}
        self.answer = ConsumerHeartbeatResponse(KafkaCode.NONE)

    def send(self, **fields: Any) -> ConsumerHeartbeatResponse:
        """Send a heartbeat with these fields, and apply the answer to this client."""
        request = ConsumerHeartbeat(
            **{
                "group": self.group,
                "member_id": self.member_id,
                "epoch": self.epoch,
                "client": Client(self.member_id, "/h"),
                "instance_id": self.instance_id,
                **fields,
            }
        )
        self.answer = self.coordinator.ask(request)
        assert isinstance(self.answer, ConsumerHeartbeatResponse)
        if self.answer.error is KafkaCode.NONE:
            self.epoch = self.answer.epoch
            if self.answer.assignment is not None:
                self.owned = self.answer.assignment
        return self.answer

    def join(self, **fields: Any) -> str:
        """Join, or join again without partitions; return the name of the error."""
        self.epoch, self.owned = JOINING, {}
        asked = {"topics": self.topics, "regex": self.regex, "assignor": self.assignor}
        return self.send(**{**asked, "rebalance_timeout_ms": REBALANCE_MS, "owned": {}, **fields}).error.name

    def beat(self, **fields: Any) -> str:
        """Send a heartbeat; return the name of the error."""
        return self.send(**{"owned": self.owned, **fields}).error.name

    def silent_beat(self, **fields: Any) -> str:
        """Send a heartbeat that does not report the partitions."""
        return self.send(rebalance_timeout_ms=NO_TIMEOUT, **fields).error.name

    def subscribe(self, *topics: str) -> str:
        self.topics = topics
        return self.beat(topics=topics)

    def leave(self) -> str:
        return self.send(epoch=LEAVING).error.name

    def go_away(self) -> str:
        return self.send(epoch=AWAY).error.name

    @property
    def has(self) -> Named:
        """The partitions that the client uses."""
        return named(self.coordinator, self.owned)

    def commit(self, offset: int, topic: str = "sales", partition: int = 0, epoch: int | None = None) -> str:
        epoch = self.epoch if epoch is None else epoch
        offsets = (g.OffsetToCommit(topic, partition, offset),)
        request = g.OffsetCommit(self.group, self.member_id, None, epoch, offsets, knows_epochs=True)
        (result,) = self.coordinator.ask(request).results
        return str(result.error.name)

    def fetch(self, epoch: int | None = None) -> str:
        epoch = self.epoch if epoch is None else epoch
        (fetched,) = self.coordinator.ask(
            g.OffsetFetch((g.GroupToFetch(self.group, None, self.member_id, epoch),))
        ).groups
        return str(fetched.error.name)


def go_on(*clients: ConsumerClient, rounds: int = 4) -> None:
    """Let clients send heartbeats until nothing changes any more."""
    for _ in range(rounds):
        for client in clients:
            assert client.beat() == "NONE", client.answer


def joined(coordinator: Coordinator, *clients: ConsumerClient) -> None:
    """Let clients join, and become stable."""
    for client in clients:
        assert client.join() == "NONE", client.answer
    go_on(*clients)
    assert described(coordinator, clients[0].group).state == "Stable"


def sales(*partitions: int) -> set[tuple[str, int]]:
    return {("sales", partition) for partition in partitions}
