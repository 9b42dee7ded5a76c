"""Configs that are records: of topics, of single brokers, of single groups, and of the cluster.

Each resource of a request is independent: all of its changes are made, or none.  The value in force is the topic's own,
else the cluster's value of the same key, else the default; the tables are in `metadata.image.topic_configs`.

Two keys affect which replicas may lead, so changing them has further effects.  A change of min.insync.replicas clears
the eligible leader replicas (ELR) of the affected partitions in the same batch, because the old value determined them.
A partition with an empty ISR keeps its ELR, since no other replica is known to hold the acknowledged records.  If the
records do not fit into one batch, earlier batches clear the ELRs, and the last batch changes the config.  So if the
controller fails in between, the config is unchanged.  When unclean elections become permitted, partitions without a
leader elect one, where possible.

If a topic's min.insync.replicas is removed, the topic gets the value that a new topic would get, not the default of 1:
removing the config must not make a topic of three replicas unsafe.

Config records of groups need level 2 of metadata.version, because older releases do not know them.  The defaults and
ranges of these configs depend on the cluster's configs (`metadata.image.group_configs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from uuid import UUID

import msgspec

from metadata.control.decision import Decision
from metadata.control.election import MIN_ISR
from metadata.control.errors import OK, Outcome, no_topic
from metadata.control.topics import default_min_isr
from metadata.image import (
    BROKER_CONFIGS,
    CLUSTER_CONFIGS,
    DEAD_LETTER_TOPIC,
    GROUP_CONFIGS,
    GROUPS_WITH_CONFIGS_MAX,
    KAFKA_RATES,
    TIMES,
    TOPIC_CONFIGS,
    ClusterImage,
    ConfigKey,
    TopicImage,
    dead_letter_problem,
    group_keys,
    inherited_key,
    is_internal,
    unknown_key,
)
from metadata.image.internal_topics import CLEANUP_POLICY, COMPACT, cleanup_problem
from metadata.image.topic_configs import NOTHING_UNAVAILABLE
from metadata.records import (
    GROUP_CONFIGS_LEVEL,
    METADATA_VERSION,
    METADATA_VERSION_MIN,
    NO_OFFSET,
    RECORDS_PER_BATCH_MAX,
    Config,
    ConfigScope,
    PartitionChange,
    Reason,
    Record,
)
from quorumlog.wire.errors import ApiError

TABLES: Mapping[ConfigScope, Mapping[str, ConfigKey]] = {
    ConfigScope.TOPIC: TOPIC_CONFIGS,
    ConfigScope.BROKER: BROKER_CONFIGS,
    ConfigScope.CLUSTER: dict(sorted({**TOPIC_CONFIGS, **CLUSTER_CONFIGS}.items())),
    ConfigScope.GROUP: GROUP_CONFIGS,
}
"""The configs of each scope.  The ranges and defaults of groups depend on the cluster: `keys_of` returns them."""
CHANGES_MAX = 10_000
"""Maximum number of config changes in one request."""
GROUP_ID_MAX_BYTES = 1_024
"""Maximum length of a group id in a request about configs."""


class Resource(msgspec.Struct, frozen=True):
    """name: a topic's name, a broker's id in decimal, a group's id, empty for the cluster.  scope: None if unknown."""

    scope: ConfigScope | None
    name: str

    def __str__(self) -> str:
        kind = "no scope" if self.scope is None else self.scope.name.lower()
        return f"{kind} {self.name[:60]!a}" if self.name else kind


class Changes(msgspec.Struct, frozen=True):
    """values: key → value; None restores the default.  replace_all: also restore the default of all other keys."""

    resource: Resource
    values: tuple[tuple[str, str | None], ...]
    replace_all: bool = False


class Altered(msgspec.Struct, frozen=True):
    """changed: False for a refusal, a dry run, or configs that already had these values."""

    resource: Resource
    outcome: Outcome
    changed: bool = False


class Described(msgspec.Struct, frozen=True):
    """source: `default`, or the scope that has set the value.  allowed: the permitted values, in words."""

    key: str
    value: str
    source: str
    allowed: str


