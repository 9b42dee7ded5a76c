"""Handles ConsumerGroupHeartbeat, with which members of the newer protocol join, stay and leave.

Also finds the members whose session has expired.
"""

from __future__ import annotations

from random import Random
from uuid import UUID

from msgspec.structs import replace

from broker.core.coordinator.consumer import changes
from broker.core.coordinator.consumer.group import ConsumerGroup, ConsumerMember
from broker.core.coordinator.consumer.partitions import NO_PARTITIONS, Partitions
from broker.core.coordinator.consumer.records import MemberValue
from broker.core.coordinator.consumer.requests import (
    AWAY,
    JOINING,
    LEAVING,
    NO_TIMEOUT,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    SubscribedTopics,
)
from broker.core.coordinator.group_requests import GroupLimits, LastJoin, RebalanceReason
from broker.core.coordinator.group_step import GroupStep
from quorumlog.wire.errors import KafkaCode

NIL_ID = str(UUID(int=0))
Refusal = tuple[KafkaCode, str]


# -- requests that no group would accept


def refuse(request: ConsumerHeartbeat, limits: GroupLimits, topics: SubscribedTopics) -> Refusal | None:
    """Return the error of a request that no group would accept, with a message; None if a group may accept it."""
    if len(request.group.encode()) > limits.name_max_bytes:
        return KafkaCode.INVALID_GROUP_ID, f"the group id is longer than {limits.name_max_bytes} bytes"
    problem = _problem(request, limits)
    if problem is not None:
        return KafkaCode.INVALID_REQUEST, problem
    if request.assignor is not None and request.assignor not in limits.consumer.assignors:
        known = ", ".join(limits.consumer.assignors)
        return KafkaCode.UNSUPPORTED_ASSIGNOR, f"the assignor {request.assignor!r} is unknown; known: {known}"
    if request.regex:
        found = topics.matching(request.regex)
        if found is None:
            return (
                KafkaCode.INVALID_REGULAR_EXPRESSION,
                f"{request.regex!r} is not a regular expression in RE2's syntax",
            )
        if sum(map(len, found)) > changes.subscription_max_bytes(limits):
            text = f"the total size of the names of the {len(found)} topics that {request.regex!r} matches is too large"
            return KafkaCode.INVALID_REGULAR_EXPRESSION, text
    return None


def _problem(request: ConsumerHeartbeat, limits: GroupLimits) -> str | None:
    names = (request.member_id, request.instance_id, request.rack_id, request.regex, request.assignor)
    texts = [*names, *request.client, *(request.topics or ())]
    if not request.group.strip():
        return "the group id is empty"
    if not request.member_id and not (request.may_lack_id and request.epoch == JOINING):
        return "the member id is empty"
    if any(text is not None and not text.strip() for text in (request.instance_id, request.rack_id)):
        return "the instance id or the rack id is empty"
    if any(len(text.encode()) > limits.name_max_bytes for text in texts if text is not None):
        return f"an id, a topic name or another text is longer than {limits.name_max_bytes} bytes"
    if len(request.topics or ()) > limits.consumer.topics_max:
        return f"the subscription has more than {limits.consumer.topics_max} topics"
    if sum(len(topic.encode()) for topic in request.topics or ()) > changes.subscription_max_bytes(limits):
        return "the total size of the topic names is too large"
    if request.rebalance_timeout_ms < NO_TIMEOUT:
        return "the rebalance timeout is negative"
    if request.epoch < AWAY:
        return f"{request.epoch} is not a member epoch"
    if request.epoch == AWAY and request.instance_id is None:
        return "only a static member, which has an instance id, may leave for a while"
    return _problem_of_join(request) if request.epoch == JOINING else None


def _problem_of_join(request: ConsumerHeartbeat) -> str | None:
    if request.rebalance_timeout_ms == NO_TIMEOUT:
        return "a member that joins must give its rebalance timeout"
    if request.owned is None or request.owned:
        return "a member that joins must own no partitions"
    if request.topics is None and request.regex is None:
        return "a member that joins must give its topics or a regular expression"
    return None


# -- a heartbeat


