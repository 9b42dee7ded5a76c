"""Reassignments on an operator's request, and the list of reassignments in progress."""

from __future__ import annotations

from metadata.control.decision import Decision, with_end
from metadata.control.errors import OK, Outcome
from metadata.control.reassign import NO_THROTTLE, THROTTLE, Ongoing, Reassigned, Wanted, list_reassignments
from metadata.control.reassign import alter_reassignments as decide
from metadata.controller import convert
from metadata.controller.active import ActiveController
from metadata.image import ClusterImage
from quorumlog.runtime.logging import get_logger
from quorumlog.runtime.turns import Turn
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb

logger = get_logger("controller")

IN_REPLY_MAX = 50_000


def wanted_from(request: pb.AlterReassignmentsRequest) -> list[Wanted]:
    """Return the requested reassignments.

    Raises:
        RemoteProtocolError: too many partitions or replicas for one request.
    """
    convert.bounded(len(request.partitions), "partitions")
    convert.bounded(sum(len(each.replicas) for each in request.partitions), "replicas")
    return [Wanted(each.topic, each.index, tuple(each.replicas)) for each in request.partitions]


async def alter_reassignments(
    controller: ActiveController, request: pb.AlterReassignmentsRequest, timeout_ms: float
) -> pb.AlterReassignmentsReply | Outcome:
    wanted = wanted_from(request)
    throttle = request.throttle if request.HasField("throttle") else None

    def step(image: ClusterImage) -> Decision[tuple[Reassigned, int]]:
        return with_end(
            image,
            decide(
                image,
                wanted,
                replace=request.replace,
                throttle=throttle,
                keep_factor=request.keep_replication_factor,
                validate_only=request.header.validate_only,
            ),
        )

    answer = await controller.execute(step, timeout_ms)
    if isinstance(answer, Outcome):
        return answer
    reassigned, offset = answer
    if reassigned.changed:
        changed = sum(each.changed for each in reassigned.partitions)
        logger.info("reassignments altered", partitions=changed, throttle=throttle)
    return pb.AlterReassignmentsReply(
        result=convert.result(reassigned.outcome),
        changed=reassigned.changed,
        offset=offset,
        partitions=[
            pb.AlteredReassignment(
                topic=each.topic, index=each.index, result=convert.result(each.outcome), changed=each.changed
            )
            for each in reassigned.partitions
        ],
    )


async def describe_reassignments(
    image: ClusterImage, request: pb.ListReassignmentsRequest
) -> pb.ListReassignmentsReply | Outcome:
    convert.bounded(len(request.partitions), "partitions")
    if not request.partitions and image.reassigning_count > IN_REPLY_MAX:
        text = f"{image.reassigning_count} reassignments; one answer can describe at most {IN_REPLY_MAX}"
        return Outcome(ApiError.POLICY_VIOLATION, text, "request single partitions by name")
    reply = pb.ListReassignmentsReply(
        result=convert.result(OK),
        offset=image.end_offset,
        throttle=int(image.cluster_config(THROTTLE)) if image.reassigning_count else NO_THROTTLE,
    )
    found = list_reassignments(image, [(each.topic, each.index) for each in request.partitions])
    turn = Turn()
    for ongoing in found:
        reply.partitions.append(_ongoing(ongoing))
        await turn.passed()
    return reply


def _ongoing(ongoing: Ongoing) -> pb.OngoingReassignment:
    partition = ongoing.partition
    return pb.OngoingReassignment(
        topic=ongoing.topic,
        index=partition.index,
        replicas=partition.replica_ids,
        adding=partition.adding,
        removing=partition.removing,
        isr=partition.isr,
        leader=partition.leader,
    )
