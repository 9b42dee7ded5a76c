"""Creating and deleting topics.

A request may name many topics.  Each topic has its own outcome, and all permitted changes are one batch.  A request
whose records do not fit into one batch changes nothing.  If a topic exists, the answer says whether it is `identical`
to the requested one, so that a tool can report success.

The built-in default replication factor is lowered to the number of brokers that accept replicas, for users' topics.  It
is not lowered for internal topics, since a topic that is created while a cluster starts would keep too few replicas
permanently.  The creation of an internal topic is refused until enough brokers accept replicas.  The exception is a
cluster with one voter (standalone brokers, development), which loses its metadata with that node anyway: there the
factor is also lowered for internal topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import msgspec
from msgspec.structs import replace

from metadata.control.decision import Decision
from metadata.control.election import MIN_ISR
from metadata.control.errors import OK, Outcome, no_topic
from metadata.control.placement import Placer
from metadata.control.reassign import ended, target_of
from metadata.image import TOPIC_CONFIGS, ClusterImage, TopicImage, is_internal, unknown_key
from metadata.image.internal_topics import CLEANUP_POLICY, INTERNAL_CONFIGS, PARTITIONS_KEYS, cleanup_problem
from metadata.image.topic_configs import NOTHING_UNAVAILABLE
from metadata.records import (
    RECORDS_PER_BATCH_MAX,
    UNASSIGNED,
    Config,
    ConfigScope,
    ForgetTopics,
    Partition,
    Record,
    RemoveTopic,
    Replica,
    Topic,
)
from quorumlog.wire.errors import ApiError

DEFAULT = -1
NAME_LENGTH_MAX = 249
REPLICAS_PER_REQUEST_MAX = 100_000
_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_PARTITIONS = "num.partitions"
_FACTOR = "default.replication.factor"


class NewTopic(msgspec.Struct, frozen=True):
    """A requested topic.

    partitions, replication_factor: used if `assignment` is empty; `DEFAULT`: the cluster's value.
    assignment: broker ids of each partition, the preferred leader first.
    """

    name: str
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignment: tuple[tuple[int, ...], ...] = ()
    configs: tuple[tuple[str, str], ...] = ()


class CreatedTopic(msgspec.Struct, frozen=True):
    """The outcome for one topic.  For an existing topic, `topic_id` and the numbers describe that topic.

    topic_id: None if no topic was created or found.  identical: the existing topic is as requested.
    """

    name: str
    outcome: Outcome
    topic_id: UUID | None = None
    partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    identical: bool = False


class DeletedTopic(msgspec.Struct, frozen=True):
    """The outcome for one topic.  name: empty, and topic_id: None, if unknown."""

    outcome: Outcome
    name: str = ""
    topic_id: UUID | None = None


def name_problem(name: str) -> str | None:
    """Return why a topic cannot have this name, or None."""
    shown = ascii(name[:40])
    if not name:
        return "a topic name cannot be empty"
    if len(name) > NAME_LENGTH_MAX:
        return f"topic name {shown}… has {len(name)} characters; at most {NAME_LENGTH_MAX} are permitted"
    if name in (".", ".."):
        return f"a topic cannot be named {shown}"
    if not _NAME_CHARACTERS.issuperset(name):
        return f"topic name {shown} has a character other than a-z, A-Z, 0-9, '.', '_' and '-'"
    if is_internal(name) and name not in PARTITIONS_KEYS:
        return f"topic name {shown}: names that begin with '__' are reserved for the system"
    return None


# Create


def create_topics(
    image: ClusterImage,
    topics: Sequence[NewTopic],
    new_id: Callable[[], UUID],
    *,
    validate_only: bool = False,
    has_one_voter: bool = False,
    unavailable: Mapping[str, str] = NOTHING_UNAVAILABLE,
) -> Decision[tuple[CreatedTopic, ...]]:
    """Decide the creation of topics.

    new_id: returns a random uuid.
    has_one_voter: whether the quorum has a single voter.
    unavailable: see `ConfigKey.problem`.
    """
    placer = Placer(image)
    counts = Counter(topic.name for topic in topics)
    planned: list[NewTopic | CreatedTopic] = []
    for topic in topics:
        if counts[topic.name] > 1:
            text = f"topic {topic.name[:40]!a} is named {counts[topic.name]} times in one request"
            planned.append(CreatedTopic(topic.name, Outcome(ApiError.INVALID_REQUEST, text)))
        else:
            planned.append(_plan(image, topic, placer.broker_count, has_one_voter, unavailable))
    wanted = [plan for plan in planned if isinstance(plan, NewTopic)]
    refusal = _check_size(wanted)
    if refusal is not None:
        refused = [plan if isinstance(plan, CreatedTopic) else CreatedTopic(plan.name, refusal) for plan in planned]
        return Decision(tuple(refused))
    records: list[Record] = []
    created: list[CreatedTopic] = []
    for plan in planned:
        if isinstance(plan, CreatedTopic):
            created.append(plan)
            continue
        topic_id = fresh_id(image, new_id)
        records += _records_of(image, plan, topic_id, placer)
        shown = None if validate_only else topic_id
        created.append(CreatedTopic(plan.name, OK, shown, plan.partitions, plan.replication_factor))
    return Decision(tuple(created), () if validate_only else tuple(records))


def _check_size(wanted: Sequence[NewTopic]) -> Outcome | None:
    size = sum(1 + plan.partitions + len(plan.configs) for plan in wanted)
    replicas = sum(plan.partitions * plan.replication_factor for plan in wanted)
    if size > RECORDS_PER_BATCH_MAX:
        problem = f"the request needs {size} records; one batch can hold at most {RECORDS_PER_BATCH_MAX}"
    elif replicas > REPLICAS_PER_REQUEST_MAX:
        problem = f"the request creates {replicas} replicas; one request can create at most {REPLICAS_PER_REQUEST_MAX}"
    else:
        return None
    return Outcome(ApiError.POLICY_VIOLATION, problem, "create fewer topics or partitions at a time")


def fresh_id(image: ClusterImage, new_id: Callable[[], UUID]) -> UUID:
    """Return a topic id that no topic of the image has.  new_id: returns a random uuid."""
    topic_id = new_id()
    while topic_id in image.topics or topic_id == UNASSIGNED:
        topic_id = new_id()
    return topic_id


def _plan(
    image: ClusterImage, topic: NewTopic, broker_count: int, has_one_voter: bool, unavailable: Mapping[str, str]
) -> NewTopic | CreatedTopic:
    """Return the topic with all defaults resolved (numbers, configs), or the reason why it is not created."""
    problem = name_problem(topic.name)
    if problem is not None:
        return CreatedTopic(topic.name, Outcome(ApiError.INVALID_TOPIC_EXCEPTION, problem))
    existing = image.topic(topic.name)
    if existing is not None:
        return _existing(image, existing, topic)
    if topic.assignment:
        checked = _check_assignment(image, topic)
    else:
        checked = _check_counts(image, topic, broker_count, is_flexible=has_one_voter or not is_internal(topic.name))
    if isinstance(checked, Outcome):
        return CreatedTopic(topic.name, checked)
    refusal = _check_configs(topic, checked.replication_factor, unavailable)
    if refusal is not None:
        return CreatedTopic(topic.name, refusal)
    own = configs_of_new(image, topic.name, dict(topic.configs), checked.replication_factor)
    return replace(checked, configs=tuple(sorted(own.items())))


def configs_of_new(image: ClusterImage, name: str, given: Mapping[str, str], replication_factor: int) -> dict[str, str]:
    """Return a new topic's own configs: the given configs, and the configs that every new topic gets."""
    own = {**INTERNAL_CONFIGS, **given} if is_internal(name) else dict(given)
    own.setdefault(MIN_ISR, str(default_min_isr(image, replication_factor)))
    return own


