"""Requests of brokers, and the description of brokers, as requests of the `Controller` service."""

from __future__ import annotations

from metadata.control import brokers, partitions
from metadata.control.errors import Outcome
from metadata.controller import convert, describe
from metadata.controller.active import ActiveController
from metadata.image import ClusterImage
from quorumlog.wire.v1 import controller_pb2 as pb


async def register_broker(
    controller: ActiveController, request: pb.RegisterBrokerRequest, timeout_ms: float
) -> pb.RegisterBrokerReply | Outcome:
    early_topics = convert.early_topics(request)
    answer = await controller.register(convert.registration(request), early_topics, timeout_ms)
    return answer if isinstance(answer, Outcome) else convert.registered(answer)


async def broker_heartbeat(
    controller: ActiveController, request: pb.BrokerHeartbeatRequest, timeout_ms: float
) -> pb.BrokerHeartbeatReply | Outcome:
    answer = await controller.heartbeat(
        convert.heartbeat(request), request.received_offset, request.pending_changes, timeout_ms
    )
    return answer if isinstance(answer, Outcome) else convert.heartbeat_answer(answer)


async def alter_partition(
    controller: ActiveController, request: pb.AlterPartitionRequest, timeout_ms: float
) -> pb.AlterPartitionReply | Outcome:
    changes = convert.isr_changes(request)
    answer = await controller.execute(
        lambda image: partitions.alter_partition(image, request.broker_id, request.broker_epoch, changes), timeout_ms
    )
    return answer if isinstance(answer, Outcome) else convert.altered(answer)


async def assign_directories(
    controller: ActiveController, request: pb.AssignDirectoriesRequest, timeout_ms: float
) -> pb.AssignDirectoriesReply | Outcome:
    items = convert.assignments(request)
    answer: Outcome = await controller.execute(
        lambda image: partitions.assign_directories(image, request.broker_id, request.broker_epoch, items), timeout_ms
    )
    return convert.assigned(answer)


async def allocate_producer_ids(
    controller: ActiveController, request: pb.AllocateProducerIdsRequest, timeout_ms: float
) -> pb.AllocateProducerIdsReply | Outcome:
    answer = await controller.execute(
        lambda image: brokers.allocate_producer_ids(image, request.broker_id, request.broker_epoch), timeout_ms
    )
    return answer if isinstance(answer, Outcome) else convert.allocated(answer)


async def describe_brokers(
    controller: ActiveController, request: pb.DescribeBrokersRequest, image: ClusterImage
) -> pb.DescribeBrokersReply | Outcome:
    sessions = [(broker_id, controller.session(broker_id)) for broker_id in image.brokers]
    return describe.describe_brokers(image, controller.node.cluster_id or "", sessions)
