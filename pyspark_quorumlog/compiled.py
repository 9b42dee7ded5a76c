"""Compiled conversion between the records of record batch v2 and Arrow's buffers.

Theory of operation.  A record is a sequence of variable-length integers and bytes whose position depends on every
record before it, so no vectorised library can read it.  A Python object per record would cost twenty times as much as
the rest of the path.  Here one call walks the records of *all* batches of a fetched buffer and appends each of them to
arrays that Arrow uses without another copy.  Another call writes the records of a batch from such arrays.

The caller has checked the batches' headers and CRC, has decompressed them, and passes spans of records.  A CRC only
proves that the bytes are as they were sent, so nothing here trusts them: each length is compared with the remaining
size before it is used, and a malformed record ends the call with its position.  Compiled code does not check indexes on
its own.

Compilation takes seconds, and loading compiled code takes milliseconds, so the results are cached on disk beside this
file or in the user's cache folder.  If neither is writable, the code is compiled once per process.
"""

# numba infers the types; the signatures are in the decorators
# mypy: disable-error-code="no-untyped-call, no-untyped-def, operator, call-overload, call-arg"

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import int32, int64, njit, types, uint8
from numba.core import cgutils
from numba.extending import intrinsic

MALFORMED = -1  # a decoder returns (MALFORMED - index of the span, position) for malformed bytes
TOO_SMALL = -2  # an encoder returns (TOO_SMALL, bytes needed) if no record fits

SPAN_START, SPAN_END, SPAN_BASE_OFFSET, SPAN_BASE_TIMESTAMP, SPAN_APPEND_TIME, SPAN_COUNT, SPAN_LAST_DELTA = range(7)
SPAN_FIELDS = 7
NO_APPEND_TIME = -(2**63)
WANTS_KEY, WANTS_VALUE, WANTS_HEADERS = 1, 2, 4
"""Flags: the columns of bytes that a decoder copies; it passes over the others."""

_bytes_in = types.Array(uint8, 1, "C", readonly=True)
_i32_in = types.Array(int32, 1, "C", readonly=True)
_i64_in = types.Array(int64, 1, "C", readonly=True)
_spans_in = types.Array(int64, 2, "C", readonly=True)
_bytes_out = uint8[::1]
_i32_out = int32[::1]
_i64_out = int64[::1]


