"""Reads of the last appends from memory."""

from __future__ import annotations

import pytest

from broker.log.recent import RecentAppends
from quorumlog.wire.record_batch import parse_header, patch
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.rig import Rig, append, fill


def frame_of(size: int) -> memoryview:
    return memoryview(bytearray(size))


def test_a_recent_append_is_found_only_at_its_start_position() -> None:
    recent = RecentAppends(1000)
    recent.keep("a", 50, memoryview(bytearray(b"0123456789")))
    assert bytes(recent.find("a", 50, 60) or b"") == b"0123456789"
    assert bytes(recent.find("a", 50, 54) or b"") == b"0123"
    assert recent.find("a", 50, 61) is None
    assert recent.find("a", 51, 60) is None
    assert recent.find("b", 50, 60) is None


def test_a_recent_append_is_returned_read_only() -> None:
    recent = RecentAppends(1000)
    recent.keep("a", 0, frame_of(10))
    found = recent.find("a", 0, 10)
    assert found is not None
    assert found.readonly


def test_the_oldest_recent_append_is_dropped_at_the_memory_limit() -> None:
    recent = RecentAppends(100)
    for position in range(0, 120, 40):
        recent.keep("a", position, frame_of(40))
    assert recent.size == 80
    assert [recent.find("a", position, position + 40) is not None for position in (0, 40, 80)] == [False, True, True]


def test_a_slice_counts_with_the_size_of_the_frame_that_it_keeps_in_memory() -> None:
    recent = RecentAppends(100)
    recent.keep("a", 0, frame_of(60)[:5])
    assert recent.size == 60
    recent.keep("a", 5, frame_of(101)[:5])
    assert recent.size == 60
    recent.keep("a", 10, frame_of(41)[:5])
    assert (recent.size, recent.find("a", 0, 5)) == (41, None)


def test_a_truncation_drops_the_recent_appends_that_it_removes_or_shortens() -> None:
    recent = RecentAppends(1000)
    for position in (0, 10, 20):
        recent.keep("a", position, frame_of(10))
        recent.keep("b", position, frame_of(10))
    recent.forget("a", 15)
    assert [recent.find("a", position, position + 10) is not None for position in (0, 10, 20)] == [True, False, False]
    assert recent.find("b", 20, 30) is not None
    recent.forget("b")
    assert recent.size == 10


def test_an_append_after_a_truncation_is_found_and_is_dropped_in_order_of_age() -> None:
    recent = RecentAppends(100)
    for position in (0, 40):
        recent.keep("a", position, frame_of(40))
    recent.forget("a", 40)
    recent.keep("b", 0, frame_of(20))
    recent.keep("a", 40, memoryview(bytearray(b"x" * 40)))
    assert (recent.size, bytes(recent.find("a", 40, 80) or b"")) == (100, b"x" * 40)
    recent.keep("b", 20, frame_of(40))
    assert [recent.find(*each) is not None for each in (("a", 0, 40), ("b", 0, 20), ("a", 40, 80))] == [
        False,
        True,
        True,
    ]
    for segment in ("a", "b"):
        recent.forget(segment)
    assert recent.size == 0
    assert not recent._positions, "no segment remains in memory"


async def test_a_log_serves_a_recent_append_from_memory(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    log = rig.create()
    frame = memoryview(bytearray(make_batch([b"one", b"two"])))
    assert log.append_as_leader(frame, 3, 0)
    monkeypatch.setattr(type(log.segments[0].file), "pread", None)
    found = log.read(0, 1 << 20, 2)
    assert isinstance(found, memoryview)
    assert found.obj is frame.obj  # the offset and epoch were set in the memory in which the batch arrived
    assert (parse_header(found).base_offset, parse_header(found).leader_epoch) == (0, 3)


async def test_a_batch_that_replaces_a_truncated_batch_is_read(rig: Rig) -> None:
    log = rig.create()
    append(log, [b"kept"])
    append(log, [b"truncated"])
    await rig.logs.flush_all([log])
    await rig.logs.prepare_truncation(log, 1)
    log.truncate_to(1)
    other = bytearray(make_batch([b"continues"]))
    patch(other, 1, 5)
    assert log.append_as_follower(bytes(other), 5, 0)
    assert b"continues" in bytes(log.read(1, 1 << 20, 2))


async def test_closing_a_log_frees_the_memory_of_its_recent_appends(rig: Rig) -> None:
    log = rig.create()
    fill(log, 10)
    recent = rig.logs._recent
    assert recent.size > 0
    log.close()
    assert recent.size == 0
