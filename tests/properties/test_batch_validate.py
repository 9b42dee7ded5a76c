"""The validation of batches accepts or refuses any bytes, and never raises."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar, cast

from hypothesis import given
from hypothesis import strategies as st

from broker.log.records import MalformedError, first_at_or_after
from broker.log.recovery import find_batch, walk_file
from quorumlog.runtime.disk import DiskFile
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import HEADER_SIZE, BatchRefusal, check_batches, iter_headers, patch, validate_batches
from tests.unit.broker.log.batches import make_batch

T = TypeVar("T")

SIZE_MAX = 2_000
values = st.lists(st.binary(max_size=40), min_size=1, max_size=5)
good_batches = st.builds(
    make_batch,
    values,
    attributes=st.sampled_from([0, 1]),
    producer=st.sampled_from([(-1, -1, -1), (-1, -1, 0)]),
    base_offset=st.integers(0, 2**62),
    leader_epoch=st.integers(-1, 2**31 - 1),
)
any_header = st.builds(
    make_batch,
    values,
    base_offset=st.integers(-(2**63), 2**63 - 1),
    leader_epoch=st.integers(-(2**31), 2**31 - 1),
    magic=st.sampled_from([2, 2, 2, 0, 1, 3, -1]),
    attributes=st.integers(-(2**15), 2**15 - 1),
    max_timestamp=st.none() | st.integers(-(2**63), 2**63 - 1),
    producer=st.tuples(
        st.integers(-(2**63), 2**63 - 1), st.integers(-(2**15), 2**15 - 1), st.integers(-(2**31), 2**31 - 1)
    ),
    last_offset_delta=st.none() | st.integers(-(2**31), 2**31 - 1),
    record_count=st.none() | st.integers(-(2**31), 2**31 - 1),
    batch_length=st.none() | st.integers(-(2**31), 2**31 - 1),
)


class BytesFile:
    """The parts of a `DiskFile` that recovery uses, over bytes."""

    path = "file"

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.size = len(data)

    def pread(self, position: int, size: int) -> bytes:
        return self.data[position : position + size]


def file_of(data: bytes) -> DiskFile:
    return cast(DiskFile, BytesFile(data))


def run(generator: Generator[None, None, T]) -> T:
    while True:
        try:
            next(generator)
        except StopIteration as stop:
            return cast(T, stop.value)


@given(st.lists(good_batches, min_size=1, max_size=4), st.integers(0, 2**40), st.integers(0, 2**31 - 1))
def test_valid_batches_are_accepted_and_remain_valid_when_they_get_offsets(
    batches: list[bytes], offset: int, epoch: int
) -> None:
    data = b"".join(batches)
    headers = validate_batches(memoryview(data), SIZE_MAX)
    assert not isinstance(headers, BatchRefusal)
    assert [header.size for header in headers] == [len(batch) for batch in batches]
    buffer, position, end = bytearray(data), 0, offset
    for header in headers:
        patch(buffer, end, epoch, position)
        end += header.record_count
        position += header.size
    placed = check_batches(buffer)
    assert not isinstance(placed, BatchRefusal)
    assert placed[-1].end_offset == end
    assert [header for _, header in iter_headers(buffer)] == placed
    walked = run(walk_file(file_of(bytes(buffer)), 0, offset, epoch))
    assert (walked.end, walked.end_offset, walked.problem) == (len(data), end, None)


@given(st.binary(max_size=300) | any_header)
def test_the_validation_accepts_or_refuses_arbitrary_bytes(data: bytes) -> None:
    verdict = validate_batches(data, SIZE_MAX)
    checked = check_batches(data)
    if isinstance(verdict, BatchRefusal):
        assert verdict.code in KafkaCode
        assert 0 <= verdict.position <= len(data)
    else:
        assert verdict == checked
        assert sum(header.size for header in verdict) == len(data)
        for header in verdict:
            assert header.record_count == header.last_offset_delta + 1 > 0
            assert not header.is_control
            assert header.has_producer_id <= (header.base_sequence >= 0 and header.producer_epoch >= 0)
    list(iter_headers(data))


@given(st.binary(max_size=300) | any_header, st.integers(0, 2**62))
def test_the_recovery_of_a_file_of_arbitrary_bytes_finds_the_end_of_its_valid_batches(data: bytes, offset: int) -> None:
    file = file_of(data)
    walked = run(walk_file(file, 0, offset, -1))
    assert 0 <= walked.end <= len(data)
    assert (walked.problem is None) == (walked.end == len(data))
    run(find_batch(file, 0, offset))


@given(good_batches, st.data())
def test_a_changed_byte_of_a_batch_is_detected(batch: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(8, len(batch) - 1).filter(lambda at: not 12 <= at < 16))
    changed = bytearray(batch)
    changed[position] ^= data.draw(st.integers(1, 255))
    assert isinstance(check_batches(changed), BatchRefusal)


@given(st.binary(max_size=200), good_batches, st.binary(max_size=200))
def test_a_valid_batch_is_found_between_arbitrary_bytes(before: bytes, produced: bytes, after: bytes) -> None:
    batch = bytearray(produced)
    offset = int.from_bytes(batch[:8], "big")
    patch(batch, offset, leader_epoch=3)
    found = run(find_batch(file_of(before + batch + after), 0, max(0, offset - 1000)))
    assert found == len(before)


@given(good_batches, st.binary(max_size=300), st.integers(-1, 2_000))
def test_a_search_by_timestamp_finds_a_later_record_or_refuses_the_body(
    batch: bytes, body: bytes, timestamp: int
) -> None:
    for data in (batch, batch[:HEADER_SIZE] + body):
        header = next(iter_headers(batch))[1]
        try:
            place = first_at_or_after(data, header, timestamp, header.base_offset)
        except MalformedError:
            continue
        assert place is None or place.timestamp >= timestamp
