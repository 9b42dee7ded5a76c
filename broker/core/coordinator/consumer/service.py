"""Applies the requests that concern consumer groups, and converts groups between the two protocols."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from broker.core.coordinator.client import Client
from broker.core.coordinator.consumer import changes, classic, heartbeat, migration
from broker.core.coordinator.consumer.group import ConsumerGroup, ConsumerMember
from broker.core.coordinator.consumer.heartbeat import Refusal
from broker.core.coordinator.consumer.requests import (
    AWAY,
    JOINING,
    LEAVING,
    ConsumerHeartbeat,
    ConsumerHeartbeatResponse,
    SubscribedTopics,
)
from broker.core.coordinator.group import Group
from broker.core.coordinator.group_requests import (
    GroupState,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    LeaveGroupResponse,
    LeftMember,
    RebalanceReason,
    SyncGroup,
)
from broker.core.coordinator.group_step import GroupStep, others
from broker.core.coordinator.membership import with_reason
from broker.core.coordinator.records import GroupKey, GroupValue, write_group, write_key
from broker.core.coordinator.subscription import CONSUMER
from quorumlog.wire.errors import KafkaCode

Groups = dict[str, Group | ConsumerGroup]


class ConsumerService:
    """Applies requests to the consumer groups among the groups of a machine.

    Each public method returns the group that the caller must queue for its next deadline.  If the group has changed its
    protocol, this is another object than before.  `heartbeat` returns None if it refuses a request before the request
    reaches a group.
    """

    def __init__(self, groups: Groups, topics: SubscribedTopics, random: Random) -> None:
        self._groups = groups
        self._topics = topics
        self._random = random

    # -- the newer protocol

    def heartbeat(self, step: GroupStep, call: int, request: ConsumerHeartbeat) -> Group | ConsumerGroup | None:
        """Apply a ConsumerGroupHeartbeat."""
        refusal = heartbeat.refuse(request, step.limits, self._topics)
        found = None if refusal is not None else self._group(step, request)
        if isinstance(found, tuple):
            refusal = found
        if refusal is not None or not isinstance(found, ConsumerGroup):
            assert refusal is not None, request
            step.answer(call, ConsumerHeartbeatResponse(*refusal))
            return None
        if request.epoch in (LEAVING, AWAY):
            return self._leave(step, found, call, request)
        heartbeat.heartbeat(step, found, call, request, self._topics, self._random)
        return found

    def _group(self, step: GroupStep, request: ConsumerHeartbeat) -> ConsumerGroup | Refusal:
        """Return the group of a request, or the refusal.

        If a member joins, this creates a missing group, and converts a classic group.
        """
        group = self._groups.get(request.group)
        if group is not None and group.is_dead:
            return KafkaCode.COORDINATOR_NOT_AVAILABLE, "the group is being deleted"
        if isinstance(group, ConsumerGroup):
            return group
        if request.epoch != JOINING:
            return KafkaCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group!r}"
        if group is None and len(self._groups) >= step.limits.groups_max:
            return KafkaCode.POLICY_VIOLATION, f"there are {len(self._groups)} groups in this partition already"
        # A refused join must not change a classic group, so all checks come before the first record.
        if group is not None and group.state is not GroupState.EMPTY:
            plan = migration.plan_upgrade(group, step.limits, self._topics)
            if not isinstance(plan, migration.Upgrade):
                return plan
            refusal = heartbeat.join_refusal(step, plan.preview(request.group), request, self._topics)
            return refusal or migration.upgrade(step, self._groups, group, plan)
        made = ConsumerGroup(request.group)
        refusal = heartbeat.join_refusal(step, made, request, self._topics)
        if refusal is not None:
            return refusal
        if group is not None:
            migration.delete_classic(step, self._groups, group)
        self._groups[request.group] = made
        return made

    def _leave(
        self, step: GroupStep, group: ConsumerGroup, call: int, request: ConsumerHeartbeat
    ) -> Group | ConsumerGroup:
        member, refusal = heartbeat.leaving(group, request)
        if member is None:
            assert refusal is not None, request
            step.answer(call, ConsumerHeartbeatResponse(*refusal))
            return group
        if request.epoch == AWAY:
            changes.go_away(step, group, member)
            member.rejoin_by_ms = None
            if member.current.revoking:
                group.expect(member, step.now_ms)
            heartbeat.left(step, call, request)
            return group
        cause = f"member {member.name} left"
        after = self._remove(step, group, [member], cause, request.client, RebalanceReason.LEFT)
        heartbeat.left(step, call, request)
        return after

    # -- members that are removed

    def _remove(
        self,
        step: GroupStep,
        group: ConsumerGroup,
        members: Iterable[ConsumerMember],
        cause: str,
        client: Client | None,
        reason: RebalanceReason,
    ) -> Group | ConsumerGroup:
        """Remove members.  If only classic members are left, the group becomes classic if `migration.downgrade` can."""
        gone = list(members)
        first = gone[0].names if gone else None  # `changes.remove` deletes the names
        step.note(f"group={group.name!r} {cause}")
        changes.remove(step, group, gone)
        after = migration.downgrade(step, self._groups, group, self._topics, client)
        if after is not None:
            return after
        changes.settle(step, group, self._topics, cause, client, reason=reason, member=first)
        return group

    def on_time(self, step: GroupStep, group: ConsumerGroup) -> Group | ConsumerGroup:
        """Remove expired members, apply changes of the subscribed topics, and compute a target that is due."""
        expired = heartbeat.expired(step, group)
        if not expired:
            changes.refresh(step, group, self._topics)
            return group
        first, cause = expired[0]
        cause += f", and {others(len(expired) - 1)}" if len(expired) > 1 else ""
        client = Client(first.known.client_id, first.known.client_host)
        return self._remove(
            step, group, [member for member, _ in expired], cause, client, RebalanceReason.SESSION_EXPIRED
        )

    # -- the classic protocol

    def classic(
        self, step: GroupStep, group: ConsumerGroup, call: int, request: JoinGroup | SyncGroup | Heartbeat | LeaveGroup
    ) -> Group | ConsumerGroup:
        """Apply a request of the classic protocol to a consumer group.

        For a JoinGroup, the group must have members.
        """
        match request:
            case JoinGroup():
                had = group.consumer_members
                classic.join(step, group, call, request, self._topics, self._random)
                if group.consumer_members < had:  # the request replaced a static member of the newer protocol
                    after = migration.downgrade(step, self._groups, group, self._topics, request.client)
                    return group if after is None else after
            case SyncGroup():
                classic.sync(step, group, call, request, self._topics)
            case Heartbeat():
                classic.heartbeat(step, group, call, request)
            case LeaveGroup():
                return self._classic_leave(step, group, call, request)
        return group

    def _classic_leave(
        self, step: GroupStep, group: ConsumerGroup, call: int, request: LeaveGroup
    ) -> Group | ConsumerGroup:
        outcomes = classic.leaving(group, request)
        results = []
        gone: dict[str, ConsumerMember] = {}
        reason = ""
        for asked, (member, error) in zip(request.members, outcomes, strict=True):
            if member is not None and member.member_id in gone:
                member, error = None, KafkaCode.UNKNOWN_MEMBER_ID
            if member is not None:
                reason = reason if gone else asked.reason
                gone[member.member_id] = member
            results.append(LeftMember(asked.member_id, asked.instance_id, error))
        after: Group | ConsumerGroup = group
        if gone:
            first = next(iter(gone.values()))
            rest = f" and {others(len(gone) - 1)}" if len(gone) > 1 else ""
            cause = with_reason(f"member {first.name}{rest} left", reason)
            client = Client(first.known.client_id, first.known.client_host)
            after = self._remove(step, group, gone.values(), cause, client, RebalanceReason.LEFT)
        step.answer(call, LeaveGroupResponse(KafkaCode.NONE, tuple(results)))
        return after

    def make_classic(self, step: GroupStep, group: ConsumerGroup) -> Group:
        """Replace a consumer group without members by a classic group, for a classic member's JoinGroup.

        The group is stored at once, because the member may never complete its join.  The retention of its offsets then
        counts from the time in the record.
        """
        assert not group.members, group.name
        changes.delete_records(step, group)
        value = GroupValue(CONSUMER, group.epoch, None, None, group.state_ms, ())
        step.append(write_key(GroupKey(group.name)), write_group(value))
        made = self._groups[group.name]
        assert isinstance(made, Group), made
        made.load(step.now_ms)
        step.note(f"group={group.name!r} event=becomes a classic group")
        return made
