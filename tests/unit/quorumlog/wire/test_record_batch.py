"""Validation of incoming batches: each bad input has its Kafka error."""

from __future__ import annotations

import tracemalloc
from typing import Any

import cramjam
import pytest
from kafka.record.default_records import DefaultRecordBatchBuilder
from kio.schema.errors import ErrorCode

from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import (
    HEADER_SIZE,
    BatchHeader,
    BatchRefusal,
    Codec,
    check_batches,
    iter_headers,
    parse_header,
    patch,
    validate_batches,
)
from tests.unit.broker.log.batches import make_batch

SIZE_MAX = 10_000
GOOD = make_batch([b"one", b"two", b"three"])


def refusal_of(data: bytes, **options: Any) -> KafkaCode:
    refusal = validate_batches(data, SIZE_MAX, **options)
    assert isinstance(refusal, BatchRefusal), refusal
    assert refusal.reason
    return refusal.code


def headers_of(data: bytes) -> list[BatchHeader]:
    headers = validate_batches(data, SIZE_MAX)
    assert not isinstance(headers, BatchRefusal), headers
    return headers


def test_error_codes_equal_those_of_kafka() -> None:
    for code in KafkaCode:
        assert ErrorCode[code.name.lower()].value == code.value


def test_a_valid_batch_is_accepted_and_its_header_is_parsed() -> None:
    (header,) = headers_of(GOOD)
    assert header.record_count == 3
    assert header.size == len(GOOD)
    assert header.end_offset == 3
    assert header.last_offset == 2
    assert header.codec is Codec.NONE
    assert not header.is_control
    assert not header.is_transactional
    assert not header.has_producer_id


@pytest.mark.parametrize("codec", [0, 1, 2, 3])  # kafka-python of this version has no zstd without another package
def test_batches_of_kafka_python_are_accepted(codec: int) -> None:
    builder = DefaultRecordBatchBuilder(2, codec, 0, 7, 1, 40, 1 << 20)
    for number in range(10):
        builder.append(number, timestamp=1_000 + number, key=b"key", value=b"value" * 50, headers=[("h", b"1")])
    (header,) = headers_of(bytes(builder.build()))
    assert (header.codec, header.record_count, header.max_timestamp) == (codec, 10, 1_009)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.last_sequence) == (7, 1, 40, 49)


def test_a_zstd_batch_is_accepted() -> None:
    (header,) = headers_of(
        make_batch([b"x" * 500], attributes=4, compress=lambda body: bytes(cramjam.zstd.compress(body)))
    )
    assert header.codec is Codec.ZSTD


def test_several_batches_in_one_request_are_accepted() -> None:
    assert [header.record_count for header in headers_of(GOOD + make_batch())] == [3, 1]


def test_a_batch_truncated_at_any_byte_is_refused_as_corrupt() -> None:
    for size in range(1, len(GOOD)):
        assert refusal_of(GOOD[:size]) is KafkaCode.CORRUPT_MESSAGE


def test_a_batch_with_a_changed_byte_after_the_leader_epoch_is_refused() -> None:
    for position in range(16, len(GOOD)):
        damaged = bytearray(GOOD)
        damaged[position] ^= 0x40
        expected = KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT if position == 16 else KafkaCode.CORRUPT_MESSAGE
        assert refusal_of(bytes(damaged)) is expected, position


def test_an_empty_input_is_refused() -> None:
    assert refusal_of(b"") is KafkaCode.INVALID_RECORD


@pytest.mark.parametrize("length", [0, -1, 48, 2**31 - 1, -(2**31)])
def test_a_batch_with_a_wrong_length_is_refused_without_a_large_allocation(length: int) -> None:
    data = make_batch(batch_length=length)
    tracemalloc.start()
    try:
        assert refusal_of(data) is KafkaCode.CORRUPT_MESSAGE
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("magic", [0, 1, 3, -1])
def test_older_record_formats_are_refused(magic: int) -> None:
    assert refusal_of(make_batch(magic=magic)) is KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


def test_an_old_message_set_shorter_than_a_batch_header_is_refused() -> None:
    old = b"\0" * 8 + (22).to_bytes(4, "big") + b"\0" * 4 + b"\1" + b"\0" * 17
    assert len(old) < HEADER_SIZE
    assert refusal_of(old) is KafkaCode.UNSUPPORTED_FOR_MESSAGE_FORMAT


