"""The features of the cluster, in ApiVersions and UpdateFeatures.  Also the check of the client's software name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from broker.kafka.admin import Forwarder, is_ok, outcome
from metadata.control.features import LOWERABLE, SUPPORTED, describe_features
from metadata.image import ClusterImage
from quorumlog.wire import rpcs
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka.codec import milliseconds
from quorumlog.wire.v1 import controller_pb2 as pb

ALWAYS_ON: Final[Mapping[str, range]] = {"group.version": range(2), "share.version": range(3)}
"""Kafka's features for the newer protocol of consumer groups (KIP-848) and for share groups (KIP-932), with our levels.

Level 2 of share.version means dead-letter topics (KIP-1191).  Each feature is always at its highest level, because no
record of the metadata log depends on the level.
"""

_FIRST_WITH_SOFTWARE: Final = 3
_FIRST_WITH_LEVEL_0: Final = 4
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?")

_UPGRADE: Final = 1
_DOWNGRADES: Final = (2, 3)
_UPDATES_MAX: Final = 100
"""Maximum number of features in one UpdateFeatures request.  Each of them causes requests to the controller."""
_UPDATE_CODES: Final[Mapping[str, KafkaCode]] = {
    # Kafka has one error for every level that is not possible.
    ApiError.INVALID_REQUEST: KafkaCode.INVALID_UPDATE_VERSION,
    ApiError.UNSUPPORTED_VERSION: KafkaCode.INVALID_UPDATE_VERSION,
}


def software_problem(request: Any, version: int) -> KafkaCode | None:
    """Return INVALID_REQUEST if the name or the version of the client's software is not valid."""
    if version < _FIRST_WITH_SOFTWARE:
        return None
    given = (request.client_software_name, request.client_software_version)
    return None if all(_SOFTWARE.fullmatch(each) for each in given) else KafkaCode.INVALID_REQUEST


def features(image: ClusterImage, version: int) -> dict[str, Any]:
    """Return the fields of an ApiVersions response about features: the levels of this release, and the levels in force.

    The epoch of the levels is the end offset of the metadata that contains them.
    """
    known = {**SUPPORTED, **ALWAYS_ON}
    supported = [
        {"name": name, "min_version": levels[0], "max_version": levels[-1]}
        for name, levels in sorted(known.items())
        # Java clients before 3.9 fail at a range that begins with 0.  Kafka omits these ranges as well (KAFKA-17492).
        if levels[0] > 0 or version >= _FIRST_WITH_LEVEL_0
    ]
    in_force = {each.name: each.level for each in describe_features(image)}
    in_force |= {name: levels[-1] for name, levels in ALWAYS_ON.items()}
    finalized = [
        {"name": name, "max_version_level": level, "min_version_level": level}
        for name, level in sorted(in_force.items())
        if level > 0  # at level 0, Kafka does not list a feature
    ]
    return {
        "supported_features": supported,
        "finalized_features_epoch": image.end_offset,
        "finalized_features": finalized,
    }


async def update_features(forwarder: Forwarder, request: Any, image: ClusterImage) -> dict[str, Any]:
    """Forward an UpdateFeatures request; return the values of its response.

    All levels are checked first.  If one is refused then, none is changed.  The changes are separate requests: if the
    controller or the brokers change after the check, some may be made and others refused.  Versions below 2 report each
    feature; later versions report the first refusal.
    """
    updates = list(request.feature_updates)
    if len(updates) > _UPDATES_MAX:
        return {
            "error_code": KafkaCode.INVALID_REQUEST,
            "error_message": f"the request names more than {_UPDATES_MAX} features",
        }
    deadline = forwarder.deadline(milliseconds(request.timeout))
    counts = Counter(each.feature for each in updates)
    results = []
    for update in updates:
        refusal = _refused_here(update, counts[update.feature], image)
        results.append(refusal or await _raised(forwarder, update, deadline, validate_only=True))
    if all(is_ok(each) for each in results) and not getattr(request, "validate_only", False):
        results = [
            _refused_here(each, 1, image) or await _raised(forwarder, each, deadline, validate_only=False)
            for each in updates
        ]
    answers = [outcome(each, _UPDATE_CODES.get(each.error)) for each in results]
    first = next((each for each in answers if each["error_code"]), {"error_code": 0})
    shown = [{"feature": update.feature, **answer} for update, answer in zip(updates, answers, strict=True)]
    return {**first, "results": shown}


def _refused_here(update: Any, count: int, image: ClusterImage) -> pb.Result | None:
    """Return the result of an update that is not sent to the controller: a refusal, or success without a change.

    None: the controller decides.
    """
    name, level = update.feature, update.max_version_level
    present = next((each.level for each in describe_features(image) if each.name == name), level)
    text = None
    if count > 1:
        text = f"the request names {name[:60]!a} {count} times"
    elif name in ALWAYS_ON and level == ALWAYS_ON[name][-1]:
        return pb.Result(error=ApiError.NONE)
    elif name in ALWAYS_ON and level > 0:
        text = f"the level of {name} is always {ALWAYS_ON[name][-1]}, so it cannot be {level}"
    elif level < 1 and not (name in LOWERABLE and level == 0):
        text = f"level {level} would remove {name[:60]!a}, but features cannot be removed"
    elif (kind := getattr(update, "upgrade_type", _UPGRADE)) not in (_UPGRADE, *_DOWNGRADES):
        text = f"upgrade type {kind} does not exist"
    elif kind in _DOWNGRADES and level > present:
        text = f"level {level} is higher than the current one, but the request is for a downgrade"
    elif kind == _UPGRADE and name in LOWERABLE and level < present:
        text = f"level {level} is lower than the current one, but the request is for an upgrade"
    return None if text is None else pb.Result(error=ApiError.INVALID_REQUEST, message=text)


async def _raised(forwarder: Forwarder, update: Any, deadline: float, *, validate_only: bool) -> pb.Result:
    message = pb.UpgradeFeatureRequest(name=update.feature, level=update.max_version_level)
    message.header.validate_only = validate_only
    reply = await forwarder.forward(rpcs.UPGRADE_FEATURE, message, deadline)
    if not validate_only and is_ok(reply.result) and reply.changed:
        await forwarder.wait_for([reply.offset], deadline)
    return reply.result
