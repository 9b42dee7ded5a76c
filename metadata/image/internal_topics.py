"""The topics of the system itself, which hold the state of coordinators.

A broker creates them when it first needs them.  Clients may read them, and operators may change most of their configs.
Only a coordinator writes to them.  They are never deleted, and their numbers of partitions never change, because a
key's hash modulo that number is the partition that holds the key's state.
"""

from __future__ import annotations

from collections.abc import Mapping

PREFIX = "__"
"""The prefix of the names that are reserved for internal topics."""
CONSUMER_OFFSETS = "__consumer_offsets"
TRANSACTION_STATE = "__transaction_state"
SHARE_GROUP_STATE = "__share_group_state"
CLEANUP_POLICY = "cleanup.policy"
COMPACT = "compact"

PARTITIONS_KEYS: Mapping[str, str] = {
    CONSUMER_OFFSETS: "offsets.topic.num.partitions",
    TRANSACTION_STATE: "transaction.state.log.num.partitions",
    SHARE_GROUP_STATE: "share.coordinator.state.topic.num.partitions",
}
"""The internal topics that can be created, each with the cluster config that sets its number of partitions."""

INTERNAL_CONFIGS: Mapping[str, str] = {CLEANUP_POLICY: COMPACT, "segment.bytes": str(100 << 20)}
"""The configs of a new internal topic, by key, ascending.  Its cleanup.policy cannot be changed."""


def is_internal(name: str) -> bool:
    return name.startswith(PREFIX)


def cleanup_problem(value: str | None) -> str | None:
    """Return why an internal topic cannot have this cleanup.policy, or None."""
    if value in (None, COMPACT):
        return None
    return f"{CLEANUP_POLICY} of an internal topic must be {COMPACT}: deleted records would be lost state"
