"""The records of the metadata log, as values.  `metadata/codec.py` turns them into protobuf and back.

Directory id `UNASSIGNED` marks a replica whose broker has not chosen a disk yet.  `LOST` marks a replica that its
broker cannot serve because its data is damaged or missing, while the directory works.  No broker registers either id.
Leader `NO_LEADER` is -1.

A record does not contain its offset, which is the batch's base offset plus the record's position.
"""

from __future__ import annotations

from enum import Enum
from uuid import UUID

import msgspec

UNASSIGNED = UUID(int=0)
LOST = UUID(int=1)
NO_LEADER = -1
NO_OFFSET = -1

RECORDS_PER_BATCH_MAX = 10_000


class Endpoint(msgspec.Struct, frozen=True, gc=False):
    name: str
    host: str
    port: int
    security: str = "PLAINTEXT"


METADATA_VERSION = "metadata.version"
"""The feature whose level determines the record types and versions that the cluster may write."""
TRANSACTION_VERSION = "transaction.version"
"""Kafka's feature whose level recommends a version of the transaction protocol to clients (KIP-890)."""
TRANSACTION_VERSIONS = range(3)
TRANSACTION_VERSION_DEFAULT = 2
"""The level that applies until a record sets one."""
METADATA_VERSION_MIN = 1
METADATA_VERSION_MAX = 2
"""The highest level of metadata.version that this release supports."""
GROUP_CONFIGS_LEVEL = 2
"""The lowest level of metadata.version at which the log may hold configs of groups."""


class RegisterBroker(msgspec.Struct, frozen=True, gc=False):
    """The registration of a broker, at its first start or a later one.  The record's offset is the broker epoch.

    previous_broker_epoch: the epoch after which the broker stopped cleanly; NO_OFFSET if it did not, or is new.
    feature_min, feature_max: the levels of metadata.version that it supports.
    """

    broker_id: int
    incarnation_id: UUID
    endpoints: tuple[Endpoint, ...]
    directory_ids: tuple[UUID, ...]
    rack: str | None = None
    previous_broker_epoch: int = NO_OFFSET
    feature_min: int = METADATA_VERSION_MIN
    feature_max: int = METADATA_VERSION_MAX
    fenced: bool = True


class BrokerChange(msgspec.Struct, frozen=True, gc=False):
    """A change of a broker.  A field that is None stays unchanged.  directories_offline: more failed directories."""

    broker_id: int
    broker_epoch: int
    fenced: bool | None = None
    in_controlled_shutdown: bool | None = None
    directories_offline: tuple[UUID, ...] = ()


class UnregisterBroker(msgspec.Struct, frozen=True, gc=False):
    broker_id: int
    broker_epoch: int


class Topic(msgspec.Struct, frozen=True, gc=False):
    topic_id: UUID
    name: str


class Replica(msgspec.Struct, frozen=True, gc=False):
    broker_id: int
    directory_id: UUID = UNASSIGNED


class Partition(msgspec.Struct, frozen=True, gc=False):
    """The creation of a partition.  The record's offset is the partition's identity (`created`)."""

    topic_id: UUID
    index: int
    replicas: tuple[Replica, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int = 0
    partition_epoch: int = 0
    elr: tuple[int, ...] = ()
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


class Reason(Enum):
    """The reason for a change of a partition.  Values are the protobuf enum's numbers."""

    BROKER_FENCED = 1
    BROKER_UNFENCED = 2
    CONTROLLED_SHUTDOWN = 3
    NEW_INCARNATION = 4
    ISR_SHRINK = 5
    ISR_EXPAND = 6
    PREFERRED_ELECTION = 7
    UNCLEAN_ELECTION = 8
    DIRECTORY_OFFLINE = 9
    REASSIGNMENT = 10
    DIRECTORY_ASSIGNED = 11
    UNREGISTERED = 12
    QUORUM_REBUILT = 13
    REASSIGNMENT_COMPLETED = 14
    REASSIGNMENT_CANCELLED = 15
    PREFERRED_BALANCE = 16
    CONFIG_CHANGED = 17
    REPLICA_LOST = 18


class PartitionChange(msgspec.Struct, frozen=True, gc=False):
    """A change of a partition.  A field that is None stays unchanged.

    Every change adds 1 to partition_epoch.  A `leader`, even with the same id, adds 1 to leader_epoch.

    leader_epoch: set only when the quorum was rebuilt, because the lost records may have used higher epochs.  `leader`
    is then also set.
    cause_offset: offset of the record that caused this change; NO_OFFSET if none did.
    previous_offset: offset of the partition's previous change or its creation.
    """

    topic_id: UUID
    index: int
    reason: Reason
    cause_offset: int
    previous_offset: int
    isr: tuple[int, ...] | None = None
    elr: tuple[int, ...] | None = None
    replicas: tuple[Replica, ...] | None = None
    adding: tuple[int, ...] | None = None
    removing: tuple[int, ...] | None = None
    leader: int | None = None
    leader_epoch: int | None = None


class RemovePartition(msgspec.Struct, frozen=True, gc=False):
    """The deletion of one partition.  In a batch, a topic's highest indexes are removed, the highest first."""

    topic_id: UUID
    index: int


class RemoveTopic(msgspec.Struct, frozen=True, gc=False):
    topic_id: UUID


class RenewTopic(msgspec.Struct, frozen=True, gc=False):
    """A topic continues under another id, so that clients accept that it has fewer partitions than before.

    Its partitions keep their `created`, leader and epochs.
    """

    topic_id: UUID
    new_topic_id: UUID


class ConfigScope(Enum):
    CLUSTER = 1
    TOPIC = 2
    BROKER = 3
    GROUP = 4


class Config(msgspec.Struct, frozen=True, gc=False):
    """The value of one config; None deletes it.

    resource: topic id as 32 hex digits, broker id in decimal, group id, or "" for the cluster.
    """

    scope: ConfigScope
    resource: str
    key: str
    value: str | None


class ProducerIds(msgspec.Struct, frozen=True, gc=False):
    """The allocation of a block of producer ids to a broker.  All ids below `next_producer_id` are allocated."""

    broker_id: int
    broker_epoch: int
    next_producer_id: int


class PreferredControllers(msgspec.Struct, frozen=True, gc=False):
    """The voters that should lead if possible, the most preferred first; empty: no preference."""

    node_ids: tuple[int, ...]


class Feature(msgspec.Struct, frozen=True, gc=False):
    """The level of a feature from this record on."""

    name: str
    level: int


class ForgetTopics(msgspec.Struct, frozen=True, gc=False):
    """The deletion of the leader epochs of these topic names, about a day after the topics were deleted."""

    names: tuple[str, ...]


class NoOp(msgspec.Struct, frozen=True, gc=False):
    """A record that only takes an offset."""


Record = (
    RegisterBroker
    | BrokerChange
    | UnregisterBroker
    | Topic
    | Partition
    | PartitionChange
    | RemovePartition
    | RemoveTopic
    | RenewTopic
    | Config
    | ProducerIds
    | PreferredControllers
    | Feature
    | ForgetTopics
    | NoOp
)
