"""DeleteRecords over the Kafka protocol."""

from __future__ import annotations

from typing import Any

from broker.kafka.api import Replicas
from broker.kafka.connection import Caller, Pending, Reply
from quorumlog.wire.kafka import codec


def handle_delete_records(replicas: Replicas, caller: Caller, frame: memoryview) -> Pending:
    """Begin the deletions of a DeleteRecords request, one for each partition.  Each gets its own answer."""
    header = caller.header
    request = codec.decode_request(header, frame)
    timeout_ms = codec.milliseconds(request.timeout)
    begun = []
    for topic in request.topics:
        for item in topic.partitions:
            index = item.partition_index
            begun.append((topic.name, index, replicas.start_delete(topic.name, index, item.offset, timeout_ms)))

    def finish() -> Reply:
        topics: dict[str, list[dict[str, Any]]] = {topic.name: [] for topic in request.topics}
        for name, index, future in begun:
            deleted = future.result()
            topics[name].append(
                {
                    "partition_index": index,
                    "low_watermark": deleted.low_watermark,
                    "error_code": deleted.error_code,
                }
            )
        values = {"topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()]}
        return (codec.encode_response_body(header.api_key, header.api_version, values),)

    return Pending([future for _, _, future in begun], finish)
