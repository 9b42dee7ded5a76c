"""Rebalances of a classic group: the way to a new generation, and its deadlines.

A rebalance has two parts.  In the first part, all members send JoinGroup.  It ends when all of them have sent it, or at
its deadline, which is the longest rebalance timeout of a member.  Dynamic members that have not joined by then are
removed.  The first rebalance of an empty group waits for `initial_rebalance_delay_ms` instead.  This wait is prolonged
by the same time whenever members have joined in the meantime, up to the rebalance timeout of the first member.

In the second part, all members send SyncGroup.  It ends with the SyncGroup of the leader, which has the assignments.  A
member that has not sent SyncGroup within the longest rebalance timeout is removed.  So a leader that never sends it
does not block the others.

A member whose call waits cannot send heartbeats, so its session does not run.  Its call has the deadline of the group.
If its client disconnects, the session runs again, and the member counts as not joined.  But a new dynamic member is
removed at once then, because its client does not know the member id and cannot rejoin as this member.  A new member is
also removed if its JoinGroup has waited for NEW_MEMBER_JOIN_TIMEOUT_MS: its client may have timed out unnoticed, and
would add one more member with each retry.
"""

from __future__ import annotations

from msgspec.structs import replace

from broker.core.coordinator.client import Client
from broker.core.coordinator.group import Group
from broker.core.coordinator.group_requests import (
    GroupState,
    JoinedMember,
    JoinGroupResponse,
    RebalanceReason,
    SyncGroupResponse,
)
from broker.core.coordinator.group_step import GroupStep
from broker.core.coordinator.members import Member
from broker.core.coordinator.records import GroupKey, read_group, write_group, write_key
from quorumlog.wire.errors import KafkaCode

NEW_MEMBER_JOIN_TIMEOUT_MS = 300_000
"""The longest wait of a new member's JoinGroup.  Then UNKNOWN_MEMBER_ID makes the client join anew."""


# -- calls that wait


def park_join(step: GroupStep, group: Group, member: Member, call: int) -> None:
    """Let the JoinGroup of a member wait.  Answer earlier calls of the member, which its client no longer awaits."""
    again = JoinGroupResponse(KafkaCode.REBALANCE_IN_PROGRESS, member.member_id)
    _answer_join(step, group, member, again)
    answer_sync(step, group, member, SyncGroupResponse(KafkaCode.REBALANCE_IN_PROGRESS))
    member.join_call = call
    step.park(call, group.name, member.member_id)
    group.waiting += 1
    if member.knows_id:
        member.expires_ms = None
    else:
        member.expires_ms = step.now_ms + NEW_MEMBER_JOIN_TIMEOUT_MS
        group.wake(member.expires_ms)


def _answer_join(step: GroupStep, group: Group, member: Member, response: JoinGroupResponse) -> None:
    """Answer the JoinGroup of a member, if one waits, and begin its session anew."""
    if member.join_call is not None:
        step.unpark(member.join_call, response)
        member.join_call = None
        group.waiting -= 1
        group.renew(member, step.now_ms)


def park_sync(step: GroupStep, group: Group, member: Member, call: int) -> None:
    """Let the SyncGroup of a member wait for the SyncGroup of the leader."""
    answer_sync(step, group, member, SyncGroupResponse(KafkaCode.REBALANCE_IN_PROGRESS))
    member.sync_call = call
    step.park(call, group.name, member.member_id)
    member.expires_ms = None


def answer_sync(step: GroupStep, group: Group, member: Member, response: SyncGroupResponse) -> None:
    """Answer the SyncGroup of a member, if one waits, and begin its session anew."""
    if member.sync_call is not None:
        step.unpark(member.sync_call, response)
        member.sync_call = None
        group.renew(member, step.now_ms)


def refuse_calls(step: GroupStep, group: Group, member: Member, error: KafkaCode) -> None:
    """Answer the waiting calls of a member with an error."""
    _answer_join(step, group, member, JoinGroupResponse(error, ""))
    answer_sync(step, group, member, SyncGroupResponse(error))


def hang_up(step: GroupStep, group: Group, member: Member) -> None:
    """Drop the waiting call of a member whose client disconnected, after the call was removed from the parked ones.

    No answer follows, and no record is made.  A member that must be removed at once is removed by the next tick, which
    is due now.
    """
    group.waiting -= member.join_call is not None
    member.join_call = member.sync_call = None
    if member.knows_id or member.instance_id is not None:
        group.renew(member, step.now_ms)
    else:
        member.expires_ms = step.now_ms
        group.wake(step.now_ms)


# -- the two parts of a rebalance