# Changes


def alter_configs(
    image: ClusterImage,
    wanted: Sequence[Changes],
    *,
    validate_only: bool = False,
    unavailable: Mapping[str, str] = NOTHING_UNAVAILABLE,
) -> Decision[tuple[Altered, ...]]:
    """Decide config changes: of each resource, all or none.

    unavailable: see `ConfigKey.problem`.
    """
    times = Counter(each.resource for each in wanted)
    answers: list[Altered] = []
    configs: list[Config] = []
    too_many = sum(len(each.values) for each in wanted) > CHANGES_MAX
    groups = len(image.group_configs)
    for each in wanted:
        if too_many:
            text = f"one request changes at most {CHANGES_MAX} configs"
            answers.append(Altered(each.resource, Outcome(ApiError.POLICY_VIOLATION, text)))
        elif times[each.resource] > 1:
            text = f"{each.resource} is named {times[each.resource]} times in one request"
            answers.append(Altered(each.resource, Outcome(ApiError.INVALID_REQUEST, text)))
        else:
            found = _records(image, each, unavailable)
            if not isinstance(found, Outcome) and _is_new_group(image, found):
                groups += 1
                found = _too_many_groups() if groups > GROUPS_WITH_CONFIGS_MAX else found
            refused = isinstance(found, Outcome)
            answers.append(
                Altered(each.resource, found if isinstance(found, Outcome) else OK, not refused and bool(found))
            )
            configs += [] if isinstance(found, Outcome) else found
    if len(configs) > RECORDS_PER_BATCH_MAX:  # replace_all can add changes
        text = f"{len(configs)} changes: one request can make at most {RECORDS_PER_BATCH_MAX}"
        return Decision(tuple([Altered(each.resource, Outcome(ApiError.POLICY_VIOLATION, text)) for each in wanted]))
    if validate_only:
        return Decision(tuple([Altered(each.resource, each.outcome) for each in answers]))
    return _with_clearings(image, tuple(answers), configs)


def _is_new_group(image: ClusterImage, configs: Sequence[Config]) -> bool:
    """Return whether the records of one resource are the first configs of a group."""
    return bool(configs) and configs[0].scope is ConfigScope.GROUP and configs[0].resource not in image.group_configs


def _too_many_groups() -> Outcome:
    text = f"at most {GROUPS_WITH_CONFIGS_MAX} groups can have configs of their own"
    return Outcome(ApiError.POLICY_VIOLATION, text, "unset the configs of groups that are no longer used")


def _with_clearings(
    image: ClusterImage, answers: tuple[Altered, ...], configs: Sequence[Config]
) -> Decision[tuple[Altered, ...]]:
    room = RECORDS_PER_BATCH_MAX - len(configs)
    clearings = list(islice(_clearings(image, configs), RECORDS_PER_BATCH_MAX + 1))
    if len(clearings) > room:
        part = [_cleared(*each, NO_OFFSET) for each in clearings[:RECORDS_PER_BATCH_MAX]]
        return Decision(answers, tuple(part), more=True)
    records: list[Record] = list(configs)
    records += [_cleared(*each, image.end_offset + each[2]) for each in clearings]
    return Decision(answers, tuple(records))


_Clearing = tuple[TopicImage, int, int]
"""(topic, partition index, position of the config that causes the clearing)."""


def _clearings(image: ClusterImage, configs: Sequence[Config]) -> Iterator[_Clearing]:
    """Yield the partitions whose eligible leader replicas a change of min.insync.replicas clears, each once."""
    seen: set[UUID] = set()
    for position, config in enumerate(configs):
        if config.key != MIN_ISR:
            continue
        if config.scope is ConfigScope.TOPIC:
            topic_ids = [UUID(config.resource)]
        else:  # the cluster's value applies to the topics without a value of their own
            own = image.configs
            topic_ids = [
                each for each in sorted(image.topics) if MIN_ISR not in own.get((ConfigScope.TOPIC, each.hex), {})
            ]
        for topic_id in topic_ids:
            if topic_id in seen:
                continue
            seen.add(topic_id)
            topic = image.topics[topic_id]
            for partition in topic.partitions:
                # Without an ISR there is no leader, so nothing is committed before an eligible replica leads.
                if partition is not None and partition.elr and partition.isr:
                    yield topic, partition.index, position


