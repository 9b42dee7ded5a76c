"""Control batches: the markers that end a transaction in a partition.

A marker is a batch of one record with the attributes *control* and *transactional*, and with the id and epoch of its
producer.  The record's key holds a version and the kind (0 abort, 1 commit); its value holds a version and the epoch of
the coordinator that decided.  Readers skip control batches, and use them to recognise aborted records.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from quorumlog.wire.record_batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_SEQUENCE,
    TRANSACTIONAL_FLAG,
    BatchHeader,
    Buffer,
    seal,
)

_ABORT: Final = 0
_COMMIT: Final = 1
_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_ATTRIBUTES_AND_DELTAS: Final = 3
"""Number of bytes of a record's attributes, timestamp delta and offset delta.  All are 0 in a new marker."""


class EndTxnMarker(NamedTuple):
    """The decision about a producer's transaction.  coordinator_epoch: leader epoch of the deciding coordinator."""

    is_commit: bool
    coordinator_epoch: int


def build_marker(marker: EndTxnMarker, producer_id: int, producer_epoch: int, timestamp_ms: int) -> bytearray:
    """Return a marker as a batch without offset and leader epoch, which the log sets."""
    key = _KEY.pack(0, _COMMIT if marker.is_commit else _ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    # Every length here is below 64, so its zigzag varint is one byte with twice the length.
    record = bytes(_ATTRIBUTES_AND_DELTAS) + bytes([2 * len(key)]) + key + bytes([2 * len(value)]) + value + b"\0"
    body = bytes([2 * len(record)]) + record
    header = BatchHeader(
        base_offset=0,
        batch_length=HEADER_SIZE - LENGTH_END + len(body),
        leader_epoch=-1,
        magic=MAGIC,
        crc=0,
        attributes=CONTROL_FLAG | TRANSACTIONAL_FLAG,
        last_offset_delta=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )
    batch = bytearray(HEADER_SIZE) + body
    seal(batch, header)
    return batch


def parse_marker(data: Buffer, header: BatchHeader, position: int = 0) -> EndTxnMarker | None:
    """Return the marker in the batch at `position`; None if the batch is not a marker, or is malformed."""
    body = bytes(memoryview(data)[position + HEADER_SIZE : position + header.size])
    if not header.is_control or header.record_count != 1:
        return None
    try:
        at = _skip_varint(body, 0) + 1  # length, attributes
        at = _skip_varint(body, _skip_varint(body, at))  # timestamp and offset delta
        key_size, value_at = body[at], at + 1 + _KEY.size
        value_size = body[value_at]
        version, kind = _KEY.unpack_from(body, at + 1)
        _, coordinator_epoch = _VALUE.unpack_from(body, value_at + 1)
    except (IndexError, struct.error):
        return None
    has_sizes = key_size == 2 * _KEY.size and value_size >= 2 * _VALUE.size
    if not has_sizes or version < 0 or kind not in (_ABORT, _COMMIT):
        return None
    return EndTxnMarker(kind == _COMMIT, coordinator_epoch)


def _skip_varint(data: bytes, position: int) -> int:
    while data[position] >= 0x80:
        position += 1
    return position + 1
