"""Operators' requests about topics and brokers: add or remove partitions, unregister a broker."""

from __future__ import annotations

from metadata.control import partitions_count
from metadata.control.brokers import Unregistered, unregister
from metadata.control.decision import Decision, with_end
from metadata.control.errors import OK, Outcome
from metadata.control.partitions_count import NewPartitions, Resized
from metadata.controller import convert
from metadata.controller.active import ActiveController
from metadata.image import ClusterImage
from quorumlog.wire.v1 import controller_pb2 as pb


async def add_partitions(
    controller: ActiveController, request: pb.AddPartitionsRequest, timeout_ms: float
) -> pb.AddPartitionsReply | Outcome:
    convert.bounded(len(request.topics), "topics")
    convert.bounded(sum(len(topic.assignment) for topic in request.topics), "assignments")
    wanted = [
        NewPartitions(topic.topic, topic.count, tuple([tuple(row.values) for row in topic.assignment]))
        for topic in request.topics
    ]

    def decide(image: ClusterImage) -> Decision[tuple[tuple[Resized, ...], int]]:
        return with_end(
            image, partitions_count.add_partitions(image, wanted, validate_only=request.header.validate_only)
        )

    answer = await controller.execute(decide, timeout_ms)
    if isinstance(answer, Outcome):
        return answer
    topics, offset = answer
    return pb.AddPartitionsReply(result=convert.result(OK), offset=offset, topics=[_resized(each) for each in topics])


async def remove_partitions(
    controller: ActiveController, request: pb.RemovePartitionsRequest, timeout_ms: float
) -> pb.RemovePartitionsReply | Outcome:
    def decide(image: ClusterImage) -> Decision[tuple[Resized, int]]:
        return with_end(
            image,
            partitions_count.remove_partitions(
                image, request.topic, request.count, controller.new_id, validate_only=request.header.validate_only
            ),
        )

    answer = await controller.execute(decide, timeout_ms)
    if isinstance(answer, Outcome):
        return answer
    topic, offset = answer
    return pb.RemovePartitionsReply(result=convert.result(OK), offset=offset, topic=_resized(topic))


def _resized(topic: Resized) -> pb.ChangedTopic:
    return pb.ChangedTopic(
        topic=topic.topic,
        result=convert.result(topic.outcome),
        topic_id=b"" if topic.topic_id is None else topic.topic_id.bytes,
        partitions=topic.partitions,
        changed=topic.changed,
    )


async def unregister_broker(
    controller: ActiveController, request: pb.UnregisterBrokerRequest, timeout_ms: float
) -> pb.UnregisterBrokerReply | Outcome:
    def decide(image: ClusterImage) -> Decision[tuple[Unregistered, int]]:
        return with_end(image, unregister(image, request.broker_id, validate_only=request.header.validate_only))

    answer = await controller.execute(decide, timeout_ms)
    if isinstance(answer, Outcome):
        return answer
    found, offset = answer
    return pb.UnregisterBrokerReply(result=convert.result(found.outcome), changed=found.changed, offset=offset)
