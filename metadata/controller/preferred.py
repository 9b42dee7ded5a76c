"""The preferred controllers, as requests of the `Controller` service."""

from __future__ import annotations

from metadata.control.decision import Decision, with_end
from metadata.control.errors import OK, Outcome
from metadata.control.preferred import Preferred, least_burdened, set_preferred
from metadata.controller import convert
from metadata.controller.active import ActiveController
from metadata.image import ClusterImage
from quorumlog.wire.v1 import controller_pb2 as pb


async def set_preferred_controllers(
    controller: ActiveController, request: pb.SetPreferredControllersRequest, timeout_ms: float
) -> pb.SetPreferredControllersReply | Outcome:
    def decide(image: ClusterImage) -> Decision[tuple[Preferred, int]]:
        voter_ids = controller.node.voter_ids
        wanted = least_burdened(image, voter_ids) if request.auto else tuple(request.node_ids)
        decision = set_preferred(image, wanted, voter_ids, validate_only=request.header.validate_only)
        return with_end(image, decision)

    answer = await controller.execute(decide, timeout_ms)
    if isinstance(answer, Outcome):
        return answer
    preferred, offset = answer
    return pb.SetPreferredControllersReply(
        result=convert.result(preferred.outcome),
        changed=preferred.changed,
        offset=offset,
        node_ids=preferred.node_ids,
    )


async def describe_preferred_controllers(
    image: ClusterImage, request: pb.DescribePreferredControllersRequest
) -> pb.DescribePreferredControllersReply | Outcome:
    return pb.DescribePreferredControllersReply(
        result=convert.result(OK), offset=image.end_offset, node_ids=image.preferred_controllers
    )
