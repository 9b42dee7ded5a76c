"""Clients of a cluster, for services: `Producer`, `Consumer`, `ShareConsumer`, `ScopeClient` and `Admin`, with their
values and errors.

These names are imported at their first use.  So a program that needs only one module of this package, such as a worker
of Spark, does not import the others.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quorumlog.client.admin import Admin
    from quorumlog.client.admin_values import (
        ClusterDescription,
        ConfigValue,
        CreatedTopic,
        NewTopic,
        OffsetMove,
        PartitionDescription,
        RefusalsError,
        TopicDescription,
    )
    from quorumlog.client.fetcher import FetchLimits
    from quorumlog.client.group_descriptions import CommittedOffset, GroupDescription, ListedGroup
    from quorumlog.client.lanes import Delivery
    from quorumlog.client.messages import NewRecord, RecordMetadata, TopicPartition
    from quorumlog.client.producer_transactions import GroupMetadata
    from quorumlog.client.record_batches import RecordBatch
    from quorumlog.client.record_consumer import Consumer
    from quorumlog.client.record_producer import Producer
    from quorumlog.client.scope_client import (
        OpenScope,
        ProducerOfScope,
        ScopeClient,
        ScopeDescription,
        ScopeEnd,
        StagedProducer,
        Winner,
    )
    from quorumlog.client.share_consumer import ShareConsumer, ShareRecord
    from quorumlog.client.share_groups import ShareOffset
    from quorumlog.errors import ClusterError, ConfigError
    from quorumlog.wire._record_scan import Record

__all__ = [
    "Admin",
    "ClusterDescription",
    "ClusterError",
    "CommittedOffset",
    "ConfigError",
    "ConfigValue",
    "Consumer",
    "CreatedTopic",
    "Delivery",
    "FetchLimits",
    "GroupDescription",
    "GroupMetadata",
    "ListedGroup",
    "NewRecord",
    "NewTopic",
    "OffsetMove",
    "OpenScope",
    "PartitionDescription",
    "Producer",
    "ProducerOfScope",
    "Record",
    "RecordBatch",
    "RecordMetadata",
    "RefusalsError",
    "ScopeClient",
    "ScopeDescription",
    "ScopeEnd",
    "ShareConsumer",
    "ShareOffset",
    "ShareRecord",
    "StagedProducer",
    "TopicDescription",
    "TopicPartition",
    "Winner",
]

_HOMES = {
    "Admin": "quorumlog.client.admin",
    "ClusterDescription": "quorumlog.client.admin_values",
    "ClusterError": "quorumlog.errors",
    "CommittedOffset": "quorumlog.client.group_descriptions",
    "ConfigError": "quorumlog.errors",
    "ConfigValue": "quorumlog.client.admin_values",
    "Consumer": "quorumlog.client.record_consumer",
    "CreatedTopic": "quorumlog.client.admin_values",
    "Delivery": "quorumlog.client.lanes",
    "FetchLimits": "quorumlog.client.fetcher",
    "GroupDescription": "quorumlog.client.group_descriptions",
    "GroupMetadata": "quorumlog.client.producer_transactions",
    "ListedGroup": "quorumlog.client.group_descriptions",
    "NewRecord": "quorumlog.client.messages",
    "NewTopic": "quorumlog.client.admin_values",
    "OffsetMove": "quorumlog.client.admin_values",
    "OpenScope": "quorumlog.client.scope_client",
    "PartitionDescription": "quorumlog.client.admin_values",
    "Producer": "quorumlog.client.record_producer",
    "ProducerOfScope": "quorumlog.client.scope_client",
    "Record": "quorumlog.wire._record_scan",
    "RecordBatch": "quorumlog.client.record_batches",
    "RecordMetadata": "quorumlog.client.messages",
    "RefusalsError": "quorumlog.client.admin_values",
    "ScopeClient": "quorumlog.client.scope_client",
    "ScopeDescription": "quorumlog.client.scope_client",
    "ScopeEnd": "quorumlog.client.scope_client",
    "ShareConsumer": "quorumlog.client.share_consumer",
    "ShareOffset": "quorumlog.client.share_groups",
    "ShareRecord": "quorumlog.client.share_consumer",
    "StagedProducer": "quorumlog.client.scope_client",
    "TopicDescription": "quorumlog.client.admin_values",
    "TopicPartition": "quorumlog.client.messages",
    "Winner": "quorumlog.client.scope_client",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