def heartbeat(
    step: GroupStep,
    group: ConsumerGroup,
    call: int,
    request: ConsumerHeartbeat,
    topics: SubscribedTopics,
    random: Random,
) -> None:
    """Apply a heartbeat that `refuse` accepts, of a member that does not leave."""
    member = _member(group, request)
    refusal = join_refusal(step, group, request, topics) if request.epoch == JOINING else None
    if request.epoch != JOINING:
        refusal = _epoch_refusal(group, request, member)
    if refusal is not None:
        step.answer(call, ConsumerHeartbeatResponse(*refusal))
        return
    if member is None:
        member_id = request.member_id or str(UUID(int=random.getrandbits(128), version=4))
    else:
        member_id = member.member_id
    if request.epoch == JOINING and member is not None and request.member_id not in ("", member.member_id):
        member = changes.replace_static(step, group, member, request.member_id)
        member_id = member.member_id
    _update_member(step, group, member, member_id, request, topics)
    member = group.members[member_id]
    revoking = member.current.revoking
    has_changed = changes.advance(step, group, member, request.owned, topics)
    if not member.current.revoking or member.current.revoking != revoking:
        member.rejoin_by_ms = None  # the timeout ends, or restarts below for other partitions
    if member.current.revoking:
        group.expect(member, step.now_ms)
    group.renew(member, step.now_ms, step.consumer_limits(group.name).session_timeout_ms)
    includes_assignment = has_changed or request.epoch == JOINING or request.is_full
    step.answer(
        call,
        ConsumerHeartbeatResponse(
            KafkaCode.NONE,
            None,
            member_id,
            member.current.epoch,
            _interval_ms(step, group, request),
            member.current.assigned if includes_assignment else None,
        ),
    )


def _interval_ms(step: GroupStep, group: ConsumerGroup, request: ConsumerHeartbeat) -> int:
    """Return the time until the member's next heartbeat.

    A member that joins sends it, at the latest, when the group's next target is due.
    """
    interval_ms = step.consumer_limits(group.name).heartbeat_interval_ms
    if request.epoch != JOINING or group.assign_at_ms is None:
        return interval_ms
    return min(interval_ms, group.assign_at_ms - step.now_ms)


def _member(group: ConsumerGroup, request: ConsumerHeartbeat) -> ConsumerMember | None:
    """Return the member that the request is about; None if it has not joined yet."""
    if request.epoch == JOINING and request.instance_id is not None:
        return group.member_of_instance(request.instance_id)
    return group.members.get(request.member_id)


def join_refusal(
    step: GroupStep, group: ConsumerGroup, request: ConsumerHeartbeat, topics: SubscribedTopics
) -> Refusal | None:
    """Return why a group does not accept a member that joins, or None; change nothing."""
    member = _member(group, request)
    if member is None and request.member_id in group.members:
        # The member with this id has another instance id, or none.
        return KafkaCode.INVALID_REQUEST, f"the member {request.member_id!r} is in the group with another instance id"
    if member is None:
        if len(group.members) >= step.limits.consumer.members_max:
            return KafkaCode.GROUP_MAX_SIZE_REACHED, f"the group has {len(group.members)} members, its maximum"
        member_id = request.member_id or NIL_ID  # has the length of the id that the member will get
        if not changes.has_room(group, member_id, _value(None, request), step.limits, topics):
            return KafkaCode.GROUP_MAX_SIZE_REACHED, "the assignments of all members do not fit into one batch"
        return None
    if member.member_id != request.member_id and not member.is_classic and member.current.epoch != AWAY:
        text = f"the instance id {request.instance_id!r} is used by the member {member.member_id!r}, which has not left"
        return KafkaCode.UNRELEASED_INSTANCE_ID, text
    return None


def _epoch_refusal(group: ConsumerGroup, request: ConsumerHeartbeat, member: ConsumerMember | None) -> Refusal | None:
    error = group.member_error(request.member_id, request.instance_id)
    if error is not KafkaCode.NONE:
        return error, f"{request.member_id!r} is not a member of the group"
    assert member is not None, request
    current = member.current
    if member.is_classic:
        return KafkaCode.UNKNOWN_MEMBER_ID, f"the member {request.member_id!r} uses the classic protocol"
    if request.epoch == current.epoch:
        return None
    # A member that missed the last answer sends its previous epoch.  It must own no partition outside its assignment.
    # A static member that left for a while must join again: a late heartbeat must not claim its instance id.
    is_previous = request.epoch == current.previous_epoch and current.epoch != AWAY
    if is_previous and _is_part(request.owned, current.assigned):
        return None
    text = f"the member has the epoch {request.epoch}, and {current.epoch} is expected; it must join again"
    return KafkaCode.FENCED_MEMBER_EPOCH, text


