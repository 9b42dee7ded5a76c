"""The table of the replicas that this broker hosts."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import UUID

from broker.core.fetch_session import PartitionKey
from broker.log import LogKey
from broker.replica.context import ReplicaContext
from broker.replica.replica import Replica
from metadata.image import PartitionImage
from quorumlog.wire.errors import KafkaCode


class ReplicaTable:
    """The hosted replicas, which only this class adds and removes.  Iterating yields the replicas."""

    def __init__(self, context: ReplicaContext) -> None:
        self.context = context
        self._by_id: dict[PartitionKey, Replica] = {}
        self._by_name: dict[tuple[str, int], Replica] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Replica]:
        return iter(self._by_id.values())

    def __contains__(self, key: PartitionKey) -> bool:
        return key in self._by_id

    def get(self, key: PartitionKey) -> Replica | None:
        return self._by_id.get(key)

    def find(self, topic: UUID | str, index: int) -> Replica | None:
        """Return the replica of a partition whose topic is named by id or name."""
        if isinstance(topic, str):
            return self._by_name.get((topic, index))
        return self._by_id.get(PartitionKey(topic, index))

    def with_log(self, key: LogKey) -> Replica | None:
        """Return the replica of this log.  This searches the whole table."""
        return next((replica for replica in self if replica.key == key), None)

    def add(self, key: LogKey, topic_id: UUID, topic: str, image: PartitionImage) -> Replica:
        """Host a replica, which has no log and no role yet."""
        replica = Replica(self.context, key, topic_id, topic, image)
        self._by_id[replica.partition] = replica
        self._by_name[topic, key.index] = replica
        return replica

    def remove(self, key: PartitionKey) -> Replica:
        """Stop hosting a replica, and end its role."""
        replica = self._by_id.pop(key)
        self._by_name.pop((replica.topic, replica.key.index), None)
        replica.remove()
        return replica

    def renew(self, key: PartitionKey, topic_id: UUID, image: PartitionImage) -> Replica:
        """Host a replica under the new id of its topic; see `Replica.renewed`."""
        moved = self._by_id.pop(key).renewed(topic_id, image)
        self._by_id[moved.partition] = moved
        self._by_name[moved.topic, moved.key.index] = moved
        return moved

    def close(self) -> None:
        """Refuse everything that is parked, because the broker stops."""
        for replica in list(self):
            replica.close()

    def absent(self, topic: str, index: int) -> tuple[KafkaCode, PartitionImage | None]:
        """Return the error for a partition that this broker does not host, and the partition if it exists."""
        known = self.context.cluster.partition(topic, index)
        return (KafkaCode.UNKNOWN_TOPIC_OR_PARTITION if known is None else KafkaCode.NOT_LEADER_OR_FOLLOWER), known
