"""Converts a live group from one protocol to the other, while its members keep working (KIP-848, "migration").

**Upgrade**: the first member of the newer protocol joins a classic group of consumers.  The existing members become
classic members of a consumer group, and keep the assignment of the last leader.  The epoch of the group continues from
its generation.

**Downgrade**: the last member of the newer protocol leaves.  The others become members of a classic group, which then
rebalances.  The policy of the cluster may forbid either change.  An empty group simply changes its protocol.
"""

from __future__ import annotations

from uuid import UUID

import msgspec

from broker.core.coordinator import rebalance
from broker.core.coordinator import records as classic_records
from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer import changes
from broker.core.coordinator.consumer.classic import by_id, by_name
from broker.core.coordinator.consumer.group import ConsumerGroup, ConsumerMember
from broker.core.coordinator.consumer.partitions import each, of
from broker.core.coordinator.consumer.records import (
    ClassicValue,
    ConsumerKey,
    CurrentValue,
    GroupValue,
    Kind,
    MemberState,
    MemberValue,
    read_key,
    write_current,
    write_group,
    write_key,
    write_member,
    write_target,
    write_target_member,
)
from broker.core.coordinator.consumer.requests import SubscribedTopics
from broker.core.coordinator.group import Group
from broker.core.coordinator.group_requests import GroupLimits, RebalanceReason
from broker.core.coordinator.group_step import GroupStep
from broker.core.coordinator.members import Member
from broker.core.coordinator.subscription import CONSUMER, read_assignment, read_subscription, write_assignment
from quorumlog.wire.errors import KafkaCode

_BATCH_SHARE = 2
"""A conversion may take at most 1 / `_BATCH_SHARE` of a batch, so that the request that caused it still fits."""


# -- from classic to consumer


class Upgrade(msgspec.Struct, frozen=True):
    """The records that make a classic group a consumer group."""

    records: tuple[tuple[bytes, bytes], ...]

    def preview(self, group: str) -> ConsumerGroup:
        """Return the consumer group that the records will make; it belongs to no coordinator."""
        made = ConsumerGroup(group)
        for encoded, value in self.records:
            key = read_key(encoded)
            assert key is not None, encoded
            made.apply(key, value)
        return made


def plan_upgrade(group: Group, limits: GroupLimits, topics: SubscribedTopics) -> Upgrade | tuple[KafkaCode, str]:
    """Return the records of an upgrade of a classic group with members, or the reason why it is not possible."""
    not_consumer = KafkaCode.GROUP_ID_NOT_FOUND
    if not limits.consumer.may_upgrade:
        return (
            not_consumer,
            f"the group {group.name!r} is classic, and group.consumer.migration.policy does not permit its upgrade",
        )
    if group.protocol_type != CONSUMER:
        return not_consumer, f"the group {group.name!r} is not a group of consumers"
    if len(group.members) >= limits.consumer.members_max:
        return KafkaCode.GROUP_MAX_SIZE_REACHED, f"the group has {len(group.members)} members"
    taken: set[tuple[UUID, int]] = set()
    records = [(write_key(ConsumerKey(Kind.GROUP, group.name)), write_group(GroupValue(group.generation)))]
    for member_id, member in sorted(group.members.items()):
        value, assignment = _upgraded(member), read_assignment(member.assignment)
        if value is None or assignment is None or assignment.user_data:
            return (
                not_consumer,
                f"the subscription or assignment of member {member.name} has an unknown format or data of its "
                "assignor, so the group stays classic",
            )
        # A faulty assignor may give a partition to two members.  Then the first member gets the partition.
        places = [place for place in each(by_id(assignment.partitions, topics)) if place not in taken]
        taken.update(places)
        assigned = of(places)
        current = CurrentValue(group.generation, group.generation, MemberState.STABLE, assigned)
        for kind, record in (
            (Kind.MEMBER, write_member(value)),
            (Kind.TARGET_MEMBER, write_target_member(assigned)),
            (Kind.CURRENT, write_current(current)),
        ):
            records.append((write_key(ConsumerKey(kind, group.name, member_id)), record))
    records.append((write_key(ConsumerKey(Kind.TARGET, group.name)), write_target(group.generation)))
    if _BATCH_SHARE * sum(len(key) + len(value) for key, value in records) > limits.batch_max_bytes:
        return KafkaCode.GROUP_MAX_SIZE_REACHED, f"the group {group.name!r} is too large to change its protocol"
    return Upgrade(tuple(records))


