"""ApiVersions beyond the keys: the check of the client's name, and the features of the cluster."""

from __future__ import annotations

import re
from typing import Any, Final

from metadata.control.features import SUPPORTED, describe_features
from metadata.image import ClusterImage
from quorumlog.wire.errors import KafkaCode

_FIRST_WITH_SOFTWARE: Final = 3
_SOFTWARE: Final = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?")


def software_problem(request: Any, version: int) -> KafkaCode | None:
    """Return INVALID_REQUEST if the name or the version of the client's software is not valid."""
    if version < _FIRST_WITH_SOFTWARE:
        return None
    given = (request.client_software_name, request.client_software_version)
    return None if all(_SOFTWARE.fullmatch(each) for each in given) else KafkaCode.INVALID_REQUEST


def features(image: ClusterImage) -> dict[str, Any]:
    """Return the fields of an ApiVersions response about features: those of this release, and the levels in force.

    The epoch of the levels is the offset of the metadata in which they were found.
    """
    supported = [
        {"name": name, "min_version": levels[0], "max_version": levels[-1]}
        for name, levels in sorted(SUPPORTED.items())
    ]
    finalized = [
        {"name": each.name, "max_version_level": each.level, "min_version_level": each.level}
        for each in describe_features(image)
    ]
    return {
        "supported_features": supported,
        "finalized_features_epoch": image.end_offset,
        "finalized_features": finalized,
    }
