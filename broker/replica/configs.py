"""The settings of topics, in the form that logs and leaders use."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from uuid import UUID

from broker.core.cleaning import CleaningPolicy
from broker.core.partition import Limits
from broker.log import LogConfig
from broker.replica.limits import ReplicaLimits
from metadata.image import ClusterImage, is_internal
from metadata.image.topic_configs import INT64_MAX
from quorumlog.wire.compression import CODEC_NAMES, Recompression
from quorumlog.wire.record_batch import Codec


class TopicConfigs:
    """The settings of topics, which are kept until they change.

    lag_max_ms, lag_max_bytes: a follower that lags by more leaves the ISR; -1 bytes: no limit.
    """

    def __init__(self, limits: ReplicaLimits, lag_max_ms: int, lag_max_bytes: int) -> None:
        self._limits = limits
        self._lag_max_ms = lag_max_ms
        self._lag_max_bytes = lag_max_bytes
        self._log_configs: dict[UUID, LogConfig] = {}
        self._leader_limits: dict[UUID, Limits] = {}

    def of_log(self, topic_id: UUID, image: ClusterImage) -> LogConfig:
        found = self._log_configs.get(topic_id)
        if found is None:
            found = self._log_configs[topic_id] = log_config(image, topic_id, self._limits)
        return found

    def of_leader(self, topic_id: UUID, image: ClusterImage) -> Limits:
        found = self._leader_limits.get(topic_id)
        if found is None:
            min_isr = int(image.topic_config(topic_id, "min.insync.replicas"))
            found = self._leader_limits[topic_id] = Limits(self._lag_max_ms, min_isr, self._lag_max_bytes)
        return found

    def forget(self, topic_id: UUID) -> None:
        """Drop the settings of a topic, because they changed."""
        self._log_configs.pop(topic_id, None)
        self._leader_limits.pop(topic_id, None)

    def forget_all(self) -> None:
        """Drop the settings of all topics, because settings that they inherit have changed."""
        self._log_configs.clear()
        self._leader_limits.clear()


def _limit(text: str) -> int:
    """Return a limit in the form that logs use: -1 for no limit.  In a config, the largest int64 means no limit."""
    return -1 if int(text) == INT64_MAX else int(text)


def _recompression(value: Callable[[str], str]) -> Recompression | None:
    """Return the codec and level of `compression.type`; None for the value `producer`."""
    match value("compression.type"):
        case "producer":
            return None
        case "uncompressed":
            return Recompression(Codec.NONE)
        case "snappy":
            return Recompression(Codec.SNAPPY)
        case name:
            return Recompression(CODEC_NAMES[name], int(value(f"compression.{name}.level")))


def log_config(image: ClusterImage, topic_id: UUID, limits: ReplicaLimits) -> LogConfig:
    """Return a topic's settings in the form that its logs use.

    Retention deletes nothing from internal topics: their oldest records may be the only copy of a coordinator's state.
    """
    value = partial(image.topic_config, topic_id)
    policies = value("cleanup.policy").split(",")
    keeps_all = is_internal(image.topics[topic_id].name)
    return LogConfig(
        segment_size_max=min(int(value("segment.bytes")), limits.segment_size_max),
        segment_age_max_ms=min(int(value("segment.ms")), limits.segment_age_max_ms),
        retention_ms=-1 if keeps_all else int(value("retention.ms")),
        retention_size=-1 if keeps_all else int(value("retention.bytes")),
        message_size_max=int(value("max.message.bytes")),
        write_caching=value("write.caching") == "true",
        compressed_records_checked=value("compression.validation.enable") == "true",
        producer_expiration_ms=limits.producer_expiration_ms,
        index_interval=limits.index_interval_bytes,
        deletes="delete" in policies,
        compacts="compact" in policies,
        delete_retention_ms=int(value("delete.retention.ms")),
        append_time=value("message.timestamp.type") == "LogAppendTime",
        timestamp_age_max_ms=_limit(value("message.timestamp.before.max.ms")),
        timestamp_ahead_max_ms=_limit(value("message.timestamp.after.max.ms")),
        recompression=_recompression(value),
        compaction=CleaningPolicy(
            min_lag_ms=int(value("min.compaction.lag.ms")),
            max_lag_ms=int(value("max.compaction.lag.ms")),
            min_dirty_ratio=float(value("min.cleanable.dirty.ratio")),
        ),
    )
