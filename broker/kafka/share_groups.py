"""Share groups (KIP-932): converts frames into requests, and their results into frames."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final
from uuid import UUID

from broker.core.coordinator.consumer.requests import NamedPartitions
from broker.core.coordinator.share.requests import (
    DescribeShareGroups,
    ListShareStatesResponse,
    ShareGroupDescription,
    ShareHeartbeat,
    ShareHeartbeatResponse,
)
from broker.core.coordinator.share.states import (
    NO_EPOCH,
    NO_START,
    DeleteState,
    InitializeState,
    ReadState,
    ShareKey,
    ShareState,
    StateRequest,
    StateResponse,
    SummarizeState,
    WriteState,
)
from broker.core.fetch_session import PartitionKey
from broker.core.share.partition import Acknowledgement, Delivery, StateBatch
from broker.core.share.requests import ShareAcknowledgePlan, ShareFetched, ShareFetchPlan, SharePlace, ShareReply
from broker.kafka.connection import Pending, Reply
from broker.kafka.coordinated import DecodedRequest, Split, Values, not_coordinator
from broker.kafka.metadata import node_endpoints
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.codec import milliseconds

_EXACT: Final = 1
"""The acquire mode of a member that gets no more records than it requests, even if that divides a batch."""
_ASSIGNOR: Final = "simple"
_NO_TOPIC: Final = UUID(int=0)


class NoShares:
    """The `Shares` of a listener without share groups: it refuses every request."""

    async def prepare(self) -> str:
        return "this broker does not serve share groups"

    def lock_ms(self, group: str) -> int:
        return 0

    def partition(self, key: str) -> int:
        return -1

    def led(self) -> Sequence[int]:
        return ()

    def call(self, request: StateRequest) -> asyncio.Future[Any]:
        return not_coordinator()

    async def fetch(self, plan: ShareFetchPlan) -> ShareReply:
        return ShareReply(KafkaCode.NOT_COORDINATOR)

    async def acknowledge(self, plan: ShareAcknowledgePlan) -> ShareReply:
        return ShareReply(KafkaCode.NOT_COORDINATOR)

    def disconnected(self, peer: str) -> None:
        pass

    def write_dead_letters(self, keys: Sequence[ShareKey]) -> None:
        pass

    async def clear_group(self, group: str) -> KafkaCode:
        return KafkaCode.NONE

    async def describe_offsets(
        self, group: str, wanted: Sequence[NamedPartitions] | None
    ) -> tuple[ListShareStatesResponse, list[tuple[NamedPartitions, list[StateResponse]]]]:
        return ListShareStatesResponse(KafkaCode.NOT_COORDINATOR), []

    async def log_ends(self, partitions: Iterable[PartitionKey]) -> dict[PartitionKey, int]:
        return {}

    async def alter_offsets(
        self, group: str, offsets: Sequence[tuple[NamedPartitions, Sequence[int]]]
    ) -> tuple[ListShareStatesResponse, list[StateResponse]]:
        return ListShareStatesResponse(KafkaCode.NOT_COORDINATOR), []

    async def delete_offsets(self, group: str, topics: Sequence[str]) -> dict[str, KafkaCode] | ListShareStatesResponse:
        return ListShareStatesResponse(KafkaCode.NOT_COORDINATOR)


# -- members


def share_group_heartbeat(asked: DecodedRequest) -> Pending:
    request = asked.request
    topics = request.subscribed_topic_names
    beat = ShareHeartbeat(
        request.group_id,
        request.member_id,
        request.member_epoch,
        asked.client,
        request.rack_id,
        None if topics is None else tuple(topics),
    )

    def values(found: ShareHeartbeatResponse | KafkaCode) -> Values:
        if isinstance(found, KafkaCode):
            found = ShareHeartbeatResponse(found)
        assignment = None
        if found.assignment is not None:
            topic_partitions = [
                {"topic_id": topic, "partitions": sorted(indexes)}
                for topic, indexes in sorted(found.assignment.items())
            ]
            assignment = {"topic_partitions": topic_partitions}
        return {
            "error_code": found.error,
            "error_message": found.message,
            "member_id": found.member_id,
            "member_epoch": found.epoch,
            "heartbeat_interval": found.heartbeat_interval_ms,
            "assignment": assignment,
        }

    return asked.one(beat, beat.group, values)


def share_group_describe(asked: DecodedRequest) -> Pending:
    # A group that the request repeats is described once: each description may be as large as the group.
    names = tuple(dict.fromkeys(asked.request.group_ids))
    split = Split(asked, names, str, DescribeShareGroups)

    def finish() -> Reply:
        found: list[ShareGroupDescription] = split.answers(ShareGroupDescription)
        return asked.reply({"groups": [_described(each) for each in found]})

    return Pending(split.futures, finish, is_owned=True)


def _described(group: ShareGroupDescription) -> Values:
    return {
        "error_code": group.error,
        "error_message": group.message,
        "group_id": group.group,
        "group_state": group.state,
        "group_epoch": group.epoch,
        "assignment_epoch": group.assignment_epoch,
        "assignor_name": _ASSIGNOR if group.error is KafkaCode.NONE else "",
        "members": [
            {
                "member_id": each.member_id,
                "rack_id": each.rack_id,
                "member_epoch": each.epoch,
                "client_id": each.client_id,
                "client_host": each.client_host,
                "subscribed_topic_names": each.topics,
                "assignment": {
                    "topic_partitions": [
                        {"topic_id": topic.topic_id, "topic_name": topic.topic, "partitions": topic.partitions}
                        for topic in each.assignment
                    ]
                },
            }
            for each in group.members
        ],
    }


# -- records


def _acknowledgements(topics: Iterable[Any]) -> dict[SharePlace, tuple[Acknowledgement, ...]]:
    found: dict[SharePlace, tuple[Acknowledgement, ...]] = {}
    for topic in topics:
        for each in topic.partitions:
            if each.acknowledgement_batches:
                batches = tuple(
                    [
                        Acknowledgement(batch.first_offset, batch.last_offset + 1, tuple(batch.acknowledge_types))
                        for batch in each.acknowledgement_batches
                    ]
                )
                place = (topic.topic_id or _NO_TOPIC, each.partition_index)
                found[place] = (*found.get(place, ()), *batches)
    return found


async def share_fetch(asked: DecodedRequest, room: Callable[[], int]) -> Reply:
    """Answer a ShareFetch.  room: returns how many bytes of records the reply may contain now."""
    request = asked.request
    plan = ShareFetchPlan(
        group=request.group_id or "",
        member_id=request.member_id or "",
        session_epoch=request.share_session_epoch,
        max_wait_ms=milliseconds(request.max_wait),
        min_bytes=request.min_bytes,
        max_bytes=min(request.max_bytes, room()),
        max_records=request.max_records,
        is_exact=asked.field("share_acquire_mode", 0) == _EXACT,
        is_renewal=asked.field("is_renew_ack", False),
        places=tuple(
            [
                (topic.topic_id or _NO_TOPIC, each.partition_index)
                for topic in request.topics
                for each in topic.partitions
            ]
        ),
        forgotten=tuple(
            [
                (topic.topic_id or _NO_TOPIC, index)
                for topic in request.forgotten_topics_data
                for index in topic.partitions
            ]
        ),
        acknowledgements=_acknowledgements(request.topics),
        peer=asked.caller.peer,
    )
    parts = _reply(asked, await asked.shares.fetch(plan), has_records=True)
    asked.caller.hold(sum(map(len, parts or ())))
    return parts


async def share_acknowledge(asked: DecodedRequest) -> Reply:
    request = asked.request
    plan = ShareAcknowledgePlan(
        request.group_id or "",
        request.member_id or "",
        request.share_session_epoch,
        asked.field("is_renew_ack", False),
        _acknowledgements(request.topics),
        asked.caller.peer,
    )
    return _reply(asked, await asked.shares.acknowledge(plan), has_records=False)


def _reply(asked: DecodedRequest, reply: ShareReply, *, has_records: bool) -> Reply:
    fetched = {each.place: each for each in reply.fetched}
    acknowledged = {each.place: each.error for each in reply.acknowledged}
    by_topic: dict[UUID, list[Values]] = {}
    leaders: set[int] = set()
    for topic_id, index in {**fetched, **acknowledged}:
        acknowledge_error = acknowledged.get((topic_id, index), KafkaCode.NONE)
        records = fetched.get((topic_id, index), ShareFetched((topic_id, index), KafkaCode.NONE))
        leader = {"leader_id": -1, "leader_epoch": -1}
        if KafkaCode.NOT_LEADER_OR_FOLLOWER in (acknowledge_error, records.error):
            topic = asked.replicas.image.topics.get(topic_id)
            known = None if topic is None else topic.partition(index)
            if known is not None and known.leader >= 0:
                leader = {"leader_id": known.leader, "leader_epoch": known.leader_epoch}
                leaders.add(known.leader)
        values: Values = {"partition_index": index, "current_leader": leader}
        if has_records:
            values |= {
                "error_code": records.error,
                "acknowledge_error_code": int(acknowledge_error),
                "records": bytes(records.records),
                "acquired_records": [
                    {"first_offset": each.first, "last_offset": each.end - 1, "delivery_count": each.deliveries}
                    for each in records.acquired
                ],
            }
        else:
            values["error_code"] = acknowledge_error
        by_topic.setdefault(topic_id, []).append(values)
    endpoints = node_endpoints(asked.replicas.image, leaders, asked.caller.listener) if leaders else []
    return asked.reply(
        {
            "error_code": reply.error,
            "error_message": reply.message,
            "acquisition_lock_timeout": asked.shares.lock_ms(asked.request.group_id or ""),
            "responses": [{"topic_id": topic, "partitions": partitions} for topic, partitions in by_topic.items()],
            "node_endpoints": [
                {"node_id": each.node_id, "host": each.host, "port": each.port, "rack": each.rack} for each in endpoints
            ],
        }
    )


def write_dead_letters(asked: DecodedRequest) -> Reply:
    named = asked.request.share_partitions
    keys = [ShareKey(each.group_id, each.topic_id or _NO_TOPIC, each.partition) for each in named]
    asked.shares.write_dead_letters(keys)
    return asked.reply({"error_code": KafkaCode.NONE})


# -- the share coordinator


def _state_calls(asked: DecodedRequest, request_of: Any, values_of: Any) -> Pending:
    """Answer a request to the share coordinator.  The request may name many share partitions."""
    places = [(topic, each) for topic in asked.request.topics for each in topic.partitions]
    keys = [ShareKey(asked.request.group_id, topic.topic_id or _NO_TOPIC, each.partition) for topic, each in places]
    futures = [asked.shares.call(request_of(key, each)) for key, (_, each) in zip(keys, places, strict=True)]

    def finish() -> Reply:
        by_topic: dict[UUID, list[Values]] = {}
        for key, future in zip(keys, futures, strict=True):
            found = KafkaCode.NOT_COORDINATOR if future.cancelled() else future.result()
            response = StateResponse(found) if isinstance(found, KafkaCode) else found
            values = {"partition": key.partition, "error_code": response.error, "error_message": response.message}
            by_topic.setdefault(key.topic_id, []).append({**values, **values_of(response.state)})
        results = [{"topic_id": topic, "partitions": partitions} for topic, partitions in by_topic.items()]
        return asked.reply({"results": results})

    return Pending(futures, finish, is_owned=True)


def _nothing(state: ShareState | None) -> Values:
    return {}


def _whole(state: ShareState | None) -> Values:
    if state is None:
        return {"state_epoch": NO_EPOCH, "start_offset": NO_START, "state_batches": []}
    batches = [
        {
            "first_offset": each.first,
            "last_offset": each.end - 1,
            "delivery_state": int(each.state),
            "delivery_count": each.deliveries,
        }
        for each in state.batches
    ]
    return {"state_epoch": state.state_epoch, "start_offset": state.start_offset, "state_batches": batches}


def _summary(state: ShareState | None) -> Values:
    if state is None:
        return {"state_epoch": NO_EPOCH, "leader_epoch": NO_EPOCH, "start_offset": NO_START}
    return {
        "state_epoch": state.state_epoch,
        "leader_epoch": state.leader_epoch,
        "start_offset": state.start_offset,
        "delivery_complete_count": state.done_count,
    }


def initialize_state(asked: DecodedRequest) -> Pending:
    return _state_calls(asked, lambda key, each: InitializeState(key, each.state_epoch, each.start_offset), _nothing)


def read_state(asked: DecodedRequest) -> Pending:
    return _state_calls(asked, lambda key, each: ReadState(key, each.leader_epoch), _whole)


def write_state(asked: DecodedRequest) -> Pending:
    def request_of(key: ShareKey, each: Any) -> StateRequest:
        known = frozenset(Delivery) - {Delivery.ACQUIRED}
        batches = tuple(
            [
                StateBatch(
                    batch.first_offset, batch.last_offset + 1, Delivery(batch.delivery_state), batch.delivery_count
                )
                if batch.delivery_state in known
                else StateBatch(0, 0, Delivery.ARCHIVED, 0)  # an empty batch, which is refused
                for batch in each.state_batches
            ]
        )
        return WriteState(key, each.state_epoch, each.leader_epoch, each.start_offset, batches)

    return _state_calls(asked, request_of, _nothing)


def delete_state(asked: DecodedRequest) -> Pending:
    return _state_calls(asked, lambda key, each: DeleteState(key), _nothing)


def read_state_summary(asked: DecodedRequest) -> Pending:
    return _state_calls(asked, lambda key, each: SummarizeState(key, each.leader_epoch), _summary)