def _compiled(*signature: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Compile for one signature; use the cache on disk unless it is not writable."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        try:
            compiled: Callable[..., Any] = njit(*signature, cache=True, nogil=True)(function)
        except (RuntimeError, OSError):  # numba: "no locator available", or an unusable cache folder
            compiled = njit(*signature, nogil=True)(function)
        return compiled

    return decorate


@_compiled(types.UniTuple(int64, 2)(_bytes_in, int64, int64))
def _varint(data, position, end):
    """Return (value, next position) of a zigzag variable-length integer; next position -1 if it exceeds `end`."""
    raw = np.uint64(0)
    shift = np.uint64(0)
    at = np.uint64(position)  # unsigned, and without `range`: takes a tenth of the time
    while at < np.uint64(end) and shift < np.uint64(70):
        byte = np.uint64(data[at])
        at += np.uint64(1)
        raw |= (byte & np.uint64(127)) << shift
        if byte < np.uint64(128):
            return int64(raw >> np.uint64(1)) ^ -int64(raw & np.uint64(1)), int64(at)
        shift += np.uint64(7)
    return int64(0), int64(-1)


@_compiled(int64(_bytes_out, int64, int64))
def _put_varint(out, position, value):
    """Write `value`, which fits in 63 bits; return the next position."""
    raw = (value << 1) ^ (value >> 63)
    while raw & ~127:
        out[position] = uint8((raw & 127) | 128)
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
        position += 1
    out[position] = uint8(raw)
    return position + 1


@_compiled(int64(int64))
def _varint_size(value):
    raw = (value << 1) ^ (value >> 63)
    size = 1
    while raw & ~127:
        raw = (raw >> 7) & 0x01FFFFFFFFFFFFFF
        size += 1
    return size


@intrinsic
def _copy(_context, out, to, data, start, size):
    """memcpy of `size` bytes.  A loop is seven times slower, since LLVM does not know that the arrays are distinct."""

    def generate(context, builder, signature, values):
        target = context.make_array(signature.args[0])(context, builder, values[0])
        source = context.make_array(signature.args[2])(context, builder, values[2])
        cgutils.raw_memcpy(
            builder,
            builder.gep(target.data, [values[1]]),
            builder.gep(source.data, [values[3]]),
            values[4],
            context.get_constant(types.intp, 1),
        )

    return types.void(out, to, data, start, size), generate


@_compiled(int64(_bytes_in, int64, int64, int64, _i32_out, _bytes_out, _bytes_out))
def _take_bytes(data, position, end, index, offsets, out, valid):
    """Append one nullable byte string to a binary column; return the next position or -1."""
    size, position = _varint(data, position, end)
    if position < 0 or size < -1 or size > end - position:
        return int64(-1)
    at = int64(offsets[index])
    if size < 0:
        valid[index] = 0
        offsets[index + 1] = at
        return position
    valid[index] = 1
    _copy(out, at, data, position, size)
    offsets[index + 1] = at + size
    return position + size


@_compiled(int64(_bytes_in, int64, int64))
def _skip_bytes(data, position, end):
    """Return the position after a nullable byte string, or -1."""
    size, position = _varint(data, position, end)
    if position < 0 or size < -1 or size > end - position:
        return int64(-1)
    return position + max(size, 0)


@_compiled(types.UniTuple(int64, 2)(_bytes_in, _spans_in))
def count_headers(data, spans):
    """Return (number of headers in the spans' records, 0), or (MALFORMED - span, position)."""
    total = 0
    for span in range(spans.shape[0]):
        position = spans[span, 0]
        span_end = spans[span, 1]
        for _ in range(spans[span, 5]):
            start = position
            size, position = _varint(data, position, span_end)
            if position < 0 or size < 0 or size > span_end - position:
                return int64(MALFORMED - span), start
            end = position + size
            position += 1  # attributes
            for _field in range(2):  # the deltas
                if position >= 0:
                    _value, position = _varint(data, position, end)
            for _field in range(2):  # key and value
                if position >= 0:
                    length, position = _varint(data, position, end)
                    if position < 0 or length < -1 or length > end - position:
                        return int64(MALFORMED - span), start
                    if length > 0:
                        position += length
            if position < 0:
                return int64(MALFORMED - span), start
            headers, position = _varint(data, position, end)
            if position < 0 or headers < 0 or headers > end - position:
                return int64(MALFORMED - span), start
            total += headers
            position = end
    return int64(total), int64(0)


@_compiled(
    types.UniTuple(int64, 2)(
        *(_bytes_in, _spans_in, int64, int64),  # data, spans, offsets
        *(_i64_out, _i64_out, _i32_out),  # offset, timestamp, timestamp type
        *(_i32_out, _bytes_out, _bytes_out),  # key
        *(_i32_out, _bytes_out, _bytes_out),  # value
        int64,  # flags of the wanted columns
        *(_i32_out, _i32_out, _bytes_out, _bytes_out, _i32_out, _bytes_out, _bytes_out),  # headers
    )
)
def decode(
    data,
    spans,
    first_offset,
    end_offset,
    offsets,
    timestamps,
    timestamp_types,
    key_offsets,
    keys,
    key_valid,
    value_offsets,
    values,
    value_valid,
    wanted,
    header_counts,
    header_key_offsets,
    header_keys,
    header_key_valid,
    header_value_offsets,
    header_values,
    header_value_valid,
):
    """Append the records with `first_offset <= offset < end_offset`; return (rows, 0), or (MALFORMED - span, position).

    Timestamps are microseconds, as Spark requires.  `header_counts` contains a list column's offsets.  Every offsets
    array starts with the caller's 0; the other arrays have room for all records of the spans.
    """
    row = 0
    header = 0
    for span in range(spans.shape[0]):
        position = spans[span, 0]
        span_end = spans[span, 1]
        base_offset = spans[span, 2]
        base_timestamp = spans[span, 3]
        append_time = spans[span, 4]
        last_delta = spans[span, 6]
        previous = int64(-1)
        for _ in range(spans[span, 5]):
            start = position
            size, position = _varint(data, position, span_end)
            if position < 0 or size < 1 or size > span_end - position:
                return int64(MALFORMED - span), start
            end = position + size
            timestamp_delta, position = _varint(data, position + 1, end)
            if position < 0:
                return int64(MALFORMED - span), start
            delta, position = _varint(data, position, end)
            if position < 0 or delta <= previous or delta > last_delta:
                return int64(MALFORMED - span), start
            previous = delta
            offset = base_offset + delta
            if offset < first_offset or offset >= end_offset:
                position = end
                continue
            if wanted & WANTS_KEY:
                position = _take_bytes(data, position, end, row, key_offsets, keys, key_valid)
            else:
                position = _skip_bytes(data, position, end)
            if position < 0:
                return int64(MALFORMED - span), start
            if wanted & WANTS_VALUE:
                position = _take_bytes(data, position, end, row, value_offsets, values, value_valid)
            else:
                position = _skip_bytes(data, position, end)
            if position < 0:
                return int64(MALFORMED - span), start
            if wanted & WANTS_HEADERS:
                headers, position = _varint(data, position, end)
                if position < 0 or headers < 0 or headers > end - position:
                    return int64(MALFORMED - span), start
                for _header in range(headers):
                    position = _take_bytes(
                        data, position, end, header, header_key_offsets, header_keys, header_key_valid
                    )
                    if position < 0 or header_key_valid[header] == 0:
                        return int64(MALFORMED - span), start
                    position = _take_bytes(
                        data, position, end, header, header_value_offsets, header_values, header_value_valid
                    )
                    if position < 0:
                        return int64(MALFORMED - span), start
                    header += 1
                header_counts[row + 1] = header
                if position != end:
                    return int64(MALFORMED - span), start
            offsets[row] = offset
            if append_time == NO_APPEND_TIME:
                timestamps[row] = (base_timestamp + timestamp_delta) * 1000
                timestamp_types[row] = 0
            else:
                timestamps[row] = append_time * 1000
                timestamp_types[row] = 1
            row += 1
            position = end
        if position != span_end:
            return int64(MALFORMED - span), position
    return int64(row), int64(0)


@_compiled(int64(_bytes_in, int64))
def _is_valid(bits, index):
    """Return whether Arrow's validity bitmap contains `index`; an empty bitmap means that all rows are valid."""
    if bits.shape[0] == 0:
        return int64(1)
    return int64((bits[index >> 3] >> (index & 7)) & 1)


@_compiled(int64(_bytes_in, int64, int64))
def murmur2(data, start, end):
    """Return Kafka's hash of a key, made positive as in its default partitioner."""
    mask = np.uint64(0xFFFFFFFF)
    multiplier = np.uint64(0x5BD1E995)
    size = end - start
    hashed = (np.uint64(0x9747B28C) ^ np.uint64(size)) & mask
    whole = start + (size & ~3)
    for at in range(start, whole, 4):
        block = np.uint64(data[at])
        block |= np.uint64(data[at + 1]) << np.uint64(8)
        block |= np.uint64(data[at + 2]) << np.uint64(16)
        block |= np.uint64(data[at + 3]) << np.uint64(24)
        block = (block * multiplier) & mask
        block ^= block >> np.uint64(24)
        block = (block * multiplier) & mask
        hashed = ((hashed * multiplier) & mask) ^ block
    left = size & 3
    if left == 3:
        hashed ^= np.uint64(data[whole + 2]) << np.uint64(16)
    if left >= 2:
        hashed ^= np.uint64(data[whole + 1]) << np.uint64(8)
    if left >= 1:
        hashed ^= np.uint64(data[whole])
        hashed = (hashed * multiplier) & mask
    hashed ^= hashed >> np.uint64(13)
    hashed = (hashed * multiplier) & mask
    hashed ^= hashed >> np.uint64(15)
    return int64(hashed & np.uint64(0x7FFFFFFF))


@_compiled(
    int64(
        *(
            _i32_in,
            _i64_in,
            _i64_in,
            _i64_in,
        ),  # each row's topic; a topic's first group, partition count, sticky
        *(_i32_in, _bytes_in),  # the partition column; empty if missing
        *(_i32_in, _bytes_in, _bytes_in),  # the key column; empty if missing
        *(_i32_out, _i64_out),  # group of each row; rows of each group
    )
)
def assign(
    topics,
    first_groups,
    partition_counts,
    sticky,
    partitions,
    partition_valid,
    key_offsets,
    keys,
    key_valid,
    groups,
    group_sizes,
):
    """Assign a group to each row, one per partition of a topic; return -1, or the first row with an unknown partition.

    As Kafka's default partitioner: the row's own partition, else the hash of its key, else one partition for the whole
    call.
    """
    for row in range(groups.shape[0]):
        topic = topics[row] if topics.shape[0] else int32(0)
        count = partition_counts[topic]
        if partitions.shape[0] and _is_valid(partition_valid, row):
            partition = int64(partitions[row])
            if partition < 0 or partition >= count:
                return int64(row)
        elif key_offsets.shape[0] and _is_valid(key_valid, row):
            partition = murmur2(keys, int64(key_offsets[row]), int64(key_offsets[row + 1])) % count
        else:
            partition = sticky[topic]
        group = first_groups[topic] + partition
        groups[row] = group
        group_sizes[group] += 1
    return int64(-1)


@_compiled(types.void(_i32_in, _i64_in, _i64_out))
def order_by_group(groups, group_starts, order):
    """Order the rows by group, and within a group in their own order (a counting sort)."""
    following = group_starts.copy()
    for row in range(groups.shape[0]):
        group = groups[row]
        order[following[group]] = row
        following[group] += 1


@_compiled(
    types.UniTuple(int64, 2)(
        *(_i64_in, int64, int64),  # rows, range of rows
        _i64_in,  # timestamps
        *(_i32_in, _bytes_in, _bytes_in),  # key
        *(_i32_in, _bytes_in, _bytes_in),  # value
        *(_i32_in, _bytes_in, _i32_in, _bytes_in, _i32_in, _bytes_in, _bytes_in),  # headers
        *(_bytes_out, int64),  # output, start position
    )
)
def encode(
    rows,
    first,
    end,
    timestamps,
    key_offsets,
    keys,
    key_valid,
    value_offsets,
    values,
    value_valid,
    header_counts,
    headers_valid,
    header_key_offsets,
    header_keys,
    header_value_offsets,
    header_values,
    header_value_valid,
    out,
    position,
):
    """Write records from `rows[first:end]` until `out` is full.  The first one's timestamp is the batch's base.

    Returns (index after the last written one, end position), or (TOO_SMALL, bytes that the first record needs).
    """
    limit = out.shape[0]
    base_timestamp = timestamps[rows[first]] if first < end else int64(0)
    for at in range(first, end):
        row = rows[at]
        timestamp_delta = timestamps[row] - base_timestamp
        key_size = int64(-1)
        if key_offsets.shape[0] and _is_valid(key_valid, row):
            key_size = int64(key_offsets[row + 1]) - int64(key_offsets[row])
        value_size = int64(-1)
        if value_offsets.shape[0] and _is_valid(value_valid, row):
            value_size = int64(value_offsets[row + 1]) - int64(value_offsets[row])
        header = int64(0)
        header_end = int64(0)
        if header_counts.shape[0] and _is_valid(headers_valid, row):
            header = int64(header_counts[row])
            header_end = int64(header_counts[row + 1])
        delta = at - first
        size = (
            1 + _varint_size(timestamp_delta) + _varint_size(delta) + _varint_size(key_size) + _varint_size(value_size)
        )
        size += max(key_size, 0) + max(value_size, 0) + _varint_size(header_end - header)
        for one in range(header, header_end):
            length = int64(header_key_offsets[one + 1]) - int64(header_key_offsets[one])
            size += _varint_size(length) + length
            length = int64(-1)
            if _is_valid(header_value_valid, one):
                length = int64(header_value_offsets[one + 1]) - int64(header_value_offsets[one])
            size += _varint_size(length) + max(length, 0)
        if size + _varint_size(size) > limit - position:
            if at == first:
                return int64(-2), size + _varint_size(size)
            return int64(at), position
        position = _put_varint(out, position, size)
        out[position] = 0  # attributes
        position = _put_varint(out, position + 1, timestamp_delta)
        position = _put_varint(out, position, delta)
        position = _put_varint(out, position, key_size)
        if key_size > 0:
            _copy(out, position, keys, int64(key_offsets[row]), key_size)
            position += key_size
        position = _put_varint(out, position, value_size)
        if value_size > 0:
            _copy(out, position, values, int64(value_offsets[row]), value_size)
            position += value_size
        position = _put_varint(out, position, header_end - header)
        for one in range(header, header_end):
            start = int64(header_key_offsets[one])
            length = int64(header_key_offsets[one + 1]) - start
            position = _put_varint(out, position, length)
            _copy(out, position, header_keys, start, length)
            position += length
            start = int64(header_value_offsets[one])
            length = int64(-1)
            if _is_valid(header_value_valid, one):
                length = int64(header_value_offsets[one + 1]) - start
            position = _put_varint(out, position, length)
            if length > 0:
                _copy(out, position, header_values, start, length)
                position += length
    return int64(end), position
