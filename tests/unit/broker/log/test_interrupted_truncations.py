"""A power failure during a truncation: recovery treats no deleted record as lost."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from msgspec.structs import replace

from broker.log.state import folder_fact
from quorumlog.runtime.disk import DiskFile
from tests.unit.broker.log.rig import KEY, SMALL, HeldCommits, Rig, append, batches_of, fill, restart_with


@pytest.mark.parametrize("is_cut", [False, True])
async def test_recovery_accepts_a_truncation_that_a_power_failure_undid_in_part(rig: Rig, is_cut: bool) -> None:
    """The deletions of later segments may be lost, whether the truncation of the last one is on the disk or not."""
    log = rig.create()
    before = fill(log, 30)
    await rig.logs.flush_all([log])
    paths = rig.files(log)
    contents = [path.read_bytes() for path in paths]
    offset = int(paths[3].stem) - 1
    await rig.logs.prepare_truncation(log, offset)
    log.truncate_to(offset)
    after = batches_of(log)
    await rig.kill()
    for path, content in zip(paths, contents, strict=True):
        if not path.exists() or not is_cut:
            path.write_bytes(content)
    await rig.start()
    assert batches_of(rig.log) == (after if is_cut else before)


async def test_a_flush_during_a_truncation_does_not_undo_its_preparation(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier flush would record a segment that the truncation is about to delete."""
    log = rig.create()
    fill(log, 30)
    await rig.logs.flush_all([log])
    offset = rig.log.segments[3].base_offset - 1
    kept = b"%d" % rig.log.segments[2].base_offset
    fill(log, 10)
    flush, commit = rig.disk.flush, rig.disk.facts.commit
    in_barrier, may_end = asyncio.Event(), asyncio.Event()
    written: list[bytes | None] = []

    async def slow(files: Iterable[DiskFile], folders: Iterable[str] = ()) -> None:
        in_barrier.set()
        await may_end.wait()
        await flush(files, folders)

    async def noted(changes: dict[str, bytes | None]) -> None:
        written.extend(value for key, value in changes.items() if key == folder_fact(log.folder))
        await commit(changes)

    monkeypatch.setattr(rig.disk, "flush", slow)
    monkeypatch.setattr(rig.disk.facts, "commit", noted)
    flushing = asyncio.ensure_future(rig.logs.flush_all([log]))
    await in_barrier.wait()
    await rig.logs.prepare_truncation(log, offset)
    log.truncate_to(offset)
    may_end.set()
    await flushing
    await rig.logs.flush_all([log])
    assert set(written) == {kept}


async def test_a_truncation_after_an_unflushed_roll_marks_no_new_segment_as_durable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several new segments, a power failure may keep a later segment and lose an earlier one."""
    log = rig.create()
    flushed = fill(log, 3)
    await rig.logs.flush_all([log])

    async def blocked(files: Iterable[DiskFile], folders: Iterable[str] = ()) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(rig.disk, "flush", blocked)
    fill(log, 30)
    offset = log.segments[5].base_offset
    await rig.logs.prepare_truncation(log, offset)
    log.truncate_to(offset)
    first, _, _, *later = rig.files(log)
    assert later
    await rig.kill()
    monkeypatch.undo()
    await restart_with(rig, first, b"".join(flushed))
    assert batches_of(rig.log) == flushed


async def test_preparing_a_truncation_within_the_first_batch_of_a_segment_records_the_previous_segment(
    rig: Rig,
) -> None:
    """Such a truncation removes the whole batch, and so deletes its segment.  The previous segment then grows."""
    log = rig.create()
    fill(log, 30)
    while log.segments[-1].end_offset - log.segments[-1].base_offset < 2 or len(log.segments) < 3:
        append(log, [b"two", b"records"])
    await rig.logs.flush_all([log])
    before, last = log.segments[-2], log.segments[-1]
    await rig.logs.prepare_truncation(log, last.base_offset + 1)
    log.truncate_to(last.base_offset + 1)
    assert log.end_offset == last.base_offset
    assert rig.disk.facts.load(folder_fact(log.folder)) == {folder_fact(log.folder): b"%d" % before.base_offset}


async def test_a_truncation_lowers_the_segment_that_a_flush_is_recording_as_flushed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = rig.create()
    fill(log, 30)
    commit = rig.disk.facts.commit
    is_writing, may_write = asyncio.Event(), asyncio.Event()

    written: list[bytes | None] = []

    async def gated(changes: dict[str, bytes | None]) -> None:
        is_writing.set()
        await may_write.wait()
        await commit(changes)
        written.append(changes[folder_fact(log.folder)])

    monkeypatch.setattr(rig.disk.facts, "commit", gated)
    await is_writing.wait()
    preparing = asyncio.ensure_future(rig.logs.prepare_truncation(log, log.segments[3].base_offset))
    await asyncio.sleep(0)
    may_write.set()
    await preparing
    newest, prepared = (b"%d" % log.segments[at].base_offset for at in (-1, 2))
    assert written[:2] == [newest, prepared]  # a later flush records the newest segment again


async def test_a_truncation_lowers_the_segment_recorded_as_flushed_even_with_write_caching(rig: Rig) -> None:
    """The fact of an idle log keeps its value when its topic gets write.caching."""
    log = rig.create()
    fill(log, 30)
    await rig.logs.flush_all([log])
    log.config = replace(SMALL, write_caching=True)
    offset = log.segments[3].base_offset
    await rig.logs.prepare_truncation(log, offset)
    assert rig.disk.facts.load(folder_fact(log.folder)) == {
        folder_fact(log.folder): b"%d" % log.segments[2].base_offset
    }


async def test_damage_is_recognised_after_a_prepared_truncation_that_did_not_happen(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.logs.flush_all([log])
    paths = rig.files(log)
    await rig.logs.prepare_truncation(log, int(paths[3].stem))
    fill(log, 1)
    await rig.logs.flush_all([log])
    await restart_with(rig, paths[5], paths[5].read_bytes()[:-1])
    assert "but a good batch follows in" in str(rig.logs.failures[KEY])


async def test_a_truncation_completes_if_its_flush_ends_while_another_truncation_is_prepared(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the replica would wait for ever: no later flush contains the deletions of the first truncation."""
    log = rig.create()
    fill(log, 30)
    await rig.logs.flush_all([log])
    commits = HeldCommits(rig, monkeypatch)
    offset = log.segments[3].base_offset
    log.truncate_to(log.segments[5].base_offset)
    preparing = asyncio.ensure_future(rig.logs.prepare_truncation(log, offset))
    async with asyncio.timeout(20):
        await commits.begun.wait()
        await rig.logs.flush_all([log])
    assert log.durability.is_truncating
    commits.release()
    await preparing
    assert not log.durability.is_truncating
