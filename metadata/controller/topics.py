"""The creation, deletion and description of topics, as requests of the `Controller` service."""

from __future__ import annotations

from metadata.control import topics
from metadata.control.decision import Decision, with_end
from metadata.control.errors import OK, Outcome
from metadata.control.topics import CreatedTopic, DeletedTopic
from metadata.controller import convert, describe
from metadata.controller.active import ActiveController
from metadata.image import ClusterImage
from metadata.image.topic_configs import COMPRESSION_TYPE
from quorumlog.wire.compression import unavailable_codecs
from quorumlog.wire.v1 import controller_pb2 as pb


async def create_topics(
    controller: ActiveController, request: pb.CreateTopicsRequest, timeout_ms: float
) -> pb.CreateTopicsReply | Outcome:
    wanted = convert.new_topics(request)
    unavailable = unavailable_codecs(
        {value for each in wanted for key, value in each.configs if key == COMPRESSION_TYPE}
    )

    def decide(image: ClusterImage) -> Decision[tuple[tuple[CreatedTopic, ...], int]]:
        decision = topics.create_topics(
            image,
            wanted,
            controller.new_id,
            validate_only=request.header.validate_only,
            has_one_voter=len(controller.node.voter_ids) == 1,
            unavailable=unavailable,
        )
        return with_end(image, decision)

    answer = await controller.execute(decide, timeout_ms)
    return answer if isinstance(answer, Outcome) else convert.created(answer[0], OK, answer[1])


async def delete_topics(
    controller: ActiveController, request: pb.DeleteTopicsRequest, timeout_ms: float
) -> pb.DeleteTopicsReply | Outcome:
    names, topic_ids = convert.topics_to_delete(request)

    def decide(image: ClusterImage) -> Decision[tuple[tuple[DeletedTopic, ...], int]]:
        decision = topics.delete_topics(image, names, topic_ids, validate_only=request.header.validate_only)
        return with_end(image, decision)

    answer = await controller.execute(decide, timeout_ms)
    return answer if isinstance(answer, Outcome) else convert.deleted(answer[0], OK, answer[1])


async def describe_topics(image: ClusterImage, request: pb.DescribeTopicsRequest) -> pb.DescribeTopicsReply | Outcome:
    return await describe.describe_topics(image, request.names)
