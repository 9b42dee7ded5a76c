"""Tables of the configs that are stored as records: name, type, range and default.

A topic's value is its own Config record, else the cluster's record of the same key, else the default here.  Configs
that only the cluster or only a broker has are in tables of their own; configs of groups are in `group_configs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache

import msgspec

from metadata.image.iso_duration import duration_ms
from quorumlog.kafka_names import topic_config

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
REPLICAS_CHARS_MAX = 10_000
"""Maximum length of a list of replicas.  A longer one is refused."""
POLICIES_CHARS_MAX = 100
"""Maximum length of a list of choices.  A longer one is refused."""
COMPRESSION_TYPE = "compression.type"
NOTHING_UNAVAILABLE: Mapping[str, str] = {}
BY_DURATION = "by_duration:"
"""The beginning of a value of share.auto.offset.reset that gives the age of the first record."""
OFFSET_RESETS = ("earliest", "latest")
KEYS_SHOWN_MAX = 8
"""Maximum number of keys that the message about an unknown key lists, if no key is similar."""
HINTS_KEPT_MAX = 64
"""Maximum number of unknown keys whose most similar key is cached.  A search takes almost a millisecond, and a request
may set the same unknown key for thousands of topics."""

_RATIO = re.compile(r"[01](\.[0-9]{0,15})?|\.[0-9]{1,15}")
_REPLICAS = re.compile(r"\*|([0-9]{1,10}:[0-9]{1,10}(,[0-9]{1,10}:[0-9]{1,10})*)?")
_VERSION = re.compile(r"[0-9]{1,2}(\.[0-9]{1,2}){1,3}(-IV[0-9]{1,2})?")
_NAME_PART = re.compile(r"[a-zA-Z0-9._-]{0,249}")
_RESERVED = "__"


class Kind(Enum):
    BOOLEAN = "boolean"
    INT = "integer"
    CHOICE = "choice"
    REPLICAS = "list"
    POLICIES = "list of choices"
    RATIO = "double"
    VERSION = "version"
    OFFSET_RESET = "offset reset"
    TOPIC = "topic"
    TOPIC_PREFIX = "topic prefix"


class ConfigKey(msgspec.Struct, frozen=True, gc=False):
    """One config.  The range includes both `low` and `high`.

    barred: a number in the range that is not permitted.
    no_effect: for a config of Kafka's that is accepted without effect, the reason; else empty.
    """

    key: str
    kind: Kind
    default: str
    low: int = 0
    high: int = INT64_MAX
    choices: tuple[str, ...] = ()
    barred: int | None = None
    no_effect: str = ""

    @property
    def allowed(self) -> str:
        """Return the permitted values, in words, and the reason if the config has no effect."""
        return f"{self._values}; no effect: {self.no_effect}" if self.no_effect else self._values

    @property
    def _values(self) -> str:
        match self.kind:
            case Kind.BOOLEAN:
                return "true or false"
            case Kind.INT:
                exception = "" if self.barred is None else f", except {self.barred}"
                return f"a whole number from {self.low} to {self.high}{exception}"
            case Kind.CHOICE:
                return "one of " + ", ".join(self.choices)
            case Kind.POLICIES:
                return "one or more of " + ", ".join(self.choices) + ", with commas between them"
            case Kind.RATIO:
                return "a number from 0 to 1"
            case Kind.VERSION:
                return "a version of Kafka, such as 2.8 or 3.0-IV1"
            case Kind.OFFSET_RESET:
                return f"earliest, latest, or {BY_DURATION} and a duration in ISO 8601, such as {BY_DURATION}PT1H"
            case Kind.TOPIC:
                return f"empty, or the name of a topic that does not begin with {_RESERVED}"
            case Kind.TOPIC_PREFIX:
                return "empty, or the beginning of a topic's name"
            case Kind.REPLICAS:
                return f"*, or partition:broker pairs with commas between them, at most {REPLICAS_CHARS_MAX} characters"

    def problem(self, value: str, unavailable: Mapping[str, str] = NOTHING_UNAVAILABLE) -> str | None:
        """Return the reason why `value` is refused, or None.

        unavailable: values of compression.type that this installation cannot serve, with the reasons.
        """
        if self.key == COMPRESSION_TYPE and value in unavailable:
            return f"{self.key} cannot be {value}: {unavailable[value]}"
        match self.kind:
            case Kind.BOOLEAN:
                good = value in ("true", "false")
            case Kind.INT:
                digits = value.removeprefix("-")
                good = len(value) <= 20 and digits.isascii() and digits.isdigit()
                good = good and self.low <= int(value) <= self.high and int(value) != self.barred
            case Kind.CHOICE:
                good = value in self.choices
            case Kind.POLICIES:
                parts = value.split(",") if len(value) <= POLICIES_CHARS_MAX else []
                good = bool(parts) and len(set(parts)) == len(parts) and set(parts) <= set(self.choices)
            case Kind.RATIO:
                good = _RATIO.fullmatch(value) is not None and float(value) <= 1
            case Kind.VERSION:
                good = _VERSION.fullmatch(value) is not None
            case Kind.OFFSET_RESET:
                good = value in OFFSET_RESETS or reset_duration_ms(value) is not None
            case Kind.TOPIC:
                good = _NAME_PART.fullmatch(value) is not None and value not in (".", "..")
                good = good and not value.startswith(_RESERVED)
            case Kind.TOPIC_PREFIX:
                good = _NAME_PART.fullmatch(value) is not None
            case Kind.REPLICAS:
                good = len(value) <= REPLICAS_CHARS_MAX and _REPLICAS.fullmatch(value) is not None
        return None if good else f"{self.key} must be {self._values}, not {value[:40]!r}"


def reset_duration_ms(value: str) -> int | None:
    """Return the duration of a value `by_duration:…` of share.auto.offset.reset, in ms; None for any other text."""
    return duration_ms(value.removeprefix(BY_DURATION)) if value.startswith(BY_DURATION) else None


def _boolean(key: str, default: str) -> ConfigKey:
    return ConfigKey(key, Kind.BOOLEAN, default)


def _int(key: str, default: int, low: int, high: int = INT64_MAX) -> ConfigKey:
    return ConfigKey(key, Kind.INT, str(default), low, high)


def _only(key: str, value: str) -> ConfigKey:
    """Return a Kafka config that can have only this value.  Any other value is refused, not ignored."""
    return ConfigKey(key, Kind.CHOICE, value, choices=(value,))


def _ignored_int(key: str, default: int, low: int, high: int, why: str) -> ConfigKey:
    return ConfigKey(key, Kind.INT, str(default), low, high, no_effect=why)


def _ignored_replicas(key: str) -> ConfigKey:
    why = "reassignment.throttle.bytes.per.second of the cluster limits all replicas that are being added"
    return ConfigKey(key, Kind.REPLICAS, "", no_effect=why)


_COMPRESSION_TYPES = ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd")
_MIGRATION_POLICIES = ("bidirectional", "disabled", "downgrade", "upgrade")
ISOLATION_LEVELS = ("read_committed", "read_uncommitted")
_FLUSHES = "write.caching determines whether a write is flushed before its acknowledgement"
_ONE_FORMAT = "records have one format, which all clients since Kafka 0.11 use"
_OWN_INDEX = "the log chooses the density and the size of its indexes"
_NO_TIERS = "there is no remote storage"

_DAY_MS = 24 * 60 * 60 * 1000

TOPIC_CONFIGS: dict[str, ConfigKey] = {
    config.key: config
    for config in (
        ConfigKey("cleanup.policy", Kind.POLICIES, "delete", choices=("compact", "delete")),
        ConfigKey("compression.gzip.level", Kind.INT, "-1", -1, 9, barred=0),
        _int("compression.lz4.level", 9, 1, 17),
        ConfigKey(COMPRESSION_TYPE, Kind.CHOICE, "producer", choices=_COMPRESSION_TYPES),
        _boolean("compression.validation.enable", "true"),
        _int("compression.zstd.level", 3, -131_072, 22),
        _int("delete.retention.ms", _DAY_MS, 0),
        _boolean("errors.deadletterqueue.group.enable", "false"),
        _ignored_int("file.delete.delay.ms", 60_000, 0, INT64_MAX, "the log deletes files at once"),
        _ignored_int("flush.messages", INT64_MAX, 1, INT64_MAX, _FLUSHES),
        _ignored_int("flush.ms", INT64_MAX, 0, INT64_MAX, _FLUSHES),
        _ignored_replicas("follower.replication.throttled.replicas"),
        _ignored_int("index.interval.bytes", 4096, 0, INT32_MAX, _OWN_INDEX),
        _ignored_replicas("leader.replication.throttled.replicas"),
        _ignored_int("local.retention.bytes", -2, -2, INT64_MAX, _NO_TIERS),
        _ignored_int("local.retention.ms", -2, -2, INT64_MAX, _NO_TIERS),
        _int("max.compaction.lag.ms", INT64_MAX, 1),
        _int("max.message.bytes", 1_048_588, 1, INT32_MAX),
        ConfigKey("message.downconversion.enable", Kind.BOOLEAN, "true", no_effect=_ONE_FORMAT),
        ConfigKey("message.format.version", Kind.VERSION, "3.0-IV1", no_effect=_ONE_FORMAT),
        _int("message.timestamp.after.max.ms", INT64_MAX, 0),
        _int("message.timestamp.before.max.ms", INT64_MAX, 0),
        _only("message.timestamp.difference.max.ms", str(INT64_MAX)),
        ConfigKey("message.timestamp.type", Kind.CHOICE, "CreateTime", choices=("CreateTime", "LogAppendTime")),
        ConfigKey("min.cleanable.dirty.ratio", Kind.RATIO, "0.5"),
        _int("min.compaction.lag.ms", 0, 0),
        _int("min.insync.replicas", 1, 1, 32_767),
        ConfigKey("preallocate", Kind.BOOLEAN, "false", no_effect="segments grow with their contents"),
        _only("remote.storage.enable", "false"),
        _int("retention.bytes", -1, -1),
        _int("retention.ms", 7 * _DAY_MS, -1),
        _int("segment.bytes", 1 << 30, 1 << 14, INT32_MAX),
        _ignored_int("segment.index.bytes", 10 << 20, 4, INT32_MAX, _OWN_INDEX),
        _ignored_int("segment.jitter.ms", 0, 0, INT64_MAX, "segments of different logs end at different times anyway"),
        _int("segment.ms", 7 * _DAY_MS, 1),
        _boolean("unclean.leader.election.enable", "false"),
        _boolean("write.caching", "false"),
    )
}
"""Configs of topics, by key, ascending.

