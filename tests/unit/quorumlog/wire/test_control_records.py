"""Transaction markers: the bytes that Kafka writes, and control records that are not markers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quorumlog.wire.control_records import EndTxnMarker, build_marker, parse_marker
from quorumlog.wire.record_batch import HEADER_SIZE, BatchHeader, check_batches, parse_header

COMMIT = EndTxnMarker(is_commit=True, coordinator_epoch=7)


@given(st.booleans(), st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**15 - 1))
def test_a_transaction_marker_round_trips(commit: bool, coordinator: int, producer_id: int, epoch: int) -> None:
    marker = EndTxnMarker(commit, coordinator)
    batch = build_marker(marker, producer_id, epoch, 1_000)
    headers = check_batches(batch)
    assert isinstance(headers, list)
    (header,) = headers
    assert (header.is_control, header.is_transactional, header.record_count, header.base_sequence) == (
        True,
        True,
        1,
        -1,
    )
    assert (header.producer_id, header.producer_epoch) == (producer_id, epoch)
    assert parse_marker(batch, header) == marker


def test_a_marker_has_the_bytes_of_kafka() -> None:
    assert build_marker(COMMIT, 1, 0, 0)[HEADER_SIZE:] == bytes.fromhex("20000000080000000" + "10c0000000000" + "0700")


BODY = bytes(build_marker(EndTxnMarker(True, 7), 1, 0, 0))[HEADER_SIZE:]
damaged_markers = st.builds(
    lambda place, byte, end: (BODY[:place] + byte + BODY[place + 1 :])[:end],
    st.integers(0, len(BODY) - 1),
    st.binary(min_size=1, max_size=1),
    st.integers(0, len(BODY)),
)


@given(st.binary(max_size=40) | damaged_markers, st.integers(0, 3))
def test_parsing_arbitrary_control_records_as_markers_raises_no_error(body: bytes, count: int) -> None:
    header = parse_header(bytes(build_marker(COMMIT, 1, 0, 0)))
    changed = header._replace(batch_length=HEADER_SIZE - 12 + len(body), record_count=count)
    found = parse_marker(bytes(HEADER_SIZE) + body, changed)
    assert found is None or (count == 1 and len(body) >= len(BODY) - 1), "a marker is one whole record"


def test_records_without_the_control_attribute_are_not_markers() -> None:
    batch = bytes(build_marker(COMMIT, 1, 0, 0))
    header: BatchHeader = parse_header(batch)
    assert parse_marker(batch, header._replace(attributes=0)) is None
