"""The change that one batch made, computed from the batch and never from a scan of the image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec

from metadata.image.cluster import ClusterImage
from metadata.records import (
    BrokerChange,
    Config,
    ConfigScope,
    Partition,
    PartitionChange,
    Record,
    RegisterBroker,
    RemovePartition,
    RemoveTopic,
    RenewTopic,
    Topic,
    UnregisterBroker,
)


class Delta(msgspec.Struct, frozen=True, gc=False):
    """A change from one image to another.  Everything is ordered: topics by id, indexes and broker ids ascending.

    partitions: topic id → indexes of partitions that were created, changed or removed one by one.  The images show
    which of these happened.  topics_removed: topics of the old image that were deleted with all their partitions.
    topics_renewed: old id → new id, for topics that got another id; they do not count as removed.  `partitions` lists
    their partitions under the new id, including removed partitions.
    """

    topics_removed: tuple[UUID, ...]
    topics_renewed: Mapping[UUID, UUID]
    partitions: Mapping[UUID, tuple[int, ...]]
    brokers: tuple[int, ...]
    configs: tuple[tuple[ConfigScope, str], ...]


def delta(old: ClusterImage, new: ClusterImage, records: Sequence[Record]) -> Delta:
    """Return the changes of `records`, the batch that led from `old` to `new`."""
    topics: set[UUID] = set()
    partitions: dict[UUID, set[int]] = {}
    brokers: set[int] = set()
    configs: set[tuple[ConfigScope, str]] = set()
    origins: dict[UUID, UUID] = {}  # new id → id before the batch
    for record in records:
        match record:
            case PartitionChange() | Partition() | RemovePartition():
                partitions.setdefault(record.topic_id, set()).add(record.index)
            case Topic() | RemoveTopic():
                topics.add(record.topic_id)
            case RenewTopic():
                first = origins.pop(record.topic_id, record.topic_id)
                origins[record.new_topic_id] = first
                topics.update((first, record.new_topic_id))
                partitions[record.new_topic_id] = partitions.pop(record.topic_id, set())
            case RegisterBroker() | BrokerChange() | UnregisterBroker():
                brokers.add(record.broker_id)
            case Config():
                configs.add((record.scope, record.resource))
    renewed = {first: now for now, first in origins.items() if first in old.topics and now in new.topics}
    removed = topics.difference(renewed)
    return Delta(
        topics_removed=tuple(sorted(each for each in removed if each in old.topics and each not in new.topics)),
        topics_renewed={each: renewed[each] for each in sorted(renewed)},
        partitions={each: tuple(sorted(partitions[each])) for each in sorted(partitions) if each in new.topics},
        brokers=tuple(sorted(brokers)),
        configs=tuple(sorted(configs, key=lambda resource: (resource[0].value, resource[1]))),
    )