compression.type: a leader recompresses each batch that has another codec, before it appends the batch; with `producer`,
batches keep their codecs.  compression.gzip.level, compression.lz4.level, compression.zstd.level: see KIP-390.
compression.validation.enable: whether a leader decompresses each compressed batch and checks its records before it
appends the batch, as Kafka does.  Without this check, a defective producer can write batches that no consumer can read.
errors.deadletterqueue.group.enable: whether brokers may write the dead letters of share groups to the topic (KIP-1191).
message.timestamp.type: LogAppendTime replaces the timestamps of producers with the leader's time of the append.
message.timestamp.before.max.ms, message.timestamp.after.max.ms: how far the timestamp of a record may lie in the past
and in the future.  The largest number means no limit, and is the default of both.  Kafka 4 limits the future to 1 h.
Kafka configs that scripts set, but that have no meaning for quorumlog, are accepted with a note
(`ConfigKey.no_effect`).  Some Kafka configs may have only one value, because another value would change which records
are accepted or how they are kept.
"""

CLUSTER_CONFIGS: dict[str, ConfigKey] = {
    config.key: config
    for config in (
        _boolean("auto.create.topics.enable", "false"),
        _boolean("auto.leader.rebalance.enable", "true"),
        _int("default.replication.factor", 3, 1, 32_767),
        _boolean("errors.deadletterqueue.auto.create.topics.enable", "false"),
        ConfigKey("errors.deadletterqueue.topic.name.prefix", Kind.TOPIC_PREFIX, "dlq."),
        _int("group.consumer.assignment.interval.ms", 1_000, 0, INT32_MAX),
        ConfigKey("group.consumer.assignors", Kind.POLICIES, "uniform,range", choices=("uniform", "range")),
        _int("group.consumer.heartbeat.interval.ms", 5_000, 1, INT32_MAX),
        _int("group.consumer.max.assignment.interval.ms", 15_000, 0, INT32_MAX),
        _int("group.consumer.max.heartbeat.interval.ms", 15_000, 1, INT32_MAX),
        _int("group.consumer.max.session.timeout.ms", 60_000, 1, INT32_MAX),
        _int("group.consumer.max.size", 10_000, 1, INT32_MAX),
        ConfigKey("group.consumer.migration.policy", Kind.CHOICE, "bidirectional", choices=_MIGRATION_POLICIES),
        _int("group.consumer.min.assignment.interval.ms", 0, 0, INT32_MAX),
        _int("group.consumer.min.heartbeat.interval.ms", 5_000, 1, INT32_MAX),
        _int("group.consumer.min.session.timeout.ms", 45_000, 1, INT32_MAX),
        _int("group.consumer.session.timeout.ms", 45_000, 1, INT32_MAX),
        _int("group.initial.rebalance.delay.ms", 3_000, 0, INT32_MAX),
        _int("group.max.session.timeout.ms", 1_800_000, 1, INT32_MAX),
        _int("group.max.size", 10_000, 1, INT32_MAX),
        _int("group.min.session.timeout.ms", 6_000, 1, INT32_MAX),
        _int("group.share.delivery.count.limit", 5, 2, 25),
        _int("group.share.heartbeat.interval.ms", 5_000, 1, INT32_MAX),
        _int("group.share.max.delivery.count.limit", 10, 5, 25),
        _int("group.share.max.heartbeat.interval.ms", 15_000, 1, INT32_MAX),
        _int("group.share.max.partition.max.record.locks", 4_000, 2_000, 10_000),
        _int("group.share.max.record.lock.duration.ms", 60_000, 30_000, 3_600_000),
        _int("group.share.max.session.timeout.ms", 60_000, 1, INT32_MAX),
        _int("group.share.max.share.sessions", 2_000, 1, 100_000),
        _int("group.share.max.size", 200, 1, 1_000),
        _int("group.share.min.delivery.count.limit", 2, 2, 5),
        _int("group.share.min.heartbeat.interval.ms", 5_000, 1, INT32_MAX),
        _int("group.share.min.partition.max.record.locks", 100, 100, 2_000),
        _int("group.share.min.record.lock.duration.ms", 15_000, 1_000, 30_000),
        _int("group.share.min.session.timeout.ms", 45_000, 1, INT32_MAX),
        _int("group.share.partition.max.record.locks", 2_000, 100, 10_000),
        _int("group.share.record.lock.duration.ms", 30_000, 1_000, 3_600_000),
        _int("group.share.session.timeout.ms", 45_000, 1, INT32_MAX),
        _int("leader.rebalance.interval.ms", 300_000, 1_000, INT32_MAX),
        _int("metadata.retention.bytes", 1 << 30, 0),
        _int("metadata.retention.ms", 7 * _DAY_MS, 0),
        _int("num.partitions", 1, 1, 10_000),
        _int("offset.metadata.max.bytes", 4_096, 0, 10_000),
        _int("offsets.retention.check.interval.ms", 600_000, 1_000, INT32_MAX),
        _int("offsets.retention.minutes", 7 * 24 * 60, 1, INT32_MAX),
        _int("offsets.topic.num.partitions", 50, 1, 10_000),
        _int("reassignment.throttle.bytes.per.second", -1, -1),
        ConfigKey("replica.selector", Kind.CHOICE, "leader", choices=("leader", "rack-aware")),
        ConfigKey("share.auto.offset.reset", Kind.CHOICE, "latest", choices=OFFSET_RESETS),
        _int("share.coordinator.state.topic.num.partitions", 50, 1, 10_000),
        ConfigKey("share.isolation.level", Kind.CHOICE, "read_uncommitted", choices=ISOLATION_LEVELS),
        _int("transaction.max.timeout.ms", 900_000, 1, INT32_MAX),
        _int("transaction.state.log.num.partitions", 50, 1, 10_000),
        _int("transactional.id.expiration.ms", 7 * _DAY_MS, 1),
    )
}
"""Configs of the cluster alone, by key, ascending.  Topic configs may be set for the cluster as well.

