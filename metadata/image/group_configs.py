"""The configs of single groups (KIP-848, KIP-932): their table, their ranges, and their values in force.

A group's value is its own record, else the value of the cluster config from which the key inherits, else the default.
Configs of the cluster, such as `group.share.max.session.timeout.ms`, give the range of a number.  If the range changes
afterwards, a group's value outside the new range counts as the nearest value within it.

A group need not exist to have configs: an administrator may set them before the first member joins.  Deleting the group
does not delete its configs, as in Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from metadata.image.topic_configs import CLUSTER_CONFIGS, INT32_MAX, ISOLATION_LEVELS, ConfigKey, Kind

if TYPE_CHECKING:
    from metadata.image.cluster import ClusterImage

GROUPS_WITH_CONFIGS_MAX = 10_000
"""Maximum number of groups with configs of their own.  The configs of a further group are refused."""

RENEW_ENABLED = "share.renew.acknowledge.enable"
"""Whether members may renew the locks of their records (KIP-1222, KIP-1240)."""


DEAD_LETTER_TOPIC = "errors.deadletterqueue.topic.name"
"""The dead-letter topic of a share group (KIP-1191).  Empty: the group has no dead-letter topic."""
DEAD_LETTER_COPIES = "errors.deadletterqueue.copy.record.enable"
"""Whether a dead letter has the key, the value and the headers of its record."""
DEAD_LETTER_PREFIX = "errors.deadletterqueue.topic.name.prefix"
"""The config of the cluster that sets the prefix of the names of dead-letter topics."""
DEAD_LETTER_CREATION = "errors.deadletterqueue.auto.create.topics.enable"
"""The config of the cluster that lets brokers create missing dead-letter topics."""
DEAD_LETTERS_ADMITTED = "errors.deadletterqueue.group.enable"
"""The config of a topic that admits the dead letters of groups."""


class _Origin(NamedTuple):
    """The keys of the cluster that give a group's config its default and its range.

    default: empty for a config that the cluster does not have.  low, high: empty for a config without a range.
    is_default_bounded: the default is also moved into the range.
    """

    default: str = ""
    low: str = ""
    high: str = ""
    is_default_bounded: bool = False


def _of_consumers(name: str) -> _Origin:
    return _Origin(f"group.consumer.{name}", f"group.consumer.min.{name}", f"group.consumer.max.{name}", True)


def _of_shares(name: str) -> _Origin:
    return _Origin(f"group.share.{name}", f"group.share.min.{name}", f"group.share.max.{name}")


_ORIGINS: dict[str, _Origin] = {
    "consumer.assignment.interval.ms": _of_consumers("assignment.interval.ms"),
    "consumer.heartbeat.interval.ms": _of_consumers("heartbeat.interval.ms"),
    "consumer.session.timeout.ms": _of_consumers("session.timeout.ms"),
    DEAD_LETTER_COPIES: _Origin(),
    DEAD_LETTER_TOPIC: _Origin(),
    "share.auto.offset.reset": _Origin("share.auto.offset.reset"),
    "share.delivery.count.limit": _of_shares("delivery.count.limit"),
    "share.heartbeat.interval.ms": _of_shares("heartbeat.interval.ms"),
    "share.isolation.level": _Origin("share.isolation.level"),
    "share.partition.max.record.locks": _of_shares("partition.max.record.locks"),
    "share.record.lock.duration.ms": _of_shares("record.lock.duration.ms"),
    RENEW_ENABLED: _Origin(),
    "share.session.timeout.ms": _of_shares("session.timeout.ms"),
}


_OWN_CONFIGS = {
    each.key: each
    for each in (
        ConfigKey(DEAD_LETTER_COPIES, Kind.BOOLEAN, "false"),
        ConfigKey(DEAD_LETTER_TOPIC, Kind.TOPIC, ""),
        ConfigKey(RENEW_ENABLED, Kind.BOOLEAN, "true"),
    )
}
"""The configs that inherit nothing from the cluster."""


def _key(name: str) -> ConfigKey:
    if name in _OWN_CONFIGS:
        return _OWN_CONFIGS[name]
    default = CLUSTER_CONFIGS[_ORIGINS[name].default].default
    match name:
        case "share.auto.offset.reset":
            return ConfigKey(name, Kind.OFFSET_RESET, default)
        case "share.isolation.level":
            return ConfigKey(name, Kind.CHOICE, default, choices=ISOLATION_LEVELS)
    return ConfigKey(name, Kind.INT, default, 0, INT32_MAX)


GROUP_CONFIGS: dict[str, ConfigKey] = {name: _key(name) for name in _ORIGINS}
"""Configs of groups, by key, ascending.  `group_key` gives the range and the default that are in force in a cluster."""

TIMES = (
    ("consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"),
    ("share.session.timeout.ms", "share.heartbeat.interval.ms"),
)
"""Session timeouts, each with the heartbeat interval that must be shorter."""


def inherited_key(key: str) -> str | None:
    """Return the config of the cluster from which a group without a value for `key` inherits, if there is one."""
    return _ORIGINS[key].default or None


def group_key(image: ClusterImage, key: str) -> ConfigKey:
    """Return a config of groups with the range and the default that the cluster's configs give it now."""
    origin, known = _ORIGINS[key], GROUP_CONFIGS[key]
    if not origin.default:
        return known
    default = image.cluster_config(origin.default)
    if not origin.low:
        return msgspec.structs.replace(known, default=default)
    low = int(image.cluster_config(origin.low))
    high = max(low, int(image.cluster_config(origin.high)))
    if origin.is_default_bounded:
        default = str(max(low, min(int(default), high)))
    return msgspec.structs.replace(known, default=default, low=low, high=high)


def dead_letter_problem(image: ClusterImage, topic: str) -> str | None:
    """Return why a group's dead-letter topic cannot have this name in the cluster, or None."""
    prefix = image.cluster_config(DEAD_LETTER_PREFIX)
    if not topic or topic.startswith(prefix):
        return None
    return f"{DEAD_LETTER_TOPIC} must begin with {prefix!r} ({DEAD_LETTER_PREFIX}), not {topic[:40]!r}"


def group_keys(image: ClusterImage) -> dict[str, ConfigKey]:
    """Return all configs of groups, with the ranges and defaults that the cluster's configs give them now."""
    return {key: group_key(image, key) for key in GROUP_CONFIGS}


def group_config(image: ClusterImage, group: str, key: str) -> str:
    """Return a group's value in force for a key of `GROUP_CONFIGS`."""
    known = group_key(image, key)
    own = image.group_configs[group].get(key) if group in image.group_configs else None
    if own is None:
        return known.default
    return own if known.kind is not Kind.INT else str(max(known.low, min(int(own), known.high)))
