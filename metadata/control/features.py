"""Feature levels: formats that all nodes support, and versions recommended to clients (Feature records; KIP-584).

`metadata.version` determines the record formats that are written.  Its level only rises, and only as far as the active
controller and every registered broker support it, so that no broker reads a record that it does not know.  Brokers
that are down count as well, since they may restart with their old release.  After an upgrade, the registration of a
broker with an older release is refused.  A voter with an older release stops when it reads the record, with an error
that names the level (`metadata.codec`).  The controller does not know the releases of the voters: upgrade them first.

`transaction.version` recommends a version of the transaction protocol to clients.  Brokers serve clients of every
version at every level, and no record format depends on it.  So it can also be lowered, at any time.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from metadata.control.decision import Decision
from metadata.control.errors import OK, Outcome
from metadata.image import ClusterImage
from metadata.records import (
    METADATA_VERSION,
    METADATA_VERSION_MAX,
    METADATA_VERSION_MIN,
    TRANSACTION_VERSION,
    TRANSACTION_VERSION_DEFAULT,
    TRANSACTION_VERSIONS,
    Feature,
)
from quorumlog.wire.errors import ApiError

SUPPORTED: Mapping[str, range] = {
    METADATA_VERSION: range(METADATA_VERSION_MIN, METADATA_VERSION_MAX + 1),
    TRANSACTION_VERSION: TRANSACTION_VERSIONS,
}
"""Levels that this release supports, by feature."""
LOWERABLE = frozenset({TRANSACTION_VERSION})
"""Features whose level may be lowered."""
_DEFAULTS: Mapping[str, int] = {TRANSACTION_VERSION: TRANSACTION_VERSION_DEFAULT}


class DescribedFeature(msgspec.Struct, frozen=True):
    """level: the current level.  lowest, highest: the levels that the controller and all registered brokers support.
    limited_by: ids of the brokers that do not support the highest level of this release."""

    name: str
    level: int
    lowest: int
    highest: int
    limited_by: tuple[int, ...]


class Upgraded(msgspec.Struct, frozen=True):
    """The outcome, and the level after the decision."""

    outcome: Outcome
    level: int
    changed: bool = False


def describe_features(image: ClusterImage) -> tuple[DescribedFeature, ...]:
    """Return every feature of this release, by name."""
    return tuple([_described(image, name) for name in sorted(SUPPORTED)])


def _described(image: ClusterImage, name: str) -> DescribedFeature:
    ours = SUPPORTED[name]
    if name in LOWERABLE:  # brokers register a range of levels only for the metadata version
        return DescribedFeature(name, image.features.get(name, _DEFAULTS[name]), ours[0], ours[-1], ())
    brokers = image.brokers.values()
    lowest = max([ours[0], *(broker.feature_min for broker in brokers)])
    highest = min([ours[-1], *(broker.feature_max for broker in brokers)])
    limited_by = tuple(sorted(broker.broker_id for broker in brokers if broker.feature_max < ours[-1]))
    return DescribedFeature(name, image.features.get(name, ours[0]), lowest, highest, limited_by)


def upgrade_feature(image: ClusterImage, name: str, level: int | None, *, validate_only: bool) -> Decision[Upgraded]:
    """Decide to set a feature to `level`.

    level: None for the highest level that the active controller and every registered broker support.

    Only the levels of features in `LOWERABLE` may be lowered.
    """
    if name not in SUPPORTED:
        text = f"unknown feature {name[:60]!a}; the features are {', '.join(sorted(SUPPORTED))}"
        return Decision(Upgraded(Outcome(ApiError.INVALID_REQUEST, text, "kctl features describe"), 0))
    feature = _described(image, name)
    wanted = max(feature.level, feature.highest) if level is None else level
    if wanted == feature.level:
        return Decision(Upgraded(OK, feature.level))
    if (refusal := _refuse(feature, wanted)) is not None:
        return Decision(Upgraded(refusal, feature.level))
    if validate_only:
        return Decision(Upgraded(OK, wanted))
    return Decision(Upgraded(OK, wanted, changed=True), (Feature(name, wanted),))


def _refuse(feature: DescribedFeature, wanted: int) -> Outcome | None:
    if wanted < feature.level and feature.name not in LOWERABLE:
        text = f"{feature.name} cannot be lowered from level {feature.level}: the log may hold records of that level"
        return Outcome(ApiError.INVALID_REQUEST, text)
    lowest, ours = SUPPORTED[feature.name][0], SUPPORTED[feature.name][-1]
    if wanted < lowest:  # no node would accept such a record
        text = f"level {wanted} of {feature.name} is below the lowest one, {lowest}"
        return Outcome(ApiError.INVALID_REQUEST, text, "kctl features describe")
    if wanted > ours:
        text = f"the active controller supports levels of {feature.name} up to {ours}, not {wanted}"
        return Outcome(ApiError.UNSUPPORTED_VERSION, text, "start a newer release on every node first")
    if wanted > feature.highest:
        names = ", ".join(map(str, feature.limited_by))
        text = (
            f"level {wanted} of {feature.name} is above {feature.highest}, the highest that all brokers support; "
            f"brokers of older releases: {names}"
        )
        advice = "start a newer release on these brokers; if a broker was removed permanently: kctl brokers unregister"
        return Outcome(ApiError.UNSUPPORTED_VERSION, text, advice)
    return None