auto.create.topics.enable: whether a broker creates a topic that a client names in a Metadata request.  The default is
off, unlike Kafka's: a misspelt name would become a topic, with settings that were not chosen.
errors.deadletterqueue.*: whether a broker creates a missing dead-letter topic of a share group (KIP-1191), and how the
names of these topics must begin.
group.consumer.*: limits of groups of the newer protocol (KIP-848).
group.consumer.assignors: the assignors that members may choose, the default first.
group.consumer.assignment.interval.ms: the minimum time between two assignments of a group (KIP-1263).
group.consumer.migration.policy: whether a group with members may change its protocol.
group.share.*: limits of share groups (KIP-932).
group.share.delivery.count.limit: a record that was delivered this often without being accepted is archived.
group.share.record.lock.duration.ms: how long a record stays locked for the member that received it.
group.share.partition.max.record.locks: the maximum number of records of a partition in flight in a share group.
group.share.min.*, group.share.max.*: the range for configs of single groups (`metadata/image/group_configs.py`).
share.auto.offset.reset, share.isolation.level: the values for share groups that set none; Kafka has no such defaults.
group.initial.rebalance.delay.ms: how long the first rebalance of an empty group waits for more members.
group.max.size: the maximum number of members of a group.
metadata.retention.*: how much history of the metadata every node keeps; the limit that is reached first applies.
offset.metadata.max.bytes: the maximum size of the text that a client stores with a committed offset.
offsets.retention.minutes: how long the offsets of a group stay after it became empty.
offsets.topic.num.partitions, share.coordinator.state.topic.num.partitions, transaction.state.log.num.partitions: the
number of partitions of __consumer_offsets, __share_group_state and __transaction_state when a broker creates them.
reassignment.throttle.bytes.per.second: how much a broker copies to replicas that are being added; -1: no limit.
replica.selector: rack-aware sends a consumer that names its rack to a replica in that rack; with `leader`, leaders
serve all consumers.
transaction.max.timeout.ms: how long a producer may keep a transaction open.
transactional.id.expiration.ms: how long a transactional id without an open transaction is kept.
"""

_FOLLOWER_RATE = "follower.replication.throttled.rate"
BROKER_CONFIGS: dict[str, ConfigKey] = {
    config.key: config
    for config in (
        _boolean("cordoned", "false"),
        _int(_FOLLOWER_RATE, INT64_MAX, 0),
        _ignored_int(
            "leader.replication.throttled.rate",
            INT64_MAX,
            0,
            INT64_MAX,
            f"{_FOLLOWER_RATE} limits the bytes that a broker copies",
        ),
        _int("replica.alter.log.dirs.io.max.bytes.per.second", INT64_MAX, 0),
    )
}
"""Configs of a single broker.  A cordoned broker gets a new replica only if a request names that broker.

