"""ListOffsets: the offsets of timestamps and of special timestamps, partition by partition."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from broker.kafka.api import (
    EARLIEST_LOCAL_TIMESTAMP,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP,
    EARLIEST_TIMESTAMP,
    LATEST_TIERED_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    NO_EPOCH,
    ListOffsetResult,
    Replicas,
)
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.kafka.fetch import READ_COMMITTED

_UNSUPPORTED_VERSION: Final = 35
_FIRST_WITH_NOT_AVAILABLE: Final = 5
_FIRST_WITH: Final = {
    LATEST_TIMESTAMP: 1,
    EARLIEST_TIMESTAMP: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL_TIMESTAMP: 8,
    LATEST_TIERED_TIMESTAMP: 9,
    EARLIEST_PENDING_UPLOAD_TIMESTAMP: 11,
}
"""The first version that has each special timestamp.  Other negative timestamps are refused."""


async def list_offsets(request: Any, replicas: Replicas, version: int) -> dict[str, Any]:
    """Return the values of a ListOffsets response."""
    read_committed = getattr(request, "isolation_level", 0) == READ_COMMITTED
    times = Counter((topic.name, item.partition_index) for topic in request.topics for item in topic.partitions)
    topics = []
    for topic in request.topics:
        partitions = []
        for item in topic.partitions:
            index, timestamp = item.partition_index, item.timestamp
            if times[topic.name, index] > 1:
                found = ListOffsetResult(int(KafkaCode.INVALID_REQUEST))
            elif timestamp < 0 and version < _FIRST_WITH.get(timestamp, version + 1):
                found = ListOffsetResult(_UNSUPPORTED_VERSION)
            else:
                epoch = getattr(item, "current_leader_epoch", NO_EPOCH)
                found = await replicas.list_offset(topic.name, index, timestamp, epoch, read_committed=read_committed)
            code = found.error_code
            if code == KafkaCode.OFFSET_NOT_AVAILABLE and version < _FIRST_WITH_NOT_AVAILABLE:
                code = int(KafkaCode.LEADER_NOT_AVAILABLE)
            partitions.append(
                {
                    "partition_index": index,
                    "error_code": code,
                    "timestamp": found.timestamp,
                    "offset": found.offset,
                    "leader_epoch": found.leader_epoch,
                }
            )
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}