def _cleared(topic: TopicImage, index: int, position: int, cause_offset: int) -> PartitionChange:
    partition = topic.partition(index)
    assert partition is not None, f"{topic.name}-{index} does not exist"
    return PartitionChange(
        topic_id=topic.topic_id,
        index=index,
        reason=Reason.CONFIG_CHANGED,
        cause_offset=cause_offset,
        previous_offset=partition.last_offset,
        elr=(),
    )


def _records(image: ClusterImage, wanted: Changes, unavailable: Mapping[str, str]) -> list[Config] | Outcome:
    """Return the records of one resource's changes, in the order of the keys, or the refusal."""
    key = resource_key(image, wanted.resource)
    if isinstance(key, Outcome):
        return key
    scope, name = key
    times = Counter(key for key, _ in wanted.values)
    table = keys_of(image, scope)
    for config, value in wanted.values:
        known = table.get(config)
        if known is None and value is None and _never_set(scope, config):
            continue
        if known is None:
            return Outcome(ApiError.INVALID_CONFIG, unknown_key(config, table, scope.name.lower()))
        if times[config] > 1:
            return Outcome(ApiError.INVALID_CONFIG, f"{config} is set {times[config]} times")
        if config == CLEANUP_POLICY and _is_internal(wanted.resource):
            problem = cleanup_problem(value)
        else:
            problem = None if value is None else known.problem(value, unavailable)
        problem = problem or _too_high(image, wanted.resource, config, value)
        if problem is not None:
            return Outcome(ApiError.INVALID_CONFIG, problem)
    now = image.config(scope, name)
    target = {config: value for config, value in wanted.values if config in table}
    if wanted.replace_all:
        target = {**dict.fromkeys(now), **target}
    if scope is ConfigScope.TOPIC and MIN_ISR in target and target[MIN_ISR] is None:
        target[MIN_ISR] = str(default_min_isr(image, _factor(image, wanted.resource.name)))
    if CLEANUP_POLICY in target and _is_internal(wanted.resource):
        target[CLEANUP_POLICY] = COMPACT
    records = [Config(scope, name, each, target[each]) for each in sorted(target) if now.get(each) != target[each]]
    if scope is ConfigScope.GROUP and records:
        return _group_refusal(image, {**now, **target}, target, table) or records
    return records


def _group_refusal(
    image: ClusterImage,
    own: Mapping[str, str | None],
    changed: Mapping[str, str | None],
    table: Mapping[str, ConfigKey],
) -> Outcome | None:
    """Return why a group cannot have these configs, or None.

    own: its values after the change; None: the default.  changed: the values that the request names.
    """
    level = image.features.get(METADATA_VERSION, METADATA_VERSION_MIN)
    if level < GROUP_CONFIGS_LEVEL:
        text = f"configs of groups need level {GROUP_CONFIGS_LEVEL} of {METADATA_VERSION}; the cluster is at {level}"
        return Outcome(ApiError.UNSUPPORTED_VERSION, text, "kctl features upgrade, once every node has this release")
    topic = changed.get(DEAD_LETTER_TOPIC)
    if topic is not None and (problem := dead_letter_problem(image, topic)) is not None:
        return Outcome(ApiError.INVALID_CONFIG, problem)
    for session, interval in TIMES:
        session_ms, interval_ms = (int(own.get(key) or table[key].default) for key in (session, interval))
        if session_ms <= interval_ms and (own.get(session) or own.get(interval)):
            text = f"{session} ({session_ms}) must be greater than {interval} ({interval_ms})"
            return Outcome(ApiError.INVALID_CONFIG, text)
    return None