@pytest.mark.parametrize(
    ("attributes", "code"),
    [
        (5, KafkaCode.UNSUPPORTED_COMPRESSION_TYPE),
        (7, KafkaCode.UNSUPPORTED_COMPRESSION_TYPE),
        (0x08, KafkaCode.INVALID_TIMESTAMP),
        (0x10, KafkaCode.INVALID_RECORD),
        (0x20, KafkaCode.INVALID_RECORD),
        (0x30, KafkaCode.INVALID_RECORD),
        (0x40, KafkaCode.INVALID_RECORD),
        (0x80, KafkaCode.INVALID_RECORD),
        (0x4000, KafkaCode.INVALID_RECORD),
    ],
)
def test_unsupported_attributes_are_refused(attributes: int, code: KafkaCode) -> None:
    assert refusal_of(make_batch(attributes=attributes, compress=bytes)) is code


@pytest.mark.parametrize(
    "wrong",
    [
        {"record_count": 2},
        {"record_count": 4},
        {"record_count": -1},
        {"record_count": 0},
        {"last_offset_delta": 5},
        {"last_offset_delta": -1},
        {"last_offset_delta": 2**31 - 1, "record_count": -(2**31)},
        {"last_offset_delta": 99_999, "record_count": 100_000},  # agree, but cannot fit into the body
        {"values": [], "record_count": 1, "last_offset_delta": 0, "attributes": 1, "compress": bytes},
        {"values": [], "record_count": 0, "last_offset_delta": 0},
        {"producer": (5, -1, 0)},
        {"producer": (5, 0, -1)},
        {"producer": (-2, 0, 0)},
    ],
)
def test_contradictory_record_counts_and_producer_fields_are_refused(wrong: dict[str, Any]) -> None:
    arguments = {"values": [b"one", b"two", b"three"], **wrong}
    assert refusal_of(make_batch(**arguments)) is KafkaCode.INVALID_RECORD


def test_a_batch_above_the_size_limit_is_refused() -> None:
    batch = make_batch([b"x" * SIZE_MAX])
    assert refusal_of(batch) is KafkaCode.MESSAGE_TOO_LARGE
    assert refusal_of(GOOD + batch) is KafkaCode.MESSAGE_TOO_LARGE


def test_impossible_and_future_timestamps_are_refused() -> None:
    assert refusal_of(make_batch(timestamps=[-62_135_596_800_000])) is KafkaCode.INVALID_TIMESTAMP
    year_9999 = make_batch(timestamps=[253_370_764_800_000])
    assert len(headers_of(year_9999)) == 1
    assert refusal_of(year_9999, newest_timestamp_ms=2_000_000_000_000) is KafkaCode.INVALID_TIMESTAMP
    assert len(headers_of(make_batch(timestamps=[-1]))) == 1


def test_an_idempotent_batch_together_with_another_batch_is_refused() -> None:
    assert refusal_of(make_batch(producer=(5, 0, 0)) + GOOD) is KafkaCode.INVALID_RECORD


def test_a_batch_without_a_producer_id_may_have_sequence_0() -> None:
    assert headers_of(make_batch(producer=(-1, -1, 0)))[0].last_sequence == -1


def test_the_last_sequence_wraps_after_the_maximum() -> None:
    header = parse_header(make_batch([b"a", b"b", b"c"], producer=(5, 0, 2**31 - 2)))
    assert header.last_sequence == 0


def test_check_batches_accepts_control_compacted_and_empty_batches_of_a_leader() -> None:
    control = make_batch([b"commit"], attributes=0x30, base_offset=9)
    compacted = make_batch([b"left"], last_offset_delta=4, base_offset=10)
    empty = make_batch([], record_count=0, last_offset_delta=2, base_offset=15)
    headers = check_batches(control + compacted + empty)
    assert not isinstance(headers, BatchRefusal)
    assert [header.end_offset for header in headers] == [10, 15, 18]
    assert check_batches(b"") == []
    assert isinstance(check_batches(control[:-1]), BatchRefusal)


def test_patch_changes_offset_and_epoch_and_keeps_the_checksum_valid() -> None:
    buffer = bytearray(GOOD + GOOD)
    patch(buffer, 1 << 40, 77, len(GOOD))
    headers = check_batches(buffer)
    assert not isinstance(headers, BatchRefusal)
    assert [(one.base_offset, one.leader_epoch) for one in headers] == [(0, -1), (1 << 40, 77)]


def test_iter_headers_ends_before_a_truncated_batch() -> None:
    for size in range(len(GOOD), 2 * len(GOOD)):
        assert [position for position, _ in iter_headers((GOOD + GOOD)[:size])] == [0]
    assert [position for position, _ in iter_headers(GOOD + GOOD)] == [0, len(GOOD)]
    assert list(iter_headers(b"\0" * 200)) == []
