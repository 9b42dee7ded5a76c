"""The compiled framing check and its slow twin give the same verdict on any bytes."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from quorumlog.client.records import NewRecord, build_batch
from quorumlog.wire._record_scan import scan
from quorumlog.wire.record_batch import HEADER_SIZE
from quorumlog.wire.record_framing import ANY_TIME, Problem
from tests.properties.record_twin import slow_scan

BASE_MS = 1_700_000_000_000
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

blobs = st.none() | st.binary(max_size=10) | st.binary(min_size=60, max_size=70) | st.just(b"v" * 9_000)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=3).map(tuple)
records = st.builds(NewRecord, blobs, blobs, st.integers(BASE_MS, BASE_MS + 2**20) | st.integers(-1, 2**62), headers)
batches = st.lists(records, min_size=1, max_size=8)
counts = st.integers(0, 8) | st.integers(-(2**31), 2**31 - 1)
timestamps = st.sampled_from([BASE_MS, -1, 0, INT64_MIN, INT64_MAX]) | st.integers(INT64_MIN, INT64_MAX)


@st.composite
def mutated_batches(draw: st.DrawFn) -> tuple[bytes, int]:
    """The body of a good batch with a few bytes replaced, removed or added; and its count of records, mostly true."""
    chosen = draw(batches)
    body = bytearray(build_batch(chosen)[HEADER_SIZE:])
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, max(0, min(len(body), 64) - 1)) | st.integers(0, max(0, len(body) - 1)))
        end = min(len(body), at + draw(st.integers(0, 3)))
        body[at:end] = draw(st.binary(max_size=3) | st.sampled_from([b"\xff" * 5, b"\x80" * 11, b"\x01", b"\x00"]))
    return bytes(body), draw(st.just(len(chosen)) | counts)


@given(batches)
def test_good_records_pass_with_their_newest_timestamp_and_first_null_key(chosen: list[NewRecord]) -> None:
    body = bytes(build_batch(chosen)[HEADER_SIZE:])
    null_keys = [index for index, record in enumerate(chosen) if record.key is None]
    newest = max(record.timestamp_ms for record in chosen)
    expected = (Problem.NONE, len(chosen), len(body), newest, null_keys[0] if null_keys else -1)
    assert scan(body, len(chosen), chosen[0].timestamp_ms, *ANY_TIME) == expected


@given(st.binary(max_size=200), counts, timestamps, st.just(INT64_MIN) | timestamps, timestamps)
@example(b"\x0c\x00\x00\x00\x01\x01\x00", 1, -1, INT64_MIN, INT64_MAX)
@example(b"\x20\x00" + b"\xff" * 9 + b"\x01\x00\x01\x01\x00", 1, INT64_MIN, INT64_MIN, INT64_MAX)
@example(b"\x20\x00" + b"\xff" * 9 + b"\x02\x00\x01\x01\x00", 1, 0, INT64_MIN, INT64_MAX)
def test_arbitrary_bytes_get_the_verdict_of_the_twin(
    body: bytes, count: int, base: int, oldest: int, newest: int
) -> None:
    assert scan(body, count, base, oldest, newest) == slow_scan(body, count, base, oldest, newest)


@settings(max_examples=500, deadline=None)
@given(
    mutated_batches(),
    st.just(BASE_MS) | timestamps,
    st.just(INT64_MIN) | timestamps,
    st.just(INT64_MAX) | timestamps,
)
def test_mutated_batches_get_the_verdict_of_the_twin(
    mutated: tuple[bytes, int], base: int, oldest: int, newest: int
) -> None:
    body, count = mutated
    assert scan(body, count, base, oldest, newest) == slow_scan(body, count, base, oldest, newest)
