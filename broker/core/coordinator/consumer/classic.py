"""Members of a consumer group that still use the classic protocol, while the group changes its protocol.

Such a member joins, asks for its assignment, and sends heartbeats as in a classic group.  No call waits, because the
coordinator assigns: JoinGroup is answered at once, with the epoch of the member as its generation, and SyncGroup
returns the partitions that the member may use.  A heartbeat reports REBALANCE_IN_PROGRESS when the member should join
again: to follow a new target, to confirm that it gave partitions up, or to get partitions that others gave up.  Its
rebalance timeout begins with that report.
"""

from __future__ import annotations

from random import Random
from uuid import UUID

from broker.core.coordinator.consumer import changes
from broker.core.coordinator.consumer.group import ConsumerGroup, ConsumerMember
from broker.core.coordinator.consumer.partitions import Partitions, each, minus, of
from broker.core.coordinator.consumer.records import ClassicValue, MemberState, MemberValue, write_member
from broker.core.coordinator.consumer.requests import SubscribedTopics
from broker.core.coordinator.group_requests import (
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LastJoin,
    LeaveGroup,
    LeavingMember,
    RebalanceReason,
    SyncGroup,
    SyncGroupResponse,
)
from broker.core.coordinator.group_step import GroupStep
from broker.core.coordinator.subscription import CONSUMER, NamedIndexes, read_subscription, write_assignment
from quorumlog.wire.errors import KafkaCode

# -- JoinGroup


def join(
    step: GroupStep, group: ConsumerGroup, call: int, request: JoinGroup, topics: SubscribedTopics, random: Random
) -> None:
    """Apply a JoinGroup to a group that has members.  The caller has checked it with `membership.refuse_join`."""
    member = _known_member(group, request)
    value = _value(request)
    error = _join_error(step, group, request, member, value, topics)
    if error is not KafkaCode.NONE or value is None:
        step.answer(call, JoinGroupResponse(error, request.member_id))
        return
    if member is not None and request.member_id != member.member_id:
        member = changes.replace_static(step, group, member, _new_id(request, random.getrandbits(128)))
    member_id = _new_id(request, random.getrandbits(128)) if member is None else member.member_id
    old = None if member is None else member.known
    if value != old:
        member = changes.put_member(step, group, member_id, value)
    assert member is not None, request
    if old is None:
        group.history.last_join = LastJoin(member.names, step.wall_ms)
        cause, reason = f"classic member {member.name} joined", RebalanceReason.JOINED
        changes.settle(step, group, topics, cause, request.client, reason=reason, member=member.names)
    elif old.topics != value.topics or old.regex:
        cause, reason = f"classic member {member.name} changed its subscription", RebalanceReason.SUBSCRIPTION_CHANGED
        changes.settle(step, group, topics, cause, request.client, reason=reason, member=member.names)
    else:
        changes.refresh(step, group, topics)
    changes.advance(step, group, member, _owned(request, topics), topics)
    group.renew(member, step.now_ms, step.consumer_limits(group.name).session_timeout_ms)
    member.rejoin_by_ms = None
    group.expect(member, step.now_ms)
    step.answer(
        call,
        JoinGroupResponse(
            KafkaCode.NONE,
            member.member_id,
            member.current.epoch,
            CONSUMER,
            request.protocols[0].name,  # no member leads, because the coordinator assigns
        ),
    )


def _known_member(group: ConsumerGroup, request: JoinGroup) -> ConsumerMember | None:
    if request.member_id:
        return group.members.get(request.member_id)
    return group.member_of_instance(request.instance_id)


def _join_error(
    step: GroupStep,
    group: ConsumerGroup,
    request: JoinGroup,
    member: ConsumerMember | None,
    value: MemberValue | None,
    topics: SubscribedTopics,
) -> KafkaCode:
    if request.member_id:
        error = group.member_error(request.member_id, request.instance_id)
        if error is not KafkaCode.NONE:
            return error
    if value is None or not _shares_an_assignor(group, request, member):
        return KafkaCode.INCONSISTENT_GROUP_PROTOCOL
    if len(write_member(value)) > changes.subscription_max_bytes(step.limits):
        return KafkaCode.GROUP_MAX_SIZE_REACHED
    is_full = len(group.members) >= step.limits.consumer.members_max
    new_id = _new_id(request, 0)  # has the length of the id that the member will get
    if member is None and (is_full or not changes.has_room(group, new_id, value, step.limits, topics)):
        return KafkaCode.GROUP_MAX_SIZE_REACHED
    return KafkaCode.NONE


def _shares_an_assignor(group: ConsumerGroup, request: JoinGroup, without: ConsumerMember | None) -> bool:
    """Return whether the request and all classic members but `without` share an assignor.

    They need a common assignor when the group becomes classic again.
    """
    shared = {protocol.name for protocol in request.protocols}
    for member in group.members.values():
        classic = member.known.classic
        if classic is not None and member is not without:
            shared &= {protocol.name for protocol in classic.protocols}
    return request.protocol_type == CONSUMER and bool(shared)


def _value(request: JoinGroup) -> MemberValue | None:
    """Return the member that a request describes; None if its metadata is not a subscription."""
    subscription = read_subscription(request.protocols[0].metadata) if request.protocols else None
    if subscription is None or request.protocol_type != CONSUMER:
        return None
    return MemberValue(
        request.instance_id,
        subscription.rack_id or None,
        request.client.client_id,
        request.client.host,
        tuple(sorted(set(subscription.topics))),
        None,
        request.rebalance_timeout_ms,
        None,
        ClassicValue(request.session_timeout_ms, request.protocols),
    )


