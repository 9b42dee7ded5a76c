"""The configs that are records in the metadata: of topics, of the cluster, of brokers and of groups.

Names, defaults and ranges are those of `metadata.image`.  `MEANINGS` explains the configs, for which the code has no
texts of one line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from metadata.image import ClusterImage
from metadata.image.group_configs import GROUP_CONFIGS, group_keys, inherited_key
from metadata.image.topic_configs import BROKER_CONFIGS, CLUSTER_CONFIGS, TOPIC_CONFIGS, ConfigKey, Kind
from tests.reference.markdown import code, span, table, with_meaning

TABLES: Final[Mapping[str, Mapping[str, ConfigKey]]] = {
    "topics": TOPIC_CONFIGS,
    "cluster": CLUSTER_CONFIGS,
    "brokers": BROKER_CONFIGS,
    "groups": GROUP_CONFIGS,
}
_HEAD: Final = ("config", "default", "values", "meaning")

_TOPICS: Final[Mapping[str, str]] = {
    "cleanup.policy": "`delete`: retention deletes the oldest segments; `compact`: the log keeps the latest record of "
    "each key ([compaction.md](compaction.md))",
    "compression.gzip.level": "level at which leaders compress with gzip; -1: gzip's own default",
    "compression.lz4.level": "level at which leaders compress with lz4; levels above 12 equal 12",
    "compression.type": "the codec in which leaders store batches; `producer`: each batch keeps its codec "
    "([Compression](partitions.md#compression))",
    "compression.validation.enable": "leaders decompress each compressed batch and check its records before they "
    "append it ([Checks of records](partitions.md#checks-of-records))",
    "compression.zstd.level": "level at which leaders compress with zstd",
    "delete.retention.ms": "how long compaction keeps a tombstone after the first compaction of the tombstone",
    "errors.deadletterqueue.group.enable": "brokers may write dead letters of share groups to the topic "
    "([Dead-letter topics](shares.md#dead-letter-topics))",
    "max.compaction.lag.ms": "a log with an older record that is not compacted yet is due for compaction",
    "max.message.bytes": "maximum size of a record batch in bytes; a larger one is refused with MESSAGE_TOO_LARGE",
    "message.timestamp.after.max.ms": "how far the timestamp of a record may lie in the future "
    "([Timestamps](partitions.md#timestamps))",
    "message.timestamp.before.max.ms": "how far the timestamp of a record may lie in the past",
    "message.timestamp.difference.max.ms": "Kafka's older form of the two configs above; only the value without a "
    "limit is accepted",
    "message.timestamp.type": "`CreateTime`: records keep the timestamps of their producers; `LogAppendTime`: the "
    "leader sets the time of the append",
    "min.cleanable.dirty.ratio": "a log is due for compaction if at least this share of it is not compacted yet",
    "min.compaction.lag.ms": "records younger than this are not compacted",
    "min.insync.replicas": "the smallest ISR with which a write with `acks=all` is accepted. A new topic gets its own "
    "value: that of the cluster if it is set, otherwise 2 with three or more replicas, and 1 with fewer",
    "remote.storage.enable": "there is no remote storage, so only `false` is accepted",
    "retention.bytes": "the oldest segments of a partition are deleted as long as the rest has at least this size; -1: "
    "no limit",
    "retention.ms": "segments whose newest record is older are deleted; -1: no limit",
    "segment.bytes": "size at which a segment is sealed and a new one begins. New internal topics have 100 MiB",
    "segment.ms": "age at which a segment is sealed and a new one begins",
    "unclean.leader.election.enable": "if no replica of ISR and ELR can lead, the controller elects another one at "
    "once; records that only unavailable replicas have are lost",
    "write.caching": "writes are acknowledged before they are flushed ([Acknowledging before the "
    "flush](partitions.md#acknowledging-before-the-flush))",
}

_CLUSTER: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "brokers create a topic when a client first asks for it ([Automatic "
    "creation](partitions.md#automatic-creation))",
    "auto.leader.rebalance.enable": "the controller moves leadership back to preferred replicas that are in sync",
    "default.replication.factor": "replicas of a new topic whose creator names no number. Without a value of the "
    "cluster, a topic of users gets fewer if fewer brokers accept replicas",
    "errors.deadletterqueue.auto.create.topics.enable": "brokers create a missing dead-letter topic",
    "errors.deadletterqueue.topic.name.prefix": "how the names of dead-letter topics must begin",
    "group.consumer.assignment.interval.ms": "minimum time between two assignments of a group (KIP-1263); 0: each "
    "change is assigned at once",
    "group.consumer.assignors": "the assignors that members may choose; the first is the default",
    "group.consumer.heartbeat.interval.ms": "how often members send a heartbeat",
    "group.consumer.max.assignment.interval.ms": "upper bound of the assignment interval of the cluster and of groups",
    "group.consumer.max.heartbeat.interval.ms": "upper bound of the heartbeat interval of the cluster and of groups",
    "group.consumer.max.session.timeout.ms": "upper bound of the session timeout of the cluster and of groups",
    "group.consumer.max.size": "maximum number of members of a group of the newer protocol",
    "group.consumer.migration.policy": "the changes of protocol that a group with members may make ([The newer "
    "protocol](groups.md#the-newer-protocol))",
    "group.consumer.min.assignment.interval.ms": "lower bound of the assignment interval of the cluster and of groups",
    "group.consumer.min.heartbeat.interval.ms": "lower bound of the heartbeat interval of the cluster and of groups",
    "group.consumer.min.session.timeout.ms": "lower bound of the session timeout of the cluster and of groups",
    "group.consumer.session.timeout.ms": "a member without a heartbeat for this long is removed",
    "group.initial.rebalance.delay.ms": "how long the first rebalance of an empty group waits for more members",
    "group.max.session.timeout.ms": "the longest session timeout that a member of a classic group may ask for",
    "group.max.size": "maximum number of members of a classic group",
    "group.min.session.timeout.ms": "the shortest session timeout that a member of a classic group may ask for",
    "group.share.delivery.count.limit": "after this many deliveries without acceptance, a record is archived",
    "group.share.heartbeat.interval.ms": "how often members send a heartbeat",
    "group.share.max.delivery.count.limit": "upper bound of `share.delivery.count.limit` of groups",
    "group.share.max.heartbeat.interval.ms": "upper bound of `share.heartbeat.interval.ms` of groups",
    "group.share.max.partition.max.record.locks": "upper bound of `share.partition.max.record.locks` of groups",
    "group.share.max.record.lock.duration.ms": "upper bound of `share.record.lock.duration.ms` of groups",
    "group.share.max.session.timeout.ms": "upper bound of `share.session.timeout.ms` of groups",
    "group.share.max.share.sessions": "maximum number of members of share groups that may fetch from one broker; a "
    "further one gets SHARE_SESSION_LIMIT_REACHED",
    "group.share.max.size": "maximum number of members of a share group",
    "group.share.min.delivery.count.limit": "lower bound of `share.delivery.count.limit` of groups",
    "group.share.min.heartbeat.interval.ms": "lower bound of `share.heartbeat.interval.ms` of groups",
    "group.share.min.partition.max.record.locks": "lower bound of `share.partition.max.record.locks` of groups",
    "group.share.min.record.lock.duration.ms": "lower bound of `share.record.lock.duration.ms` of groups",
    "group.share.min.session.timeout.ms": "lower bound of `share.session.timeout.ms` of groups",
    "group.share.partition.max.record.locks": "records of a partition that may be in flight in a share group; further "
    "ones wait",
    "group.share.record.lock.duration.ms": "how long a member may keep a record without renewing its lock",
    "group.share.session.timeout.ms": "a member without a heartbeat for this long is removed",
    "leader.rebalance.interval.ms": "time between two searches for leaders that are not on their preferred replicas",
    "metadata.retention.bytes": "how much history of the metadata each node keeps, in bytes. The newest snapshot and "
    "the log after it always stay",
    "metadata.retention.ms": "how long each node keeps history of the metadata. The limit that is reached first "
    "applies",
    "num.partitions": "partitions of a new topic whose creator names no number",
    "offset.metadata.max.bytes": "maximum size of the text that a client may store with a committed offset",
    "offsets.retention.check.interval.ms": "time between two searches for committed offsets that have expired",
    "offsets.retention.minutes": "how long the offsets of a group are kept after its last member left",
    "offsets.topic.num.partitions": "partitions of `__consumer_offsets`, when it is created",
    "reassignment.throttle.bytes.per.second": "bytes that each broker copies per second into replicas that are being "
    "added; -1: no limit",
    "replica.selector": "`rack-aware`: consumers that name their rack read from a replica in that rack ([Reading from "
    "the nearest replica](partitions.md#reading-from-the-nearest-replica))",
    "share.auto.offset.reset": "where a new share group begins",
    "share.coordinator.state.topic.num.partitions": "partitions of `__share_group_state`, when it is created",
    "share.isolation.level": "`read_committed`: records of open transactions wait, and those of aborted ones are not "
    "delivered",
    "transaction.max.timeout.ms": "the longest timeout that a transactional producer may ask for",
    "transaction.state.log.num.partitions": "partitions of `__transaction_state`, when it is created",
    "transactional.id.expiration.ms": "how long a transactional id without an open transaction is kept",
}

_BROKERS: Final[Mapping[str, str]] = {
    "cordoned": "the broker gets new replicas only if a request names it",
    "follower.replication.throttled.rate": "bytes that the broker copies per second into replicas that are being added",
    "replica.alter.log.dirs.io.max.bytes.per.second": "bytes that the broker copies per second between its data "
    "directories; 0 stops the copies",
}

_GROUPS: Final[Mapping[str, str]] = {
    "consumer.assignment.interval.ms": "minimum time between two assignments of the group",
    "consumer.heartbeat.interval.ms": "how often members send a heartbeat",
    "consumer.session.timeout.ms": "a member without a heartbeat for this long is removed",
    "errors.deadletterqueue.copy.record.enable": "dead letters have copies of the key, value and headers of their "
    "records",
    "errors.deadletterqueue.topic.name": "the dead-letter topic of the group; empty: it has none",
    "share.auto.offset.reset": "where the group begins to read a partition; a duration: at the first record whose "
    "timestamp is at most this old",
    "share.delivery.count.limit": "after this many deliveries without acceptance, a record is archived",
    "share.heartbeat.interval.ms": "how often members send a heartbeat",
    "share.isolation.level": "`read_committed`: records of open transactions wait, and those of aborted ones are not "
    "delivered",
    "share.partition.max.record.locks": "records of a partition that may be in flight in the group; further ones wait",
    "share.record.lock.duration.ms": "how long a member may keep a record without renewing its lock",
    "share.renew.acknowledge.enable": "members may renew the locks of their records",
    "share.session.timeout.ms": "a member without a heartbeat for this long is removed",
}

MEANINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "topics": _TOPICS,
    "cluster": _CLUSTER,
    "brokers": _BROKERS,
    "groups": _GROUPS,
}
"""The configs that have an effect, by table."""


def effective(name: str) -> str:
    """Return the configs of a table that have an effect."""
    return table(_HEAD, _rows((each for each in TABLES[name].values() if not each.no_effect), MEANINGS[name]))


def without_effect() -> str:
    """Return Kafka's configs that are accepted without effect, with the reasons."""
    head = ("config", "of", "default", "values", "reason")
    rows = [
        (code(each.key), owner, _default(each), _values(each), each.no_effect)
        for owner, keys in (("a topic", TOPIC_CONFIGS), ("a broker", BROKER_CONFIGS))
        for each in keys.values()
        if each.no_effect
    ]
    return table(head, rows)


