"""The header of a Kafka record batch (format v2), and the checks that brokers make on a batch.

Theory of operation.  A batch is a 61-byte header and a body of records, perhaps compressed.  These checks never open
the body.  They check that the header is consistent, that its length matches the received bytes, and that the checksum
is correct.  Therefore the cost of a batch does not depend on its number of records.  No allocation depends on a number
that a client sent, and these checks change no byte.

    position  size  field
           0     8  base offset         given by the leader: outside the checksum, patched in place
           8     4  batch length        bytes that follow this field
          12     4  leader epoch        given by the leader: outside the checksum, patched in place
          16     1  magic               2; the formats 0 and 1 store theirs at the same position
          17     4  CRC-32C             of everything from the attributes to the end
          21     2  attributes          bits 0-2 codec, 3 timestamp type, 4 transactional, 5 control, 6 delete horizon
          23     4  last offset delta   record count - 1 in a batch as it was produced; compaction may lower the count
          27     8  base timestamp
          35     8  max timestamp
          43     8  producer id         -1: not idempotent
          51     2  producer epoch
          53     4  base sequence       wraps after 2^31 - 1
          57     4  record count

There are two checks: `validate_batches` for batches of a client, and `check_batches` for batches of a leader or this
broker's disk, where control batches and gaps from compaction are permitted.  Both return a refusal as a value.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from crc32c import crc32c

from quorumlog.wire.errors import KafkaCode

HEADER_SIZE = 61
LENGTH_END = 12  # the batch length counts the bytes from here
MAGIC_POSITION = 16
CRC_POSITION = 17
CRC_START = 21  # first byte under the checksum
MAGIC = 2
RECORD_SIZE_MIN = 7  # the smallest record: six one-byte varints and the attributes
SEQUENCE_MAX = 2**31 - 1
NO_PRODUCER_ID = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1

CODEC_MASK = 0x07
TIMESTAMP_TYPE_FLAG = 0x08
TRANSACTIONAL_FLAG = 0x10
CONTROL_FLAG = 0x20
DELETE_HORIZON_FLAG = 0x40
_KNOWN_ATTRIBUTES = 0x7F

Buffer = bytes | bytearray | memoryview

_HEADER = struct.Struct(">qiibIhiqqqhii")
_BASE_OFFSET = struct.Struct(">q")
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
assert _HEADER.size == HEADER_SIZE


class Codec(IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class RecordError(NamedTuple):
    """The error in one record.  `record`: its position in the batch, from 0."""

    record: int
    message: str


class BatchRefusal(NamedTuple):
    """The reason why none of the bytes may be appended.

    position: where the refused batch starts.
    record_errors: the invalid records, if the refusal is about single records.
    """

    code: KafkaCode
    reason: str
    position: int
    record_errors: tuple[RecordError, ...] = ()


class BatchHeader(NamedTuple):
    """The header's fields in their order on the wire, and values derived from them."""

    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        """Return the bytes of the whole batch, header included."""
        return LENGTH_END + self.batch_length

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def end_offset(self) -> int:
        """Return the exclusive end: the base offset of the batch that follows."""
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> Codec:
        """Return the codec.  Raises ValueError for 5, 6 and 7, which `validate_batches` and `check_batches` refuse."""
        return Codec(self.attributes & CODEC_MASK)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL_FLAG)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL_FLAG)

    @property
    def has_producer_id(self) -> bool:
        return self.producer_id != NO_PRODUCER_ID

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record; 2^31 - 1 is followed by 0.  `NO_SEQUENCE` if the batch has none."""
        if self.producer_id == NO_PRODUCER_ID or self.base_sequence < 0:
            return NO_SEQUENCE
        return (self.base_sequence + self.last_offset_delta) & SEQUENCE_MAX


def parse_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position`; checks nothing.

    Raises:
        struct.error: there are fewer than `HEADER_SIZE` bytes.
    """
    return BatchHeader._make(_HEADER.unpack_from(data, position))