def _new_id(request: JoinGroup, number: int) -> str:
    prefix = request.client.client_id if request.instance_id is None else request.instance_id
    return f"{prefix}-{UUID(int=number, version=4)}"


def _owned(request: JoinGroup, topics: SubscribedTopics) -> Partitions:
    """Return the partitions that a member keeps while it joins.  An eager member has given up all of them."""
    subscription = read_subscription(request.protocols[0].metadata)
    return {} if subscription is None else by_id(subscription.owned, topics)


def by_id(partitions: NamedIndexes, topics: SubscribedTopics) -> Partitions:
    """Return partitions by the ids of their topics.  Partitions of topics that do not exist are left out."""
    named = ((topics.topic(name), indexes) for name, indexes in partitions.items())
    return of((topic.topic_id, index) for topic, indexes in named if topic is not None for index in indexes)


# -- SyncGroup and Heartbeat


def sync(step: GroupStep, group: ConsumerGroup, call: int, request: SyncGroup, topics: SubscribedTopics) -> None:
    """Apply a SyncGroup."""
    member, error = _classic_member(group, request)
    if member is None:
        step.answer(call, SyncGroupResponse(error))
        return
    classic = member.known.classic
    assert classic is not None, member
    protocol = classic.protocols[0].name
    if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, protocol):
        step.answer(call, SyncGroupResponse(KafkaCode.INCONSISTENT_GROUP_PROTOCOL))
        return
    if request.generation != member.current.epoch:
        step.answer(call, SyncGroupResponse(KafkaCode.ILLEGAL_GENERATION))
        return
    group.renew(member, step.now_ms, step.consumer_limits(group.name).session_timeout_ms)
    if group.assignment_epoch > member.current.epoch and member.current.state is not MemberState.UNREVOKED:
        group.expect(member, step.now_ms)
        step.answer(call, SyncGroupResponse(KafkaCode.REBALANCE_IN_PROGRESS))
        return
    member.rejoin_by_ms = None
    assignment = write_assignment(by_name(member.current.assigned, topics))
    step.answer(call, SyncGroupResponse(KafkaCode.NONE, CONSUMER, protocol, assignment))


def by_name(partitions: Partitions, topics: SubscribedTopics) -> NamedIndexes:
    """Return partitions by the names of their topics.  Partitions of topics that do not exist are left out."""
    named = ((topics.topic_name(topic), indexes) for topic, indexes in partitions.items())
    return {name: sorted(indexes) for name, indexes in named if name is not None}


def heartbeat(step: GroupStep, group: ConsumerGroup, call: int, request: Heartbeat) -> None:
    """Apply a Heartbeat.  It makes no records."""
    member, error = _classic_member(group, request)
    if member is not None and request.generation != member.current.epoch:
        error = KafkaCode.ILLEGAL_GENERATION
    elif member is not None:
        group.renew(member, step.now_ms, step.consumer_limits(group.name).session_timeout_ms)
        if _should_join_again(group, member):
            group.expect(member, step.now_ms)
            error = KafkaCode.REBALANCE_IN_PROGRESS
    step.answer(call, HeartbeatResponse(error))


def _should_join_again(group: ConsumerGroup, member: ConsumerMember) -> bool:
    current = member.current
    if current.state is MemberState.UNREVOKED or current.epoch < group.assignment_epoch:
        return True
    if current.state is not MemberState.UNRELEASED:
        return False
    missing = each(minus(member.target, current.assigned))
    return all(group.is_free(topic, partition, member.member_id) for topic, partition in missing)


def _classic_member(group: ConsumerGroup, request: SyncGroup | Heartbeat) -> tuple[ConsumerMember | None, KafkaCode]:
    """Return the classic member that sent a request and NONE, or None and the error."""
    error = group.member_error(request.member_id, request.instance_id)
    if error is KafkaCode.NONE and not group.members[request.member_id].is_classic:
        error = KafkaCode.UNKNOWN_MEMBER_ID
    return (group.members[request.member_id] if error is KafkaCode.NONE else None), error


# -- LeaveGroup


def leaving(group: ConsumerGroup, request: LeaveGroup) -> list[tuple[ConsumerMember | None, KafkaCode]]:
    """Return the members that are to leave, each with the outcome for it.

    A member of the newer protocol leaves with a ConsumerGroupHeartbeat.  LeaveGroup removes such a member only if an
    administrator names its instance id.
    """
    return [_leaving(group, member) for member in request.members]


def _leaving(group: ConsumerGroup, leaving: LeavingMember) -> tuple[ConsumerMember | None, KafkaCode]:
    if not leaving.member_id:
        member = group.member_of_instance(leaving.instance_id)
        return member, KafkaCode.UNKNOWN_MEMBER_ID if member is None else KafkaCode.NONE
    error = group.member_error(leaving.member_id, leaving.instance_id)
    if error is KafkaCode.NONE and not group.members[leaving.member_id].is_classic:
        error = KafkaCode.UNKNOWN_MEMBER_ID
    return (group.members[leaving.member_id] if error is KafkaCode.NONE else None), error
