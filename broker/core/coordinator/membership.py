"""Requests of members: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

Each function applies one request to an existing group (`join` also to a new one), and answers it or lets it wait.
"""

from __future__ import annotations

from random import Random
from uuid import UUID

from msgspec.structs import replace

from broker.core.coordinator import rebalance
from broker.core.coordinator.group import Group
from broker.core.coordinator.group_requests import (
    GroupLimits,
    GroupState,
    Heartbeat,
    HeartbeatResponse,
    JoinGroup,
    JoinGroupResponse,
    LastJoin,
    LeaveGroup,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    RebalanceReason,
    SyncGroup,
    SyncGroupResponse,
)
from broker.core.coordinator.group_step import GroupStep, others
from broker.core.coordinator.members import Member, joining_member
from quorumlog.wire.errors import KafkaCode

REASON_MAX_CHARS = 255
"""The stored length of a client's reason for joining or leaving.  A longer reason is truncated."""


# -- JoinGroup


def refuse_join(request: JoinGroup, limits: GroupLimits) -> KafkaCode:
    """Return the error of a request that no group would accept; NONE if a group may accept the request."""
    names = [request.client.client_id, request.client.host, request.protocol_type]
    names += [request.instance_id or "", *(protocol.name for protocol in request.protocols)]
    if (
        any(len(name.encode()) > limits.name_max_bytes for name in names)
        or len(request.protocols) > limits.protocols_max
        or sum(len(protocol.metadata) for protocol in request.protocols) > limits.member_max_bytes
        or request.rebalance_timeout_ms < 1
    ):
        return KafkaCode.INVALID_REQUEST
    if not limits.session_timeout_min_ms <= request.session_timeout_ms <= limits.session_timeout_max_ms:
        return KafkaCode.INVALID_SESSION_TIMEOUT
    return KafkaCode.NONE


def join(step: GroupStep, group: Group, call: int, request: JoinGroup, random: Random) -> None:
    """Apply a JoinGroup that `refuse_join` has not refused."""
    if group.state is GroupState.DEAD:
        error = KafkaCode.COORDINATOR_NOT_AVAILABLE
    else:
        member = _known_member(group, request)
        error = _join_error(step, group, request, member)
        if error is KafkaCode.NONE:
            if member is None:
                _join_new(step, group, call, request, random)
            elif request.member_id:
                _rejoin(step, group, call, request, member)
            else:
                _replace_static(step, group, call, request, member, random)
            return
        if error is KafkaCode.GROUP_MAX_SIZE_REACHED:
            _do_not_wait_for(step, group, request, member)
    step.answer(call, JoinGroupResponse(error, request.member_id))


def _known_member(group: Group, request: JoinGroup) -> Member | None:
    """Return the member that the request names by its id or by its instance id, or None."""
    if request.member_id:
        return group.members.get(request.member_id)
    return group.member_of_instance(request.instance_id)


def _join_error(step: GroupStep, group: Group, request: JoinGroup, member: Member | None) -> KafkaCode:
    if request.member_id and not (request.member_id in group.pending and request.instance_id is None):
        error = group.member_error(request.member_id, request.instance_id)
        if error is not KafkaCode.NONE:
            return error
    names = [protocol.name for protocol in request.protocols]
    if not group.supports(request.protocol_type, names, without=member):
        return KafkaCode.INCONSISTENT_GROUP_PROTOCOL
    if not _has_room(step, group, request, member):
        return KafkaCode.GROUP_MAX_SIZE_REACHED
    return KafkaCode.NONE


def _do_not_wait_for(step: GroupStep, group: Group, request: JoinGroup, member: Member | None) -> None:
    """Remove a member whose JoinGroup is refused, if the other members wait for it."""
    if group.state is GroupState.PREPARING_REBALANCE:
        group.pending.pop(request.member_id, None)
        if member is not None:
            rebalance.remove(step, group, member)
        rebalance.complete_if_joined(step, group)


def _has_room(step: GroupStep, group: Group, request: JoinGroup, member: Member | None) -> bool:
    added_bytes = joining_member(request.member_id, request).record_bytes
    if member is not None:
        added_bytes -= member.record_bytes
    if added_bytes > 0 and group.record_bytes + added_bytes > step.limits.group_max_bytes:
        return False
    members_max = step.limits.members_max
    if member is None and not request.member_id and len(group.pending) >= members_max:
        return False
    if group.state is GroupState.PREPARING_REBALANCE:
        # The limit may have been lowered: the members that join first stay.
        return group.waiting < members_max or (member is not None and member.join_call is not None)
    return member is not None or len(group.members) < members_max


