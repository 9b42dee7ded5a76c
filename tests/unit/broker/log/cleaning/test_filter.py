"""The records and batches that survive a cleaning."""

from __future__ import annotations

import pytest

from broker.log.cleaning.filter import BatchFilter
from broker.log.cleaning.offset_map import ENTRY_SIZE, OffsetMap
from broker.log.cleaning.records import UncleanableError, open_body
from broker.log.cleaning.transactions import AbortedRecords, Endings
from quorumlog.client.records import decode_batches
from quorumlog.wire.control_records import EndTxnMarker, build_marker, parse_marker
from quorumlog.wire.record_batch import (
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    Codec,
    check_batches,
    iter_headers,
    parse_header,
    patch,
    seal,
)
from tests.unit.broker.log.compaction_rig import RETENTION_MS, batch_at


def note(offsets: OffsetMap, key: bytes, offset: int) -> bool:
    """Return whether the map has room for a key."""
    batch = batch_at(offset, (key, b"value"))
    header = parse_header(batch)
    return offsets.note(open_body(batch, header, 1 << 20), header, offset) is None


def cleaned(
    *batches: bytes,
    latest: dict[bytes, int],
    clean_end: int = 100,
    wall_ms: int = 10_000,
    protected: tuple[int, ...] = (),
    aborted: tuple[tuple[int, int, int], ...] = (),
) -> bytes:
    """Return the result of cleaning these batches."""
    offsets = OffsetMap(100 * ENTRY_SIZE)
    for key, offset in sorted(latest.items(), key=lambda item: item[1]):
        assert note(offsets, key, offset)
    work = BatchFilter(
        offsets,
        clean_end,
        frozenset(protected),
        frozenset(),
        0,
        Endings(AbortedRecords(aborted)),
        wall_ms=wall_ms,
        delete_retention_ms=RETENTION_MS,
        inflated_max=1 << 20,
    )
    data = b"".join(work.take(batch, parse_header(batch)) for batch in batches) + work.end()
    assert isinstance(check_batches(data), list)
    return data


@pytest.mark.parametrize("codec", list(Codec))
def test_a_batch_keeps_its_offsets_codec_and_producer_when_records_are_removed(codec: Codec) -> None:
    batch = batch_at(7, (b"a", b"1"), (b"b", b"2"), (b"c", b"3"), codec=codec, epoch=4, producer=5)
    data = cleaned(batch, latest={b"b": 50, b"c": 9})
    before, after = parse_header(batch), parse_header(data)
    assert [(one.offset, one.key, one.value, one.timestamp_ms) for one in decode_batches(data)] == [
        (7, b"a", b"1", 1_000),
        (9, b"c", b"3", 1_002),
    ]
    same = {"crc", "batch_length", "record_count"}
    assert {name: one for name, one in after._asdict().items() if name not in same} == {
        name: one for name, one in before._asdict().items() if name not in same
    }


def test_the_max_timestamp_is_that_of_the_remaining_records() -> None:
    data = cleaned(batch_at(0, (b"a", b"1"), (b"b", b"2")), latest={b"b": 50})
    assert parse_header(data).max_timestamp == 1_000


def test_adjacent_removed_batches_of_one_epoch_become_one_filler_batch() -> None:
    gone = [batch_at(offset, (b"a", b"1"), (b"a", b"2"), epoch=epoch) for offset, epoch in ((0, 1), (2, 1), (4, 2))]
    data = cleaned(*gone, batch_at(6, (b"a", b"3"), epoch=2), latest={b"a": 6})
    headers = [header for _, header in iter_headers(data)]
    assert [(one.base_offset, one.end_offset, one.leader_epoch, one.record_count) for one in headers] == [
        (0, 4, 1, 0),
        (4, 6, 2, 0),
        (6, 7, 2, 1),
    ]
    assert headers[0].size == HEADER_SIZE
    assert cleaned(data[:HEADER_SIZE], batch_at(4, (b"a", b"0"), epoch=1), latest={b"a": 6}) == cleaned(
        batch_at(0, (b"a", b"1"), (b"a", b"2"), (b"a", b"2"), (b"a", b"2"), (b"a", b"2"), epoch=1), latest={b"a": 6}
    )


