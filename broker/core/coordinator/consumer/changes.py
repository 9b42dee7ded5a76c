"""Changes of a consumer group: its members, its subscriptions, its epoch and its target.

A change adds records to the step, and each record is applied to the group at once.  All records of a step are in one
batch of the log, so a group is never seen between two records of a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import replace

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer.assignors import ASSIGNORS_BY_NAME, Subscriber
from broker.core.coordinator.consumer.group import ConsumerGroup, ConsumerMember, hash_of, member_keys
from broker.core.coordinator.consumer.partitions import NO_PARTITIONS, Partitions
from broker.core.coordinator.consumer.reconcile import reconcile
from broker.core.coordinator.consumer.records import (
    ConsumerKey,
    CurrentValue,
    GroupValue,
    Kind,
    MemberState,
    MemberValue,
    RegexValue,
    write_current,
    write_group,
    write_key,
    write_member,
    write_regex,
    write_target,
    write_target_member,
)
from broker.core.coordinator.consumer.requests import AWAY, SubscribedTopics, Topic
from broker.core.coordinator.group_requests import GroupLimits, GroupState, MemberName, RebalanceReason
from broker.core.coordinator.group_step import GroupStep


def subscription_max_bytes(limits: GroupLimits) -> int:
    """Return the largest total size, in bytes, of the topic names that a subscription has or a regex matches."""
    return limits.batch_max_bytes // 8


def targets_max_bytes(limits: GroupLimits) -> int:
    """Return the largest total size, in bytes, of the records with the targets of a group.

    One step stores at most a subscription, the topics of a regular expression, all targets, and the current assignment
    of one member, which is not larger than the targets.  With these limits, all of them fit into one batch.
    """
    return limits.batch_max_bytes * 3 // 8


_RECORD_BYTES = 64
"""Upper bound of the bytes in a member's record that are neither names nor partitions."""

_TOPIC_BYTES = 24
"""Bytes of a topic in a record of a member, without its partitions."""

_PARTITION_BYTES = 4


# -- records


def put(step: GroupStep, kind: Kind, group: str, value: bytes | None, name: str = "") -> None:
    """Append a record of a group."""
    step.append(write_key(ConsumerKey(kind, group, name)), value)


def put_member(step: GroupStep, group: ConsumerGroup, member_id: str, value: MemberValue) -> ConsumerMember:
    """Store a member's description of itself, and return the member."""
    put(step, Kind.MEMBER, group.name, write_member(value), member_id)
    return group.members[member_id]


def put_target(step: GroupStep, group: ConsumerGroup, member_id: str, target: Partitions) -> None:
    put(step, Kind.TARGET_MEMBER, group.name, write_target_member(target), member_id)


def put_current(step: GroupStep, group: ConsumerGroup, member_id: str, current: CurrentValue) -> None:
    put(step, Kind.CURRENT, group.name, write_current(current), member_id)


def delete_records(step: GroupStep, group: ConsumerGroup) -> None:
    """Append a tombstone for each record of a group, which removes the group from the coordinator."""
    for key in group.record_keys():
        step.append(write_key(key), None)


# -- limits


def has_room(
    group: ConsumerGroup, member_id: str, value: MemberValue, limits: GroupLimits, topics: SubscribedTopics
) -> bool:
    """Return whether the targets of all members, and of one more member with this id and value, fit into a step."""
    matched = () if value.regex is None else topics.matching(value.regex) or ()
    names = group.subscribed_topics().union(value.topics, matched)
    counts = [topic.partitions for topic in map(topics.topic, names) if topic is not None]
    members = len(group.members) + 1
    id_bytes = len(member_id.encode()) + sum(size * count for size, count in group.census.id_sizes.items())
    places = min(sum(counts), members * len(counts))
    partitions = _PARTITION_BYTES * sum(counts) + _TOPIC_BYTES * places
    names_bytes = members * (len(group.name.encode()) + _RECORD_BYTES) + id_bytes
    return names_bytes + partitions <= targets_max_bytes(limits)