def _new_id(request: JoinGroup, random: Random) -> str:
    prefix = request.client.client_id if request.instance_id is None else request.instance_id
    return f"{prefix}-{UUID(int=random.getrandbits(128), version=4)}"


def _join_new(step: GroupStep, group: Group, call: int, request: JoinGroup, random: Random) -> None:
    member_id = request.member_id or _new_id(request, random)
    if not request.member_id and request.instance_id is None and request.needs_member_id:
        end_ms = group.pending[member_id] = step.now_ms + request.session_timeout_ms
        group.wake(end_ms)
        step.answer(call, JoinGroupResponse(KafkaCode.MEMBER_ID_REQUIRED, member_id))
        return
    group.pending.pop(member_id, None)
    if not group.members:
        group.protocol_type = request.protocol_type
    member = joining_member(member_id, request)
    group.add(member)
    if member.instance_id is not None:
        rebalance.store_instance(step, group, member.instance_id, member_id)
    rebalance.park_join(step, group, member, call)
    group.grown = True
    group.history.last_join = LastJoin(member.names, step.wall_ms)
    _rebalance(step, group, f"member {member.name} joined", request, RebalanceReason.JOINED, member)


def _rejoin(step: GroupStep, group: Group, call: int, request: JoinGroup, member: Member) -> None:
    member.knows_id = True
    changed = request.protocols != member.protocols
    if group.state is GroupState.COMPLETING_REBALANCE and not changed:
        # The answer to the member's last JoinGroup was lost.
        _answer_in_generation(step, group, call, member)
    elif group.state is GroupState.STABLE and not changed and member.member_id != group.leader:
        _answer_in_generation(step, group, call, member)
    else:
        # A leader with the same subscription joins again if it has noticed changed topics.  Then it assigns anew.
        is_leader = member.member_id == group.leader and not changed
        cause = "with another subscription" if changed else "again, as its leader" if is_leader else "again"
        reason = (
            RebalanceReason.SUBSCRIPTION_CHANGED
            if changed
            else RebalanceReason.LEADER_REJOINED
            if is_leader
            else RebalanceReason.REJOINED
        )
        if len(group.members) == 1:
            group.protocol_type = request.protocol_type
        group.update(member, request)
        rebalance.park_join(step, group, member, call)
        _rebalance(step, group, f"member {member.name} joined {cause}", request, reason, member)


def _answer_in_generation(step: GroupStep, group: Group, call: int, member: Member) -> None:
    if member.sync_call is not None:
        group.unsynced.add(member.member_id)
        rebalance.answer_sync(step, group, member, SyncGroupResponse(KafkaCode.REBALANCE_IN_PROGRESS))
    group.renew(member, step.now_ms)
    step.answer(call, rebalance.joined(group, member))


def _rebalance(
    step: GroupStep, group: Group, cause: str, request: JoinGroup, reason: RebalanceReason, member: Member
) -> None:
    if group.state is GroupState.PREPARING_REBALANCE:
        rebalance.complete_if_joined(step, group)
    else:
        rebalance.prepare(step, group, with_reason(cause, request.reason), request.client, reason, member)


def _replace_static(step: GroupStep, group: Group, call: int, request: JoinGroup, old: Member, random: Random) -> None:
    """Give the instance id of a static member to the process that joins now, and fence the previous process.

    A Stable group continues without a rebalance if it would use the same protocol, even if the subscription has
    changed.  If the record has no room for a larger subscription and the current assignments, the leader assigns anew.
    """
    assert old.instance_id is not None, old
    member = joining_member(_new_id(request, random), request)
    member.assignment = old.assignment
    was_unsynced, old_leader = old.member_id in group.unsynced, group.leader
    is_stable = group.state is GroupState.STABLE and request.protocol_type == group.protocol_type
    rebalance.remove(step, group, old, KafkaCode.FENCED_INSTANCE_ID)
    if not group.members:
        group.protocol_type = request.protocol_type
    group.add(member)
    if old_leader == old.member_id:
        group.leader = member.member_id
    if was_unsynced:
        group.unsynced.add(member.member_id)
    group.renew(member, step.now_ms)
    group.history.last_join = LastJoin(member.names, step.wall_ms)
    if is_stable and group.elect_protocol() == group.protocol and rebalance.fits(step, group, _assigned_bytes(group)):
        member.knows_id = True
        rebalance.store(step, group)
        step.answer(call, _replaced(group, member, old_leader or "", request.can_skip_assignment))
        step.note(f"group={group.name!r} static member {member.name} replaced {old.member_id!r}")
        return
    rebalance.store_instance(step, group, old.instance_id, member.member_id)
    rebalance.park_join(step, group, member, call)
    cause = f"static member {member.name} replaced {old.member_id!r}"
    _rebalance(step, group, cause, request, RebalanceReason.STATIC_MEMBER_REPLACED, member)


