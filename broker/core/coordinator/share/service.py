"""The share groups among the groups of a machine: heartbeats, assignments, sessions, and lists of existing states.

A state is the delivery state of one share partition.  Share coordinators hold the states.

A change of members, subscriptions, topics or initialized share partitions begins a new epoch and computes all targets
in the same step.  A member gets its target with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final
from uuid import UUID

from broker.core.coordinator.consumer.group import hash_of
from broker.core.coordinator.consumer.requests import NamedPartitions, SubscribedTopics
from broker.core.coordinator.group_step import GroupStep, others
from broker.core.coordinator.share.groups import (
    Kind,
    ShareGroup,
    ShareGroupKey,
    ShareMember,
    ShareMemberValue,
    StateTopic,
    assign,
    member_keys,
    write_current,
    write_group,
    write_key,
    write_member,
    write_state_partitions,
    write_target,
    write_target_member,
)
from broker.core.coordinator.share.requests import (
    JOINING,
    LEAVING,
    DeleteShareStates,
    ForgetShareStates,
    InitializeShareStates,
    ListShareStates,
    ListShareStatesResponse,
    NoteShareStates,
    ResetShareStates,
    ShareGroupDescription,
    ShareHeartbeat,
    ShareHeartbeatResponse,
    ShareMemberDescription,
)
from quorumlog.wire.errors import KafkaCode

Refusal = tuple[KafkaCode, str]


class ShareService:
    """Applies requests to the share groups.  topics: looks topics up in the newest image."""

    def __init__(self, topics: SubscribedTopics) -> None:
        self.groups: Final[dict[str, ShareGroup]] = {}
        self.wake_ms: int | None = None
        """A time that is not later than the next end of a session; None if there are no sessions."""
        self._topics = topics

    # -- the log

    def replay(self, key: ShareGroupKey, value: bytes | None) -> None:
        """Apply a record.  Raises: BadRecord."""
        group = self.groups.get(key.group) or ShareGroup(key.group)
        group.apply(key, value)
        if group.is_vacant:
            self.groups.pop(key.group, None)
        else:
            self.groups[key.group] = group

    def loaded(self, step: GroupStep) -> None:
        """Begin to serve: each member has a fresh session."""
        for group in list(self.groups.values()):
            for key in group.load():
                if not step.is_full:  # the next load finds the others again
                    step.append(write_key(key), None)
            if group.is_vacant:
                self.groups.pop(group.name, None)
            for member in group.members.values():
                self._renew(step, group, member)

    def _renew(self, step: GroupStep, group: ShareGroup, member: ShareMember) -> None:
        member.expires_ms = step.now_ms + step.share_limits(group.name).session_timeout_ms
        if self.wake_ms is None or member.expires_ms < self.wake_ms:
            self.wake_ms = member.expires_ms

    # -- heartbeats

    def heartbeat(self, step: GroupStep, call: int, request: ShareHeartbeat, *, is_taken: bool) -> None:
        """Apply a heartbeat.  is_taken: a group of another kind has this name."""
        found = self._heartbeat(step, request, is_taken)
        step.answer(call, ShareHeartbeatResponse(*found) if isinstance(found, tuple) else found)

    def _heartbeat(self, step: GroupStep, request: ShareHeartbeat, is_taken: bool) -> ShareHeartbeatResponse | Refusal:
        problem = _problem(step, request)
        if problem is not None:
            return KafkaCode.INVALID_REQUEST, problem
        if is_taken:
            return KafkaCode.GROUP_ID_NOT_FOUND, f"group {request.group!r} is not a share group"
        group = self.groups.get(request.group)
        if group is None and request.epoch != JOINING:
            return KafkaCode.UNKNOWN_MEMBER_ID, f"there is no share group {request.group!r}"
        if group is None and len(self.groups) >= step.limits.groups_max:
            return self._too_many()
        group = group or ShareGroup(request.group)
        member = group.members.get(request.member_id)
        refusal = self._refusal(step, group, member, request)
        if refusal is not None:
            return refusal
        if request.epoch == LEAVING:
            assert member is not None
            self._remove(step, group, [member], f"member {member.member_id!r} left")
            return ShareHeartbeatResponse(KafkaCode.NONE, None, request.member_id, LEAVING)
        return self._stay(step, group, member, request)

    @staticmethod
    def _refusal(
        step: GroupStep, group: ShareGroup, member: ShareMember | None, request: ShareHeartbeat
    ) -> Refusal | None:
        if member is None:
            if request.epoch != JOINING:
                return KafkaCode.UNKNOWN_MEMBER_ID, f"{request.member_id!r} is not a member of the group"
            if len(group.members) >= step.limits.share.members_max:
                return KafkaCode.GROUP_MAX_SIZE_REACHED, f"the group has {len(group.members)} members"
        elif request.epoch > JOINING and request.epoch not in (member.epoch, member.previous_epoch):
            return KafkaCode.FENCED_MEMBER_EPOCH, f"the epoch of the member is {member.epoch}, not {request.epoch}"
        return None

    def _stay(
        self, step: GroupStep, group: ShareGroup, member: ShareMember | None, request: ShareHeartbeat
    ) -> ShareHeartbeatResponse:
        old = None if member is None else member.known
        value = ShareMemberValue(
            request.rack_id if old is None or request.rack_id is not None else old.rack_id,
            request.client.client_id,
            request.client.host,
            tuple(sorted(set(request.topics))) if request.topics is not None else () if old is None else old.topics,
        )
        if not group.members:
            group.verified.clear()  # a late report may have named states that were deleted since
        if value != old:
            self._put(step, Kind.MEMBER, group.name, write_member(value), request.member_id)
            group = self.groups[group.name]
        member = group.members[request.member_id]
        self._renew(step, group, member)
        if old is None or old.topics != value.topics:
            what = "joined" if old is None else "changed its subscription"
            self._settle(step, group, f"member {request.member_id!r} {what}")
        elif group.is_outdated or group.initializing_until_ms or group.deleting_until_ms:
            self._settle(step, group, None)
        has_changed = member.assigned != member.target
        if has_changed or member.epoch != group.assignment_epoch:
            current = write_current(group.assignment_epoch, member.epoch, member.target)
            self._put(step, Kind.CURRENT, group.name, current, member.member_id)
        is_behind = request.epoch != member.epoch  # includes a member that did not get the last answer
        assignment = member.assigned if has_changed or is_behind else None
        interval_ms = step.share_limits(group.name).heartbeat_interval_ms
        return ShareHeartbeatResponse(KafkaCode.NONE, None, member.member_id, member.epoch, interval_ms, assignment)

    # -- epochs, targets and states

    def _settle(self, step: GroupStep, group: ShareGroup, cause: str | None) -> None:
        """Begin the next epoch with new targets if something has changed, and order the initialization of states.

        Order the deletion of the states of topics that no longer exist.  The record of the group lists these states
        until they are deleted, so that a later coordinator deletes them if this one fails.

        cause: the change that requires a new epoch, as a clause; None if only a change of topics would require one.
        """
        group.is_outdated = False
        gone = {topic: state for topic, state in group.initialized.items() if self._topics.topic_name(topic) is None}
        existing = {name: topic for name in sorted(group.subscribed_topics()) if (topic := self._topics.topic(name))}
        metadata_hash = hash_of(existing)
        missing = []
        for name, topic in existing.items():
            noted = group.initialized.get(topic.topic_id, StateTopic(name, frozenset())).partitions
            known = noted & group.verified.get(topic.topic_id, frozenset())
            indexes = tuple(index for index in range(topic.partitions) if index not in known)
            if indexes:
                missing.append(NamedPartitions(topic.topic_id, name, indexes))
        if cause is not None or metadata_hash != group.metadata_hash:
            self._begin_epoch(step, group, metadata_hash, cause or "the subscribed topics or their partitions changed")
        again_ms = step.now_ms + step.limits.share.initialization_retry_ms
        if not missing:
            group.initializing_until_ms = 0
        elif step.now_ms >= group.initializing_until_ms:
            group.initializing_until_ms = again_ms
            step.order(InitializeShareStates(group.name, group.epoch, tuple(missing)))
        if not gone:
            group.deleting_until_ms = 0
        elif step.now_ms >= group.deleting_until_ms:
            group.deleting_until_ms = again_ms
            step.order(DeleteShareStates(group.name, _named(gone)))

    def _begin_epoch(self, step: GroupStep, group: ShareGroup, metadata_hash: int, cause: str) -> None:
        epoch = group.epoch + 1
        self._put(step, Kind.GROUP, group.name, write_group(epoch, metadata_hash))
        ids = {name: topic.topic_id for name in group.subscribed_topics() if (topic := self._topics.topic(name))}
        subscriptions = {
            member_id: [ids[name] for name in member.known.topics if name in ids]
            for member_id, member in group.members.items()
        }
        partitions = {topic: state.partitions for topic, state in group.initialized.items()}
        targets = assign(subscriptions, partitions)
        for member_id, member in sorted(group.members.items()):
            if targets[member_id] != member.target:
                target = write_target_member(targets[member_id])
                self._put(step, Kind.TARGET_MEMBER, group.name, target, member_id)
        self._put(step, Kind.TARGET, group.name, write_target(epoch))
        step.note(f"group={group.name!r} state={group.state} epoch={epoch} event={cause}")

    def initialized(self, step: GroupStep, name: str, done: Iterable[NamedPartitions]) -> None:
        """Note that share partitions have a state now, and assign them."""
        group = self.groups.get(name)
        if group is None:
            return
        states = dict(group.initialized)
        for topic_id, topic, indexes in done:
            known = states.get(topic_id, StateTopic(topic, frozenset()))
            states[topic_id] = StateTopic(topic, known.partitions | frozenset(indexes))
            group.verified[topic_id] = group.verified.get(topic_id, frozenset()) | frozenset(indexes)
        if states != group.initialized:
            self._put_states(step, group, states)
            self._settle(step, group, "share partitions were initialized")
        elif group.initializing_until_ms:
            self._settle(step, group, None)  # if no state is missing now, new partitions need not wait for the retry

    def deleted(self, step: GroupStep, name: str, done: Iterable[NamedPartitions]) -> None:
        """Note that the states of topics that no longer exist are deleted."""
        group = self.groups.get(name)
        if group is None:
            return
        states = dict(group.initialized)
        for topic_id, _, indexes in done:
            known = states.pop(topic_id, None)
            if known is not None and (left := known.partitions - frozenset(indexes)):
                states[topic_id] = known._replace(partitions=left)
            else:
                group.verified.pop(topic_id, None)
        if states != group.initialized:
            self._put_states(step, group, states)
            group.is_outdated = True

    def _put_states(self, step: GroupStep, group: ShareGroup, states: dict[UUID, StateTopic]) -> None:
        value = write_state_partitions(states, {}, step.wall_ms)
        self._put(step, Kind.STATE_PARTITIONS, group.name, value)

    def topics_changed(self, topics: Collection[str] | None) -> None:
        """Check the topics of each affected group for changes, at the group's next heartbeat.

        A group is affected if it subscribes to one of `topics` or has states of one.  None: all groups are affected.
        """
        for group in self.groups.values():
            if topics is None or not group.subscribed_topics().isdisjoint(topics) or _has_states(group, topics):
                group.is_outdated = True

    # -- members that are removed

    def _remove(self, step: GroupStep, group: ShareGroup, members: Iterable[ShareMember], cause: str) -> None:
        for member in members:
            for key in member_keys(group.name, member.member_id):
                step.append(write_key(key), None)
        self._settle(step, group, cause)

    def tick(self, step: GroupStep) -> None:
        """Remove the members whose session is over."""
        if self.wake_ms is None or self.wake_ms > step.now_ms:
            return
        for group in self.groups.values():
            gone = [member for member in group.members.values() if member.expires_ms <= step.now_ms]
            if gone and not step.is_full:
                rest = f" and {others(len(gone) - 1)}" if len(gone) > 1 else ""
                self._remove(step, group, gone, f"the session of member {gone[0].member_id!r}{rest} expired")
        found = (group.deadline_ms() for group in self.groups.values())
        self.wake_ms = min((each for each in found if each is not None), default=None)

    # -- administration

    def describe(self, name: str) -> ShareGroupDescription:
        """Return the description of a share group, or GROUP_ID_NOT_FOUND."""
        group = self.groups.get(name)
        if group is None:
            return ShareGroupDescription(name, KafkaCode.GROUP_ID_NOT_FOUND, f"There is no share group {name}.")
        members = tuple(self._described(member) for _, member in sorted(group.members.items()))
        return ShareGroupDescription(
            name, KafkaCode.NONE, None, group.state, group.epoch, group.assignment_epoch, members
        )

    def _described(self, member: ShareMember) -> ShareMemberDescription:
        known = member.known
        assignment = tuple(
            NamedPartitions(topic, name, tuple(sorted(indexes)))
            for topic, indexes in sorted(member.assigned.items())
            if (name := self._topics.topic_name(topic)) is not None
        )
        return ShareMemberDescription(
            member.member_id,
            known.rack_id,
            member.epoch,
            known.client_id,
            known.client_host,
            known.topics,
            assignment,
        )

    def list_states(self, request: ListShareStates) -> ListShareStatesResponse:
        """Return the share partitions of a group that have a state."""
        group = self.groups.get(request.group)
        if group is None:
            message = f"There is no share group {request.group}."
            return ListShareStatesResponse(KafkaCode.GROUP_ID_NOT_FOUND, message)
        if request.must_be_empty and group.members:
            message = f"The share group has {len(group.members)} members."
            return ListShareStatesResponse(KafkaCode.NON_EMPTY_GROUP, message)
        return ListShareStatesResponse(KafkaCode.NONE, None, group.epoch, _named(group.initialized))

    def reset(self, step: GroupStep, request: ResetShareStates, *, is_taken: bool) -> ListShareStatesResponse:
        """Begin an epoch, at which the share coordinators will initialize the states again.

        The group does not note the states yet, because they are not written yet; see `note`.

        is_taken: a group of another kind has this name.
        """
        group = self.groups.get(request.group)
        if group is not None and group.members:
            return self.list_states(ListShareStates(request.group, must_be_empty=True))
        if is_taken:
            return ListShareStatesResponse(KafkaCode.GROUP_ID_NOT_FOUND, f"Group {request.group} is not a share group.")
        if not request.partitions:
            return ListShareStatesResponse(KafkaCode.NONE)
        if group is None and len(self.groups) >= step.limits.groups_max:
            return ListShareStatesResponse(*self._too_many())
        group = group or ShareGroup(request.group)
        self._begin_epoch(step, group, group.metadata_hash, "an administrator changed offsets")
        return ListShareStatesResponse(KafkaCode.NONE, None, self.groups[group.name].epoch, request.partitions)

    def note(self, step: GroupStep, request: NoteShareStates) -> ListShareStatesResponse:
        """Note that share partitions have a state now; see `initialized`.  Return the states of the group."""
        self.initialized(step, request.group, request.partitions)
        return self.list_states(ListShareStates(request.group))

    def _too_many(self) -> Refusal:
        return KafkaCode.POLICY_VIOLATION, f"there are {len(self.groups)} share groups in this partition already"

    def forget(self, step: GroupStep, request: ForgetShareStates) -> ListShareStatesResponse:
        """Note that states are deleted.  They are initialized again before their partitions are assigned."""
        group = self.groups.get(request.group)
        if group is not None:
            gone = {each.topic_id for each in request.topics}
            states = {topic: state for topic, state in group.initialized.items() if topic not in gone}
            if states != group.initialized:
                self._put_states(step, group, states)
                self._begin_epoch(step, group, group.metadata_hash, "states of share partitions were deleted")
                group.is_outdated = True
        return ListShareStatesResponse(KafkaCode.NONE)

    def delete_error(self, name: str) -> KafkaCode:
        """Return the error if a share group cannot be deleted now, else NONE."""
        group = self.groups[name]
        if group.members:
            return KafkaCode.NON_EMPTY_GROUP
        return KafkaCode.COORDINATOR_NOT_AVAILABLE if group.initialized else KafkaCode.NONE

    def delete(self, step: GroupStep, name: str) -> None:
        """Delete a share group without members and states."""
        for key in self.groups[name].record_keys():
            step.append(write_key(key), None)
        step.note(f"group={name!r} event=deleted")

    # -- records

    def _put(self, step: GroupStep, kind: Kind, group: str, value: bytes, member_id: str = "") -> None:
        step.append(write_key(ShareGroupKey(kind, group, member_id)), value)

    def check(self) -> None:
        """Assert the invariants.  Only tests call this."""
        for group in self.groups.values():
            assert group.assignment_epoch <= group.epoch, group.name
            for member in group.members.values():
                assert member.value is not None, member.member_id
                assert member.epoch <= group.assignment_epoch, member.member_id
                for topic, indexes in member.target.items():
                    known = group.initialized.get(topic, StateTopic("", frozenset())).partitions
                    assert group.is_outdated or indexes <= known, "only initialized share partitions are assigned"


def _named(states: dict[UUID, StateTopic]) -> tuple[NamedPartitions, ...]:
    return tuple(
        NamedPartitions(topic, state.name, tuple(sorted(state.partitions))) for topic, state in sorted(states.items())
    )


def _has_states(group: ShareGroup, topics: Collection[str]) -> bool:
    return any(state.name in topics for state in group.initialized.values())


def _problem(step: GroupStep, request: ShareHeartbeat) -> str | None:
    limits = step.limits
    names = [request.group, request.member_id, request.rack_id or "", *request.client, *(request.topics or ())]
    if not request.group.strip():
        return "the group id is empty"
    if not request.member_id.strip():
        return "the member id is empty"
    if request.rack_id is not None and not request.rack_id.strip():
        return "the rack id is empty"
    if any(len(each.encode()) > limits.name_max_bytes for each in names):
        return f"an id, a topic name or another text is longer than {limits.name_max_bytes} bytes"
    if request.epoch < LEAVING:
        return f"{request.epoch} is not a member epoch"
    if request.epoch == JOINING and not request.topics:
        return "a member that joins must give its topics"
    if len(request.topics or ()) > limits.share.topics_max:
        return f"the subscription has more than {limits.share.topics_max} topics"
    return None
