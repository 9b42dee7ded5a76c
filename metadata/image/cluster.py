"""The cluster as a value.

Theory of operation.  `ClusterImage` holds all metadata at one offset of the metadata log and never changes.  The only
way to another state is `apply(base_offset, records)`.  The same code runs on the active controller (for records that it
has just appended), on standbys and on brokers (for committed records).  Equal logs therefore give equal images, which
`digest()` verifies.  A record that does not fit the image (a change of a partition that does not exist) cannot come
from a correct controller.  It fails an assertion, which ends the process; nothing is skipped.

Topics are a persistent map to structs that hold a plain tuple of partitions.  A batch opens each topic that it changes
once, as a list, and builds its tuple once at the end, so the time of a failover is linear in the number of partitions.
For each broker and topic, bitmasks hold the partitions that the broker leads and hosts; every change updates them.
Partitions without a leader count as led by `NO_LEADER`.  Except for `digest()`, no operation visits the partitions of
topics that do not change.

Leader epochs of (topic name, index) never restart, since clients ignore a lower epoch.  `past_epochs` keeps the epochs
of removed partitions, and `first_leader_epoch` returns the first epoch for a new partition of that name.  About a day
after a topic was deleted, a ForgetTopics record drops the epochs of its name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from uuid import UUID

import msgspec
from immutables import Map

from metadata.image.editor import Masks, apply_records
from metadata.image.model import REASSIGNING, BrokerImage, PartitionImage, TopicImage
from metadata.image.topic_configs import BROKER_CONFIGS, CLUSTER_CONFIGS, INT64_MAX, TOPIC_CONFIGS
from metadata.records import ConfigScope, Record

_NO_MASKS = Masks(Map(), 0)
_NO_CONFIG: Map[str, str] = Map()


class ClusterImage(msgspec.Struct, frozen=True, gc=False):
    """All metadata below `end_offset`.  epoch: the epoch of the last batch.

    group_configs: group id → its configs, only for groups with configs.  configs: the configs of all other resources.
    """

    topics: Map[UUID, TopicImage] = msgspec.field(default_factory=Map)
    topic_ids: Map[str, UUID] = msgspec.field(default_factory=Map)
    brokers: Map[int, BrokerImage] = msgspec.field(default_factory=Map)
    leader_masks: Map[int, Masks] = msgspec.field(default_factory=Map)
    hosting_masks: Map[int, Masks] = msgspec.field(default_factory=Map)
    past_epochs: Map[str, tuple[int, ...]] = msgspec.field(default_factory=Map)
    configs: Map[tuple[ConfigScope, str], Map[str, str]] = msgspec.field(default_factory=Map)
    group_configs: Map[str, Map[str, str]] = msgspec.field(default_factory=Map)
    features: Map[str, int] = msgspec.field(default_factory=Map)
    preferred_controllers: tuple[int, ...] = ()
    next_producer_id: int = 0
    end_offset: int = 0
    epoch: int = 0

    # Change

    def apply(self, base_offset: int, records: Sequence[Record], epoch: int | None = None) -> ClusterImage:
        """Return the image after a data batch.  Its first record has the offset `base_offset`.

        epoch: the epoch of the batch; None: unchanged.
        """
        assert base_offset == self.end_offset, (
            f"batch at {base_offset} applied to an image that ends at {self.end_offset}"
        )
        changes = apply_records(self, base_offset, records)
        return msgspec.structs.replace(
            self, **changes, end_offset=base_offset + len(records), epoch=self.epoch if epoch is None else epoch
        )

    def advance(self, end_offset: int, epoch: int | None = None) -> ClusterImage:
        """Return the image after control batches, which take offsets but contain no metadata.  epoch: see `apply`."""
        assert end_offset >= self.end_offset, f"image would go back from {self.end_offset} to {end_offset}"
        return msgspec.structs.replace(self, end_offset=end_offset, epoch=self.epoch if epoch is None else epoch)

    # Look-up

    def topic(self, name: str) -> TopicImage | None:
        topic_id = self.topic_ids.get(name)
        return None if topic_id is None else self.topics[topic_id]

    def partition(self, topic_id: UUID, index: int) -> PartitionImage | None:
        topic = self.topics.get(topic_id)
        return None if topic is None else topic.partition(index)

    def leaderships(self, broker_id: int) -> Map[UUID, int]:
        """Return topic id → bitmask of the partitions that this broker leads (`NO_LEADER`: those without a leader)."""
        return self.leader_masks.get(broker_id, _NO_MASKS).by_topic

    @property
    def reassigning(self) -> Map[UUID, int]:
        """Return topic id → bitmask of the partitions that are being reassigned."""
        return self.leaderships(REASSIGNING)

    @property
    def reassigning_count(self) -> int:
        return self.leader_count(REASSIGNING)

    def hostings(self, broker_id: int) -> Map[UUID, int]:
        """Return topic id → bitmask of the partitions of which this broker has a replica."""
        return self.hosting_masks.get(broker_id, _NO_MASKS).by_topic

    def leader_count(self, broker_id: int) -> int:
        """Return the number of partitions that this broker leads; for `NO_LEADER`, of partitions without a leader."""
        return self.leader_masks.get(broker_id, _NO_MASKS).count

    def replica_count(self, broker_id: int) -> int:
        return self.hosting_masks.get(broker_id, _NO_MASKS).count

    def config(self, scope: ConfigScope, resource: str) -> Map[str, str]:
        """Return the configs set on one resource (see `records.Config` for its name), without defaults."""
        if scope is ConfigScope.GROUP:
            return self.group_configs.get(resource, _NO_CONFIG)
        return self.configs.get((scope, resource), _NO_CONFIG)

    def all_configs(self) -> Iterator[tuple[tuple[ConfigScope, str], Map[str, str]]]:
        """Yield every resource with its configs, in no particular order."""
        yield from self.configs.items()
        yield from (((ConfigScope.GROUP, group), values) for group, values in self.group_configs.items())

    def topic_config(self, topic_id: UUID, key: str) -> str:
        """Return the value in force: the topic's, else the cluster's, else the default.  `key` must be in the table."""
        value = self.config(ConfigScope.TOPIC, topic_id.hex).get(key)
        if value is None:
            value = self.config(ConfigScope.CLUSTER, "").get(key)
        return TOPIC_CONFIGS[key].default if value is None else value

    def cluster_config(self, key: str) -> str:
        """Return the cluster's value in force for a key of `CLUSTER_CONFIGS`."""
        return self.config(ConfigScope.CLUSTER, "").get(key, CLUSTER_CONFIGS[key].default)

    def broker_config(self, broker_id: int, key: str) -> str:
        """Return a broker's value in force for a key of `BROKER_CONFIGS`."""
        return self.config(ConfigScope.BROKER, str(broker_id)).get(key, BROKER_CONFIGS[key].default)

    def copy_rate(self, broker_id: int) -> int:
        """Return how many bytes per second a broker may copy to replicas that are being added; -1: without limit."""
        of_cluster = int(self.cluster_config("reassignment.throttle.bytes.per.second"))
        of_broker = int(self.broker_config(broker_id, "follower.replication.throttled.rate"))
        if of_broker == INT64_MAX:
            return of_cluster
        return of_broker if of_cluster < 0 else min(of_cluster, of_broker)

    def move_rate(self, broker_id: int) -> int:
        """Return how many bytes per second a broker may copy between its directories; -1: without limit."""
        rate = int(self.broker_config(broker_id, "replica.alter.log.dirs.io.max.bytes.per.second"))
        return -1 if rate == INT64_MAX else rate

    def first_leader_epoch(self, name: str, index: int) -> int:
        """Return the leader epoch with which a partition created under this topic name and index must start."""
        past = self.past_epochs.get(name, ())
        return past[index] + 1 if index < len(past) else 0

    # Equality

    def digest(self) -> str:
        """Return the SHA-256 of the canonical form, in hex.  It is equal exactly for equal images, in every process."""
        encoder = msgspec.msgpack.Encoder()
        digest = hashlib.sha256()
        digest.update(encoder.encode([self.end_offset, self.epoch, self.next_producer_id, self.preferred_controllers]))
        for topic_id in sorted(self.topics):
            digest.update(encoder.encode(self.topics[topic_id]))
        digest.update(encoder.encode([self.brokers[broker_id] for broker_id in sorted(self.brokers)]))
        digest.update(encoder.encode(sorted(self.past_epochs.items())))
        digest.update(encoder.encode(sorted(self.features.items())))
        configs = sorted((scope.value, name, sorted(values.items())) for (scope, name), values in self.all_configs())
        digest.update(encoder.encode(configs))
        return digest.hexdigest()
