"""Requests and replies of the `Controller` service ⇄ the values that `metadata.control` decides on.

The conversion of a request checks the rules that the types of `metadata.control` cannot express, and raises
RemoteProtocolError.  The conversion of a reply cannot fail.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from metadata import codec
from metadata.control.brokers import Heartbeat, HeartbeatAnswer, ProducerIdBlock, Registered
from metadata.control.errors import Outcome
from metadata.control.partitions import AlterPartitionAnswer, Assignment, IsrChange, IsrChanged, Member
from metadata.control.topics import CreatedTopic, DeletedTopic, NewTopic
from metadata.records import RegisterBroker
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.v1 import controller_pb2 as pb

ITEMS_MAX = 100_000
"""Maximum number of items of one kind (topics, partitions, configs, …) in one request."""


def result(outcome: Outcome) -> pb.Result:
    error = outcome.error
    return pb.Result(error=error, message=outcome.message, next=outcome.next_step, retriable=error.retriable)


def bounded(count: int, what: str) -> None:
    """Check the number of items in a request.  what: the items, as a plural noun for the message.

    Raises:
        RemoteProtocolError: more than ITEMS_MAX.
    """
    if count > ITEMS_MAX:
        raise RemoteProtocolError(f"{count} {what} in one request; at most {ITEMS_MAX} are permitted")


# Requests


def registration(request: pb.RegisterBrokerRequest) -> RegisterBroker:
    return codec.registration(request.registration)


def early_topics(request: pb.RegisterBrokerRequest) -> frozenset[UUID]:
    """Return the topics whose logs had write.caching.  Only the size of a message limits their number."""
    return frozenset([codec.uuid_from(each, "topic id") for each in request.early_topic_ids])


def heartbeat(request: pb.BrokerHeartbeatRequest) -> Heartbeat:
    bounded(len(request.directories_offline), "directories")
    return Heartbeat(
        broker_id=request.broker_id,
        broker_epoch=request.broker_epoch,
        applied_offset=request.applied_offset,
        want_fence=request.want_fence,
        want_shutdown=request.want_shutdown,
        directories_offline=tuple([codec.uuid_from(each, "directory id") for each in request.directories_offline]),
    )


def isr_changes(request: pb.AlterPartitionRequest) -> list[IsrChange]:
    bounded(len(request.items), "partitions")
    ids = _Ids()
    return [
        IsrChange(
            topic_id=ids.topic(item.topic_id),
            index=item.index,
            leader_epoch=item.leader_epoch,
            partition_epoch=item.partition_epoch,
            isr=tuple([Member(member.broker_id, member.broker_epoch) for member in item.isr]),
        )
        for item in request.items
    ]


def assignments(request: pb.AssignDirectoriesRequest) -> list[Assignment]:
    bounded(len(request.items), "partitions")
    ids = _Ids()
    return [
        Assignment(
            ids.topic(item.topic_id),
            item.index,
            codec.uuid_from(item.directory_id, "directory id"),
            codec.uuid_from(item.moved_from, "directory id") if item.moved_from else None,
        )
        for item in request.items
    ]


def new_topics(request: pb.CreateTopicsRequest) -> list[NewTopic]:
    bounded(len(request.topics), "topics")
    bounded(sum(len(topic.assignment) for topic in request.topics), "assignments")
    return [
        NewTopic(
            name=topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            assignment=tuple([tuple(row.values) for row in topic.assignment]),
            configs=tuple([(entry.key, entry.value) for entry in topic.configs]),
        )
        for topic in request.topics
    ]


def topics_to_delete(request: pb.DeleteTopicsRequest) -> tuple[list[str], list[UUID]]:
    bounded(len(request.names) + len(request.topic_ids), "topics")
    ids = _Ids()
    return list(request.names), [ids.topic(each) for each in request.topic_ids]


class _Ids:
    """The topic ids of one request; equal ids are converted once."""

    def __init__(self) -> None:
        self._known: dict[bytes, UUID] = {}

    def topic(self, value: bytes) -> UUID:
        found = self._known.get(value)
        if found is None:
            found = self._known[value] = codec.uuid_from(value, "topic id")
        return found


# Replies


def registered(answer: Registered) -> pb.RegisterBrokerReply:
    return pb.RegisterBrokerReply(result=result(answer.outcome), broker_epoch=answer.broker_epoch)


def heartbeat_answer(answer: HeartbeatAnswer) -> pb.BrokerHeartbeatReply:
    return pb.BrokerHeartbeatReply(
        result=result(answer.outcome),
        fenced=answer.fenced,
        caught_up=answer.caught_up,
        should_shutdown=answer.should_shutdown,
        leaders_left=answer.leaders_left,
    )


def _isr_changed(item: IsrChanged) -> pb.AlterPartitionItemReply:
    return pb.AlterPartitionItemReply(
        topic_id=item.topic_id.bytes,
        index=item.index,
        result=result(item.outcome),
        leader=item.leader,
        leader_epoch=item.leader_epoch,
        partition_epoch=item.partition_epoch,
        isr=item.isr,
    )


def altered(answer: AlterPartitionAnswer) -> pb.AlterPartitionReply:
    return pb.AlterPartitionReply(result=result(answer.outcome), items=[_isr_changed(item) for item in answer.items])


def assigned(answer: Outcome) -> pb.AssignDirectoriesReply:
    return pb.AssignDirectoriesReply(result=result(answer))


def allocated(answer: ProducerIdBlock) -> pb.AllocateProducerIdsReply:
    return pb.AllocateProducerIdsReply(
        result=result(answer.outcome), first_producer_id=answer.first_producer_id, count=answer.count
    )


def created(answers: Iterable[CreatedTopic], ok: Outcome, end_offset: int) -> pb.CreateTopicsReply:
    return pb.CreateTopicsReply(
        result=result(ok),
        topics=[
            pb.CreatedTopic(
                name=each.name,
                result=result(each.outcome),
                topic_id=b"" if each.topic_id is None else each.topic_id.bytes,
                partitions=each.partitions,
                replication_factor=each.replication_factor,
                identical=each.identical,
                offset=end_offset,
            )
            for each in answers
        ],
    )


def deleted(answers: Iterable[DeletedTopic], ok: Outcome, end_offset: int) -> pb.DeleteTopicsReply:
    return pb.DeleteTopicsReply(
        result=result(ok),
        topics=[
            pb.DeletedTopic(
                name=each.name,
                topic_id=b"" if each.topic_id is None else each.topic_id.bytes,
                result=result(each.outcome),
                offset=end_offset,
            )
            for each in answers
        ],
    )
