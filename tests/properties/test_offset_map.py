"""The compiled map of offsets and its slow twin agree on any batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from broker.log.cleaning.offset_map import ENTRY_SIZE, OffsetMap
from broker.log.cleaning.records import UncleanableError, rebuild
from quorumlog.client.records import NewRecord, build_batch, decode_batches
from quorumlog.wire.record_batch import HEADER_SIZE, BatchHeader, parse_header
from simulation.cluster.offset_map_twin import OffsetMapTwin

BASE_MS = 1_700_000_000_000
Batch = tuple[BatchHeader, bytes]

keys = st.none() | st.sampled_from([b"", b"a", b"b", b"exactly8", b"more than eight bytes"])
values = st.none() | st.just(b"") | st.binary(min_size=60, max_size=70)
headers = st.lists(st.tuples(st.text(max_size=3), st.none() | st.binary(max_size=5)), max_size=2).map(tuple)
records = st.builds(NewRecord, keys, values, st.integers(BASE_MS - 2**20, BASE_MS + 2**40), headers)
batches = st.lists(records, min_size=1, max_size=8)


@st.composite
def mutated(draw: st.DrawFn) -> Batch:
    """A good batch, mostly, or one with a few bytes replaced, removed or added, and other numbers in its header."""
    chosen = draw(batches)
    whole = bytes(build_batch(chosen))
    header, body = parse_header(whole), bytearray(whole[HEADER_SIZE:])
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        at = draw(st.integers(0, max(0, len(body) - 1)))
        end = min(len(body), at + draw(st.integers(0, 3)))
        body[at:end] = draw(st.binary(max_size=3) | st.sampled_from([b"\xff" * 5, b"\x80" * 11, b"\x01", b"\x00"]))
    count = draw(st.just(len(chosen)) | st.integers(0, 9))
    last_delta = draw(st.just(header.last_offset_delta) | st.integers(0, 9))
    return header._replace(record_count=count, last_offset_delta=last_delta), bytes(body)


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except UncleanableError:
        return UncleanableError


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(mutated(), st.integers(-1, 9)), max_size=4), st.integers(1, 6), mutated(), st.integers(0, 60))
def test_the_compiled_offset_map_agrees_with_its_slow_twin(
    noted: list[tuple[Batch, int]], keys_max: int, last: Batch, clean_end: int
) -> None:
    compiled, twin = OffsetMap(keys_max * ENTRY_SIZE), OffsetMapTwin(keys_max * ENTRY_SIZE)
    base_offset = 0
    for (header, body), first in noted:
        header = header._replace(base_offset=base_offset)
        found, expected = (outcome(partial(one.note, body, header, base_offset + first)) for one in (compiled, twin))
        assert found == expected
        assert len(compiled) == len(twin)
        base_offset += 10
    header, body = last
    for at in (0, base_offset):
        header = header._replace(base_offset=at)
        for removes in (False, True):
            kept, expected = (
                outcome(partial(one.survivors, body, header, clean_end, removes_tombstones=removes))
                for one in (compiled, twin)
            )
            if expected is not UncleanableError and expected.number == 0:
                assert kept.number == 0
            else:
                assert kept == expected


@given(st.integers(1, 5_000))
def test_a_growing_map_keeps_the_offset_of_each_key(count: int) -> None:
    latest = OffsetMap(count * ENTRY_SIZE)
    new = [NewRecord(b"%d" % number, b"value", BASE_MS, ()) for number in (*range(count), *range(0, count, 3))]
    whole = bytes(build_batch(new))
    header = parse_header(whole)
    assert latest.note(whole[HEADER_SIZE:], header, 0) is None
    assert len(latest) == count
    assert latest.survivors(whole[HEADER_SIZE:], header, 2 * count, removes_tombstones=False).number == count


@given(batches, st.integers(0, 2**63 - 1))
def test_a_delete_horizon_changes_no_record(chosen: list[NewRecord], horizon_ms: int) -> None:
    whole = bytes(build_batch(chosen))
    header = parse_header(whole)
    rebuilt = rebuild(header, whole[HEADER_SIZE:], len(chosen), header.max_timestamp, horizon_ms)
    assert parse_header(rebuilt).base_timestamp == horizon_ms
    assert list(decode_batches(rebuilt)) == list(decode_batches(whole))
