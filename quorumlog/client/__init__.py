"""Clients of a cluster.  For services: `Producer`, and the values and errors that it uses.

The names are imported at their first use, so that `import quorumlog.client` costs nothing to those who need a module
of this package only, for example Spark's workers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorumlog.client.lanes import Delivery
    from quorumlog.client.messages import NewRecord, RecordMetadata, TopicPartition
    from quorumlog.client.record_producer import Producer
    from quorumlog.errors import ClusterError, ConfigError

__all__ = [
    "ClusterError",
    "ConfigError",
    "Delivery",
    "NewRecord",
    "Producer",
    "RecordMetadata",
    "TopicPartition",
]

_HOMES = {
    "ClusterError": "quorumlog.errors",
    "ConfigError": "quorumlog.errors",
    "Delivery": "quorumlog.client.lanes",
    "NewRecord": "quorumlog.client.messages",
    "Producer": "quorumlog.client.record_producer",
    "RecordMetadata": "quorumlog.client.messages",
    "TopicPartition": "quorumlog.client.messages",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
