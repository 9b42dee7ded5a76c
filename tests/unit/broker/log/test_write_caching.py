"""With write.caching, records are acknowledged before they are flushed; the fact of the folder is stored before."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from msgspec.structs import replace

from broker.log import PartitionLog
from broker.log.state import UNSYNCED, folder_fact
from tests.unit.broker.log.rig import CACHING, KEY, SMALL, HeldCommits, Rig, append, fill, restart_with

OFF = replace(CACHING, write_caching=False)


class HeldFlushes:
    """Each flush of the disk waits until it is released.  They are counted from 1."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        self._begun: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._may_end: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._flush = rig.disk.flush
        monkeypatch.setattr(rig.disk, "flush", self._held)

    async def _held(self, *args: Any) -> None:
        self._count += 1
        number = self._count
        self._begun[number].set()
        await self._may_end[number].wait()
        await self._flush(*args)

    async def begun(self, number: int) -> None:
        await soon(self._begun[number])

    def release(self, number: int) -> None:
        self._may_end[number].set()


async def soon(event: asyncio.Event) -> None:
    """Wait for the event, but not for ever."""
    async with asyncio.timeout(10):
        await event.wait()


def fact(rig: Rig, log: PartitionLog) -> bytes | None:
    """Return the folder's fact on the disk."""
    return rig.disk.facts.load(folder_fact(log.folder)).get(folder_fact(log.folder))


async def caching(rig: Rig) -> PartitionLog:
    """Return a log whose appends are acknowledged before they are flushed."""
    log = rig.create(CACHING)
    append(log, [b"first"])
    await rig.logs.flush_all([log])
    assert fact(rig, log) == UNSYNCED
    return log


async def test_with_write_caching_appends_are_acknowledged_before_a_flush(rig: Rig) -> None:
    log = await caching(rig)
    append(log, [b"more"])
    assert (log.flushed_offset, log.marks.durable_offset) == (2, 1)


async def test_the_first_records_are_acknowledged_only_once_the_fact_of_write_caching_is_durable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = HeldCommits(rig, monkeypatch)
    log = rig.create(CACHING)
    reported: list[int] = []
    append(log, [b"a"])
    await soon(commits.begun)
    log.durability.on_flushed = lambda: reported.append(log.flushed_offset)
    append(log, [b"b"])
    assert log.flushed_offset == 0, "after a crash, no fact would show that the log had write caching"
    commits.release()
    await rig.logs.flush_all([log])
    assert reported[0] == 2, "the flush of the first record reports both"