def _assigned_bytes(group: Group) -> int:
    return sum(len(member.assignment) for member in group.members.values())


def _replaced(group: Group, member: Member, old_leader: str, can_skip_assignment: bool) -> JoinGroupResponse:
    response = replace(rebalance.joined(group, member), members=())
    if not can_skip_assignment:
        # The response names the old leader: a new leader would assign, but no member would get its assignments.
        return replace(response, leader=old_leader)
    if member.member_id != group.leader:
        return response
    return replace(response, skip_assignment=True, members=rebalance.joined_members(group))


def with_reason(cause: str, reason: str) -> str:
    """Return a cause with the reason that a client gave, if any."""
    return f"{cause}: {reason[:REASON_MAX_CHARS]!r}" if reason else cause


# -- SyncGroup and Heartbeat


def sync(step: GroupStep, group: Group, call: int, request: SyncGroup) -> None:
    """Apply a SyncGroup."""
    error = _sync_error(group, request)
    if error is not KafkaCode.NONE:
        step.answer(call, SyncGroupResponse(error))
        return
    member = group.members[request.member_id]
    group.unsynced.discard(request.member_id)
    if group.state is GroupState.STABLE:
        group.renew(member, step.now_ms)
        step.answer(call, rebalance.synced(group, member))
        return
    rebalance.park_sync(step, group, member, call)
    if request.member_id == group.leader:
        rebalance.assign(step, group, dict(request.assignments))


def _sync_error(group: Group, request: SyncGroup) -> KafkaCode:
    if group.state is GroupState.DEAD:
        return KafkaCode.COORDINATOR_NOT_AVAILABLE
    error = group.member_error(request.member_id, request.instance_id)
    if error is not KafkaCode.NONE:
        return error
    if request.generation != group.generation:
        return KafkaCode.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type) or (
        request.protocol not in (None, group.protocol) and group.state is not GroupState.PREPARING_REBALANCE
    ):
        return KafkaCode.INCONSISTENT_GROUP_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return KafkaCode.REBALANCE_IN_PROGRESS
    return KafkaCode.NONE


def heartbeat(step: GroupStep, group: Group, call: int, request: Heartbeat) -> None:
    """Apply a Heartbeat."""
    error = group.member_error(request.member_id, request.instance_id)
    if group.state is GroupState.DEAD:
        error = KafkaCode.COORDINATOR_NOT_AVAILABLE
    elif error is KafkaCode.NONE and request.generation != group.generation:
        error = KafkaCode.ILLEGAL_GENERATION
    elif error is KafkaCode.NONE:
        group.renew(group.members[request.member_id], step.now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            error = KafkaCode.REBALANCE_IN_PROGRESS
    step.answer(call, HeartbeatResponse(error))


# -- LeaveGroup


def leave(step: GroupStep, group: Group, call: int, request: LeaveGroup) -> None:
    """Apply a LeaveGroup.  Each member has its own outcome: an error for one does not keep the others in the group."""
    if group.state is GroupState.DEAD:
        step.answer(call, LeaveGroupResponse(KafkaCode.COORDINATOR_NOT_AVAILABLE))
        return
    gone: list[tuple[Member, str]] = []
    results = []
    pending = len(group.pending)
    for leaving in request.members:
        member, error = _leaving(group, leaving)
        results.append(LeftMember(leaving.member_id, leaving.instance_id, error))
        if member is not None:
            rebalance.remove(step, group, member)
            gone.append((member, leaving.reason))
    if gone:
        first, reason = gone[0]
        rest = f" and {others(len(gone) - 1)}" if len(gone) > 1 else ""
        cause = with_reason(f"member {first.name}{rest} left", reason)
        step.note(f"group={group.name!r} {cause}")
        rebalance.members_left(step, group, cause, RebalanceReason.LEFT, first)
    elif len(group.pending) < pending:
        rebalance.complete_if_joined(step, group)
    step.answer(call, LeaveGroupResponse(KafkaCode.NONE, tuple(results)))


def _leaving(group: Group, leaving: LeavingMember) -> tuple[Member | None, KafkaCode]:
    """Return the member that is to leave, and the outcome for it.  A pending member id is dropped at once."""
    if not leaving.member_id:
        member = group.member_of_instance(leaving.instance_id)
        return member, KafkaCode.UNKNOWN_MEMBER_ID if member is None else KafkaCode.NONE
    if leaving.instance_id is None and group.pending.pop(leaving.member_id, None) is not None:
        return None, KafkaCode.NONE
    error = group.member_error(leaving.member_id, leaving.instance_id)
    return (group.members[leaving.member_id] if error is KafkaCode.NONE else None), error
