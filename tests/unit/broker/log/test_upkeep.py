"""Retention, and the clock that it follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.log import Appended, LogConfig, LogManager, PartitionLog
from quorumlog.runtime.disk import DiskError
from quorumlog.runtime.turns import Turn
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.compaction_rig import batch_at, compacted
from tests.unit.broker.log.rig import KEY, OTHER, Rig, append, batches_of, stopped_at, two_disks

HOUR = 3_600_000
DAY = 24 * HOUR


async def test_retention_by_time_deletes_whole_old_segments_of_committed_records(rig: Rig) -> None:
    log = rig.create(LogConfig(segment_size_max=300, retention_ms=1_000))
    for number in range(30):
        append(log, [b"x" * 20], timestamps=[100 * number], producer=(5, 0, number))
    await rig.logs.maintain(stopped_at(2_000), 2_000)
    assert log.start_offset == 0  # nothing is committed yet
    log.advance_high_watermark(15)
    await rig.logs.flush_all([log])
    await rig.logs.maintain(stopped_at(2_000), 2_000)
    assert log.start_offset == 9  # timestamps below 1,000 in whole segments
    log.advance_high_watermark(30)
    await rig.logs.maintain(stopped_at(2_700), 2_700)
    assert log.start_offset == 15
    assert [int(path.stem) for path in rig.files(log)] == [15, 18, 21, 24, 27]
    assert log.epochs.entries == ((0, 0),)
    await rig.restart(clean=False)
    assert rig.log.start_offset == 15
    assert len(batches_of(rig.log)) == 15
    rig.log.config = LogConfig(retention_ms=1_000)
    rig.log.advance_high_watermark(30)
    await rig.logs.flush_all([rig.log])
    await rig.logs.maintain(stopped_at(10**7), 10**7)
    assert rig.log.start_offset == rig.log.end_offset == 30
    assert rig.files(rig.log) == []
    for clean in (False, True):
        await rig.restart(clean=clean)
        assert (rig.log.start_offset, rig.log.end_offset, rig.log.flushed_offset) == (30, 30, 30)
        assert rig.log.epochs.latest == 0
        assert rig.log.append_as_leader(make_batch([b"x" * 20], producer=(5, 0, 29)), 0, 0) == (29, 30, True)
    assert append(rig.log, [b"on"]).first_offset == 30


async def test_retention_by_size_deletes_the_oldest_segments_above_the_limit(rig: Rig) -> None:
    log = rig.create(LogConfig(segment_size_max=300, retention_ms=-1, retention_size=600))
    for _ in range(30):
        append(log, [b"x" * 20])
    await rig.settle(log)
    await rig.logs.maintain(stopped_at(0), 0)
    assert 600 <= log.size < 900
    assert log.start_offset > 0


async def test_a_far_future_timestamp_deletes_no_records_and_a_missing_one_counts_from_the_append(rig: Rig) -> None:
    log = rig.create(LogConfig(segment_size_max=300, retention_ms=1_000))
    append(log, [b"x"], timestamps=[253_370_764_800_000])
    for _ in range(10):
        append(log, [b"x" * 20], timestamps=[5_000])
    await rig.settle(log)
    await rig.logs.maintain(stopped_at(5_500), 5_500)
    assert log.start_offset == 0
    without = rig.create(LogConfig(segment_size_max=300, retention_ms=1_000), key=OTHER)
    append(without, [b"x"], timestamps=[-1], now_ms=3_000)
    append(without, [b"x"], timestamps=[-1], now_ms=5_000)
    await rig.settle(without)
    # For records without a timestamp, the wall clock does not determine the age.
    await rig.logs.maintain(stopped_at(5_900), 10**6)
    assert without.start_offset == 0
    await rig.logs.maintain(stopped_at(6_100), 5_500)
    assert without.start_offset == 2
    assert log.start_offset == 0


async def retained(rig: Rig) -> PartitionLog:
    """A log whose records are one second old when the wall clock is at DAY."""
    log = rig.create(LogConfig(segment_size_max=300, retention_ms=7 * DAY))
    for _ in range(9):
        append(log, [b"x" * 20], timestamps=[DAY - 1_000])
    await rig.settle(log)
    return log


async def test_retention_deletes_no_records_for_a_day_after_the_wall_clock_jumped_ahead(rig: Rig) -> None:
    log = await retained(rig)
    await rig.logs.maintain(stopped_at(0), DAY)
    for hours in range(1, 25):
        await rig.logs.maintain(stopped_at(hours * HOUR), 3_650 * DAY + hours * HOUR)
        assert log.start_offset == 0
    await rig.logs.maintain(stopped_at(25 * HOUR), 3_650 * DAY + 25 * HOUR)
    assert log.start_offset == 9


async def test_retention_deletes_no_records_after_the_wall_clock_jumped_ahead_and_back(rig: Rig) -> None:
    log = await retained(rig)
    await rig.logs.maintain(stopped_at(0), DAY)
    await rig.logs.maintain(stopped_at(HOUR), 3_650 * DAY)
    for hours in range(2, 50):
        await rig.logs.maintain(stopped_at(hours * HOUR), DAY + hours * HOUR)
    assert log.start_offset == 0


async def test_retention_uses_the_loops_clock_while_the_wall_clock_is_not_trusted(rig: Rig) -> None:
    log = await retained(rig)
    log.config = LogConfig(retention_ms=10 * HOUR)
    await rig.logs.maintain(stopped_at(0), DAY)
    await rig.logs.maintain(stopped_at(9 * HOUR), 3_650 * DAY)
    assert log.start_offset == 0
    await rig.logs.maintain(stopped_at(10 * HOUR), 3_650 * DAY)
    assert log.start_offset == 9


@pytest.mark.parametrize("clean", [True, False])
async def test_retention_deletes_no_records_for_a_day_after_a_start_with_the_wall_clock_ahead(
    rig: Rig, clean: bool
) -> None:
    await retained(rig)
    await rig.logs.maintain(stopped_at(0), DAY)
    await rig.restart(clean=clean)
    await rig.settle(rig.log)
    rig.log.config = LogConfig(retention_ms=7 * DAY)
    for hours in range(24):
        await rig.logs.maintain(stopped_at(hours * HOUR), 3_650 * DAY + hours * HOUR)
        assert rig.log.start_offset == 0
    await rig.logs.maintain(stopped_at(24 * HOUR), 3_651 * DAY)
    assert rig.log.start_offset == 9


async def test_the_clock_of_retention_is_stored_once_an_hour(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await retained(rig)
    commit = rig.disk.facts.commit
    written: list[bytes | None] = []

    async def noted(changes: dict[str, bytes | None]) -> None:
        written.extend(value for name, value in changes.items() if name == "clock")
        await commit(changes)

    monkeypatch.setattr(rig.disk.facts, "commit", noted)
    for minute in range(121):
        await rig.logs.maintain(stopped_at(60_000 * minute), DAY + 60_000 * minute)
    assert written == [b"%d" % (DAY + hours * HOUR) for hours in range(3)]
    await rig.logs.maintain(stopped_at(60_000 * 121), HOUR)  # set back
    assert written[-1] == b"%d" % HOUR


async def test_a_log_may_be_removed_while_others_are_maintained(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in (OTHER, KEY):
        log = rig.create(key=key)
        append(log, [b"x"])
        await rig.settle(log)
        log.config = LogConfig(compacts=True, deletes=False, segment_age_max_ms=1_000)
    sealed = rig.logs.logs[OTHER].segments
    has_begun = False

    async def removed_meanwhile(_: Turn) -> None:
        nonlocal has_begun
        if not has_begun:
            has_begun = True
            await rig.logs.set_aside([KEY], 0)

    monkeypatch.setattr(Turn, "passed", removed_meanwhile)
    await rig.logs.maintain(stopped_at(1_000), DAY)
    assert len(sealed) == 2
    assert [stray.folder for stray in rig.logs.strays()] == [log.folder.rpartition("/")[2]]
    assert not (rig.folder / log.folder).exists()
    assert not rig.logs.failed_disks


async def test_indexes_are_freed_from_memory_although_a_directory_has_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disks = two_disks(tmp_path)
    logs = LogManager(disks)
    await logs.open()
    sealed = []
    for disk, key in zip(disks, (KEY, OTHER), strict=True):
        log = logs.create(key, "topic", disk.directory_id, LogConfig(segment_size_max=20_000, index_interval=1_000))
        for _ in range(60):
            append(log, [bytes(1_000)])
        await logs.flush_all([log])
        for segment in log.segments[:-1]:
            disk.remove(segment.index_path)
            assert segment.index.persisted < len(segment.index)  # this loads the index
            sealed.append(segment)
    assert all(segment.loaded_index_size for segment in sealed)
    failure = DiskError("failed")
    disks[0]._set_failure(failure)
    logs.disk_failed(disks[0].directory_id, failure)
    monkeypatch.setattr("broker.log.manager.INDEX_MEMORY_MAX", 0)
    await logs.maintain(stopped_at(0), 0)
    assert not any(segment.loaded_index_size for segment in sealed)
    assert not disks[0].exists(sealed[0].index_path)
    assert disks[1].exists(sealed[-1].index_path)
    await logs.close()
    for disk in disks:
        disk.close()


@pytest.mark.parametrize("damage", ["none", "missing", "cut off"])
async def test_indexes_are_freed_from_memory_beyond_their_limit(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    log = rig.create(LogConfig(segment_size_max=20_000, index_interval=1_000))
    for _ in range(60):
        append(log, [bytes(1_000)])
    await rig.settle(log)
    await rig.stop()
    for path in rig.files(log, "index"):
        if damage == "missing":
            path.unlink()
        elif damage == "cut off":
            path.write_bytes(path.read_bytes()[:-1])
    await rig.start()
    sealed = rig.log.segments[:-1]
    assert len(sealed) > 1
    for segment in sealed:
        segment.position_of(segment.base_offset + 10)
        assert segment.loaded_index_size
    await rig.logs.maintain(stopped_at(0), 0)
    assert all(segment.loaded_index_size for segment in sealed)
    monkeypatch.setattr("broker.log.manager.INDEX_MEMORY_MAX", 0)
    await rig.logs.maintain(stopped_at(0), 0)
    assert not any(segment.loaded_index_size for segment in sealed)
    await rig.restart(clean=True)
    for segment in rig.log.segments[:-1]:
        assert segment.index.persisted == len(segment.index) > 0


async def test_retention_with_write_caching_does_not_wait_for_more_appends(rig: Rig) -> None:
    """Nothing else flushes the records of such a log, and only durable segments are deleted."""
    log = rig.create(LogConfig(segment_size_max=300, write_caching=True, retention_ms=1_000))
    append(log, [b"x"], timestamps=[0])
    await rig.settle(log)
    for number in range(6):
        append(log, [b"x" * 20], timestamps=[number])
    log.advance_high_watermark(log.end_offset)
    await rig.logs.maintain(stopped_at(2_000), 2_000)
    await next_flush(rig)
    await rig.logs.maintain(stopped_at(2_000), 2_000)
    assert log.start_offset == log.end_offset
    assert rig.files(log) == []


async def test_compaction_with_write_caching_does_not_wait_for_more_appends(rig: Rig) -> None:
    log = rig.create(replace(compacted(300), write_caching=True))
    for number in range(21):
        assert isinstance(log.append_as_leader(batch_at(0, (b"key", b"x" * 20)), 0, 0), Appended)
        if number == 0:
            await rig.settle(log)
    log.advance_high_watermark(log.end_offset)
    assert log.compaction.dirty(log.config, DAY).limit == 0
    await rig.logs.maintain(stopped_at(0), 0)
    await next_flush(rig)
    assert log.compaction.dirty(log.config, DAY).limit == log.segments[-1].base_offset


async def next_flush(rig: Rig) -> None:
    """Wait for the next flush of the directory, which includes only the logs that need one."""
    other = rig.create(key=OTHER)
    append(other, [b"x"])
    await rig.logs.flush_all([other])