# -- subscriptions, epoch and target


def resolve(step: GroupStep, group: ConsumerGroup, topics: SubscribedTopics) -> bool:
    """Find the topics that each regular expression matches now, and drop the expressions that no member uses.

    If the changed expressions do not fit into a step, the rest keep their topics, and the group stays outdated.  New
    expressions come first, because they have no topics yet.

    Return whether this changed anything.
    """
    used = group.census.regexes
    has_changed = False
    size = 0
    for regex in [each for each in group.regexes if each not in used]:
        put(step, Kind.REGEX, group.name, None, regex)
        has_changed = True
    for regex in sorted(used, key=lambda each: (each in group.regexes, each)):  # new ones first
        found = tuple(topics.matching(regex) or ())
        known = group.regexes.get(regex)
        if known is not None and sum(map(len, found)) > subscription_max_bytes(step.limits):
            note(
                step,
                group,
                f"the regular expression {regex!r} matches too many topics; its previous topics stay in force",
            )
            continue
        if known is not None and known.topics == found:
            continue
        value = write_regex(RegexValue(found, topics.version, step.wall_ms))
        if size and size + len(value) > subscription_max_bytes(step.limits):
            group.outdate(step.now_ms)
            break
        put(step, Kind.REGEX, group.name, value, regex)
        size += len(value)
        has_changed = True
    return has_changed


def settle(
    step: GroupStep,
    group: ConsumerGroup,
    topics: SubscribedTopics,
    cause: str,
    client: Client | None,
    has_changed: bool = True,
    reason: RebalanceReason = RebalanceReason.OTHER,
    member: MemberName | None = None,
) -> None:
    """Begin the next epoch if the members, their subscriptions or their topics have changed.

    Compute the target if it is due.

    has_changed: the members or their subscriptions have changed.
    cause: the cause as a clause for people.  reason: the cause in one word.
    client, member: the client and the member that caused the change, if any.
    """
    group.is_outdated = False
    has_changed = resolve(step, group, topics) or has_changed
    existing = group.existing_topics(topics)
    metadata_hash = hash_of(existing)
    if has_changed or metadata_hash != group.metadata_hash:
        put(step, Kind.GROUP, group.name, write_group(GroupValue(group.epoch + 1, metadata_hash)))
        group.history.begin(cause, client, group.epoch, step.wall_ms, step.now_ms, reason, member)
        group.history.joined(group.epoch, len(group.members))
        note(step, group, cause)
    if group.epoch > group.assignment_epoch:
        due_ms = group.assignment_due_ms(step.consumer_limits(group.name).assignment_interval_ms)
        if due_ms is None or due_ms <= step.now_ms:
            _assign(step, group, existing)
        else:
            group.postpone_assignment(due_ms)
    if not group.members:
        group.state_ms = step.wall_ms


def refresh(step: GroupStep, group: ConsumerGroup, topics: SubscribedTopics) -> None:
    """Begin the next epoch if the topics have changed since the last comparison.  Compute the target if it is due."""
    if group.is_outdated and group.members:
        cause = "the subscribed topics or their partitions changed"
        settle(step, group, topics, cause, None, has_changed=False, reason=RebalanceReason.PARTITIONS_CHANGED)
    elif group.assign_at_ms is not None and group.assign_at_ms <= step.now_ms:
        _assign(step, group, group.existing_topics(topics))


def preferred_assignor(group: ConsumerGroup, limits: GroupLimits) -> str:
    """Return the assignor that most members prefer.  Among equals, return the first one in the config."""
    known = limits.consumer.assignors
    votes = group.census.assignors
    return max(known, key=lambda name: (votes[name], -known.index(name)))