def keys_of(image: ClusterImage, scope: ConfigScope) -> Mapping[str, ConfigKey]:
    """Return the configs of a scope, by key, with the ranges and defaults that are in force."""
    return group_keys(image) if scope is ConfigScope.GROUP else TABLES[scope]


def _is_internal(resource: Resource) -> bool:
    return resource.scope is ConfigScope.TOPIC and is_internal(resource.name)


def _never_set(scope: ConfigScope, key: str) -> bool:
    return scope is not ConfigScope.TOPIC and key in KAFKA_RATES


def _too_high(image: ClusterImage, resource: Resource, key: str, value: str | None) -> str | None:
    if resource.scope is not ConfigScope.TOPIC or key != MIN_ISR or value is None:
        return None
    factor = _factor(image, resource.name)
    if int(value) <= factor:
        return None
    return f"{key} {value} is above the replication factor: only {factor} replicas can be in sync"


def _factor(image: ClusterImage, name: str) -> int:
    """Return the smallest number of replicas of the topic's partitions, after any reassignments in progress."""
    topic = image.topic(name)
    partitions = () if topic is None else topic.partitions
    return min((len(each.replicas) - len(each.removing) for each in partitions if each is not None), default=1)


def resource_key(image: ClusterImage, resource: Resource) -> tuple[ConfigScope, str] | Outcome:
    """Return the key of a resource's configs in the image, or a refusal if the resource does not exist."""
    name = resource.name
    match resource.scope:
        case ConfigScope.TOPIC:
            topic = image.topic(name)
            if topic is None:
                return no_topic(name)
            return ConfigScope.TOPIC, topic.topic_id.hex
        case ConfigScope.BROKER:
            if not (name.isascii() and name.isdigit() and len(name) <= 10 and str(int(name)) == name):
                return Outcome(ApiError.INVALID_REQUEST, f"{name[:60]!a} is not a broker's id")
            if int(name) not in image.brokers:
                return Outcome(
                    ApiError.BROKER_ID_NOT_REGISTERED, f"no broker {name} is registered", "kctl brokers list"
                )
            return ConfigScope.BROKER, name
        case ConfigScope.CLUSTER:
            if name:
                return Outcome(
                    ApiError.INVALID_REQUEST,
                    f"the resource name of the cluster's configs must be empty, not {name[:60]!a}",
                )
            return ConfigScope.CLUSTER, ""
        case ConfigScope.GROUP:
            if not name.strip() or len(name.encode()) > GROUP_ID_MAX_BYTES:
                limits = f"it must have 1 to {GROUP_ID_MAX_BYTES} bytes, and not only spaces"
                text = f"{name[:60]!a} is not a group id: {limits}"
                return Outcome(ApiError.INVALID_REQUEST, text)
            return ConfigScope.GROUP, name
    return Outcome(ApiError.INVALID_REQUEST, "the resource is neither a topic, a broker, a group nor the cluster")


# Description


def describe_configs(image: ClusterImage, resource: Resource) -> tuple[Described, ...] | Outcome:
    """Return every config of a resource: its value in force, the source of the value, and the permitted values."""
    key = resource_key(image, resource)
    if isinstance(key, Outcome):
        return key
    scope, name = key
    own = image.config(scope, name)
    return tuple([describe_config(image, scope, own.get(each.key), each) for each in keys_of(image, scope).values()])


def describe_config(image: ClusterImage, scope: ConfigScope, own: str | None, config: ConfigKey) -> Described:
    """Return one config of a resource.  own: the value that is set for the resource itself; None if it is not set."""
    cluster = image.config(ConfigScope.CLUSTER, "")
    value, source = config.default, "default"
    if own is not None:
        value, source = own, scope.name.lower()
    elif scope is ConfigScope.TOPIC and config.key in cluster:
        value, source = cluster[config.key], "cluster"
    elif scope is ConfigScope.GROUP and inherited_key(config.key) in cluster:
        source = "cluster"
    return Described(config.key, value, source, config.allowed)
