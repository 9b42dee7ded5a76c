"""Records that contradict the header of their batch are refused with the name of the problem."""

from __future__ import annotations

import pytest

from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire.errors import KafkaCode
from quorumlog.wire.record_batch import HEADER_SIZE, BatchRefusal, RecordError, parse_header
from quorumlog.wire.record_framing import ANY_TIME, PROBLEM_TEXTS, Framing, Problem, TimestampRange, check_framing
from tests.unit.broker.log.batches import varint
from tests.unit.quorumlog.wire.framing import HUGE, BadBody, bad_bodies, body_of, record

BASE_MS = 1_000


def check(body: bytes, count: int, times: TimestampRange = ANY_TIME) -> Framing | BatchRefusal:
    header = parse_header(build_batch([NewRecord(b"k", b"v", BASE_MS)]))
    return check_framing(memoryview(body), header._replace(record_count=count), times, position=7)


@pytest.mark.parametrize("bad", bad_bodies(), ids=lambda bad: bad.name)
def test_record_that_contradicts_the_header_is_refused(bad: BadBody) -> None:
    refusal = check(bad.body, bad.record_count)
    assert isinstance(refusal, BatchRefusal)
    assert refusal.code == KafkaCode.INVALID_RECORD
    assert refusal.position == 7
    if bad.problem is Problem.BATCH_REST:
        assert refusal.record_errors == ()
        assert "bytes follow the last record" in refusal.reason
    else:
        assert refusal.record_errors == (RecordError(bad.record, PROBLEM_TEXTS[bad.problem]),)
        assert f"record {bad.record} of {bad.record_count}" in refusal.reason


def test_every_problem_of_records_has_an_example_body() -> None:
    timestamps = {Problem.TIMESTAMP_RANGE, Problem.TIMESTAMP_AHEAD, Problem.TIMESTAMP_BEHIND}
    assert {bad.problem for bad in bad_bodies()} == set(Problem) - {Problem.NONE} - timestamps
    assert set(PROBLEM_TEXTS) == set(Problem) - {Problem.NONE}


@pytest.mark.parametrize(
    ("delta", "times", "problem"),
    [
        (-BASE_MS - 2, ANY_TIME, Problem.TIMESTAMP_RANGE),
        (2**63 - 1, ANY_TIME, Problem.TIMESTAMP_RANGE),
        (-(2**63), ANY_TIME, Problem.TIMESTAMP_RANGE),
        (11, TimestampRange(newest_ms=BASE_MS + 10), Problem.TIMESTAMP_AHEAD),
        (-11, TimestampRange(oldest_ms=BASE_MS - 10), Problem.TIMESTAMP_BEHIND),
    ],
)
def test_a_timestamp_out_of_range_is_refused_as_an_invalid_timestamp(
    delta: int, times: TimestampRange, problem: Problem
) -> None:
    refusal = check(body_of(record(0), record(1, timestamp_delta=delta)), 2, times)
    assert isinstance(refusal, BatchRefusal)
    assert refusal.code == KafkaCode.INVALID_TIMESTAMP
    assert refusal.record_errors == (RecordError(1, PROBLEM_TEXTS[problem]),)


def test_timestamps_at_the_bounds_and_padded_numbers_are_accepted() -> None:
    assert check(body_of(record(0, timestamp_delta=-BASE_MS - 1)), 1) == Framing(-1, -1)
    assert check(body_of(record(0, timestamp_delta=10)), 1, TimestampRange(0, BASE_MS + 10)) == Framing(
        BASE_MS + 10, -1
    )
    assert check(body_of(record(0, timestamp_delta=-10)), 1, TimestampRange(BASE_MS - 10)) == Framing(BASE_MS - 10, -1)
    no_timestamp = body_of(record(0, timestamp_delta=-BASE_MS - 1))
    assert check(no_timestamp, 1, TimestampRange(BASE_MS)) == Framing(-1, -1)
    largest = 2**63 - 1 - BASE_MS
    assert check(body_of(record(0, timestamp_delta=largest)), 1) == Framing(2**63 - 1, -1)
    padded = b"\x80\x00"  # a number may be longer than necessary
    assert check(body_of(record(0, key=padded)), 1) == Framing(BASE_MS, -1)
    assert check(body_of(record(0, attributes=b"\xff")), 1) == Framing(BASE_MS, -1)


def test_first_record_without_a_key_is_reported() -> None:
    without = varint(-1)
    body = body_of(record(0), record(1, key=without), record(2, key=without))
    assert check(body, 3) == Framing(BASE_MS, 1)


@pytest.mark.parametrize("count", [2, 2**24, HUGE])
def test_a_batch_with_a_wrong_record_count_is_refused_at_its_first_missing_record(count: int) -> None:
    refusal = check(body_of(record(0)), count)
    assert isinstance(refusal, BatchRefusal)
    assert refusal.record_errors[0].record == 1


def test_batches_that_build_batch_makes_are_accepted() -> None:
    records = [NewRecord(None, b"v" * size, BASE_MS + size, (("h", None), ("", b"x"))) for size in (0, 63, 64, 9_000)]
    batch = build_batch(records)
    assert check_framing(memoryview(batch)[HEADER_SIZE:], parse_header(batch)) == Framing(BASE_MS + 9_000, 0)