def iter_headers(data: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield (position, header) of each whole batch in `data`; end before an incomplete batch.

    The bytes must have been checked already.  The iteration also ends at an impossible batch length.
    """
    position, end = 0, len(data)
    while position + HEADER_SIZE <= end:
        header = BatchHeader._make(_HEADER.unpack_from(data, position))
        if header.batch_length < HEADER_SIZE - LENGTH_END or position + header.size > end:
            return
        yield position, header
        position += header.size


def patch(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int, position: int = 0) -> None:
    """Write the base offset and leader epoch of the batch at `position` in place; its checksum stays valid."""
    _BASE_OFFSET.pack_into(buffer, position, base_offset)
    _INT32.pack_into(buffer, position + LENGTH_END, leader_epoch)


def seal(buffer: bytearray | memoryview, header: BatchHeader, position: int = 0) -> None:
    """Write `header` over the first bytes of the batch at `position`, then the checksum over `header.size` bytes.

    This is for code that builds a batch.  It does not use the `crc` and `magic` of `header`.
    """
    _HEADER.pack_into(buffer, position, *header._replace(magic=MAGIC, crc=0))
    _UINT32.pack_into(buffer, position + CRC_POSITION, crc_of(buffer, position, header.size))


def crc_of(data: Buffer, position: int, size: int) -> int:
    """Return the CRC-32C of the batch of `size` bytes at `position`, without copying."""
    return int(crc32c(memoryview(data)[position + CRC_START : position + size]))


def check_batches(data: Buffer) -> list[BatchHeader] | BatchRefusal:
    """Check the form and checksum of the batches in `data`, which must contain nothing but whole batches.

    For bytes from a leader or from disk.  The caller checks the offsets.
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(data)
    while position < end:
        header = _parse_checked(data, position, end)
        if isinstance(header, BatchRefusal):
            return header
        headers.append(header)
        position += header.size
    return headers


def validate_batches(
    data: Buffer, batch_size_max: int, newest_timestamp_ms: int | None = None
) -> list[BatchHeader] | BatchRefusal:
    """Check the batches that a client sends to be appended.  They are accepted or refused together.

    A batch with a producer id must be the only one, because its answer (appended, or a duplicate) applies to all
    batches.

    Args:
        batch_size_max: maximum size of one batch in bytes, header included.
        newest_timestamp_ms: refuse a batch that claims to be newer; None: any time is accepted.
    """
    headers: list[BatchHeader] = []
    position, end = 0, len(data)
    while position < end:
        header = _parse_checked(data, position, end, batch_size_max)
        if isinstance(header, BatchRefusal):
            return header
        if (refusal := _refuse_produced(header, position, newest_timestamp_ms)) is not None:
            return refusal
        headers.append(header)
        position += header.size
    if not headers:
        return BatchRefusal(KafkaCode.INVALID_RECORD, "the request has no record batch", 0)
    if len(headers) > 1 and any(header.has_producer_id for header in headers):
        return BatchRefusal(KafkaCode.INVALID_RECORD, "an idempotent batch must be the only batch", 0)
    return headers


def _parse_checked(data: Buffer, position: int, end: int, size_max: int | None = None) -> BatchHeader | BatchRefusal:
    """Return the header at `position` if length, magic, codec, counts and checksum are good, else the refusal."""
    available = end - position
    if available <= MAGIC_POSITION:
        return _corrupt(f"{available} bytes are too few for a batch", position)
    if data[position + MAGIC_POSITION] != MAGIC:  # before the length: the older formats have shorter headers
        magic = data[position + MAGIC_POSITION]
        code = KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT
        return BatchRefusal(code, f"message format {magic}, only {MAGIC} is stored", position)
    if available < HEADER_SIZE:
        return _corrupt(f"{available} bytes are too few for a batch header", position)
    header = BatchHeader._make(_HEADER.unpack_from(data, position))
    if header.batch_length < HEADER_SIZE - LENGTH_END:
        return _corrupt(f"batch length {header.batch_length} is shorter than the header", position)
    if header.size > available:
        return _corrupt(f"batch length {header.batch_length} is more than the {available} bytes received", position)
    if size_max is not None and header.size > size_max:
        code = KafkaCode.MESSAGE_TOO_LARGE
        return BatchRefusal(code, f"batch of {header.size} bytes; the limit is {size_max}", position)
    if (crc := crc_of(data, position, header.size)) != header.crc:
        return _corrupt(f"checksum {crc:08x}, the header says {header.crc:08x}", position)
    if header.attributes & ~_KNOWN_ATTRIBUTES:
        return _invalid(f"unknown attribute bits in {header.attributes & 0xFFFF:#06x}", position)
    if (codec := header.attributes & CODEC_MASK) > Codec.ZSTD:
        code = KafkaCode.UNSUPPORTED_COMPRESSION_TYPE
        return BatchRefusal(code, f"unknown compression {codec}", position)
    if header.last_offset_delta < 0 or not 0 <= header.record_count <= header.last_offset_delta + 1:
        reason = f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        return _invalid(reason, position)
    return header


def _refuse_produced(header: BatchHeader, position: int, newest_timestamp_ms: int | None) -> BatchRefusal | None:
    """Return the reason why a well-formed batch is not permitted from a client, or None."""
    if header.attributes & (CONTROL_FLAG | DELETE_HORIZON_FLAG):
        return _invalid("only a broker may write control and delete-horizon batches", position)
    if header.is_transactional and not header.has_producer_id:
        return _invalid("a transactional batch needs a producer id", position)
    if header.attributes & TIMESTAMP_TYPE_FLAG:
        code = KafkaCode.INVALID_TIMESTAMP
        return BatchRefusal(code, "only a broker may set the log append time", position)
    if header.record_count == 0 or header.record_count != header.last_offset_delta + 1:
        reason = f"{header.record_count} records with a last offset delta of {header.last_offset_delta}"
        return _invalid(reason, position)
    body_size = header.size - HEADER_SIZE
    smallest = RECORD_SIZE_MIN * header.record_count if header.codec is Codec.NONE else 1
    if body_size < smallest:
        return _invalid(f"{header.record_count} records do not fit into {body_size} bytes", position)
    if header.max_timestamp < NO_TIMESTAMP or header.base_timestamp < NO_TIMESTAMP:
        return BatchRefusal(KafkaCode.INVALID_TIMESTAMP, "timestamp before 1970", position)
    if newest_timestamp_ms is not None and header.max_timestamp > newest_timestamp_ms:
        code = KafkaCode.INVALID_TIMESTAMP
        return BatchRefusal(code, f"timestamp {header.max_timestamp} is too far in the future", position)
    if header.producer_id < NO_PRODUCER_ID:
        return _invalid(f"producer id {header.producer_id}", position)
    if header.has_producer_id and (header.producer_epoch < 0 or header.base_sequence < 0):
        reason = f"producer id {header.producer_id} with epoch {header.producer_epoch}, sequence {header.base_sequence}"
        return _invalid(reason, position)
    return None


def _corrupt(reason: str, position: int) -> BatchRefusal:
    return BatchRefusal(KafkaCode.CORRUPT_MESSAGE, reason, position)


def _invalid(reason: str, position: int) -> BatchRefusal:
    return BatchRefusal(KafkaCode.INVALID_RECORD, reason, position)
