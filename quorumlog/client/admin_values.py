"""The arguments and results of `Admin`, and the errors with which it reports refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import index
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from quorumlog.client.kafka import error_word
from quorumlog.client.messages import TIMESTAMP_MAX_MS
from quorumlog.errors import ClusterError, ConfigError
from quorumlog.runtime.addresses import Address
from quorumlog.wire.errors import ApiError

K = TypeVar("K")
T = TypeVar("T")

SHOWN_MAX: Final = 5
"""Maximum number of refusals that a message shows; `RefusalsError.refusals` has all."""
_STOP_MEMBERS: Final = "stop the members of the group first; describe_group() lists them"
_LISTS: Final = "topics() lists the topics; describe_topic() lists the partitions of a topic"
_LOOK: Final = "check that the brokers run; a change may have been made, so look for it before you retry"
NEXT_STEPS: Final = {
    ApiError.TOPIC_ALREADY_EXISTS: "describe_topic() shows the topic; use another name, or delete it first",
    ApiError.UNKNOWN_TOPIC_OR_PARTITION: _LISTS,
    ApiError.UNKNOWN_TOPIC_ID: _LISTS,
    ApiError.INVALID_TOPIC_EXCEPTION: "use 1 to 249 letters, digits, dots, dashes and underscores",
    ApiError.INVALID_PARTITIONS: "describe_topic() shows the partitions; add_partitions() can only raise their number",
    ApiError.INVALID_REPLICATION_FACTOR: "cluster() lists the brokers; a partition has at most one replica on each",
    ApiError.INVALID_REPLICA_ASSIGNMENT: "cluster() lists the brokers; name each at most once for a partition",
    ApiError.INVALID_CONFIG: "get_configs() lists the configs and their values",
    ApiError.INVALID_REQUEST: "correct the request; a config may be read-only: get_configs() shows it",
    ApiError.BROKER_ID_NOT_REGISTERED: "cluster() lists the brokers",
    ApiError.OFFSET_OUT_OF_RANGE: "offsets() returns the first offset and the end of a partition",
    ApiError.OFFSET_NOT_COMMITTED: "name the topics or partitions; group_offsets() returns what is committed",
    ApiError.GROUP_ID_NOT_FOUND: "list_groups() lists the groups",
    ApiError.NON_EMPTY_GROUP: _STOP_MEMBERS,
    "UNKNOWN_MEMBER_ID": _STOP_MEMBERS,
    ApiError.GROUP_SUBSCRIBED_TO_TOPIC: _STOP_MEMBERS,
    "TOPIC_AUTHORIZATION_FAILED": "ask the owner of the cluster for the right to do this with the topic",
    "GROUP_AUTHORIZATION_FAILED": "ask the owner of the cluster for the right to do this with the group",
    ApiError.CLUSTER_AUTHORIZATION_FAILED: "ask the owner of the cluster for the right to do this",
    ApiError.CLIENT_CLOSED: "make a new Admin",
    ApiError.UNSUPPORTED_VERSION: "use brokers of Apache Kafka 3.1 or later, or of quorumlog; for configs of groups in "
    "quorumlog: kctl features upgrade",
}
_NO_ANSWER: Final = (ApiError.TIMED_OUT, ApiError.REQUEST_TIMED_OUT)
_RETRY: Final = "check that the brokers run, then retry"
_LOGS: Final = "the brokers' logs may have the cause"


class NewTopic(NamedTuple):
    """A topic to create.

    partitions, replication_factor: None means the cluster's default.
    assignment: the broker ids of each partition, the preferred leader first.  An assignment replaces the two numbers,
        which must then be None.
    """

    name: str
    partitions: int | None = None
    replication_factor: int | None = None
    configs: Mapping[str, str] | None = None
    assignment: Sequence[Sequence[int]] | None = None


class CreatedTopic(NamedTuple):
    """A topic that was created, or that passed a validation.  topic_id: None after a validation.

    configs: the effective configs that the broker reports.
    """

    name: str
    topic_id: UUID | None
    partitions: int
    replication_factor: int
    configs: Mapping[str, str | None]


class PartitionDescription(NamedTuple):
    """A partition.  leader: a broker id; None if the partition has no leader.

    replicas: broker ids, the preferred leader first.  isr: the in-sync replicas.  offline: the unavailable replicas.
    """

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


class TopicDescription(NamedTuple):
    """A topic.  partitions: ascending.  is_internal: the topic holds state of the brokers."""

    name: str
    topic_id: UUID | None
    is_internal: bool
    partitions: tuple[PartitionDescription, ...]


class ClusterBroker(NamedTuple):
    """A broker that clients can reach."""

    broker_id: int
    address: Address
    rack: str | None


class ClusterDescription(NamedTuple):
    """A cluster.  brokers: ascending.

    controller: the broker to which changes of topics are sent; None if there is none now.  In clusters of quorumlog,
    and of Kafka without ZooKeeper, every broker accepts such changes, so this is any broker.
    """

    cluster_id: str | None
    controller: int | None
    brokers: tuple[ClusterBroker, ...]


class ConfigValue(NamedTuple):
    """An effective config.

    value: None if the config has no value, or its value must not be shown.
    source: where the value was set: "topic", "broker", "cluster" (all brokers), "group", "file" (of the broker),
        "default", or "other".
    """

    name: str
    value: str | None
    source: str
    is_read_only: bool
    is_sensitive: bool
    documentation: str | None


class OffsetMove(NamedTuple):
    """The committed offset of a group before and after a reset.  before: None if none was committed."""

    before: int | None
    after: int


class RefusalsError(ClusterError, Generic[K, T]):
    """Some parts of a call were refused; the others took effect.

    Attributes:
        refusals: the error of each refused part.
        done: the result of each other part.

    `code` and `next_step` are those of the first refusal.
    """

    def __init__(self, refusals: Mapping[K, ClusterError], done: Mapping[K, T]) -> None:
        errors = list(refusals.values())
        shown = "; ".join(error.message for error in errors[:SHOWN_MAX])
        more = f"; and {len(errors) - SHOWN_MAX} more" if len(errors) > SHOWN_MAX else ""
        count = f"{len(errors)} of {len(errors) + len(done)} refused"
        retriable = all(error.retriable for error in errors)
        super().__init__(errors[0].code, f"{count}: {shown}{more}", errors[0].next_step, retriable=retriable)
        self.refusals = refusals
        self.done = done


def done_or_raise(outcomes: Mapping[K, T | ClusterError]) -> dict[K, T]:
    """Return the results if no part was refused.

    Raises:
        ClusterError: there is only one part, and it was refused.
        RefusalsError: one or more of several parts were refused.
    """
    done: dict[K, T] = {}
    refusals: dict[K, ClusterError] = {}
    for key, outcome in outcomes.items():
        if isinstance(outcome, ClusterError):
            refusals[key] = advised(outcome)
        else:
            done[key] = outcome
    if refusals and len(outcomes) == 1:
        raise next(iter(refusals.values()))
    if refusals:
        raise RefusalsError(refusals, done)
    return done


def changed_perhaps(error: ClusterError) -> ClusterError:
    """Return the error of a call that changes something.

    If no answer arrived for the call or for one of its parts, the next step asks to check the outcome.
    """
    parts = error.refusals.values() if isinstance(error, RefusalsError) else ()
    for each in (error, *parts):
        if each.code in _NO_ANSWER:
            each.next_step = _LOOK
    return error


def advised(error: ClusterError) -> ClusterError:
    """Add a next step to the error, if possible a call of `Admin`, and return the error."""
    error.next_step = NEXT_STEPS.get(error.code) or error.next_step or (_RETRY if error.retriable else _LOGS)
    return error


def refused(code: int, what: str, reason: str | None = None) -> ClusterError:
    """Return a broker's refusal.  reason: the broker's explanation; None means the general one."""
    name, retriable = error_word(code)
    known = ApiError.named(name)
    if not reason:
        reason = name if known is None else known.sentence[:1].lower() + known.sentence[1:].rstrip(".")
    return advised(ClusterError(name, f"{what}: {reason}", retriable=retriable, refresh_metadata=retriable))


def topic_description(topic: Any) -> TopicDescription:
    """Return a topic from a Metadata response."""
    partitions = sorted(topic.partitions, key=lambda each: int(each.partition_index))
    return TopicDescription(
        str(topic.name),
        topic.topic_id,
        bool(topic.is_internal),
        tuple(
            PartitionDescription(
                int(each.partition_index),
                None if each.leader_id < 0 else int(each.leader_id),
                int(each.leader_epoch),
                tuple(map(int, each.replica_nodes)),
                tuple(map(int, each.isr_nodes)),
                tuple(map(int, each.offline_replicas)),
            )
            for each in partitions
        ),
    )


def cluster_description(reply: Any) -> ClusterDescription:
    """Return the cluster from a Metadata response."""
    brokers = sorted(
        ClusterBroker(int(each.node_id), Address(each.host, each.port), each.rack) for each in reply.brokers
    )
    controller = None if reply.controller_id < 0 else int(reply.controller_id)
    return ClusterDescription(reply.cluster_id, controller, tuple(brokers))


_SOURCES: Final = {1: "topic", 2: "broker", 3: "cluster", 4: "file", 5: "default", 8: "group"}


def config_value(config: Any) -> ConfigValue:
    """Return a config from a DescribeConfigs response."""
    source = _SOURCES.get(config.config_source, "other")
    return ConfigValue(
        config.name, config.value, source, config.read_only, config.is_sensitive, config.documentation or None
    )


def as_time_ms(time: datetime | int) -> int:
    """Return ms since 1970.

    Raises:
        ConfigError: a datetime has no time zone, a number is not an int, or the time is out of range.
    """
    if isinstance(time, datetime):
        if time.tzinfo is None:
            raise ConfigError(f"the time {time} has no time zone; for example, add tzinfo=UTC")
        time = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    try:
        time_ms = index(time)
    except TypeError:
        raise ConfigError(f"the time {time!r} is not an int; round it first") from None
    if not 0 <= time_ms <= TIMESTAMP_MAX_MS:
        raise ConfigError(f"the time {time_ms} is not in ms since 1970")
    return time_ms
