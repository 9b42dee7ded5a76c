"""Clients of a cluster.  For services: `Producer`, `Consumer`, and their values and errors.

The names are imported at their first use, so that `import quorumlog.client` costs nothing to those who need a module
of this package only, for example Spark's workers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorumlog.client.fetcher import FetchLimits
    from quorumlog.client.lanes import Delivery
    from quorumlog.client.messages import NewRecord, RecordMetadata, TopicPartition
    from quorumlog.client.record_consumer import Consumer, RecordBatch
    from quorumlog.client.record_producer import Producer
    from quorumlog.errors import ClusterError, ConfigError
    from quorumlog.wire._record_scan import Record

__all__ = [
    "ClusterError",
    "ConfigError",
    "Consumer",
    "Delivery",
    "FetchLimits",
    "NewRecord",
    "Producer",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "TopicPartition",
]

_HOMES = {
    "ClusterError": "quorumlog.errors",
    "ConfigError": "quorumlog.errors",
    "Consumer": "quorumlog.client.record_consumer",
    "FetchLimits": "quorumlog.client.fetcher",
    "Record": "quorumlog.wire._record_scan",
    "RecordBatch": "quorumlog.client.record_consumer",
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
