"""Takes batches apart for compaction, and builds them again with fewer records.

A batch keeps its base offset, last offset delta, leader epoch, producer fields and codec, and each record its offset
and timestamp.  So a consumer, a follower and the state of the producers see the same log with fewer records in it.
"""

from __future__ import annotations

from typing import Final

from quorumlog.errors import RemoteProtocolError
from quorumlog.wire._record_scan import shift_timestamps
from quorumlog.wire.compression import InflatedSizeError, compress, decompress
from quorumlog.wire.record_batch import (
    CODEC_MASK,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    LENGTH_END,
    MAGIC,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_FLAG,
    BatchHeader,
    Buffer,
    seal,
)

TIMESTAMP_MAX: Final = 2**63 - 1


class UncleanableError(Exception):
    """The log cannot be cleaned, because of the contents of a batch.  The message names the offset and the cause."""


def open_body(batch: Buffer, header: BatchHeader, inflated_max: int) -> Buffer:
    """Return the records of a batch, decompressed.

    Raises:
        UncleanableError: they inflate to more than `inflated_max` bytes, or are malformed.
    """
    try:
        return decompress(header.codec, memoryview(batch)[HEADER_SIZE : header.size], inflated_max)
    except InflatedSizeError as error:
        raise bad_batch(header, f"inflates to more than {inflated_max} bytes") from error
    except RemoteProtocolError as error:
        raise bad_batch(header, f"cannot be opened: {error.message}") from error


def rebuild(
    header: BatchHeader, records: Buffer, count: int, newest_ms: int, delete_horizon_ms: int | None = None
) -> bytes:
    """Return the batch with only these records, of which there is at least one.

    newest_ms: the greatest of their timestamps.
    delete_horizon_ms: the time from which its tombstones may be removed; None: the batch has a horizon, or needs none.
        As in Kafka, the horizon becomes the base timestamp, and attribute bit 6 is set.  Records keep their timestamps.

    Raises:
        UncleanableError: the records are malformed.  This is noticed only if the batch gets a delete horizon.
    """
    assert count, "a batch without records is written by `emptied`"
    attributes, base_timestamp = header.attributes, header.base_timestamp
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_FLAG
        base_timestamp = min(delete_horizon_ms, TIMESTAMP_MAX)
        try:
            records = shift_timestamps(records, count, header.base_timestamp - base_timestamp)
        except ValueError as error:
            raise bad_batch(header, f"cannot be opened: {error}") from error
    packed = compress(header.codec, records)
    rebuilt = header._replace(
        attributes=attributes,
        base_timestamp=base_timestamp,
        max_timestamp=header.max_timestamp if attributes & TIMESTAMP_TYPE_FLAG else newest_ms,
        record_count=count,
        batch_length=HEADER_SIZE - LENGTH_END + len(packed),
    )
    return _sealed(rebuilt, packed)


def emptied(header: BatchHeader) -> bytes:
    """Return the batch without records: its offsets and its producer's sequence numbers remain."""
    return _sealed(
        header._replace(
            attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_FLAG),
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            record_count=0,
            batch_length=HEADER_SIZE - LENGTH_END,
        ),
        b"",
    )


def filler(base_offset: int, end_offset: int, leader_epoch: int) -> bytes:
    """Return a batch without records, to replace removed batches of one epoch in this range of offsets."""
    return _sealed(
        BatchHeader(
            base_offset=base_offset,
            batch_length=HEADER_SIZE - LENGTH_END,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=0,
            last_offset_delta=end_offset - base_offset - 1,
            base_timestamp=NO_TIMESTAMP,
            max_timestamp=NO_TIMESTAMP,
            producer_id=NO_PRODUCER_ID,
            producer_epoch=-1,
            base_sequence=NO_SEQUENCE,
            record_count=0,
        ),
        b"",
    )


def is_filler(header: BatchHeader) -> bool:
    """Return whether the batch has no records and no producer, so that it may be shortened to part of its offsets."""
    return header.record_count == 0 and not header.has_producer_id and not header.is_control


def _sealed(header: BatchHeader, body: bytes) -> bytes:
    batch = bytearray(HEADER_SIZE) + body
    seal(batch, header)
    return bytes(batch)


def bad_batch(header: BatchHeader, problem: str) -> UncleanableError:
    """Return the error that names a batch and its problem."""
    return UncleanableError(f"the batch at offset {header.base_offset} {problem}")