follower.replication.throttled.rate: how many bytes per second this broker copies to replicas that are being added; the
maximum means no limit.  Kafka limits both ends of a copy, and kafka-reassign-partitions sets both to the same value.
replica.alter.log.dirs.io.max.bytes.per.second: the same for copies between the directories of this broker.
"""

KAFKA_RATES = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""Kafka's throttles.  A request may remove them even from the cluster or a group, where they cannot be set.
Such a removal changes nothing.

kafka-reassign-partitions removes them after every reassignment, even if it never set them.
"""


def unknown_key(key: str, known: Mapping[str, ConfigKey], what: str) -> str:
    """Return a message that the key does not exist, with the most similar key, or else with some or all of the keys.

    known: the table of the scope.  A config without effect is not suggested.
    what: the scope, such as `topic`.
    """
    useful = tuple(name for name, config in known.items() if not config.no_effect)
    return f"{key[:60]!a} is not a {what} config; {_hint(key[:250], useful)}"


@lru_cache(maxsize=HINTS_KEPT_MAX)
def _hint(key: str, keys: tuple[str, ...]) -> str:
    near = [named] if (named := topic_config(key)) in keys else get_close_matches(key, keys, 1)
    if near:
        return f"did you mean {near[0]}?"
    hint = f"there are {', '.join(keys[:KEYS_SHOWN_MAX])}"
    if len(keys) > KEYS_SHOWN_MAX:
        hint += f" and {len(keys) - KEYS_SHOWN_MAX} more; kctl configs get lists them"
    return hint
