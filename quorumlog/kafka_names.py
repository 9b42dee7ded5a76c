"""Kafka's names of configs that have another name in quorumlog.

Kafka's brokers have defaults for most configs of topics, under names of their own.  In quorumlog, the config of the
cluster has the same name as the config of the topic.
"""

from __future__ import annotations

_DEFAULTS = {
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.retention.hours": "retention.ms",
    "log.retention.minutes": "retention.ms",
    "log.roll.hours": "segment.ms",
    "log.roll.ms": "segment.ms",
    "message.max.bytes": "max.message.bytes",
}


def topic_config(name: str) -> str:
    """Return the name of the topic config for which Kafka's broker config `name` would be the default.

    The result may be no config at all: `name` is any text.
    """
    return _DEFAULTS.get(name) or name.removeprefix("log.")
