"""Checks a client's batches before the log appends them.

Theory of operation.  A batch is refused unless its records match its header exactly.  A batch that contradicts its
header would stop every consumer of the partition, and followers copy it byte for byte.  `check_produced` checks the
headers, and the records of batches without compression, in time proportional to the received bytes.  `check_inflated`
checks batches with compression, which must be inflated first.  The topic config `compression.validation.enable` enables
this check.  It is always enabled for compacted topics, because each of their records needs a key, and for topics that
limit timestamps.  `broker.log.recompression` makes the same check.  The caller chooses the thread, because one
megabyte may inflate to many.  Like Kafka, the check refuses forms of lz4 that Java clients do not read.

The inflated size is bounded twice: absolutely, and relative to the size that the client sent.  All batches of one
partition in a Produce request share these bounds.

As in Kafka, a wrong max timestamp in a header is corrected, not refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from broker.log.records import INFLATED_MAX
from broker.log.types import LogConfig, Refused
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.compression import InflatedSizeError, decompress, java_problem
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    BatchRefusal,
    Buffer,
    Codec,
    RecordError,
    validate_batches,
)
from quorumlog.wire.record_framing import ANY_TIME, Framing, TimestampRange, check_framing

INFLATED_RATIO_MAX: Final = 1024
"""Inflated bytes for each compressed byte.  gzip reaches at most 1032.  gzip and zstd exceed this limit only for long
runs of one byte."""
INFLATED_FLOOR: Final = 4 << 20
"""Bytes to which the batches of one partition in a request may always inflate, however small they are."""


class Produced(NamedTuple):
    """Batches with good headers, and with good records as far as they were checked.

    max_timestamps: for each batch, the newest timestamp of its records; the header's value if they are unchecked.
    needs_keys: the topic is compacted, so a record without key is refused.
    times: the timestamps that the topic accepts.
    """

    data: Buffer
    headers: list[BatchHeader]
    max_timestamps: list[int]
    needs_keys: bool = False
    times: TimestampRange = ANY_TIME

    @property
    def compressed_size(self) -> int:
        """Bytes of the batches with compression; 0 when there are none."""
        return sum(header.size for header in self.headers if header.codec is not Codec.NONE)


class OpenedBatch(NamedTuple):
    """A batch at `position` of the produced bytes.  body: its records, decompressed.

    max_timestamp: the newest timestamp of its records.
    """

    position: int
    header: BatchHeader
    body: Buffer
    max_timestamp: int


def check_produced(data: Buffer, config: LogConfig, wall_ms: int | None = None) -> Produced | Refused:
    """Check every header, and the records of the batches without compression.

    wall_ms: the current time, from which the topic's limits of timestamps are measured; None: check no timestamps.
    """
    times = ANY_TIME if wall_ms is None or not config.bounds_timestamps else _times(config, wall_ms)
    headers = validate_batches(data, config.message_size_max)
    if isinstance(headers, BatchRefusal):
        return refused(headers)
    view = memoryview(data)
    max_timestamps = []
    position = 0
    for header in headers:
        if header.codec is Codec.NONE:
            body = view[position + HEADER_SIZE : position + header.size]
            framing = _framing(body, header, position, config.compacts, times)
            if isinstance(framing, BatchRefusal):
                return refused(framing)
            max_timestamps.append(framing.max_timestamp)
        else:
            max_timestamps.append(header.max_timestamp)
        position += header.size
    return Produced(data, headers, max_timestamps, config.compacts, times)


def _times(config: LogConfig, wall_ms: int) -> TimestampRange:
    age_ms, ahead_ms = config.timestamp_age_max_ms, config.timestamp_ahead_max_ms
    return TimestampRange(
        ANY_TIME.oldest_ms if age_ms < 0 else wall_ms - age_ms,
        ANY_TIME.newest_ms if ahead_ms < 0 else min(ANY_TIME.newest_ms, wall_ms + ahead_ms),
    )


def inflated_size_max(produced: Produced, config: LogConfig) -> int:
    """Return the bytes to which all batches with compression together may inflate."""
    largest = max(INFLATED_MAX, config.message_size_max)
    return min(largest, max(INFLATED_FLOOR, INFLATED_RATIO_MAX * produced.compressed_size))


def check_inflated(produced: Produced, size_max: int) -> Produced | Refused:
    """Check the records of the batches with compression.  May run in any thread.

    If the batches inflate to more than `size_max` bytes, refuse them with MESSAGE_TOO_LARGE, so that a client may split
    them.
    """
    max_timestamps = []
    for opened in open_batches(produced, size_max):
        if isinstance(opened, Refused):
            return opened
        max_timestamps.append(opened.max_timestamp)
    return produced._replace(max_timestamps=max_timestamps)


def open_batches(produced: Produced, size_max: int) -> Iterator[OpenedBatch | Refused]:
    """Yield each batch with its records decompressed and checked; end with the first refusal.

    size_max: bytes to which all batches with compression together may inflate.
    """
    view = memoryview(produced.data)
    position = 0
    for header, max_timestamp in zip(produced.headers, produced.max_timestamps, strict=True):
        body: Buffer = view[position + HEADER_SIZE : position + header.size]
        if header.codec is not Codec.NONE:
            compressed = body
            try:
                body = decompress(header.codec, compressed, size_max)
            except InflatedSizeError:
                yield Refused(KafkaCode.MESSAGE_TOO_LARGE, f"the records inflate to more than {size_max} bytes")
                return
            except RemoteProtocolError as error:
                yield Refused(KafkaCode.INVALID_RECORD, error.message)
                return
            if problem := java_problem(header.codec, compressed):
                yield Refused(KafkaCode.INVALID_RECORD, problem)
                return
            size_max -= len(body)
            framing = _framing(body, header, position, produced.needs_keys, produced.times)
            if isinstance(framing, BatchRefusal):
                yield refused(framing)
                return
            max_timestamp = framing.max_timestamp
        yield OpenedBatch(position, header, body, max_timestamp)
        position += header.size


def _framing(
    body: Buffer, header: BatchHeader, position: int, needs_keys: bool, times: TimestampRange
) -> Framing | BatchRefusal:
    """Check the records in an inflated body; see `check_framing`."""
    framing = check_framing(body, header, times, position)
    if isinstance(framing, BatchRefusal) or not needs_keys or framing.first_null_key < 0:
        return framing
    error = RecordError(framing.first_null_key, "the topic is compacted, and the record has no key")
    reason = f"record {error.record}: {error.message}"
    return BatchRefusal(KafkaCode.INVALID_RECORD, reason, position, (error,))


def refused(refusal: BatchRefusal) -> Refused:
    return Refused(int(refusal.code), refusal.reason, refusal.record_errors)
