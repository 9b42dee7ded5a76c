"""Consumer groups: converts frames into requests to the coordinators, and their responses into frames.

A request that names several groups is split by the partitions that hold their state, and the answers are merged in the
order of the request.  A refusal by a coordinator (`KafkaCode`) becomes the error of each group, or of each
partition in those versions of OffsetFetch that have no other place for it.

The answer about a group may be far larger than the group's name.  So a group that a request repeats has one answer, in
the place of its first occurrence: DescribeGroups describes it, and OffsetFetch refuses it with INVALID_REQUEST.  If an
OffsetFetch repeats a partition of a group, it is also answered once.

Requests name topics by name, or by id from version 10 of OffsetCommit and OffsetFetch on.  Coordinators know topics by
name.  They also receive the topic id of the request, because the topic may be deleted and created again before they
apply the request.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from broker.core.coordinator.group_requests import (
    Client,
    DeletedGroup,
    DeleteGroups,
    DescribeGroups,
    ExplainGroups,
    FetchedGroup,
    FetchedOffset,
    GroupDescription,
    GroupExplanation,
    GroupRequest,
    GroupToFetch,
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
    OffsetCommit,
    OffsetDelete,
    OffsetDeleteResponse,
    OffsetFetch,
    OffsetToCommit,
    PartitionResult,
    SyncGroup,
    SyncGroupResponse,
    TopicPartitions,
)
from broker.kafka.api import Groups, Replicas, Shares, Transactions
from broker.kafka.connection import Caller, Pending, Reply
from broker.kafka.metadata import node_endpoint
from metadata.image.internal_topics import CONSUMER_OFFSETS, SHARE_GROUP_STATE, TRANSACTION_STATE
from quorumlog.runtime.turns import Turn
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka import codec
from quorumlog.wire.kafka.codec import milliseconds

Values = dict[str, Any]
K = TypeVar("K")
V = TypeVar("V")

_GROUP: Final = 0
_TRANSACTION: Final = 1
_SHARE: Final = 2
_NO_SUCH_KEYS: Final = "only groups, transactions and share partitions have coordinators"

_FIRST_JOIN_WITH_MEMBER_ID_REQUIRED: Final = 4
_FIRST_JOIN_WITH_NULL_PROTOCOL: Final = 7
_FIRST_JOIN_WITH_SKIP: Final = 9
_FIRST_LEAVE_WITH_MEMBERS: Final = 3
_FIRST_COMMIT_WITH_EPOCHS: Final = 9
_FIRST_FETCH_WITH_ERROR: Final = 2
_FIRST_FETCH_WITH_GROUPS: Final = 8
_FIRST_DESCRIBE_WITH_MISSING: Final = 6
_FIRST_WITH_TOPIC_ID: Final = 10
_GROUPS_AT_A_TIME: Final = 20
"""Groups of one request for which share coordinators are asked at the same time.  Further groups wait."""


class NoGroups:
    """The `Groups` of a listener without coordinators: it refuses every request."""

    async def prepare(self) -> str:
        return "this broker does not coordinate groups"

    def partition(self, group: str) -> int:
        return -1

    def led(self) -> Sequence[int]:
        return ()

    def call(self, partition: int, request: GroupRequest, size: int) -> asyncio.Future[Any]:
        refused: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        refused.set_result(KafkaCode.NOT_COORDINATOR)
        return refused


class DecodedRequest:
    """A decoded request, and the objects that its handler needs.  size: bytes of its frame."""

    def __init__(
        self,
        groups: Groups,
        transactions: Transactions,
        shares: Shares,
        replicas: Replicas,
        caller: Caller,
        frame: memoryview,
    ) -> None:
        self.groups = groups
        self.transactions = transactions
        self.shares = shares
        self.replicas = replicas
        self.caller = caller
        self.request = codec.decode_request(caller.header, frame)
        self.size = len(frame)

    @property
    def version(self) -> int:
        return self.caller.header.api_version

    @property
    def client(self) -> Client:
        """Return the client's name and address.  The address has a slash before it, as Kafka reports it."""
        return Client(self.caller.header.client_id or "", "/" + self.caller.peer.rpartition(":")[0])

    def field(self, name: str, default: Any = None) -> Any:
        """Return a field that some versions lack."""
        return getattr(self.request, name, default)

    def reply(self, values: Values) -> Reply:
        return (codec.encode_response_body(self.caller.header.api_key, self.version, values),)

    def one(self, request: GroupRequest, group: str, values_of: Callable[[Any], Values]) -> Pending:
        """Send a request about one group; values_of: makes the response out of a result or refusal."""
        future = self.groups.call(self.groups.partition(group), request, self.size)
        return Pending((future,), lambda: self.reply(values_of(_result(future))), is_owned=True)

    def topic_id(self, name: str) -> UUID | None:
        return self.replicas.image.topic_ids.get(name)

    def topic_name(self, topic_id: UUID | None) -> str | None:
        topic = None if topic_id is None else self.replicas.image.topics.get(topic_id)
        return None if topic is None else topic.name


