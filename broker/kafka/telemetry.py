"""GetTelemetrySubscriptions and PushTelemetry while nothing collects the metrics of clients (KIP-714).

As in Kafka without a receiver of metrics, ApiVersions does not list these requests, so clients send no telemetry.  If a
client asks nevertheless, it gets an empty subscription.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from crc32c import crc32c

from quorumlog.wire.errors import KafkaCode

_UNCOMPRESSED: Final = 0
_COMPRESSIONS: Final = (4, 3, 1, 2)
"""zstd, lz4, gzip, snappy: the preferred one first."""
_PUSH_INTERVAL_MS: Final = 300_000
_PUSH_MAX_BYTES: Final = 1 << 20


def _subscription_id(instance_id: UUID) -> int:
    """Return the id of a client instance's subscription.  It is derived from the instance id and never changes."""
    return int(crc32c(instance_id.bytes)) >> 1


def get_subscriptions(request: Any, new_id: Callable[[], UUID]) -> dict[str, Any]:
    """Return the values of a GetTelemetrySubscriptions response.  new_id: draws an id for a client that has none."""
    instance_id = request.client_instance_id or new_id()
    return {
        "error_code": 0,
        "client_instance_id": instance_id,
        "subscription_id": _subscription_id(instance_id),
        "accepted_compression_types": _COMPRESSIONS,
        "push_interval": _PUSH_INTERVAL_MS,
        "telemetry_max_bytes": _PUSH_MAX_BYTES,
        "delta_temporality": True,
        "requested_metrics": (),
    }


def push(request: Any) -> dict[str, Any]:
    """Return the values of a PushTelemetry response.  The metrics are checked as in Kafka, and dropped."""
    code = KafkaCode.NONE
    if request.client_instance_id is None:
        code = KafkaCode.INVALID_REQUEST
    elif request.subscription_id != _subscription_id(request.client_instance_id):
        code = KafkaCode.UNKNOWN_SUBSCRIPTION_ID
    elif request.compression_type not in (_UNCOMPRESSED, *_COMPRESSIONS):
        code = KafkaCode.UNSUPPORTED_COMPRESSION_TYPE
    elif len(request.metrics) > _PUSH_MAX_BYTES:
        code = KafkaCode.TELEMETRY_TOO_LARGE
    return {"error_code": code}