def prepare(
    step: GroupStep,
    group: Group,
    cause: str,
    client: Client | None,
    reason: RebalanceReason = RebalanceReason.OTHER,
    member: Member | None = None,
) -> None:
    """Begin a rebalance.  cause: the reason in words.  member: the member that causes it, if any."""
    for each in group.members.values():
        answer_sync(step, group, each, SyncGroupResponse(KafkaCode.REBALANCE_IN_PROGRESS))
    group.unsynced.clear()
    group.sync_deadline_ms = None
    is_first = group.state is GroupState.EMPTY
    group.become(GroupState.PREPARING_REBALANCE)
    names = None if member is None else member.names
    group.history.begin(cause, client, group.next_generation(), step.wall_ms, step.now_ms, reason, names)
    _note(step, group, cause)
    if is_first:
        delay_ms, group.grown = step.limits.initial_rebalance_delay_ms, False
        group.delay_left_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        _set_join_deadline(step, group, delay_ms)
        if delay_ms == 0:
            _complete_join(step, group)
    else:
        _set_join_deadline(step, group, group.rebalance_timeout_ms)
        complete_if_joined(step, group)


def _set_join_deadline(step: GroupStep, group: Group, after_ms: int) -> None:
    group.join_deadline_ms = step.now_ms + after_ms
    group.wake(group.join_deadline_ms)


def complete_if_joined(step: GroupStep, group: Group) -> None:
    """End the first part if no member is missing.  The first rebalance of an empty group always waits for its delay."""
    if (
        group.state is GroupState.PREPARING_REBALANCE
        and group.delay_left_ms is None
        and group.waiting == len(group.members)
        and not group.pending
    ):
        _complete_join(step, group)


def _complete_join(step: GroupStep, group: Group) -> None:
    for member in [each for each in group.members.values() if each.join_call is None and each.instance_id is None]:
        step.note(f"group={group.name!r} member {member.name} did not join in time and was removed")
        group.drop(member)
    if group.members and not group.waiting:
        # Only static members are left, and none of them has joined.  Each may still join until its session expires.
        group.delay_left_ms = None
        _set_join_deadline(step, group, group.rebalance_timeout_ms)
        return
    group.join_deadline_ms = group.delay_left_ms = None
    group.generation = group.next_generation()
    if not group.members:
        _become_empty(step, group)
        return
    leader = group.members.get(group.leader or "")
    if leader is None or leader.join_call is None:
        group.leader = next(each.member_id for each in group.members.values() if each.join_call is not None)
    group.protocol = group.elect_protocol()
    group.become(GroupState.COMPLETING_REBALANCE)
    group.history.joined(group.generation, len(group.members))
    # A static member that has not joined may be restarting.  Only the end of its session removes the member.
    group.unsynced.update(each.member_id for each in group.members.values() if each.join_call is not None)
    group.sync_deadline_ms = step.now_ms + group.rebalance_timeout_ms
    group.wake(group.sync_deadline_ms)
    for member in group.members.values():
        member.knows_id = True
        _answer_join(step, group, member, joined(group, member))
    _note(step, group, f"{len(group.members)} members joined, {group.leader!r} leads")


def _become_empty(step: GroupStep, group: Group) -> None:
    group.protocol = group.leader = None
    group.state_ms = step.wall_ms
    group.become(GroupState.EMPTY)
    store(step, group)
    group.history.joined(group.generation, 0)
    group.history.end(step.now_ms)
    _note(step, group, "no member is left")


def joined(group: Group, member: Member) -> JoinGroupResponse:
    """Return the answer to a JoinGroup in the current generation."""
    assert group.leader is not None, group.name
    return JoinGroupResponse(
        KafkaCode.NONE,
        member.member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader,
        members=joined_members(group) if member.member_id == group.leader else (),
    )


def joined_members(group: Group) -> tuple[JoinedMember, ...]:
    """Return all members as the leader sees them."""
    members = (group.members[member_id] for member_id in sorted(group.members))
    return tuple(JoinedMember(each.member_id, each.instance_id, each.metadata(group.protocol)) for each in members)


def fits(step: GroupStep, group: Group, assigned_bytes: int) -> bool:
    """Return whether the record of the group has room for its members with assignments of this size."""
    return group.record_bytes + assigned_bytes <= step.limits.group_max_bytes