def default_min_isr(image: ClusterImage, replication_factor: int) -> int:
    """Return min.insync.replicas of a new topic: the cluster's value if it is set, at most the replication factor.

    Without a cluster's value: 2 for 3 or more replicas, else 1.
    """
    value = image.config(ConfigScope.CLUSTER, "").get(MIN_ISR)
    if value is not None:
        return min(int(value), replication_factor)
    return 2 if replication_factor >= 3 else 1


def _check_counts(image: ClusterImage, topic: NewTopic, broker_count: int, *, is_flexible: bool) -> NewTopic | Outcome:
    """is_flexible: whether a factor that was not set explicitly may be lowered to `broker_count`."""
    partitions, factor = topic.partitions, topic.replication_factor
    if partitions == DEFAULT:
        partitions = int(image.cluster_config(PARTITIONS_KEYS.get(topic.name, _PARTITIONS)))
    if factor == DEFAULT:
        # On a small cluster, the built-in default must not prevent users' topics; a configured value may.
        factor = int(image.cluster_config(_FACTOR))
        if is_flexible and _FACTOR not in image.config(ConfigScope.CLUSTER, ""):
            factor = max(1, min(factor, broker_count))
    if partitions < 1:
        return Outcome(ApiError.INVALID_PARTITIONS, f"{partitions} partitions: the number must be at least 1")
    if partitions > RECORDS_PER_BATCH_MAX:
        text = f"{partitions} partitions: one request can hold at most {RECORDS_PER_BATCH_MAX} records"
        return Outcome(ApiError.INVALID_PARTITIONS, text)
    if factor < 1:
        return Outcome(ApiError.INVALID_REPLICATION_FACTOR, f"replication factor {factor}: it must be at least 1")
    if factor > broker_count:
        return Outcome(
            ApiError.INVALID_REPLICATION_FACTOR,
            f"replication factor {factor}; unfenced brokers that accept replicas: {broker_count}",
            "start more brokers, or request fewer replicas",
        )
    return replace(topic, partitions=partitions, replication_factor=factor)


