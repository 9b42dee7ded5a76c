"""Elections on an operator's request."""

from __future__ import annotations

from metadata.control.balance import Election
from metadata.control.balance import elect_leaders as decide_elections
from metadata.control.decision import Decision, with_end
from metadata.control.election import Policy
from metadata.control.errors import OK, Outcome
from metadata.controller import convert
from metadata.controller.active import ActiveController
from metadata.image import ClusterImage
from quorumlog.runtime.logging import get_logger
from quorumlog.wire.errors import ApiError
from quorumlog.wire.v1 import controller_pb2 as pb

logger = get_logger("controller")

_POLICIES = {
    pb.ElectLeadersRequest.POLICY_PREFERRED: Policy.PREFERRED,
    pb.ElectLeadersRequest.POLICY_UNCLEAN: Policy.UNCLEAN,
}


async def elect_leaders(
    controller: ActiveController, request: pb.ElectLeadersRequest, timeout_ms: float
) -> pb.ElectLeadersReply | Outcome:
    policy = _POLICIES.get(request.policy)
    if policy is None:
        return Outcome(ApiError.INVALID_REQUEST, f"election policy {request.policy} does not exist")
    convert.bounded(len(request.partitions), "partitions")
    named = [(each.topic, each.index) for each in request.partitions]

    changed = False

    def decide(image: ClusterImage) -> Decision[tuple[tuple[Election, ...], int]]:
        nonlocal changed
        decision = decide_elections(image, policy, named, validate_only=request.header.validate_only)
        changed = bool(decision.records)
        return with_end(image, decision)

    try:
        answer = await controller.execute(decide, timeout_ms)
    finally:
        if changed:  # even if the request was cancelled or has failed
            controller.elect_soon()  # also handles reassignments that an unclean election completed
    if isinstance(answer, Outcome):
        return answer
    elections, offset = answer
    if any(each.unclean for each in elections) and changed:
        logger.warning("unclean elections were requested", partitions=sum(each.unclean for each in elections))
    return pb.ElectLeadersReply(
        result=convert.result(OK),
        changed=changed,
        offset=offset,
        partitions=[
            pb.ElectedLeader(
                topic=each.topic,
                index=each.index,
                result=convert.result(each.outcome),
                leader=each.leader,
                leader_epoch=each.leader_epoch,
                unclean=each.unclean,
            )
            for each in elections
        ],
    )
