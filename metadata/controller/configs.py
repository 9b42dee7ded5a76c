"""Configs of topics, brokers, groups and the cluster, as requests of the `Controller` service."""

from __future__ import annotations

from metadata.control import configs
from metadata.control.configs import Altered, Changes, Resource
from metadata.control.decision import Decision, with_end
from metadata.control.errors import OK, Outcome
from metadata.controller import convert
from metadata.controller.active import ActiveController
from metadata.image import ClusterImage
from metadata.image.topic_configs import COMPRESSION_TYPE
from metadata.records import ConfigScope
from quorumlog.runtime.turns import Turn
from quorumlog.wire.compression import unavailable_codecs
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb

REPLY_MAX_BYTES = 60 << 20
"""Maximum size of the configs that one reply describes; it is below the limit of a gRPC message, 64 MiB."""

_SCOPES = {scope.value: scope for scope in ConfigScope}


async def alter_configs(
    controller: ActiveController, request: pb.AlterConfigsRequest, timeout_ms: float
) -> pb.AlterConfigsReply | Outcome:
    convert.bounded(len(request.resources), "resources")
    convert.bounded(sum(len(each.changes) for each in request.resources), "configs")
    wanted = [
        Changes(
            _resource(each.resource),
            tuple([(change.key, change.value if change.HasField("value") else None) for change in each.changes]),
            each.replace_all,
        )
        for each in request.resources
    ]

    unavailable = unavailable_codecs(
        {value for each in wanted for key, value in each.values if key == COMPRESSION_TYPE}
    )

    def decide(image: ClusterImage) -> Decision[tuple[tuple[Altered, ...], int]]:
        decision = configs.alter_configs(
            image, wanted, validate_only=request.header.validate_only, unavailable=unavailable
        )
        return with_end(image, decision)

    answer = await controller.execute(decide, timeout_ms)
    if isinstance(answer, Outcome):
        return answer
    altered, offset = answer
    return pb.AlterConfigsReply(
        result=convert.result(OK),
        offset=offset,
        resources=[
            pb.AlteredConfigs(resource=message.resource, result=convert.result(each.outcome), changed=each.changed)
            for message, each in zip(request.resources, altered, strict=True)
        ],
    )


async def describe_configs(
    image: ClusterImage, request: pb.DescribeConfigsRequest
) -> pb.DescribeConfigsReply | Outcome:
    convert.bounded(len(request.resources), "resources")
    reply = pb.DescribeConfigsReply(result=convert.result(OK), offset=image.end_offset)
    turn, size = Turn(), 0
    for resource in request.resources:
        described = _described(image, resource)
        size += described.ByteSize()
        if size > REPLY_MAX_BYTES:
            text = f"the configs of {len(request.resources)} resources do not fit into one answer"
            next_step = f"describe at most {len(reply.resources)} of them at a time"
            return Outcome(ApiError.POLICY_VIOLATION, text, next_step)
        reply.resources.append(described)
        await turn.passed()
    return reply


def _described(image: ClusterImage, resource: pb.ConfigResource) -> pb.DescribedConfigs:
    found = configs.describe_configs(image, _resource(resource))
    if isinstance(found, Outcome):
        return pb.DescribedConfigs(resource=resource, result=convert.result(found))
    return pb.DescribedConfigs(
        resource=resource,
        result=convert.result(OK),
        configs=[
            pb.DescribedConfig(key=each.key, value=each.value, source=each.source, allowed=each.allowed)
            for each in found
        ],
    )


def _resource(message: pb.ConfigResource) -> Resource:
    return Resource(_SCOPES.get(message.scope), message.name)