def test_the_last_batch_of_a_producer_is_kept_without_its_records() -> None:
    batch = batch_at(3, (b"a", b"1"), (b"a", b"2"), codec=Codec.GZIP, producer=8)
    header = parse_header(cleaned(batch, latest={b"a": 9}, protected=(3,)))
    before = parse_header(batch)
    assert (header.record_count, header.codec, header.size) == (0, Codec.NONE, HEADER_SIZE)
    assert (header.producer_id, header.base_sequence, header.last_sequence) == (8, 0, 1)
    assert (header.base_offset, header.end_offset) == (before.base_offset, before.end_offset)


def test_records_at_or_above_the_clean_end_are_unchanged() -> None:
    straddling = batch_at(4, (b"a", b"1"), (b"a", b"2"), (None, b"3"))
    above = batch_at(7, (b"a", None), (b"a", b"2"))
    data = cleaned(straddling, above, latest={b"a": 5}, clean_end=6)
    assert [one.offset for one in decode_batches(data)] == [5, 6, 7, 8]
    assert data.endswith(above)


def test_records_without_key_are_removed() -> None:
    data = cleaned(batch_at(0, (None, b"1"), (b"a", b"2")), latest={b"a": 1})
    assert [one.offset for one in decode_batches(data)] == [1]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_tombstone_gets_a_delete_horizon_and_is_removed_after_it(codec: Codec) -> None:
    batch = batch_at(0, (b"a", None), (b"b", b"2"), codec=codec)
    first = cleaned(batch, latest={b"a": 0, b"b": 1}, wall_ms=10_000)
    header = parse_header(first)
    assert header.attributes & DELETE_HORIZON_FLAG
    assert header.base_timestamp == 10_000 + RETENTION_MS
    assert header.max_timestamp == 1_001
    assert [(one.timestamp_ms, one.value) for one in decode_batches(first)] == [(1_000, None), (1_001, b"2")]
    assert cleaned(first, latest={}, wall_ms=10_999) == first
    after = cleaned(first, latest={}, wall_ms=11_000)
    assert [(one.offset, one.timestamp_ms, one.key) for one in decode_batches(after)] == [(1, 1_001, b"b")]


def test_a_batch_that_ends_above_the_clean_end_gets_no_delete_horizon() -> None:
    """A later cleaning sets the horizon, which then applies to all tombstones of the batch."""
    batch = batch_at(0, (b"a", None), (b"b", b"2"))
    assert cleaned(batch, latest={b"a": 0}, clean_end=1) == batch


def test_a_batch_keeps_its_append_time() -> None:
    batch = bytearray(batch_at(0, (b"a", b"1"), (b"b", b"2")))
    header = parse_header(batch)
    appended = header._replace(attributes=header.attributes | TIMESTAMP_TYPE_FLAG, max_timestamp=9_000)
    seal(batch, appended)
    data = cleaned(bytes(batch), latest={b"b": 50})
    assert (parse_header(data).record_count, parse_header(data).max_timestamp) == (1, 9_000)


def test_the_delete_horizon_is_limited_to_the_largest_timestamp() -> None:
    batch = batch_at(0, (b"a", None))
    data = cleaned(batch, latest={b"a": 0}, wall_ms=2**63 - 10)
    assert parse_header(data).base_timestamp == 2**63 - 1
    assert [one.timestamp_ms for one in decode_batches(data)] == [1_000]


def test_a_full_offset_map_takes_no_further_key() -> None:
    latest = OffsetMap(2 * ENTRY_SIZE)
    assert note(latest, b"a", 1)
    assert note(latest, b"b", 2)
    assert not note(latest, b"c", 3)
    assert note(latest, b"a", 4)
    assert len(latest) == 2
    batch = batch_at(1, (b"a", b""), (b"b", b""), (b"c", b""), (b"a", b""))
    kept = latest.survivors(open_body(batch, parse_header(batch), 100), parse_header(batch), 9, removes_tombstones=True)
    assert kept.number == 3, "only the first record of key a has a later record"


