"""Consumer groups: converts frames into requests to the coordinators, and their responses into frames.

A refusal by a coordinator (`KafkaCode`) becomes the error of each group.  The answer about a group may be far larger
than the group's name.  So if a DescribeGroups repeats a group, the group is described once, in the place of its first
occurrence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final

from broker.core.coordinator.group_requests import (
    DeletedGroup,
    DeleteGroups,
    DescribeGroups,
    ExplainGroups,
    GroupDescription,
    GroupExplanation,
    GroupRequest,
    Heartbeat,
    JoinGroup,
    JoinGroupResponse,
    LeaveGroup,
    LeaveGroupResponse,
    LeavingMember,
    LeftMember,
    ListedGroup,
    ListGroups,
    MemberAssignment,
    MemberName,
    MemberProtocol,
    SyncGroup,
    SyncGroupResponse,
)
from broker.kafka.api import Groups, Shares, Transactions
from broker.kafka.connection import Pending, Reply
from broker.kafka.coordinated import DecodedRequest, Split, Values, not_coordinator, result, side_by_side
from broker.kafka.metadata import node_endpoint
from metadata.image.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import milliseconds

_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_NO_SUCH_KEYS: Final = "only groups, transactions and share partitions have coordinators"

_FIRST_JOIN_WITH_MEMBER_ID_REQUIRED: Final = 4
_FIRST_JOIN_WITH_NULL_PROTOCOL: Final = 7
_FIRST_JOIN_WITH_SKIP: Final = 9
_FIRST_LEAVE_WITH_MEMBERS: Final = 3
_FIRST_DESCRIBE_WITH_MISSING: Final = 6


class NoGroups:
    """The `Groups` of a listener without coordinators: it refuses every request."""

    async def prepare(self) -> str:
        return "this broker does not coordinate groups"

    def partition(self, group: str) -> int:
        return -1

    def led(self) -> Sequence[int]:
        return ()

    def call(self, partition: int, request: GroupRequest, size: int) -> asyncio.Future[Any]:
        return not_coordinator()


# -- finding a coordinator


def find_coordinator(asked: DecodedRequest) -> Reply | Awaitable[Reply]:
    """Answer immediately if the topic that holds the keys exists, else after its creation."""
    owner = _owner(asked)
    if owner is not None and owner[0] not in asked.replicas.image.topic_ids:
        return _found_after_creation(asked, owner[1])
    return _found(asked, "")


def _owner(asked: DecodedRequest) -> tuple[str, Groups | Transactions | Shares] | None:
    """Return the topic that holds the keys of the request, and their coordinators; None if no topic does."""
    key_type = asked.field("key_type", _GROUP)
    if key_type == _GROUP:
        return CONSUMER_OFFSETS, asked.groups
    if key_type == _SHARE:
        return SHARE_GROUP_STATE, asked.shares
    return (TRANSACTION_STATE, asked.transactions) if key_type == _TRANSACTION else None


async def _found_after_creation(asked: DecodedRequest, coordinators: Groups | Transactions | Shares) -> Reply:
    return _found(asked, await coordinators.prepare())


def _found(asked: DecodedRequest, problem: str) -> Reply:
    if hasattr(asked.request, "coordinator_keys"):
        found = [{**_coordinator(asked, key, problem), "key": key} for key in asked.request.coordinator_keys]
        return asked.reply({"coordinators": found})
    return asked.reply(_coordinator(asked, asked.request.key, problem))


def _coordinator(asked: DecodedRequest, key: str, problem: str) -> Values:
    code = KafkaCode.COORDINATOR_NOT_AVAILABLE
    owner = _owner(asked)
    if owner is None:
        return _nowhere(KafkaCode.INVALID_REQUEST, _NO_SUCH_KEYS)
    name, coordinators = owner
    image = asked.replicas.image
    topic = image.topic(name)
    if topic is None:
        return _nowhere(code, problem or f"topic {name} does not exist yet")
    partition = topic.partition(coordinators.partition(key))
    broker = None if partition is None else image.brokers.get(partition.leader)
    node = None if broker is None else node_endpoint(broker, asked.caller.listener)
    if node is None:
        return _nowhere(code, f"partition {coordinators.partition(key)} of {name} has no leader")
    return {"error_code": 0, "error_message": None, "node_id": node.node_id, "host": node.host, "port": node.port}


def _nowhere(code: int, message: str) -> Values:
    return {"error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}


# -- members


def join_group(asked: DecodedRequest) -> Pending:
    request, version = asked.request, asked.version
    session_ms = milliseconds(request.session_timeout)
    join = JoinGroup(
        group=request.group_id,
        member_id=request.member_id,
        instance_id=asked.field("group_instance_id"),
        client=asked.client,
        protocol_type=request.protocol_type,
        protocols=tuple([MemberProtocol(each.name, bytes(each.metadata)) for each in request.protocols]),
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=milliseconds(asked.field("rebalance_timeout", request.session_timeout)),
        needs_member_id=version >= _FIRST_JOIN_WITH_MEMBER_ID_REQUIRED,
        can_skip_assignment=version >= _FIRST_JOIN_WITH_SKIP,
        reason=asked.field("reason") or "",
    )

    def values(found: JoinGroupResponse | KafkaCode) -> Values:
        if isinstance(found, KafkaCode):
            found = JoinGroupResponse(found, request.member_id)
        protocol = found.protocol
        return {
            "error_code": found.error,
            "generation_id": found.generation,
            "protocol_type": found.protocol_type,
            "protocol_name": protocol or ("" if version < _FIRST_JOIN_WITH_NULL_PROTOCOL else None),
            "leader": found.leader,
            "skip_assignment": found.skip_assignment,
            "member_id": found.member_id,
            "members": [
                {"member_id": each.member_id, "group_instance_id": each.instance_id, "metadata": each.metadata}
                for each in found.members
            ],
        }

    return asked.one(join, join.group, values)


def sync_group(asked: DecodedRequest) -> Pending:
    request = asked.request
    sync = SyncGroup(
        group=request.group_id,
        member_id=request.member_id,
        instance_id=asked.field("group_instance_id"),
        generation=request.generation_id,
        protocol_type=asked.field("protocol_type"),
        protocol=asked.field("protocol_name"),
        assignments=tuple([MemberAssignment(each.member_id, bytes(each.assignment)) for each in request.assignments]),
    )

    def values(found: SyncGroupResponse | KafkaCode) -> Values:
        if isinstance(found, KafkaCode):
            found = SyncGroupResponse(found)
        return {
            "error_code": found.error,
            "protocol_type": found.protocol_type,
            "protocol_name": found.protocol,
            "assignment": found.assignment,
        }

    return asked.one(sync, sync.group, values)


def heartbeat(asked: DecodedRequest) -> Pending:
    request = asked.request
    beat = Heartbeat(request.group_id, request.member_id, asked.field("group_instance_id"), request.generation_id)
    return asked.one(beat, beat.group, _error_alone)


def _error_alone(found: Any) -> Values:
    return {"error_code": found if isinstance(found, KafkaCode) else found.error}


def leave_group(asked: DecodedRequest) -> Pending:
    request = asked.request
    if asked.version >= _FIRST_LEAVE_WITH_MEMBERS:
        leaving = [
            LeavingMember(each.member_id, each.group_instance_id, getattr(each, "reason", None) or "")
            for each in request.members
        ]
    else:
        leaving = [LeavingMember(request.member_id)]
    leave = LeaveGroup(request.group_id, tuple(leaving))

    def values(found: LeaveGroupResponse | KafkaCode) -> Values:
        if isinstance(found, KafkaCode):
            found = LeaveGroupResponse(found)
        error = found.error
        if asked.version < _FIRST_LEAVE_WITH_MEMBERS and error is KafkaCode.NONE:
            error = found.members[0].error  # these versions have one member, and no place for its own error
        return {"error_code": error, "members": [_left(each) for each in found.members]}

    return asked.one(leave, leave.group, values)


def _left(member: LeftMember) -> Values:
    return {"member_id": member.member_id, "group_instance_id": member.instance_id, "error_code": member.error}


# -- groups


def describe_groups(asked: DecodedRequest) -> Pending:
    report_missing = asked.version >= _FIRST_DESCRIBE_WITH_MISSING
    # A group that the request repeats is described once: each description may be as large as the group.
    names = tuple(dict.fromkeys(asked.request.groups))
    split = Split(asked, names, str, lambda groups: DescribeGroups(groups, report_missing))

    def finish() -> Reply:
        found: list[GroupDescription] = split.answers(lambda group, code: GroupDescription(group, code))
        return asked.reply({"groups": [_described(each) for each in found]})

    return Pending(split.futures, finish, is_owned=True)


def _described(group: GroupDescription) -> Values:
    return {
        "error_code": group.error,
        "error_message": group.error_message,
        "group_id": group.group,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol,
        "members": [
            {
                "member_id": each.member_id,
                "group_instance_id": each.instance_id,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "member_metadata": each.metadata,
                "member_assignment": each.assignment,
            }
            for each in group.members
        ],
    }


def explain_groups(asked: DecodedRequest) -> Pending:
    """Answer an ExplainGroups, which Kafka does not have: report the reasons for the last rebalances of groups."""
    names = tuple(dict.fromkeys(asked.request.group_ids))
    split = Split(asked, names, str, ExplainGroups)

    def finish() -> Reply:
        found: list[GroupExplanation] = split.answers(lambda group, code: GroupExplanation(group, code))
        return asked.reply({"groups": [_explained(each) for each in found]})

    return Pending(split.futures, finish, is_owned=True)


def _explained(group: GroupExplanation) -> Values:
    joined = group.last_joined
    return {
        "error_code": group.error,
        "error_message": group.error_message,
        "group_id": group.group,
        "group_type": group.group_type,
        "group_state": group.state,
        "generation": group.generation,
        "member_count": group.members,
        "loaded": group.loaded_ms,
        "now": group.now_ms,
        "empty_since": -1 if group.empty_since_ms is None else group.empty_since_ms,
        "last_joined": [] if joined is None else [{**_names(joined.member), "at": joined.at_ms}],
        "awaited": [_names(each) for each in group.awaited],
        "rebalances": [
            {
                "started": each.started_ms,
                "duration": -1 if each.duration_ms is None else each.duration_ms,
                "generation": each.generation,
                "members": each.members,
                "interrupted": each.interrupted,
                "reason": each.reason,
                "cause": each.cause,
                "caused_by": [] if each.member is None else [_names(each.member)],
            }
            for each in group.rebalances
        ],
    }


def _names(member: MemberName) -> Values:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client.client_id,
        "client_host": member.client.host,
    }


def list_groups(asked: DecodedRequest) -> Pending:
    """List the groups of all partitions that this broker coordinates.  If one cannot answer yet, return an error."""
    request = ListGroups(frozenset(asked.field("states_filter", ())), frozenset(asked.field("types_filter", ())))
    led = asked.groups.led()
    size = asked.size // max(1, len(led))
    futures = [asked.groups.call(partition, request, size) for partition in led]

    def finish() -> Reply:
        results = [result(future) for future in futures]
        # A partition that was led until just now has another coordinator, which the client asks as well.
        refusals = [each for each in results if isinstance(each, KafkaCode) and each is not KafkaCode.NOT_COORDINATOR]
        if refusals:
            return asked.reply({"error_code": refusals[0], "groups": []})
        found = [group for each in results if not isinstance(each, KafkaCode) for group in each.groups]
        return asked.reply({"error_code": 0, "groups": [_listed(each) for each in found]})

    return Pending(futures, finish, is_owned=True)


def _listed(group: ListedGroup) -> Values:
    return {
        "group_id": group.group,
        "protocol_type": group.protocol_type,
        "group_state": group.state,
        "group_type": group.group_type,
    }


async def delete_groups(asked: DecodedRequest) -> Reply:
    """Delete groups.  The states of a share group are deleted before the group."""
    names = list(dict.fromkeys(asked.request.groups_names))
    codes = await side_by_side(asked.shares.clear_group, names)
    refused = {name: code for name, code in zip(names, codes, strict=True) if code is not KafkaCode.NONE}
    split = Split(asked, [name for name in names if name not in refused], str, DeleteGroups)
    if split.futures:
        await asyncio.wait(split.futures)
    found: list[DeletedGroup] = split.answers(DeletedGroup)
    errors = refused | {each.group: each.error for each in found}
    results = [{"group_id": name, "error_code": errors[name]} for name in asked.request.groups_names]
    return asked.reply({"results": results})