def _upgraded(member: Member) -> MemberValue | None:
    subscription = read_subscription(member.protocols[0].metadata)
    if subscription is None:
        return None
    return MemberValue(
        member.instance_id,
        subscription.rack_id or None,
        member.client.client_id,
        member.client.host,
        tuple(sorted(set(subscription.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicValue(member.session_timeout_ms, member.protocols),
    )


def upgrade(step: GroupStep, groups: dict[str, Group | ConsumerGroup], group: Group, plan: Upgrade) -> ConsumerGroup:
    """Make a classic group a consumer group, and return it.  Calls that wait are answered: their members join again."""
    for member in group.members.values():
        rebalance.refuse_calls(step, group, member, KafkaCode.REBALANCE_IN_PROGRESS)
    step.note(f"group={group.name!r} generation={group.generation} event=becomes a consumer group")
    delete_classic(step, groups, group)
    for key, value in plan.records:
        step.append(key, value)
    made = groups[group.name]
    assert isinstance(made, ConsumerGroup), made
    for each_member in made.members.values():
        made.renew(each_member, step.now_ms, step.consumer_limits(made.name).session_timeout_ms)
    return made


def delete_classic(step: GroupStep, groups: dict[str, Group | ConsumerGroup], group: Group) -> None:
    """Delete the record of a classic group, and the group."""
    if group.stored is not None:
        step.append(classic_records.write_key(classic_records.GroupKey(group.name)), None)
    groups.pop(group.name, None)


# -- from consumer to classic


def downgrade(
    step: GroupStep,
    groups: dict[str, Group | ConsumerGroup],
    group: ConsumerGroup,
    topics: SubscribedTopics,
    client: Client | None,
) -> Group | None:
    """Convert a consumer group to a classic group, and return the classic group, which then rebalances.

    Return None if the group stays as it is: it has members of the newer protocol or no members, its members share no
    assignor, or the policy or a limit forbids the change.
    """
    is_small = len(group.members) <= step.limits.members_max
    if not (step.limits.consumer.may_downgrade and group.members and is_small) or group.consumer_members:
        return None
    value = _downgraded(group, topics)
    if value is None:
        return None
    record = classic_records.write_group(value)
    keys = group.record_keys()
    size = len(record) + sum(len(write_key(key)) for key in keys)
    if size > step.limits.group_max_bytes:
        changes.note(step, group, f"the group is too large to become classic: {size} bytes")
        return None
    changes.note(step, group, "becomes a classic group")
    protocols = {member_id: _classic(member).protocols for member_id, member in group.members.items()}
    changes.delete_records(step, group)
    step.append(classic_records.write_key(classic_records.GroupKey(group.name)), record)
    made = groups[group.name]
    assert isinstance(made, Group), made
    made.load(step.now_ms)
    for member_id, offered in protocols.items():
        made.offer(made.members[member_id], offered)
    rebalance.prepare(
        step, made, "the last member of the newer protocol left", client, RebalanceReason.PROTOCOL_CHANGED
    )
    return made


def _classic(member: ConsumerMember) -> ClassicValue:
    assert member.known.classic is not None, member
    return member.known.classic


def _downgraded(group: ConsumerGroup, topics: SubscribedTopics) -> classic_records.GroupValue | None:
    """Return the record of the classic group; None if its members share no assignor."""
    members = sorted(group.members.items())
    shared = [protocol.name for protocol in _classic(members[0][1]).protocols]
    for _, member in members:
        offered = {protocol.name for protocol in _classic(member).protocols}
        shared = [name for name in shared if name in offered]
    if not shared:
        return None
    protocol = shared[0]
    values = tuple(
        classic_records.MemberValue(
            member_id,
            member.known.instance_id,
            member.known.client_id,
            member.known.client_host,
            member.known.rebalance_timeout_ms,
            _classic(member).session_timeout_ms,
            next(each.metadata for each in _classic(member).protocols if each.name == protocol),
            write_assignment(by_name(member.current.assigned, topics)),
        )
        for member_id, member in members
    )
    return classic_records.GroupValue(CONSUMER, group.epoch, protocol, members[0][0], group.state_ms, values)
