"""The tables of configs that are records (name, type, range, default), to check, resolve and explain values.

A topic's value is its own Config record, else the cluster's record of the same key, else the default here.  Configs
that only the cluster or only a broker has are in tables of their own.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import Enum

import msgspec

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1


class Kind(Enum):
    BOOLEAN = "boolean"
    INT = "integer"
    CHOICE = "choice"


class ConfigKey(msgspec.Struct, frozen=True, gc=False):
    """One config.  The range includes both `low` and `high`."""

    key: str
    kind: Kind
    default: str
    low: int = 0
    high: int = INT64_MAX
    choices: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """Return the permitted values, in words."""
        match self.kind:
            case Kind.BOOLEAN:
                return "true or false"
            case Kind.INT:
                return f"a whole number from {self.low} to {self.high}"
            case Kind.CHOICE:
                return "one of " + ", ".join(self.choices)

    def problem(self, value: str) -> str | None:
        """Return the reason why `value` is refused, or None."""
        match self.kind:
            case Kind.BOOLEAN:
                good = value in ("true", "false")
            case Kind.INT:
                digits = value.removeprefix("-")
                good = (
                    len(value) <= 20 and digits.isascii() and digits.isdigit() and self.low <= int(value) <= self.high
                )
            case Kind.CHOICE:
                good = value in self.choices
        return None if good else f"{self.key} must be {self.allowed}, not {value[:40]!r}"


def _boolean(key: str, default: str) -> ConfigKey:
    return ConfigKey(key, Kind.BOOLEAN, default)


def _int(key: str, default: int, low: int, high: int = INT64_MAX) -> ConfigKey:
    return ConfigKey(key, Kind.INT, str(default), low, high)


def _only(key: str, value: str) -> ConfigKey:
    """Return a config of Kafka's that has one value here.  Any other value is refused, not ignored."""
    return ConfigKey(key, Kind.CHOICE, value, choices=(value,))


_DAY_MS = 24 * 60 * 60 * 1000

TOPIC_CONFIGS: dict[str, ConfigKey] = {
    config.key: config
    for config in (
        _only("cleanup.policy", "delete"),
        _only("compression.type", "producer"),
        _boolean("compression.validation.enable", "true"),
        _int("max.message.bytes", 1_048_588, 1, INT32_MAX),
        _only("message.timestamp.type", "CreateTime"),
        _int("min.insync.replicas", 1, 1, 32_767),
        _int("retention.bytes", -1, -1),
        _int("retention.ms", 7 * _DAY_MS, -1),
        _int("segment.bytes", 1 << 30, 1 << 14, INT32_MAX),
        _int("segment.ms", 7 * _DAY_MS, 1),
        _boolean("unclean.leader.election.enable", "false"),
        _boolean("write.caching", "false"),
    )
}
"""Configs of topics, by key, ascending.

compression.validation.enable: whether a leader decompresses each compressed batch and checks its records before it
appends the batch, as Kafka does.  Without this check, a defective producer can write batches that no consumer can read.
"""

CLUSTER_CONFIGS: dict[str, ConfigKey] = {
    config.key: config
    for config in (
        _boolean("auto.leader.rebalance.enable", "true"),
        _int("default.replication.factor", 3, 1, 32_767),
        _int("leader.rebalance.interval.ms", 300_000, 1_000, INT32_MAX),
        _int("metadata.retention.bytes", 1 << 30, 0),
        _int("metadata.retention.ms", 7 * _DAY_MS, 0),
        _int("num.partitions", 1, 1, 10_000),
        _int("reassignment.throttle.bytes.per.second", -1, -1),
    )
}
"""Configs of the cluster alone, by key, ascending.  Topic configs may be set for the cluster as well.

metadata.retention: how much history of the metadata every node keeps; the limit that is reached first applies.
reassignment.throttle.bytes.per.second: how much a broker copies to replicas that are being added; -1: no limit.
"""

BROKER_CONFIGS: dict[str, ConfigKey] = {config.key: config for config in (_boolean("cordoned", "false"),)}
"""Configs of a single broker.  A cordoned broker gets a new replica only if a request names it."""


def unknown_key(key: str, known: Iterable[str], what: str) -> str:
    """Return a message that the key does not exist, with the most similar key, or else with all keys."""
    keys = list(known)
    near = get_close_matches(key[:250], keys, 1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(keys)}"
    return f"{key[:60]!a} is not a {what} config; {hint}"