def assign(step: GroupStep, group: Group, assignments: dict[str, bytes]) -> None:
    """End the second part with the assignments of the leader.  A member without one gets an empty assignment.

    If they do not fit into the record of the group, begin another rebalance instead.
    """
    assert group.state is GroupState.COMPLETING_REBALANCE, group.name
    total = sum(len(assignments.get(member_id, b"")) for member_id in group.members)
    if not fits(step, group, total):
        for member in group.members.values():
            answer_sync(step, group, member, SyncGroupResponse(KafkaCode.GROUP_MAX_SIZE_REACHED))
        leader = group.members[group.leader or ""]
        cause = f"the assignments of {total} bytes do not fit into the record of the group"
        prepare(step, group, cause, leader.client, RebalanceReason.ASSIGNMENT_TOO_LARGE, leader)
        return
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    group.state_ms = step.wall_ms
    group.become(GroupState.STABLE)
    store(step, group)
    for member in group.members.values():
        answer_sync(step, group, member, synced(group, member))
    group.history.end(step.now_ms)
    _note(step, group, "the assignments are known")


def synced(group: Group, member: Member) -> SyncGroupResponse:
    """Return the answer to a SyncGroup in a stable group."""
    return SyncGroupResponse(KafkaCode.NONE, group.protocol_type, group.protocol, member.assignment)


def store(step: GroupStep, group: Group) -> None:
    """Append the record of the group as it is now."""
    step.append(write_key(GroupKey(group.name)), write_group(group.value()))


def store_instance(step: GroupStep, group: Group, instance_id: str, member_id: str) -> None:
    """Give a static member its new member id in the last record of the group, and append that record again.

    Do this only if the group has a record, and the record has another member id for this static member.
    """
    if group.stored is None:
        return
    value = read_group(group.stored)
    old = next((each.member_id for each in value.members if each.instance_id == instance_id), member_id)
    if old == member_id:
        return
    members = tuple(
        replace(each, member_id=member_id) if each.instance_id == instance_id else each for each in value.members
    )
    leader = member_id if value.leader == old else value.leader
    step.append(write_key(GroupKey(group.name)), write_group(replace(value, members=members, leader=leader)))


# -- members that leave, and time


def members_left(step: GroupStep, group: Group, cause: str, reason: RebalanceReason, first: Member) -> None:
    """Continue the group, or its rebalance, without removed members.  first: one of them."""
    if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
        prepare(step, group, cause, first.client, reason, first)
    else:
        complete_if_joined(step, group)


def remove(step: GroupStep, group: Group, member: Member, error: KafkaCode = KafkaCode.UNKNOWN_MEMBER_ID) -> None:
    """Remove a member.  Its calls get the error.  The caller then continues the group, or its rebalance."""
    refuse_calls(step, group, member, error)
    group.drop(member)


def on_time(step: GroupStep, group: Group) -> None:
    """Apply the deadlines of a group that have passed."""
    late = [member_id for member_id, end_ms in group.pending.items() if end_ms <= step.now_ms]
    for member_id in late:
        del group.pending[member_id]
    if late:
        complete_if_joined(step, group)
    for member in list(group.members.values()):
        # The removal of one member may complete the rebalance, which renews the sessions of the others.
        if member.expires_ms is not None and member.expires_ms <= step.now_ms and _is_member(group, member):
            if not member.knows_id and member.join_call is None and member.instance_id is None:
                reason = RebalanceReason.HUNG_UP
                cause = f"the client of the new member {member.name} disconnected"
            elif member.join_call is None:
                reason = RebalanceReason.SESSION_EXPIRED
                cause = f"the session of member {member.name} expired"
            else:
                reason = RebalanceReason.JOIN_TIMED_OUT
                cause = f"the JoinGroup of the new member {member.name} waited too long"
            step.note(f"group={group.name!r} {cause}")
            remove(step, group, member)
            members_left(step, group, cause, reason, member)
    if group.join_deadline_ms is not None and group.join_deadline_ms <= step.now_ms:
        _on_join_deadline(step, group)
    if group.sync_deadline_ms is not None and group.sync_deadline_ms <= step.now_ms:
        _on_sync_deadline(step, group)


def _is_member(group: Group, member: Member) -> bool:
    return group.members.get(member.member_id) is member


def _on_join_deadline(step: GroupStep, group: Group) -> None:
    if group.delay_left_ms and group.grown:
        group.grown = False
        delay_ms = min(step.limits.initial_rebalance_delay_ms, group.delay_left_ms)
        group.delay_left_ms -= delay_ms
        _set_join_deadline(step, group, delay_ms)
    else:
        _complete_join(step, group)


def _on_sync_deadline(step: GroupStep, group: Group) -> None:
    late = [group.members[member_id] for member_id in sorted(group.unsynced)]
    group.sync_deadline_ms = None
    if late:
        for member in late:
            remove(step, group, member)
        cause = f"{len(late)} members sent no SyncGroup in time, such as {late[0].name}"
        members_left(step, group, cause, RebalanceReason.SYNC_TIMED_OUT, late[0])


def _note(step: GroupStep, group: Group, event: str) -> None:
    step.note(f"group={group.name!r} state={group.state} generation={group.generation} event={event}")
