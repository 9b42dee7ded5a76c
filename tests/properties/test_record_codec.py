"""The clients' compiled codec against the plain one: equal bytes, equal records, equal refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorumlog.client import record_codec, records
from quorumlog.client.partitioner import murmur2 as plain_murmur2
from quorumlog.client.records import UnreadableBatchError
from quorumlog.wire._record_scan import murmur2
from quorumlog.wire.record_batch import HEADER_SIZE, Buffer, Codec, patch
from tests.unit.quorumlog.wire.framing import BadBody, bad_bodies, sealed

data = st.none() | st.binary(max_size=200)
headers = st.lists(st.tuples(st.text(max_size=5), data), max_size=3).map(tuple)
rows = st.lists(st.tuples(st.integers(0, 2**62), data, data, headers), min_size=1, max_size=40)


def plain(rows: list[record_codec.NewRecord], codec: Codec) -> bytearray:
    made = [records.NewRecord(key, value, timestamp_ms, pairs) for timestamp_ms, key, value, pairs in rows]
    return records.build_batch(made, codec)


def read(log: Buffer, first: int = 0, end: int = records.OFFSET_MAX) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for batch in records.open_batches(log, end):
        for record in record_codec.read_batch(batch, "t", 7, first, end):
            assert (record.topic, record.partition) == ("t", 7)
            found.append(tuple(record)[2:])
    return found


@given(rows, st.sampled_from(Codec))
def test_the_compiled_codec_encodes_the_same_bytes_as_the_plain_one(
    rows: list[record_codec.NewRecord], codec: Codec
) -> None:
    assert record_codec.build_batch(rows, codec) == plain(rows, codec)


@given(rows, st.sampled_from(Codec), st.integers(0, 30), st.integers(0, 30))
def test_the_compiled_codec_decodes_the_same_records_as_the_plain_one(
    rows: list[record_codec.NewRecord], codec: Codec, before: int, wanted: int
) -> None:
    batch = plain(rows, codec)
    patch(batch, 100, 3)
    first, end = 100 + before, 100 + before + wanted
    assert read(batch, first, end) == [tuple(record) for record in records.decode_batches(batch, first, end)]


@pytest.mark.parametrize("bad", bad_bodies(), ids=lambda bad: bad.name)
def test_both_codecs_refuse_all_batches_that_are_known_to_be_malformed(bad: BadBody) -> None:
    assert outcomes(bad.body, bad.record_count) == [None, None]


@given(st.binary(max_size=60), st.integers(1, 4))
def test_both_codecs_refuse_the_same_arbitrary_bytes(body: bytes, count: int) -> None:
    plain_outcome, compiled_outcome = outcomes(body, count)
    assert plain_outcome == compiled_outcome


@given(rows, st.data())
def test_both_codecs_refuse_the_same_damaged_batches(rows: list[record_codec.NewRecord], data: st.DataObject) -> None:
    body = bytearray(plain(rows, Codec.NONE)[HEADER_SIZE:])
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    plain_outcome, compiled_outcome = outcomes(bytes(body), len(rows))
    assert plain_outcome == compiled_outcome


def outcomes(body: bytes, count: int) -> list[list[tuple[object, ...]] | None]:
    """Return the records that the plain codec and the compiled one read; None from one that refuses them."""
    batch = sealed(body, count)
    found: list[list[tuple[object, ...]] | None] = []
    for decode in (lambda: list(records.decode_batches(batch)), lambda: read(batch)):
        try:
            found.append([tuple(record) for record in decode()])
        except UnreadableBatchError:
            found.append(None)
    return found


@given(st.binary(max_size=300))
def test_the_compiled_hash_of_keys_equals_the_plain_one(key: bytes) -> None:
    assert murmur2(key) == plain_murmur2(key)