def transactional(offset: int, *pairs: tuple[bytes, bytes], producer: int = 1) -> bytes:
    batch = bytearray(batch_at(offset, *pairs, producer=producer))
    header = parse_header(batch)
    seal(batch, header._replace(attributes=header.attributes | TRANSACTIONAL_FLAG))
    return bytes(batch)


def marker_at(offset: int, *, is_commit: bool = True, producer: int = 1) -> bytes:
    batch = build_marker(EndTxnMarker(is_commit, 0), producer, 0, 1_000)
    patch(batch, offset, 0)
    return bytes(batch)


def test_an_aborted_record_is_removed_although_it_is_the_latest_of_its_key() -> None:
    kept = batch_at(0, (b"a", b"old"))
    data = cleaned(
        kept,
        transactional(1, (b"a", b"aborted")),
        marker_at(2, is_commit=False),
        latest={b"a": 0},
        aborted=((1, 1, 2),),
    )
    assert data.startswith(kept)
    assert [one.offset for one in decode_batches(data)] == [0]


def test_a_transaction_marker_is_kept_while_a_batch_of_its_transaction_is_kept() -> None:
    batch, marker = transactional(0, (b"a", b"1")), marker_at(1)
    assert cleaned(batch, marker, latest={b"a": 0}) == batch + marker
    emptied = cleaned(batch, marker, latest={b"a": 9}, protected=(0,))
    assert emptied.endswith(marker)
    headers = [header for _, header in iter_headers(emptied)]
    assert [(header.record_count, header.is_transactional) for header in headers] == [(0, True), (1, True)]


def test_a_marker_of_a_transaction_without_records_is_removed_after_its_delete_horizon() -> None:
    batch, marker = transactional(0, (b"a", b"1")), marker_at(1, is_commit=False)
    once = cleaned(batch, marker, latest={}, aborted=((1, 0, 1),))
    headers = [header for _, header in iter_headers(once)]
    assert [header.is_control for header in headers] == [False, True]
    assert headers[1].base_timestamp == 10_000 + RETENTION_MS
    position = headers[0].size
    assert parse_marker(once, headers[1], position) == EndTxnMarker(is_commit=False, coordinator_epoch=0)
    pieces = [once[:position], once[position:]]
    assert cleaned(*pieces, latest={}, wall_ms=10_000 + RETENTION_MS - 1) == once
    gone = cleaned(*pieces, latest={}, wall_ms=10_000 + RETENTION_MS)
    assert [(header.end_offset, header.record_count) for _, header in iter_headers(gone)] == [(2, 0)]


def test_the_last_transaction_marker_of_a_producer_is_kept() -> None:
    batch, marker = transactional(0, (b"a", b"1")), marker_at(1)
    assert cleaned(batch, marker, latest={}, aborted=((1, 0, 1),), protected=(1,)).endswith(marker)


@pytest.mark.parametrize("codec", [one for one in Codec if one is not Codec.NONE])
def test_a_decompression_bomb_is_refused_with_the_offset_of_its_batch(codec: Codec) -> None:
    batch = batch_at(3, (b"a", bytes(1 << 20)), codec=codec)
    with pytest.raises(UncleanableError, match="the batch at offset 3 inflates to more than 1000 bytes"):
        open_body(batch, parse_header(batch), 1_000)


@pytest.mark.parametrize("size", range(1, 12))
def test_malformed_records_are_reported_with_the_offset_of_their_batch(size: int) -> None:
    batch = batch_at(3, (b"a", b"1"), (b"b", b"2"))
    header, body = parse_header(batch), batch[HEADER_SIZE:-size]
    with pytest.raises(UncleanableError, match="the batch at offset 3 has "):
        OffsetMap(ENTRY_SIZE).note(body, header, 0)
    with pytest.raises(UncleanableError, match="the batch at offset 3 has "):
        OffsetMap(ENTRY_SIZE).survivors(body, header, 9, removes_tombstones=False)