async def test_a_record_appended_during_the_commit_of_the_fact_is_acknowledged_without_another_flush(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.create(OFF)
    append(log, [b"a"])
    await rig.logs.flush_all([log])
    commits = HeldCommits(rig, monkeypatch)
    log.config = CACHING
    await soon(commits.begun)
    reported = asyncio.Event()
    log.durability.on_flushed = reported.set
    monkeypatch.setattr(log.durability, "mark_dirty", lambda _: None)  # no other flush follows
    append(log, [b"b"])
    commits.release()
    await soon(reported)
    assert (log.flushed_offset, log.marks.durable_offset) == (2, 1)


async def test_the_fact_of_an_idle_log_shows_that_it_is_flushed_once_write_caching_is_off(rig: Rig) -> None:
    log = await caching(rig)
    assert not log.durability.is_dirty
    log.config = OFF
    await rig.logs.flush_all([log])
    assert fact(rig, log) == b"0"


async def test_an_idle_log_gets_write_caching_before_the_next_append(rig: Rig) -> None:
    log = rig.create(OFF)
    append(log, [b"a"])
    await rig.logs.flush_all([log])
    log.config = CACHING
    await rig.logs.flush_all([log])
    append(log, [b"b"])
    assert (log.flushed_offset, log.marks.durable_offset) == (2, 1)


async def test_acknowledgements_wait_for_flushes_as_soon_as_write_caching_is_off(rig: Rig) -> None:
    log = await caching(rig)
    append(log, [b"b"])
    durable: list[int] = []
    reported = asyncio.Event()

    def on_flushed() -> None:
        durable.append(log.marks.durable_offset)
        reported.set()

    log.durability.on_flushed = on_flushed
    log.config = OFF
    assert log.flushed_offset == 1
    await soon(reported)
    assert durable == [2]


async def switched_in_a_flush(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> tuple[PartitionLog, HeldFlushes]:
    """Switch write.caching off and on again while a flush of two records is under way, and append a third one."""
    log = await caching(rig)
    append(log, [b"b"])
    flushes = HeldFlushes(rig, monkeypatch)
    log.config = OFF
    await flushes.begun(1)
    log.config = CACHING
    append(log, [b"c"])
    assert log.flushed_offset == 3
    return log, flushes


async def test_a_flush_from_before_write_caching_was_off_and_on_does_not_cover_later_records(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """write.caching is switched off and on again while a flush is under way."""
    log, flushes = await switched_in_a_flush(rig, monkeypatch)
    flushed = asyncio.Event()
    log.durability.on_flushed = flushed.set
    flushes.release(1)
    await soon(flushed)
    assert fact(rig, log) == UNSYNCED


async def test_a_flush_from_before_write_caching_was_off_on_and_off_does_not_cover_later_records(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """write.caching is switched off, on and off again while a flush is under way."""
    log, flushes = await switched_in_a_flush(rig, monkeypatch)
    log.config = OFF
    flushes.release(1)
    await flushes.begun(2)
    assert (fact(rig, log), log.marks.durable_offset) == (UNSYNCED, 2), "the last record may still be lost"
    flushes.release(2)
    flushes.release(3)
    await rig.logs.flush_all([log])
    assert (fact(rig, log), log.marks.durable_offset) == (b"0", 3)


async def test_a_truncation_waits_for_the_fact_that_is_being_written(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power failure would otherwise keep the old fact, which names a segment that the truncation deletes."""
    log = rig.create(SMALL)
    fill(log, 30)
    await rig.logs.flush_all([log])
    commits = HeldCommits(rig, monkeypatch)
    log.config = replace(SMALL, write_caching=True)
    await soon(commits.begun)
    preparing = asyncio.ensure_future(rig.logs.prepare_truncation(log, log.segments[3].base_offset))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not preparing.done()
    commits.release()
    await preparing
    assert fact(rig, log) == UNSYNCED


async def test_the_fact_of_write_caching_is_written_again_after_a_concurrent_truncation(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise records would no longer be acknowledged before they are flushed."""
    log = rig.create(SMALL)
    fill(log, 30)
    await rig.logs.flush_all([log])
    commits = HeldCommits(rig, monkeypatch)
    log.config = replace(SMALL, write_caching=True)
    await soon(commits.begun)
    log.truncate_to(log.segments[3].base_offset)
    commits.release()
    await rig.logs.flush_all([log])
    end = log.end_offset
    append(log, [b"x"])
    assert (log.flushed_offset, log.marks.durable_offset) == (end + 1, end)


async def test_no_record_is_acknowledged_early_while_a_reset_removes_the_fact(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await caching(rig)
    commits = HeldCommits(rig, monkeypatch)
    resetting = asyncio.ensure_future(rig.logs.reset_to(log, 100, 0, lambda: True))
    await soon(commits.begun)
    append(log, [b"b"])  # the replica leads meanwhile
    assert log.flushed_offset == 1
    commits.release()
    assert not await resetting
    assert fact(rig, log) == UNSYNCED


# What a start reports about the last process


async def test_a_start_names_the_topics_whose_records_may_be_missing(rig: Rig) -> None:
    log = await caching(rig)
    append(log, [b"b"])
    await rig.restart(clean=False)
    assert rig.logs.early_topics == {KEY.topic_id}
    await rig.restart(clean=False)
    assert rig.logs.early_topics == {KEY.topic_id}, "a process that ends before its registration changes nothing"


async def test_a_start_does_not_name_topics_whose_records_were_flushed(rig: Rig) -> None:
    log = await caching(rig)
    append(log, [b"b"])
    log.config = OFF
    await rig.logs.flush_all([log])
    await rig.restart(clean=False)
    assert rig.logs.early_topics == frozenset()


async def test_a_checkpoint_stores_no_log_start_above_the_durable_records(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may delete records that were acknowledged while the checkpoint flushed earlier ones."""
    log = await caching(rig)
    append(log, [b"second"])
    log.advance_high_watermark(2)
    (file,) = rig.files(log)
    durable = b""
    flush = rig.disk.flush

    async def flushed(*what: Any) -> None:
        nonlocal durable
        await flush(*what)
        durable = file.read_bytes()
        for value in (b"third", b"fourth"):
            append(log, [value])
        log.advance_high_watermark(log.end_offset)
        log.advance_start_offset(log.end_offset - 1)

    with monkeypatch.context() as patches:
        patches.setattr(rig.disk, "flush", flushed)
        await rig.logs.checkpoint([log])
    assert log.start_offset > log.marks.durable_offset
    assert log.durable_start_offset <= log.marks.durable_offset
    assert log.upkeep.is_checkpoint_due(1 << 20), "the start is not durable yet"
    assert log.upkeep.needs_final_checkpoint, "a clean stop writes the rest of the start"
    await restart_with(rig, file, durable)  # a power failure
    assert not rig.logs.failures
    assert (rig.log.start_offset, rig.log.end_offset) == (2, 2)