def _result(future: asyncio.Future[Any]) -> Any:
    """Return the response, or the code of a refusal.  The future is cancelled when the server closes."""
    return KafkaCode.NOT_COORDINATOR if future.cancelled() else future.result()


class Split(Generic[K]):
    """A request about several groups, as one request for each partition that holds some of them."""

    def __init__(
        self,
        asked: DecodedRequest,
        items: Sequence[K],
        group_of: Callable[[K], str],
        request_of: Callable[[tuple[K, ...]], GroupRequest],
    ) -> None:
        self._items = items
        self._by_partition: dict[int, list[int]] = {}
        for position, item in enumerate(items):
            self._by_partition.setdefault(asked.groups.partition(group_of(item)), []).append(position)
        size = asked.size // max(1, len(self._by_partition))
        self.futures = [
            asked.groups.call(partition, request_of(tuple([items[each] for each in positions])), size)
            for partition, positions in self._by_partition.items()
        ]

    def answers(self, refused: Callable[[K, KafkaCode], Any]) -> list[Any]:
        """Return the answer to each item, in their order.  refused: makes the answer to an item that was refused."""
        answers: list[Any] = [None] * len(self._items)
        for future, positions in zip(self.futures, self._by_partition.values(), strict=True):
            result = _result(future)
            if isinstance(result, KafkaCode):
                found: Iterable[Any] = [refused(self._items[each], result) for each in positions]
            else:
                found = result.groups
            for position, answer in zip(positions, found, strict=True):
                answers[position] = answer
        return answers


async def side_by_side(work: Callable[[K], Awaitable[V]], items: Sequence[K]) -> list[V]:
    """Return the results of `work` for all items, in their order.  Some items are processed concurrently.

    A group whose share coordinator does not answer takes seconds, and must not delay the others of the request.
    """
    results: dict[int, V] = {}
    left = iter(enumerate(items))

    async def worker() -> None:  # a task for each item would take 1.5 KB for each of up to 100,000
        turn = Turn()
        for position, item in left:
            results[position] = await work(item)
            await turn.passed()

    await asyncio.gather(*(worker() for _ in items[:_GROUPS_AT_A_TIME]))
    return [results[position] for position in range(len(items))]


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


# -- offsets


def _named(asked: DecodedRequest, topic: Any) -> str | None:
    """Return the name of a topic in a request; None if the request has an unknown topic id."""
    name: str | None = asked.topic_name(topic.topic_id) if asked.version >= _FIRST_WITH_TOPIC_ID else topic.name
    return name


def _topic_values(topic: Any, partitions: list[Values]) -> Values:
    """Return a topic of a response, named as in the request."""
    which = {"topic_id": topic.topic_id} if hasattr(topic, "topic_id") else {"name": topic.name}
    return {**which, "partitions": partitions}


def offset_commit(asked: DecodedRequest) -> Pending:
    request = asked.request
    names = [_named(asked, topic) for topic in request.topics]
    offsets = tuple(
        [
            OffsetToCommit(
                name,
                each.partition_index,
                each.committed_offset,
                getattr(each, "committed_leader_epoch", -1),
                each.committed_metadata or "",
                getattr(topic, "topic_id", None),
            )
            for topic, name in zip(request.topics, names, strict=True)
            if name is not None
            for each in topic.partitions
        ]
    )
    commit = OffsetCommit(
        group=request.group_id,
        member_id=request.member_id,
        instance_id=asked.field("group_instance_id"),
        generation=request.generation_id_or_member_epoch,
        offsets=offsets,
        retention_ms=milliseconds(asked.field("retention_time")),
        knows_epochs=asked.version >= _FIRST_COMMIT_WITH_EPOCHS,
    )

    def values(found: Any) -> Values:
        errors = iter(
            [found] * len(offsets) if isinstance(found, KafkaCode) else [each.error for each in found.results]
        )
        topics = []
        for topic, name in zip(request.topics, names, strict=True):
            partitions = [
                {
                    "partition_index": each.partition_index,
                    "error_code": KafkaCode.UNKNOWN_TOPIC_ID if name is None else next(errors),
                }
                for each in topic.partitions
            ]
            topics.append(_topic_values(topic, partitions))
        return {"topics": topics}

    return asked.one(commit, commit.group, values)


class _TopicToFetch(NamedTuple):
    """A topic that a group of an OffsetFetch names.  name: None if its id is unknown."""

    topic: Any
    name: str | None
    partitions: tuple[int, ...]


class _FetchedTopics(NamedTuple):
    """The topics that a group of an OffsetFetch names; None: all topics."""

    group: GroupToFetch
    topics: tuple[_TopicToFetch, ...] | None


