"""The metadata of the cluster, as this broker knows it."""

from __future__ import annotations

from uuid import UUID

from broker.core.lifecycle import NO_EPOCH
from metadata.image import ClusterImage, PartitionImage


class ClusterView:
    """The newest and the applied metadata.  `ImageFollower` is the only writer.

    newest: everything that was replayed.  It decides which brokers are fenced, and which registrations are in force.
    applied: the latest image that was applied to all replicas of this broker.  Clients see this image.
    own_epoch: the broker epoch of this process's registration; -1 until it is registered.
    """

    def __init__(self, broker_id: int) -> None:
        self.broker_id = broker_id
        self.newest = ClusterImage()
        self.applied = ClusterImage()
        self.own_epoch = NO_EPOCH

    def is_unfenced(self) -> bool:
        """Return whether this process's own registration is in force and not fenced."""
        own = self.newest.brokers.get(self.broker_id)
        return own is not None and own.epoch == self.own_epoch and not own.fenced

    def partition(self, topic: UUID | str, index: int) -> PartitionImage | None:
        """Return a partition of the newest image, whether this broker hosts it or not."""
        image = self.newest
        found = image.topic(topic) if isinstance(topic, str) else image.topics.get(topic)
        return None if found is None else found.partition(index)

    # -- `broker.core.partition.Cluster`

    def broker_epoch(self, broker_id: int) -> int:
        """Return the epoch of a broker's newest registration; -1 if it is not registered."""
        broker = self.newest.brokers.get(broker_id)
        return NO_EPOCH if broker is None else broker.epoch

    def may_join(self, broker_id: int) -> bool:
        """Return whether the replica of a broker may join an ISR."""
        broker = self.newest.brokers.get(broker_id)
        return broker is not None and broker.active