def of_groups() -> str:
    """Return the configs of groups, with the ranges of a cluster whose own configs are unchanged."""
    keys = group_keys(ClusterImage())
    head = (*_HEAD[:3], "instead of the cluster's", _HEAD[3])
    rows = [
        (*row[:3], code(inherited_key(key) or ""), row[3])
        for key, row in zip(keys, _rows(keys.values(), _GROUPS), strict=True)
    ]
    return table(head, rows)


def _rows(keys: Iterable[ConfigKey], meanings: Mapping[str, str]) -> list[tuple[str, str, str, str]]:
    return [(code(each.key), _default(each), _values(each), meanings[each.key]) for each in keys]


def _default(key: ConfigKey) -> str:
    return with_meaning(key.key, key.default) if key.default else "empty"


def _values(key: ConfigKey) -> str:
    match key.kind:
        case Kind.BOOLEAN:
            return "`true`, `false`"
        case Kind.INT:
            return span(key.low, key.high) + ("" if key.barred is None else f", except {key.barred}")
        case Kind.CHOICE:
            return ", ".join(map(code, key.choices))
        case Kind.POLICIES:
            return ", ".join(map(code, key.choices)) + ", or several with commas between them"
    return key.allowed.removesuffix(f"; no effect: {key.no_effect}").replace("*", "`*`")
