"""Encodes and decodes whole batches of records as Python objects, in compiled code.

Encoding takes about 50 ns for each record, and decoding 120 ns.  `records` does the same in plain Python, for tools
that must start without the extension; a property test compares the two.
"""

from __future__ import annotations

from quorumlog.client.records import Headers, OpenBatch, new_header, unreadable
from quorumlog.wire._record_scan import Record, decode, encode
from quorumlog.wire.compression import compress
from quorumlog.wire.record_batch import HEADER_SIZE, TIMESTAMP_TYPE_FLAG, Codec, seal
from quorumlog.wire.record_framing import PROBLEM_TEXTS, Problem

NewRecord = tuple[int, bytes | None, bytes | None, Headers]
"""Timestamp in ms since 1970, key, value, headers."""


def build_batch(records: list[NewRecord], codec: Codec = Codec.NONE) -> bytearray:
    """Return one sealed batch of at least one record, without a producer.

    Raises:
        TypeError, ValueError: a record has a wrong type or value.
    """
    assert records
    base_ms = records[0][0]
    if codec is Codec.NONE:
        batch, newest_ms = encode(records, base_ms, HEADER_SIZE)
    else:
        body, newest_ms = encode(records, base_ms, 0)
        batch = bytearray(HEADER_SIZE) + compress(codec, body)
    seal(batch, new_header(len(batch), len(records), base_ms, newest_ms, codec))
    return batch


def read_batch(batch: OpenBatch, topic: str, partition: int, first_offset: int, end_offset: int) -> list[Record]:
    """Return the records with `first_offset <= offset < end_offset`.

    Raises:
        UnreadableBatchError: the records contradict the header.
    """
    header = batch.header
    records, problem, number, position = decode(
        batch.body,
        header.record_count,
        topic,
        partition,
        header.base_offset,
        header.last_offset_delta,
        header.base_timestamp,
        header.max_timestamp if header.attributes & TIMESTAMP_TYPE_FLAG else None,
        first_offset,
        end_offset,
    )
    if problem:
        raise unreadable(header, f"record {number}, byte {position} of the records: {PROBLEM_TEXTS[Problem(problem)]}")
    return records