def _check_assignment(image: ClusterImage, topic: NewTopic) -> NewTopic | Outcome:
    rows = topic.assignment
    factor = len(rows[0])
    if topic.partitions not in (DEFAULT, 0, len(rows)) or topic.replication_factor not in (DEFAULT, 0, factor):
        return Outcome(
            ApiError.INVALID_REQUEST, "the assignment contradicts the given number of partitions or replicas"
        )
    if len(rows) > RECORDS_PER_BATCH_MAX:
        return Outcome(
            ApiError.INVALID_PARTITIONS, f"{len(rows)} partitions: at most {RECORDS_PER_BATCH_MAX} at a time"
        )
    refusal = check_rows(image, rows, 0, factor)
    return refusal or replace(topic, partitions=len(rows), replication_factor=factor)


def check_rows(image: ClusterImage, rows: Sequence[Sequence[int]], first: int, factor: int) -> Outcome | None:
    """Return why `rows` cannot be the replicas of partitions `first` and following, or None.

    The refusal has a next step only if it is about the state of a broker.

    rows: broker ids of each partition.  factor: the required number of replicas.
    """
    for index, row in enumerate(rows, first):
        unknown = [broker_id for broker_id in row if broker_id not in image.brokers]
        problem, next_step = None, ""
        if not row:
            problem = f"partition {index} has no replicas"
        elif len(row) != factor:
            replicas = "1 replica" if len(row) == 1 else f"{len(row)} replicas"
            problem = f"partition {index} has {replicas}; partition 0 has {factor}"
        elif len(set(row)) < len(row):
            problem = f"partition {index} has two replicas on one broker"
        elif unknown:
            problem, next_step = f"partition {index}: broker {unknown[0]} is not registered", "kctl brokers list"
        elif not any(image.brokers[broker_id].active for broker_id in row):
            problem, next_step = f"partition {index}: none of its brokers is unfenced", "kctl brokers list"
        if problem is not None:
            return Outcome(ApiError.INVALID_REPLICA_ASSIGNMENT, problem, next_step)
    return None


def _check_configs(topic: NewTopic, replication_factor: int, unavailable: Mapping[str, str]) -> Outcome | None:
    counts = Counter(key for key, _ in topic.configs)
    for key, value in topic.configs:
        known = TOPIC_CONFIGS.get(key)
        if known is None:
            return Outcome(ApiError.INVALID_CONFIG, unknown_key(key, TOPIC_CONFIGS, "topic"))
        if counts[key] > 1:
            return Outcome(ApiError.INVALID_CONFIG, f"{key} is set {counts[key]} times")
        own_rule = key == CLEANUP_POLICY and is_internal(topic.name)
        problem = cleanup_problem(value) if own_rule else known.problem(value, unavailable)
        if problem is not None:
            return Outcome(ApiError.INVALID_CONFIG, problem)
        if key == MIN_ISR and int(value) > replication_factor:
            text = f"{key} {value} is above the replication factor: only {replication_factor} replicas can be in sync"
            return Outcome(ApiError.INVALID_CONFIG, text)
    return None


def _existing(image: ClusterImage, existing: TopicImage, asked: NewTopic) -> CreatedTopic:
    """Return the answer for a topic that exists, with its differences from the requested one.

    A partition that is being reassigned is compared as it will be after the reassignment.
    """
    rows = tuple([target_of(partition) for partition in existing.partitions if partition is not None])
    factor = len(rows[0]) if rows else 0
    differences = []
    if asked.assignment:
        if asked.assignment != rows:
            differences.append("the assignment")
    else:
        if asked.partitions not in (DEFAULT, len(rows)):
            differences.append(f"partitions {len(rows)}, not {asked.partitions}")
        if asked.replication_factor not in (DEFAULT, factor):
            differences.append(f"replication factor {factor}, not {asked.replication_factor}")
    for key, value in sorted(asked.configs):
        now = image.topic_config(existing.topic_id, key) if key in TOPIC_CONFIGS else None
        if now != value:
            differences.append(f"{key[:60]!a} {now}, not {value[:40]!a}")
    text = f"topic {existing.name} exists"
    text += f" and differs: {'; '.join(differences)}" if differences else ", identical to the requested topic"
    return CreatedTopic(
        existing.name,
        Outcome(ApiError.TOPIC_ALREADY_EXISTS, text),
        existing.topic_id,
        len(rows),
        factor,
        identical=not differences,
    )