def offset_fetch(asked: DecodedRequest) -> Pending:
    request = asked.request
    has_groups = asked.version >= _FIRST_FETCH_WITH_GROUPS
    asked_groups = request.groups if has_groups else (request,)
    named = Counter(each.group_id for each in asked_groups)
    # A frame has room for hundreds of thousands of repetitions, and each might read all offsets of a large group.
    # Two occurrences may name different topics or members, so no single answer would be right for both.
    first = {each.group_id: each for each in reversed(asked_groups)}
    wanted = {name: _to_fetch(asked, first[name]) for name in named if named[name] == 1}
    require_stable = asked.field("require_stable", False)
    split = Split(
        asked,
        [each.group for each in wanted.values()],
        lambda group: group.group,
        lambda groups: OffsetFetch(groups, require_stable),
    )

    def finish() -> Reply:
        answers: list[FetchedGroup] = split.answers(lambda group, code: FetchedGroup(group.group, code))
        found = dict(zip(wanted, answers, strict=True))
        groups = [
            _fetched(asked, wanted[name], found[name])
            if name in wanted
            else {"group_id": name, "error_code": KafkaCode.INVALID_REQUEST, "topics": []}
            for name in named
        ]
        return asked.reply({"groups": groups} if has_groups else groups[0])

    return Pending(split.futures, finish, is_owned=True)


def _to_fetch(asked: DecodedRequest, group: Any) -> _FetchedTopics:
    """Return the partitions that an OffsetFetch names for a group, each once."""
    topics, partitions = None, None
    if group.topics is not None:
        by_topic: dict[Any, tuple[Any, dict[int, None]]] = {}
        for topic in group.topics:
            key = topic.topic_id if asked.version >= _FIRST_WITH_TOPIC_ID else topic.name
            by_topic.setdefault(key, (topic, {}))[1].update(dict.fromkeys(topic.partition_indexes))
        topics = tuple(
            [_TopicToFetch(topic, _named(asked, topic), tuple(indexes)) for topic, indexes in by_topic.values()]
        )
        partitions = tuple(
            [
                TopicPartitions(each.name, each.partitions, getattr(each.topic, "topic_id", None))
                for each in topics
                if each.name is not None
            ]
        )
    member_id, member_epoch = getattr(group, "member_id", None), getattr(group, "member_epoch", -1)
    return _FetchedTopics(GroupToFetch(group.group_id, partitions, member_id, member_epoch), topics)


def _fetched(asked: DecodedRequest, wanted: _FetchedTopics, found: FetchedGroup) -> Values:
    values: Values = {"group_id": wanted.group.group, "error_code": found.error}
    if wanted.topics is None:
        return {**values, "topics": _all_fetched(asked, found.offsets)}
    if found.error is not KafkaCode.NONE and asked.version >= _FIRST_FETCH_WITH_ERROR:
        return {**values, "topics": []}
    offsets = iter(found.offsets)
    topics = []
    for topic, name, indexes in wanted.topics:
        partitions = []
        for index in indexes:
            if name is None:
                offset = FetchedOffset("", index, error=KafkaCode.UNKNOWN_TOPIC_ID)
            elif found.error is not KafkaCode.NONE:
                offset = FetchedOffset(name, index, error=found.error)
            else:
                offset = next(offsets)
            partitions.append(_offset_values(offset))
        topics.append(_topic_values(topic, partitions))
    return {**values, "topics": topics}


def _all_fetched(asked: DecodedRequest, offsets: Sequence[FetchedOffset]) -> list[Values]:
    """Return all offsets of a group by topic.  If the reply names topics by id, deleted topics are omitted."""
    by_topic: dict[str, list[Values]] = {}
    for offset in offsets:
        by_topic.setdefault(offset.topic, []).append(_offset_values(offset))
    if asked.version < _FIRST_WITH_TOPIC_ID:
        return [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]
    ids = {name: asked.topic_id(name) for name in by_topic}
    return [
        {"topic_id": ids[name], "partitions": partitions}
        for name, partitions in by_topic.items()
        if ids[name] is not None
    ]


def _offset_values(offset: FetchedOffset) -> Values:
    return {
        "partition_index": offset.partition,
        "committed_offset": offset.offset,
        "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata,
        "error_code": offset.error,
    }


def offset_delete(asked: DecodedRequest) -> Pending:
    request = asked.request
    topics = tuple(
        [
            TopicPartitions(topic.name, tuple([each.partition_index for each in topic.partitions]))
            for topic in request.topics
        ]
    )

    def values(found: OffsetDeleteResponse | KafkaCode) -> Values:
        error = found if isinstance(found, KafkaCode) else found.error
        if isinstance(found, KafkaCode) or error is not KafkaCode.NONE:
            return {"error_code": error, "topics": []}
        results = iter(found.results)
        deleted = [
            {"name": topic.topic, "partitions": [_deleted(next(results)) for _ in topic.partitions]} for topic in topics
        ]
        return {"error_code": 0, "topics": deleted}

    return asked.one(OffsetDelete(request.group_id, topics), request.group_id, values)


def _deleted(result: PartitionResult) -> Values:
    return {"partition_index": result.partition, "error_code": result.error}


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
    """List the groups of all partitions that this broker coordinates; an error if one of them cannot answer yet."""
    request = ListGroups(frozenset(asked.field("states_filter", ())), frozenset(asked.field("types_filter", ())))
    led = asked.groups.led()
    size = asked.size // max(1, len(led))
    futures = [asked.groups.call(partition, request, size) for partition in led]

    def finish() -> Reply:
        results = [_result(future) for future in futures]
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
    """Delete groups.  The states of a share group are deleted before it."""
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
