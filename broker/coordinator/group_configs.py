"""Answers the questions of group coordinators about the configs of single groups, from the newest metadata."""

from __future__ import annotations

from msgspec.structs import replace

from broker.core.coordinator.consumer.requests import ConsumerLimits
from broker.core.coordinator.share.requests import ShareGroupLimits
from broker.replica.cluster_view import ClusterView
from metadata.image import ClusterImage, group_config


class ImageGroupConfigs:
    """The `GroupConfigs` of the machines."""

    def __init__(self, cluster: ClusterView) -> None:
        self._cluster = cluster

    def consumer(self, group: str, limits: ConsumerLimits) -> ConsumerLimits:
        image = self._cluster.newest
        if group not in image.group_configs:
            return limits
        interval_ms = _value(image, group, "consumer.assignment.interval.ms")
        times = _times(image, group, "consumer", (limits.session_timeout_ms, limits.heartbeat_interval_ms))
        return replace(
            limits,
            assignment_interval_ms=interval_ms,
            session_timeout_ms=times[0],
            heartbeat_interval_ms=times[1],
        )

    def share(self, group: str, limits: ShareGroupLimits) -> ShareGroupLimits:
        image = self._cluster.newest
        if group not in image.group_configs:
            return limits
        times = _times(image, group, "share", (limits.session_timeout_ms, limits.heartbeat_interval_ms))
        return replace(limits, session_timeout_ms=times[0], heartbeat_interval_ms=times[1])


def _value(image: ClusterImage, group: str, key: str) -> int:
    return int(group_config(image, group, key))


def _times(image: ClusterImage, group: str, kind: str, of_cluster: tuple[int, int]) -> tuple[int, int]:
    """Return the session timeout and the heartbeat interval of a group, in ms.

    If the cluster's ranges have changed so that no heartbeat would arrive within the session timeout, return the values
    of the cluster.  Otherwise the group would lose all its members again and again.
    """
    session_ms = _value(image, group, f"{kind}.session.timeout.ms")
    interval_ms = _value(image, group, f"{kind}.heartbeat.interval.ms")
    return (session_ms, interval_ms) if session_ms > interval_ms else of_cluster