def _records_of(image: ClusterImage, plan: NewTopic, topic_id: UUID, placer: Placer) -> list[Record]:
    rows: Sequence[tuple[int, ...]] = plan.assignment
    if not rows:
        rows = placer.place(plan.partitions, plan.replication_factor)
    records: list[Record] = [Topic(topic_id, plan.name), *new_partitions(image, plan.name, topic_id, 0, rows)]
    records += [Config(ConfigScope.TOPIC, topic_id.hex, key, value) for key, value in plan.configs]
    return records


def new_partitions(
    image: ClusterImage, name: str, topic_id: UUID, first: int, rows: Sequence[Sequence[int]]
) -> list[Record]:
    """Return the records of partitions `first` and following, with these replicas.  Unfenced replicas are in sync."""
    replicas: dict[int, Replica] = {}
    records: list[Record] = []
    for index, row in enumerate(rows, first):
        for broker_id in row:
            if broker_id not in replicas:
                replicas[broker_id] = image.brokers[broker_id].new_replica()
        isr = tuple([broker_id for broker_id in row if image.brokers[broker_id].active])
        assigned = tuple([replicas[broker_id] for broker_id in row])
        epoch = image.first_leader_epoch(name, index)
        records.append(Partition(topic_id, index, assigned, isr, isr[0], leader_epoch=epoch))
    return records


# Delete


def delete_topics(
    image: ClusterImage, names: Sequence[str], topic_ids: Sequence[UUID], *, validate_only: bool = False
) -> Decision[tuple[DeletedTopic, ...]]:
    """Decide the deletion of topics.  The answers are in the order of the request: first for names, then for ids."""
    answers: list[DeletedTopic] = []
    records: list[Record] = []
    seen: set[UUID] = set()
    wanted: list[tuple[str, UUID | None]] = [(name, image.topic_ids.get(name)) for name in names]
    wanted += [("", topic_id) for topic_id in topic_ids]
    for name, topic_id in wanted:
        topic = None if topic_id is None else image.topics.get(topic_id)
        if topic is None:
            answers.append(_missing(name, topic_id))
        elif is_internal(topic.name):
            outcome = internal_refusal(topic.name, "it cannot be deleted")
            answers.append(DeletedTopic(outcome, topic.name, topic.topic_id))
        elif topic.topic_id in seen:
            outcome = Outcome(ApiError.INVALID_REQUEST, f"topic {topic.name} is named twice in one request")
            answers.append(DeletedTopic(outcome, topic.name, topic.topic_id))
        else:
            seen.add(topic.topic_id)
            records.append(RemoveTopic(topic.topic_id))
            answers.append(DeletedTopic(OK, topic.name, topic.topic_id))
    moving = sum(image.reassigning.get(topic_id, 0).bit_count() for topic_id in sorted(seen))
    further = ended(image, moving)
    most = RECORDS_PER_BATCH_MAX - len(further)
    if len(records) > most:
        text = f"{len(records)} topics: one request can delete at most {most} of these"
        refused = [replace(each, outcome=Outcome(ApiError.POLICY_VIOLATION, text)) for each in answers]
        return Decision(tuple(refused))
    records += further
    return Decision(tuple(answers), () if validate_only else tuple(records))


def internal_refusal(name: str, rule: str) -> Outcome:
    """Return the refusal of a change of an internal topic.  rule: the reason, as a clause."""
    return Outcome(ApiError.POLICY_VIOLATION, f"topic {name} holds the state of coordinators; {rule}")


# The leader epochs of deleted topics


def gone_names(image: ClusterImage) -> list[str]:
    """Return the names of deleted topics whose leader epochs are still kept, ascending."""
    return sorted(name for name in image.past_epochs if name not in image.topic_ids)


def forget_topics(image: ClusterImage, names: Sequence[str]) -> Decision[None]:
    """Delete the leader epochs of these names, except of topics that exist again.

    At most one batch; `more` is set if others remain.
    """
    found = sorted(set(names).intersection(gone_names(image)))
    first = tuple(found[:RECORDS_PER_BATCH_MAX])
    return Decision(None, (ForgetTopics(first),) if first else (), more=len(found) > len(first))


def _missing(name: str, topic_id: UUID | None) -> DeletedTopic:
    if topic_id is not None:
        return DeletedTopic(Outcome(ApiError.UNKNOWN_TOPIC_ID, f"unknown topic id {topic_id}"), "", topic_id)
    return DeletedTopic(no_topic(name), name)