def _assign(step: GroupStep, group: ConsumerGroup, existing: dict[str, Topic]) -> None:
    """Compute and store the target for the current epoch.

    If the target does not fit into a batch, the previous one stays in force.  The next target is computed when the
    group or its topics change.
    """
    group.note_assignment(step.now_ms)
    ids = {name: topic.topic_id for name, topic in existing.items()}
    counts = {topic.topic_id: topic.partitions for topic in existing.values()}
    by_subscription: dict[frozenset[str], frozenset[UUID]] = {}
    subscribers = []
    for member_id, member in group.members.items():
        names = group.topics_of(member)
        if names not in by_subscription:
            by_subscription[names] = frozenset(ids[name] for name in names if name in ids)
        subscribers.append(Subscriber(member_id, member.known.instance_id, by_subscription[names], member.target))
    targets = ASSIGNORS_BY_NAME[preferred_assignor(group, step.limits)](subscribers, counts)
    changed = [
        (write_key(ConsumerKey(Kind.TARGET_MEMBER, group.name, member_id)), write_target_member(targets[member_id]))
        for member_id, member in sorted(group.members.items())
        if targets[member_id] != member.target
    ]
    size = sum(len(key) + len(value) for key, value in changed)
    if size > targets_max_bytes(step.limits):
        note(step, group, f"the target of {size} bytes does not fit into a batch; the previous one stays in force")
        return
    # Until the last of these records a partition may be in two targets, but nothing reads the group in between.
    for key, value in changed:
        step.append(key, value)
    put(step, Kind.TARGET, group.name, write_target(group.epoch))


def advance(
    step: GroupStep, group: ConsumerGroup, member: ConsumerMember, owned: Partitions | None, topics: SubscribedTopics
) -> bool:
    """Bring a member as far towards its target as possible.  Return whether the partitions that it may use changed."""
    before = member.current
    after = reconcile(
        before,
        member.target if group.epoch == group.assignment_epoch else _still_wanted(group, member, topics),
        group.assignment_epoch,
        owned,
        lambda topic, partition: group.is_free(topic, partition, member.member_id),
    )
    if after != before:
        put_current(step, group, member.member_id, after)
        if group.state is GroupState.STABLE:
            group.history.end(step.now_ms)
            note(step, group, "every member has its target")
    return after.assigned != before.assigned


def _still_wanted(group: ConsumerGroup, member: ConsumerMember, topics: SubscribedTopics) -> Partitions:
    """Return the last target of a member, without topics to which the member is no longer subscribed."""
    if not member.target:
        return member.target
    wanted = group.topics_of(member)
    return {topic: indexes for topic, indexes in member.target.items() if topics.topic_name(topic) in wanted}


# -- members


def remove(step: GroupStep, group: ConsumerGroup, members: Sequence[ConsumerMember]) -> None:
    """Delete the records of members.  Unless others replace them or the group is deleted, `settle` must follow."""
    for member in members:
        for key in member_keys(group.name, member.member_id):
            step.append(write_key(key), None)


def replace_static(step: GroupStep, group: ConsumerGroup, old: ConsumerMember, member_id: str) -> ConsumerMember:
    """Replace a static member by the process that joins now, and return the new member.

    The new member gets the description, target and partitions of the old one.  member_id: the id of the new member.
    """
    value, target, current = old.known, old.target, old.current
    remove(step, group, [old])
    member = put_member(step, group, member_id, value)
    put_target(step, group, member_id, target)
    # The new process has nothing to give up.
    state = MemberState.STABLE if current.state is MemberState.UNREVOKED else current.state
    put_current(step, group, member_id, CurrentValue(0, 0, state, current.assigned, NO_PARTITIONS))
    step.note(f"group={group.name!r} static member {member.name} replaced {old.member_id!r}")
    return member


def go_away(step: GroupStep, group: ConsumerGroup, member: ConsumerMember) -> None:
    """Note that a static member has left and may rejoin.  It keeps its partitions until its session ends."""
    current = member.current
    put_current(step, group, member.member_id, replace(current, epoch=AWAY, previous_epoch=current.epoch))


def note(step: GroupStep, group: ConsumerGroup, event: str) -> None:
    step.note(f"group={group.name!r} state={group.state} epoch={group.epoch} event={event}")
