"""Small clusters for the tests of decisions: every state is reached through the decisions themselves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, TypeVar
from uuid import UUID

from metadata.control.brokers import Heartbeat, HeartbeatAnswer, Registered, fence, heartbeat, register
from metadata.control.decision import Decision
from metadata.control.topics import NewTopic, create_topics
from metadata.image import ClusterImage, PartitionImage
from metadata.image.model import REASSIGNING
from metadata.records import Endpoint, PartitionChange, Reason, Record, RegisterBroker

T = TypeVar("T")

FAR = 2**62


def directory(broker_id: int, number: int = 0) -> UUID:
    return UUID(int=(broker_id + 1 << 32) + 0x1000 + number)


def incarnation(broker_id: int, number: int = 0) -> UUID:
    return UUID(int=(broker_id + 1 << 32) + 0x2000 + number)


def registration(broker_id: int, number: int = 0, **changes: Any) -> RegisterBroker:
    """Return a registration of the broker's incarnation `number`, always with the same directory."""
    fields: dict[str, Any] = {
        "broker_id": broker_id,
        "incarnation_id": incarnation(broker_id, number),
        "endpoints": (Endpoint("PLAINTEXT", f"host{broker_id}", 9092),),
        "directory_ids": (directory(broker_id),),
    }
    return RegisterBroker(**{**fields, **changes})


class Cluster:
    """An image and the records that led to it."""

    def __init__(self) -> None:
        self.image = ClusterImage()
        self.log: list[Record] = []
        self._ids = count(1)

    def new_id(self) -> UUID:
        return UUID(int=(0xAAAA << 64) + next(self._ids))

    def apply(self, records: Sequence[Record]) -> None:
        if records:
            self.image = self.image.apply(self.image.end_offset, records)
            self.log += records

    def execute(self, decide: Callable[[ClusterImage], Decision[T]]) -> T:
        """Decide and apply, repeatedly while `more` is set, as the controller does; return the reply."""
        while True:
            decision = decide(self.image)
            self.apply(decision.records)
            if not decision.more:
                return decision.reply

    def register(
        self,
        broker_id: int,
        number: int = 0,
        *,
        session_live: bool = False,
        early_topics: frozenset[UUID] = frozenset(),
        **changes: Any,
    ) -> Registered:
        request, calls = registration(broker_id, number, **changes), count()
        return self.execute(
            lambda image: register(image, request, early_topics, session_live=session_live and next(calls) == 0)
        )

    def beat(self, broker_id: int, *, others_applied: int = FAR, **changes: Any) -> HeartbeatAnswer:
        """Send a heartbeat of the registered broker, which has applied everything."""
        fields: dict[str, Any] = {
            "broker_id": broker_id,
            "broker_epoch": self.image.brokers[broker_id].epoch if broker_id in self.image.brokers else 0,
            "applied_offset": self.image.end_offset,
        }
        request, calls = Heartbeat(**{**fields, **changes}), count()
        return self.execute(
            lambda image: heartbeat(image, request, others_applied=others_applied, again=next(calls) > 0)
        )

    def fence(self, *broker_ids: int) -> None:
        """Fence the brokers, one after the other."""
        for broker_id in broker_ids:
            self._fence(broker_id)

    def _fence(self, broker_id: int) -> None:
        self.execute(lambda image: fence(image, broker_id))

    def start(self, *broker_ids: int, **changes: Any) -> None:
        """Register brokers and unfence them.  changes: fields of their registrations."""
        for broker_id in broker_ids:
            assert self.register(broker_id, **changes).outcome.ok
            assert not self.beat(broker_id).fenced

    def create(self, name: str, *rows: tuple[int, ...], configs: tuple[tuple[str, str], ...] = ()) -> UUID:
        """A topic with this assignment."""
        topic = NewTopic(name, assignment=rows, configs=configs)
        decision = create_topics(self.image, [topic], self.new_id)
        assert decision.reply[0].outcome.ok, decision.reply[0].outcome
        self.apply(decision.records)
        topic_id = decision.reply[0].topic_id
        assert topic_id is not None
        return topic_id

    def partition(self, topic_id: UUID, index: int = 0) -> PartitionImage:
        found = self.image.partition(topic_id, index)
        assert found is not None
        return found

    def reason(self) -> Reason:
        """Return the reason of the last record, which changes a partition."""
        change = self.log[-1]
        assert isinstance(change, PartitionChange)
        return change.reason

    def epoch(self, broker_id: int) -> int:
        return self.image.brokers[broker_id].epoch


def check_invariants(image: ClusterImage) -> None:
    """Check the invariants after every batch (I17, I18), and that the masks match the partitions."""
    leads: dict[int, set[tuple[UUID, int]]] = {}
    hosts: dict[int, set[tuple[UUID, int]]] = {}
    for topic_id, topic in image.topics.items():
        assert image.topic_ids[topic.name] == topic_id
        for index, partition in enumerate(topic.partitions):
            assert partition is not None
            assert partition.index == index
            assert set(partition.isr) <= set(partition.replica_ids)
            assert set(partition.elr) <= set(partition.replica_ids).difference(partition.isr)
            min_isr = int(image.topic_config(topic_id, "min.insync.replicas"))
            assert not partition.elr or len(partition.isr) < min(min_isr, partition.settled_count), partition
            assert partition.leader == -1 or partition.leader in partition.isr
            assert set(partition.adding) | set(partition.removing) <= set(partition.replica_ids)
            leads.setdefault(partition.leader, set()).add((topic_id, index))
            if partition.adding or partition.removing:
                leads.setdefault(REASSIGNING, set()).add((topic_id, index))
            for broker_id in partition.replica_ids:
                hosts.setdefault(broker_id, set()).add((topic_id, index))
            for member in partition.isr:
                fenced = image.brokers[member].fenced if member in image.brokers else True
                assert not fenced or (partition.isr == (member,) and partition.leader == -1), (topic.name, partition)
    for wanted, found, number in (
        (leads, image.leaderships, image.leader_count),
        (hosts, image.hostings, image.replica_count),
    ):
        for broker_id in {*wanted, *image.brokers, -1, REASSIGNING}:
            bits = {
                (topic_id, i)
                for topic_id, mask in found(broker_id).items()
                for i in range(mask.bit_length())
                if mask >> i & 1
            }
            assert bits == wanted.get(broker_id, set())
            assert number(broker_id) == len(bits)
