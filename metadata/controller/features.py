"""Feature levels, as requests of the `Controller` service."""

from __future__ import annotations

from metadata.control import features
from metadata.control.decision import Decision, with_end
from metadata.control.errors import OK, Outcome
from metadata.control.features import Upgraded
from metadata.controller import convert
from metadata.controller.active import ActiveController
from metadata.image import ClusterImage
from quorumlog.wire.v1 import controller_pb2 as pb


async def describe_features(
    image: ClusterImage, request: pb.DescribeFeaturesRequest
) -> pb.DescribeFeaturesReply | Outcome:
    return pb.DescribeFeaturesReply(
        result=convert.result(OK),
        offset=image.end_offset,
        features=[
            pb.DescribedFeature(
                name=each.name,
                level=each.level,
                lowest=each.lowest,
                highest=each.highest,
                limited_by=each.limited_by,
            )
            for each in features.describe_features(image)
        ],
    )


async def upgrade_feature(
    controller: ActiveController, request: pb.UpgradeFeatureRequest, timeout_ms: float
) -> pb.UpgradeFeatureReply | Outcome:
    level = request.level if request.HasField("level") else None

    def decide(image: ClusterImage) -> Decision[tuple[Upgraded, int]]:
        validate_only = request.header.validate_only
        return with_end(image, features.upgrade_feature(image, request.name, level, validate_only=validate_only))

    answer = await controller.execute(decide, timeout_ms)
    if isinstance(answer, Outcome):
        return answer
    upgraded, offset = answer
    return pb.UpgradeFeatureReply(
        result=convert.result(upgraded.outcome), changed=upgraded.changed, offset=offset, level=upgraded.level
    )
