"""The metadata of an observed cluster, arranged for questions about brokers and partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from quorumlog.doctor.observed import NO_LEADER, ObservedCluster
from quorumlog.doctor.steps import move, some
from quorumlog.words import Key, counted

if TYPE_CHECKING:
    from quorumlog.wire.v1.controller_pb2 import BrokerDescription, PartitionDescription
    from quorumlog.wire.v1.node_pb2 import DescribeMetadataReply

LOST_DIRECTORY = bytes(15) + b"\1"
"""The directory id of a replica that its broker has lost."""
FENCED, UNFENCED, SHUTTING_DOWN = "fenced", "unfenced", "controlled_shutdown"
MIN_ISR = "min.insync.replicas"


class Layout:
    """Brokers and partitions with the observations about them."""

    def __init__(self, observed: ObservedCluster, metadata: DescribeMetadataReply) -> None:
        self.observed = observed
        self.brokers: dict[int, BrokerDescription] = {broker.broker_id: broker for broker in metadata.brokers}
        self.configs = {(config.resource, config.key): config.value for config in metadata.configs}
        """The configs: of brokers by (id as text, key), of the cluster by ("", key)."""
        self.partitions: dict[Key, PartitionDescription] = {}
        self.by_topic: dict[str, list[Key]] = {}
        """The partitions by topic."""
        self.min_isr: dict[str, int] = {}
        """min.insync.replicas by topic."""
        self.leaderless: set[Key] = set()
        default = self.configs.get(("", MIN_ISR), "1")
        for topic in metadata.topics:
            own = {config.key: config.value for config in topic.configs}
            self.min_isr[topic.name] = int(own.get(MIN_ISR, default))
            self.by_topic[topic.name] = [(topic.name, partition.index) for partition in topic.partitions]
            for key, partition in zip(self.by_topic[topic.name], topic.partitions, strict=True):
                self.partitions[key] = partition
                if partition.leader == NO_LEADER:
                    self.leaderless.add(key)

    def required_isr(self, key: Key) -> int:
        """Return the number of replicas that must be in sync.  Replicas that are being added are not required."""
        partition = self.partitions[key]
        settled = len(partition.replicas) - len(set(partition.adding))
        return min(self.min_isr[key[0]], max(settled, 1))

    def missing(self, key: Key) -> tuple[int, ...]:
        """Return the brokers whose replica should be in sync, but is not.

        Replicas that are being added or removed do not count.
        """
        partition = self.partitions[key]
        excused = {*partition.isr, *partition.adding, *partition.removing}
        return tuple(sorted({replica.broker_id for replica in partition.replicas} - excused))

    def factor(self, keys: list[Key]) -> int:
        """Return the highest number of replicas among partitions, after reassignments in progress."""
        return max(len(self.partitions[key].replicas) - len(self.partitions[key].removing) for key in keys)

    def factors(self, topic: str) -> set[int]:
        """Return the numbers of replicas of a topic's partitions, after reassignments in progress."""
        return {self.factor([key]) for key in self.by_topic[topic]}

    def factor_of(self, topics: Iterable[str], drain: int | None = None) -> int:
        """Return the highest number of replicas among the partitions that `steps.move` assigns anew."""
        return self.factor(self._assigned(topics, drain))

    def _assigned(self, topics: Iterable[str], drain: int | None) -> list[Key]:
        """Return the partitions that `steps.move` assigns anew."""
        keys = [key for topic in topics for key in self.by_topic[topic]]
        return [key for key in keys if drain is None or self.has_replica(key, drain)]

    def move(self, topics: Iterable[str], *, drain: int | None = None, factor: int | None = None) -> str:
        """Return the command of `steps.move`, which replaces reassignments in progress.

        It is for brokers that are lost permanently: a reassignment that needs such a broker would never end.
        """
        names = list(topics)
        replaces = any(self.is_moving(key) for key in self._assigned(names or self.by_topic, drain))
        return move(names, drain=drain, factor=factor, replaces=replaces)

    def is_moving(self, key: Key) -> bool:
        return bool(self.partitions[key].adding or self.partitions[key].removing)

    def has_replica(self, key: Key, broker_id: int) -> bool:
        return any(replica.broker_id == broker_id for replica in self.partitions[key].replicas)

    def open_brokers(self) -> list[int]:
        """Return the brokers that a generated reassignment may place replicas on."""
        return [
            broker_id for broker_id, broker in sorted(self.brokers.items())
            if broker.state == UNFENCED and self.configs.get((str(broker_id), "cordoned")) != "true"
        ]  # fmt: skip

    def state(self, broker_id: int) -> str:
        """Return the state of a broker, and the reason if it does not answer, as text."""
        broker = self.brokers.get(broker_id)
        silence = self.observed.silence_of(broker_id)
        if broker is None:
            return f"broker {broker_id} is not registered"
        if broker.state != UNFENCED:
            return f"broker {broker_id} is {broker.state.replace('_', ' ')}" + (f" ({silence})" if silence else "")
        return f"broker {broker_id} is up" if silence is None else f"broker {broker_id} does not answer ({silence})"

    def is_absent(self, broker_id: int) -> bool:
        """Return whether a broker must be started before its replicas can be in sync."""
        broker = self.brokers.get(broker_id)
        return broker is None or broker.state == FENCED or self.observed.silence_of(broker_id) is not None

    def is_up(self, broker_id: int) -> bool:
        """Return whether a broker is unfenced and answers."""
        broker = self.brokers.get(broker_id)
        return broker is not None and broker.state == UNFENCED and self.observed.silence_of(broker_id) is None

    def is_lost(self, key: Key, broker_id: int) -> bool:
        """Return whether the broker has reported that it lost this replica."""
        return any(
            replica.broker_id == broker_id and replica.directory_id == LOST_DIRECTORY
            for replica in self.partitions[key].replicas
        )

    def offline_cause(self, key: Key, broker_id: int) -> str:
        """Return the reason why the broker cannot serve its replica; empty if it can."""
        node = self.observed.node(broker_id)
        replica = node.replicas.get(key) if node is not None else None
        if replica is not None and replica.state == "offline":
            return replica.problem or "it is offline"
        partition = self.partitions[key]
        for known, state in zip(partition.replicas, partition.replica_states, strict=True):
            if known.broker_id == broker_id and state == "offline":
                return "its data directory is offline"
        return ""

    def lag(self, key: Key, broker_id: int) -> int | None:
        """Return the number of the leader's records that a replica lacks; None without an answer of both brokers."""
        leader, follower = self.observed.node(self.partitions[key].leader), self.observed.node(broker_id)
        ahead = leader.replicas.get(key) if leader is not None else None
        behind = follower.replicas.get(key) if follower is not None else None
        return None if ahead is None or behind is None else max(0, ahead.end_offset - behind.end_offset)

    def copies(self, key: Key, broker_id: int) -> bool:
        """Return whether a replica received records between the two looks; True if that is not known."""
        node = self.observed.node(broker_id)
        if node is None or key not in node.replicas or key not in node.replicas_later:
            return True
        return node.replicas_later[key].end_offset > node.replicas[key].end_offset

    def place(self, topics: list[str]) -> tuple[tuple[str, ...], str]:
        """Return the commands that place topics on the brokers that are up, and the step as text."""
        if lack := self.lack_of_brokers(self.factor_of(topics)):
            return (), f"start another broker first, {lack}"
        command = self.move(topics)
        return (command,), command

    def enlarge(self, wanted: Mapping[str, int]) -> tuple[tuple[str, ...], str]:
        """Return the commands that raise the replication factors of topics, and the step as text.

        A command sets one replication factor for all partitions of a topic.  So if some partitions have more replicas
        than wanted, the others get as many.

        wanted: the new replication factor of each topic.
        """
        up = len(self.open_brokers())
        by_factor: dict[int, list[str]] = {}
        for topic, factor in wanted.items():
            by_factor.setdefault(max(factor, self.factor_of([topic])), []).append(topic)
        commands = [move(topics, factor=factor) for factor, topics in sorted(by_factor.items()) if factor <= up]
        waiting = [topic for factor, topics in sorted(by_factor.items()) if factor > up for topic in topics]
        lack = f"start another broker before {some(waiting)} can have more replicas"
        return tuple(commands), "; ".join([*commands, lack] if waiting else commands)

    def lack_of_brokers(self, factor: int) -> str:
        """Return a text if too few brokers are up for this many replicas; empty if they suffice."""
        up = len(self.open_brokers())
        return "" if up >= factor else f"{counted(up, 'is', 'are')} up, {factor} are needed"
