"""The conditions under which clients may commit and fetch the offsets of a consumer group."""

from __future__ import annotations

from broker.core.coordinator.consumer.group import ConsumerGroup
from broker.core.coordinator.group_requests import GroupToFetch, OffsetCommit
from quorumlog.wire.errors import KafkaCode


def commit_error(group: ConsumerGroup, request: OffsetCommit, *, is_transactional: bool) -> KafkaCode:
    """Return the error if a client may not commit for a group, else NONE.

    An administrator commits without an epoch, and only while the group is empty.  A producer that commits in a
    transaction knows only the errors of the classic protocol, regardless of the version of its request.
    """
    if group.is_dead:
        return KafkaCode.COORDINATOR_NOT_AVAILABLE
    if not group.members:
        return KafkaCode.UNKNOWN_MEMBER_ID if request.generation >= 0 else KafkaCode.NONE
    error = group.member_error(request.member_id, request.instance_id)
    if error is not KafkaCode.NONE:
        return error
    member = group.members[request.member_id]
    if not (member.is_classic or is_transactional or request.knows_epochs):
        return KafkaCode.UNSUPPORTED_VERSION
    if request.generation != member.current.epoch:
        is_new = not (member.is_classic or is_transactional)
        return KafkaCode.STALE_MEMBER_EPOCH if is_new else KafkaCode.ILLEGAL_GENERATION
    return KafkaCode.NONE


def fetch_error(group: ConsumerGroup, request: GroupToFetch) -> KafkaCode:
    """Return the error if a client may not fetch the offsets of a group, else NONE.

    Only requests of members of the newer protocol have a member id.  The member's epoch must be the current one:
    otherwise its partitions may now belong to another member, which may still commit.
    """
    if request.member_id is None and request.member_epoch < 0:
        return KafkaCode.NONE
    member = group.members.get(request.member_id or "")
    if member is None:
        return KafkaCode.UNKNOWN_MEMBER_ID
    return KafkaCode.NONE if request.member_epoch == member.current.epoch else KafkaCode.STALE_MEMBER_EPOCH