def _is_part(owned: Partitions | None, assigned: Partitions) -> bool:
    return owned is not None and all(indexes <= assigned.get(topic, frozenset()) for topic, indexes in owned.items())


def _value(old: MemberValue | None, request: ConsumerHeartbeat) -> MemberValue:
    """Return a member's description after a request.  A member that joins sends every field of it."""
    is_new = old is None or request.epoch == JOINING
    topics = () if request.topics is None else tuple(sorted(set(request.topics)))
    timeout_ms = request.rebalance_timeout_ms
    if is_new:
        return MemberValue(
            request.instance_id,
            request.rack_id,
            request.client.client_id,
            request.client.host,
            topics,
            request.regex or None,
            timeout_ms,
            request.assignor,
        )
    assert old is not None
    return replace(
        old,
        rack_id=old.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client.client_id,
        client_host=request.client.host,
        topics=old.topics if request.topics is None else topics,
        regex=old.regex if request.regex is None else request.regex or None,
        rebalance_timeout_ms=old.rebalance_timeout_ms if timeout_ms == NO_TIMEOUT else timeout_ms,
        assignor=old.assignor if request.assignor is None else request.assignor,
    )


def _update_member(
    step: GroupStep,
    group: ConsumerGroup,
    member: ConsumerMember | None,
    member_id: str,
    request: ConsumerHeartbeat,
    topics: SubscribedTopics,
) -> None:
    """Store a member's description of itself, and begin the next epoch if a change affects the assignment."""
    old = None if member is None else member.known
    value = _value(old, request)
    if value == old:
        changes.refresh(step, group, topics)
        return
    before = changes.preferred_assignor(group, step.limits)
    member = changes.put_member(step, group, member_id, value)
    if old is None:
        cause, reason = f"member {member.name} joined", RebalanceReason.JOINED
        group.history.last_join = LastJoin(member.names, step.wall_ms)
    elif (old.topics, old.regex) != (value.topics, value.regex):
        cause, reason = f"member {member.name} changed its subscription", RebalanceReason.SUBSCRIPTION_CHANGED
    elif before != changes.preferred_assignor(group, step.limits):
        cause, reason = f"member {member.name} changed the assignor", RebalanceReason.ASSIGNOR_CHANGED
    else:
        changes.refresh(step, group, topics)
        return
    changes.settle(step, group, topics, cause, request.client, reason=reason, member=member.names)
    if old is None and not member.target_order:
        # A replica may lack the tombstone of the target that an earlier member with this id had (see `group`).
        changes.put_target(step, group, member_id, NO_PARTITIONS)


# -- leaving


def leaving(group: ConsumerGroup, request: ConsumerHeartbeat) -> tuple[ConsumerMember | None, Refusal | None]:
    """Return the member that may leave by this request, or the refusal."""
    error = group.member_error(request.member_id, request.instance_id)
    if error is not KafkaCode.NONE:
        return None, (error, f"{request.member_id!r} is not a member of the group")
    member = group.members[request.member_id]
    if request.epoch == AWAY and member.known.instance_id is None:
        return None, (KafkaCode.INVALID_REQUEST, "only a static member may leave for a while")
    return member, None


def left(step: GroupStep, call: int, request: ConsumerHeartbeat) -> None:
    """Answer a member that has left."""
    assert request.epoch in (LEAVING, AWAY), request
    step.answer(call, ConsumerHeartbeatResponse(KafkaCode.NONE, None, request.member_id, request.epoch))


# -- time


def expired(step: GroupStep, group: ConsumerGroup) -> list[tuple[ConsumerMember, str]]:
    """Return the members whose session or rebalance timeout has expired, each with the reason."""
    found = []
    for member in group.members.values():
        if member.expires_ms is not None and member.expires_ms <= step.now_ms:
            found.append((member, f"the session of member {member.name} expired"))
        elif member.rejoin_by_ms is not None and member.rejoin_by_ms <= step.now_ms:
            what = "join again" if member.is_classic else "give its partitions up"
            found.append((member, f"member {member.name} did not {what} in time"))
    return found
