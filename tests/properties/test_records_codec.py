"""The compiled codec against the plain one: equal bytes, equal records, equal refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_quorumlog import arrow
from pyspark_quorumlog.reference import COLUMNS
from quorumlog.client.records import (
    OFFSET_MAX,
    NewRecord,
    Record,
    UnreadableBatchError,
    build_batch,
    decode_batches,
    end_offset,
    stamp,
)
from quorumlog.errors import RemoteProtocolError
from quorumlog.wire.record_batch import (
    CONTROL_FLAG,
    HEADER_SIZE,
    MAGIC,
    TIMESTAMP_TYPE_FLAG,
    Buffer,
    Codec,
    check_batches,
    parse_header,
    patch,
    seal,
)
from tests.unit.broker.log.batches import varint
from tests.unit.quorumlog.wire.framing import BadBody, bad_bodies, body_of, record, sealed

NOW = 1_700_000_000_000


def decode(
    data: Buffer, first_offset: int, end_offset: int, topic: str, partition: int, with_headers: bool = False
) -> pa.RecordBatch:
    columns = COLUMNS if with_headers else COLUMNS[:-1]
    pieces = list(arrow.decode(data, first_offset, end_offset, topic, partition, columns))
    assert len(pieces) <= 1
    schema = arrow.read_schema(columns)
    return pieces[0] if pieces else pa.RecordBatch.from_pylist([], schema)


small = st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
times = st.integers(0, 2**41)
rows = st.lists(st.tuples(st.none() | small, st.none() | small, headers, times), min_size=1, max_size=40)
records = st.lists(
    st.builds(NewRecord, st.none() | small, st.none() | small, st.integers(0, 2**41), headers), min_size=1, max_size=20
)
batches = st.lists(st.tuples(records, st.sampled_from(Codec), st.integers(1, 5)), min_size=1, max_size=4)


def fetched(parts: list[tuple[list[NewRecord], Codec, int]]) -> bytes:
    """A log of these batches, with a hole of the given size before each."""
    offset, log = 0, bytearray()
    for content, codec, hole in parts:
        batch = build_batch(content, codec)
        offset += hole
        patch(batch, offset, 3)
        offset += len(content)
        log += batch
    return bytes(log)


def as_records(table: pa.RecordBatch) -> list[Record]:
    out = []
    for row in table.to_pylist():
        assert (row["topic"], row["partition"]) == ("t", 7)
        assert row["headers"] != [], "a record without headers has NULL"
        pairs = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        stamp_us = row["timestamp"].timestamp() * 1e3
        out.append(Record(row["offset"], round(stamp_us), bool(row["timestampType"]), row["key"], row["value"], pairs))
    return out


@given(batches, st.integers(0, 60), st.integers(0, 60))
@settings(deadline=None)
def test_the_compiled_decoder_agrees_with_the_plain_one(parts: Any, first: int, end: int) -> None:
    data = fetched(parts)
    expected = list(decode_batches(data, first, end))
    table = decode(data, first, end, "t", 7, with_headers=True)
    table.validate(full=True)
    assert as_records(table) == expected
    without = decode(data, first, end, "t", 7)
    assert without.equals(table.drop_columns(["headers"]))
    everything = [record for content, _, _ in parts for record in content]
    assert [record[3:] for record in decode_batches(data)] == [(r.key, r.value, r.headers) for r in everything]


@pytest.mark.parametrize("name", [b"\xff\xfe", b"ok\xc3", b"\xed\xa0\x80", b"\xc3\xa4"])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_a_header_name_that_is_not_utf_8_becomes_text_that_is(name: bytes, codec: Codec) -> None:
    """A producer may send any bytes.  Text that is not UTF-8 would fail each query that uses it."""
    header = varint(1) + varint(len(name)) + name + varint(1) + b"1"
    data = sealed(body_of(record(0), record(1, headers=header), record(2, headers=b"\x02\x02h\x01")), 3, codec)
    table = decode(data, 0, 3, "t", 7, with_headers=True)
    table.validate(full=True)
    assert as_records(table) == list(decode_batches(data))
    assert as_records(table)[1].headers == ((name.decode(errors="replace"), b"1"),)


def test_rows_are_divided_before_the_text_of_their_topic_exceeds_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(build_batch([NewRecord(b"%d" % n, None if n % 3 else b"v", NOW, (("h", None),)) for n in range(10)]))
    whole = decode(data, 0, 10, "orders", 7, with_headers=True)
    monkeypatch.setattr(arrow, "TOPIC_COLUMN_SIZE_MAX_BYTES", 20)
    parts = list(arrow.decode(data, 0, 10, "orders", 7, COLUMNS))
    assert [part.num_rows for part in parts] == [3, 3, 3, 1]
    for part in parts:
        part.validate(full=True)
    assert pa.Table.from_batches(parts).combine_chunks().equals(pa.Table.from_batches([whole]))
    without = [name for name in COLUMNS if name != "topic"]
    assert len(list(arrow.decode(data, 0, 10, "orders", 7, without))) == 1


@given(batches, st.integers(0, 60), st.integers(0, 60), st.sets(st.sampled_from(COLUMNS), min_size=1))
@settings(deadline=None)
def test_omitted_columns_do_not_change_the_other_columns(parts: Any, first: int, end: int, wanted: set[str]) -> None:
    data = fetched(parts)
    columns = [name for name in COLUMNS if name in wanted]
    found = list(arrow.decode(data, first, end, "t", 7, columns))
    whole = decode(data, first, end, "t", 7, with_headers=True)
    assert [one.schema.names for one in found] == [columns] * len(found)
    assert pa.Table.from_batches(found, arrow.read_schema(columns)).equals(
        pa.Table.from_batches([whole]).select(columns)
    )
    for one in found:
        one.validate(full=True)


@given(rows, st.integers(62, 4000), st.sampled_from(Codec), st.integers(0, 3))
@settings(deadline=None)
def test_the_compiled_encoder_agrees_with_the_plain_one(
    content: Any, batch_size_max: int, codec: Codec, skipped: int
) -> None:
    table = pa.table(
        {
            "key": pa.array([row[0] for row in content], pa.binary()),
            "value": pa.array([row[1] for row in content], pa.binary()),
            "headers": pa.array([[{"key": k, "value": v} for k, v in row[2]] for row in content], arrow.HEADERS_TYPE),
        }
    ).slice(skipped)
    columns = arrow.Columns.of(table, np.array([row[3] for row in content[skipped:]], np.int64), "t")
    encoded = list(arrow.encode(columns, [1], [0], batch_size_max, codec))
    written: list[NewRecord] = []
    for batch in encoded:
        checked = check_batches(batch.data)
        assert isinstance(checked, list)
        assert len(checked) == 1
        part = [NewRecord(r.key, r.value, r.timestamp_ms, r.headers) for r in decode_batches(batch.data)]
        assert len(part) == batch.record_count
        header = parse_header(batch.data)
        stamps = [one.timestamp_ms for one in part]
        assert (header.base_timestamp, header.max_timestamp) == (stamps[0], max(stamps))
        if codec is Codec.NONE:
            assert batch.data == build_batch(part), "the plain encoder writes other bytes"
            assert len(batch.data) <= batch_size_max or batch.record_count == 1
        written += part
    assert written == [NewRecord(key, value, stamp_ms, head) for key, value, head, stamp_ms in content[skipped:]]


@given(records, st.binary(min_size=1, max_size=8), st.integers(0, 2**31), st.booleans())
@settings(deadline=None, max_examples=300)
def test_malformed_records_are_refused_by_both_decoders_or_read_alike(
    content: Any, junk: bytes, where: int, with_headers: bool
) -> None:
    batch = build_batch(content)
    at = HEADER_SIZE + where % (len(batch) - HEADER_SIZE)
    batch[at : at + len(junk)] = junk[: len(batch) - at]
    seal(batch, parse_header(batch))
    plain: list[Record] | None
    try:
        plain = list(decode_batches(batch))
    except RemoteProtocolError:
        plain = None
    try:
        compiled = decode(batch, 0, 1 << 40, "t", 7, with_headers=True)
    except RemoteProtocolError:
        assert plain is None
    else:
        assert plain is not None
        assert compiled.num_rows == len(plain)
        assert compiled.column("value").to_pylist() == [record.value for record in plain]
    if with_headers:  # else header bytes are not checked; no read may go beyond its batch
        try:
            assert decode(batch, 0, 1 << 40, "t", 7).num_rows <= len(content)
        except RemoteProtocolError:
            assert plain is None


def framed(offset: int, epoch: bytes, magic: bytes, rest: bytes) -> bytes:
    """Return arbitrary bytes with the length of a complete batch: others would count as an incomplete last batch."""
    body = epoch + magic + rest
    return offset.to_bytes(8, "big") + len(body).to_bytes(4, "big") + body


arbitrary = st.binary(max_size=400) | st.builds(
    framed,
    st.integers(0, 60),
    st.binary(min_size=4, max_size=4),
    st.just(bytes([MAGIC])) | st.binary(min_size=1, max_size=1),
    st.binary(max_size=400) | st.binary(min_size=HEADER_SIZE, max_size=400),
)


@given(st.just([]) | batches, arbitrary)
@settings(deadline=None)
def test_arbitrary_bytes_decode_to_no_record_or_are_refused_by_both_decoders(parts: Any, junk: bytes) -> None:
    data = fetched(parts) + junk
    plain = records_or_damage(lambda: list(decode_batches(data)))
    compiled = records_or_damage(lambda: as_records(decode(data, 0, OFFSET_MAX, "t", 7, with_headers=True)))
    assert compiled == plain
    if isinstance(plain, list):
        assert plain == list(decode_batches(fetched(parts)))


def records_or_damage(read: Callable[[], list[Record]]) -> list[Record] | tuple[int | None, int | None]:
    """Return the records, or the offsets of the damaged batch."""
    try:
        return read()
    except UnreadableBatchError as error:
        return error.base_offset, error.end_offset


@given(batches, st.integers(1, 200))
@settings(deadline=None)
def test_an_incomplete_last_batch_is_read_with_the_next_fetch(parts: Any, cut: int) -> None:
    data = fetched(parts)
    whole = list(decode_batches(data))
    first = data[: max(0, len(data) - cut)]
    head = list(decode_batches(first))
    following = end_offset(first) or 0
    assert head + list(decode_batches(data, following)) == whole
    assert end_offset(data) == whole[-1].offset + 1


def test_control_batches_are_skipped_and_append_times_are_kept() -> None:
    ordinary = build_batch([NewRecord(b"a", b"1", NOW)])
    control = build_batch([NewRecord(b"\0\0\0\0", b"\0\0", NOW)])
    header = parse_header(control)
    seal(control, header._replace(attributes=CONTROL_FLAG, base_offset=1))
    late = build_batch([NewRecord(b"b", b"2", NOW), NewRecord(b"c", b"3", NOW + 1)])
    header = parse_header(late)
    seal(late, header._replace(attributes=TIMESTAMP_TYPE_FLAG, base_offset=2, max_timestamp=NOW + 5))
    data = bytes(ordinary + control + late)
    expected = [
        Record(0, NOW, False, b"a", b"1", ()),
        Record(2, NOW + 5, True, b"b", b"2", ()),
        Record(3, NOW + 5, True, b"c", b"3", ()),
    ]
    assert list(decode_batches(data)) == expected
    assert as_records(decode(data, 0, 9, "t", 7, with_headers=True)) == expected
    assert decode(bytes(control), 0, 9, "t", 7).num_rows == 0


@pytest.mark.parametrize(
    ("timestamp_ms", "expected_us"),
    [
        (-1, -1000),
        (NOW * 10**6, 2**63 - 1),
        ((2**63 - 1) // 1000, (2**63 - 1) // 1000 * 1000),
        ((2**63 - 1) // 1000 + 1, 2**63 - 1),
    ],
)
def test_a_time_beyond_the_range_of_microseconds_is_the_nearest_one(timestamp_ms: int, expected_us: int) -> None:
    """A producer may send nanoseconds.  A wrong time in the range would look like a right one."""
    table = decode(build_batch([NewRecord(None, b"1", timestamp_ms)]), 0, 9, "t", 7)
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [expected_us]


def test_a_stamp_changes_the_producer_and_nothing_else() -> None:
    batch = build_batch([NewRecord(b"a", b"1", NOW)] * 3)
    stamp(batch, 77, 2, 2**31 - 2)
    found = check_batches(batch)
    assert isinstance(found, list)
    (header,) = found
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 2, 2**31 - 2)
    assert header.last_sequence == 0
    assert [record.value for record in decode_batches(batch)] == [b"1"] * 3


@pytest.mark.parametrize(
    ("position", "value", "end"), [(16, 1, None), (30, 0xFF, 5), (HEADER_SIZE, 0xFF, 5), (11, 0, None)]
)
def test_damaged_batch_is_reported_with_its_offsets_after_the_records_before_it(
    position: int, value: int, end: int | None
) -> None:
    good, bad = (build_batch([NewRecord(b"key", b"value", NOW)] * 2) for _ in range(2))
    patch(bad, 3, 0)
    bad[position] = value
    records = decode_batches(good + bad)
    assert [next(records).offset, next(records).offset] == [0, 1]
    with pytest.raises(UnreadableBatchError) as caught:
        next(records)
    assert (caught.value.base_offset, caught.value.end_offset) == (3, end)
    with pytest.raises(UnreadableBatchError) as caught:
        decode(bytes(good + bad), 0, 9, "t", 0)
    assert (caught.value.base_offset, caught.value.end_offset) == (3, end)
    if end is None:
        with pytest.raises(UnreadableBatchError):
            end_offset(good + bad)
    else:
        assert end_offset(good + bad) == end


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
@pytest.mark.parametrize("bad", [bad for bad in bad_bodies() if bad.record_count == 2], ids=lambda bad: bad.name)
def test_batch_that_contradicts_its_header_is_reported_by_both_decoders(bad: BadBody, codec: Codec) -> None:
    good = sealed(body_of(record(0), record(1)), 2, codec)
    data = bytearray()
    for base, batch in ((10, good), (12, sealed(bad.body, 2, codec)), (14, good)):
        part = bytearray(batch)
        patch(part, base, 0)
        data += part
    for first, end in ((0, 100), (13, 14), (12, 13)):  # also a range that ends within the batch
        for decoder in (
            lambda first=first, end=end: list(decode_batches(data, first, end)),
            lambda first=first, end=end: decode(data, first, end, "t", 0, with_headers=True),
        ):
            with pytest.raises(UnreadableBatchError) as caught:
                decoder()
            assert (caught.value.base_offset, caught.value.end_offset) == (12, 14)
    assert [one.offset for one in decode_batches(data, 0, 12)] == [10, 11]
    assert decode(bytes(data), 0, 12, "t", 0).column("offset").to_pylist() == [10, 11]


def test_place_of_a_malformed_record_counts_from_the_start_of_its_batch() -> None:
    data = bytearray(build_batch([NewRecord(b"key", b"value", NOW)]))
    first = record(0)
    bad = bytearray(sealed(body_of(first, record(9)), 2))
    patch(bad, 1, 0)
    with pytest.raises(UnreadableBatchError, match=f"malformed record at byte {len(first)} of the records"):
        decode(bytes(data + bad), 0, 9, "t", 0)


def test_length_that_would_make_no_progress_is_refused() -> None:
    batch = build_batch([NewRecord(b"key", b"value", NOW)])
    for length in (-12, -1, 0, 48):
        batch[8:12] = length.to_bytes(4, "big", signed=True)
        for read in (end_offset, lambda data: list(decode_batches(data))):
            with pytest.raises(UnreadableBatchError, match="batch length"):
                read(batch)
