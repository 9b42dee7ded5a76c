"""The parts of the cluster image: partitions, topics and brokers, as immutable values.

All structs are `gc=False`: they never form cycles, and the garbage collector must not visit a million of them.  A
million partitions took 0.23 s to build, and 84 MB; one map entry per partition with dataclasses took 13.6 s and 255 MB.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from metadata.records import NO_LEADER, NO_OFFSET, UNASSIGNED, Endpoint, Replica

REASSIGNING = -2
"""An additional key in the masks by leader: its mask holds the partitions that are being reassigned."""


class PartitionImage(msgspec.Struct, frozen=True, gc=False):
    """One partition, at the image's offset.

    created: offset of its Partition record; distinguishes its folder on disk from the folder of an earlier partition.
    last_offset: offset of the record that changed it last; the next change names it as `previous_offset`.
    """

    index: int
    created: int
    replicas: tuple[Replica, ...]
    isr: tuple[int, ...]
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    leader: int = NO_LEADER
    leader_epoch: int = 0
    partition_epoch: int = 0
    last_offset: int = 0

    @property
    def replica_ids(self) -> tuple[int, ...]:
        """Return the broker ids in assignment order; the first is the preferred leader."""
        return tuple([replica.broker_id for replica in self.replicas])

    @property
    def reassigning(self) -> bool:
        """Return whether the partition is being reassigned."""
        return bool(self.adding or self.removing)

    @property
    def settled_count(self) -> int:
        """Return the number of replicas without those being added, which limits the effective min.insync.replicas."""
        return len(self.replicas) - len(self.adding)

    def replica(self, broker_id: int) -> Replica | None:
        """Return this broker's replica, or None if it has none."""
        for replica in self.replicas:
            if replica.broker_id == broker_id:
                return replica
        return None


class TopicImage(msgspec.Struct, frozen=True, gc=False):
    """A topic and its partitions; the tuple's position is the partition's index.

    A None occurs only while a batch that removes the highest partitions is being applied.

    origin: the id with which the topic was created, which may differ from the current one (see `records.RenewTopic`).
    Brokers use it in the names of folders, so a renewed topic keeps its folders.
    """

    topic_id: UUID
    name: str
    origin: UUID
    partitions: tuple[PartitionImage | None, ...] = ()

    def partition(self, index: int) -> PartitionImage | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None


class BrokerImage(msgspec.Struct, frozen=True, gc=False):
    """A registered broker.

    epoch: offset of this incarnation's registration; a request with another epoch is refused.
    directory_ids: all directories that it registered.  directories_offline: the directories that have failed since.
    clean_epoch: the epoch of the incarnation that stopped cleanly before this one; -1 if none did, or if this one has
    been unfenced.  While it is set, this incarnation has acknowledged nothing.
    last_offset: offset of the record that changed it last.
    """

    broker_id: int
    epoch: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    directory_ids: tuple[UUID, ...]
    directories_offline: tuple[UUID, ...] = ()
    fenced: bool = True
    in_controlled_shutdown: bool = False
    feature_min: int = 1
    feature_max: int = 1
    last_offset: int = 0
    clean_epoch: int = NO_OFFSET

    @property
    def active(self) -> bool:
        """Return whether the broker may lead and be in the ISR: it is unfenced and not shutting down."""
        return not self.fenced and not self.in_controlled_shutdown

    def new_replica(self) -> Replica:
        """Return a new replica on this broker.

        Its directory is set only if the broker has exactly one directory, and this directory works.
        """
        online = [each for each in self.directory_ids if self.directory_online(each)]
        alone = len(self.directory_ids) == len(online) == 1
        return Replica(self.broker_id, online[0] if alone else UNASSIGNED)

    def directory_online(self, directory_id: UUID) -> bool:
        """Return whether a replica on this directory can be served; true for a replica without a directory yet."""
        if directory_id == UNASSIGNED:
            return True
        return directory_id in self.directory_ids and directory_id not in self.directories_offline

    def endpoint(self, listener: str) -> Endpoint | None:
        """Return the endpoint of a named listener, or None if the broker does not have it."""
        return next((endpoint for endpoint in self.endpoints if endpoint.name == listener), None)
