"""Logs that are missing from the disk: the facts name them, even if no checkpoint was written."""

from __future__ import annotations

import shutil

import pytest

from broker.log import LogKey, PartitionLog
from broker.log.state import watermark_fact
from tests.unit.broker.log.rig import KEY, ONE_SEGMENT, Rig, batches_of, fill, restart_with


async def write_watermark(rig: Rig, log: PartitionLog) -> None:
    """Write the watermark, as the broker does every few seconds."""
    await rig.disk.facts.commit({watermark_fact(log.key): b"%d" % log.marks.take_watermark()})


@pytest.mark.parametrize("committed", [True, False])
async def test_a_flipped_bit_in_the_last_batch_is_reported_only_if_the_batch_was_committed(
    rig: Rig, committed: bool
) -> None:
    log = rig.create(ONE_SEGMENT)
    batches = fill(log, 6)
    await rig.settle(log)
    if committed:
        await write_watermark(rig, log)
    end = log.end_offset
    (path,) = rig.files(log)
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    await restart_with(rig, path, bytes(damaged))
    if committed:
        assert f"but all records below offset {end} were durable and committed" in str(rig.logs.failures[KEY])
        assert f"{path.name} at position {len(damaged) - len(batches[-1])}" in str(rig.logs.failures[KEY])
        assert path.read_bytes() == damaged
    else:
        assert batches_of(rig.log) == batches[:-1]


async def test_a_missing_folder_is_not_recreated(rig: Rig) -> None:
    """This holds from the first acknowledgement on, when only the flush has written a fact."""
    log = rig.create()
    fill(log, 3)
    await rig.logs.flush_all([log])
    await rig.kill()
    shutil.rmtree(rig.folder / log.folder)
    for clean in (False, True):
        await rig.start()
        assert f"{log.folder} is missing, although it held a replica" in str(rig.logs.failures[KEY])
        assert not (rig.folder / log.folder).exists()
        await (rig.stop() if clean else rig.kill())
    await rig.start()
    await rig.logs.set_aside([KEY], wall_ms=1)  # a reassignment does this, too: the replica starts over
    assert await rig.logs.delete_strays(0, kept_ms=0) == 1
    fill(rig.create(), 3)
    await rig.restart(clean=False)
    assert not rig.logs.failures


async def test_a_folder_missing_after_a_clean_stop_is_reported_at_once(rig: Rig) -> None:
    log = rig.create()
    fill(log, 3)
    await rig.settle(log)
    await rig.stop()
    shutil.rmtree(rig.folder / log.folder)
    await rig.start()
    assert f"{log.folder} is missing" in str(rig.logs.failures[KEY])


@pytest.mark.parametrize("gone", [1, 3, None])
async def test_segments_missing_at_the_end_are_reported(rig: Rig, gone: int | None) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    await write_watermark(rig, log)
    end = log.end_offset
    paths = rig.files(log)[-gone:] if gone else rig.files(log)
    await rig.kill()
    for path in paths:
        path.unlink()
    await rig.start()
    problem = f"{paths[0].name} is missing, although all records below offset {end} were durable and committed"
    assert problem in str(rig.logs.failures[KEY])


async def test_records_truncated_by_an_unclean_election_are_not_reported_missing(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    await write_watermark(rig, log)
    end = log.end_offset
    assert log.truncation_floor == end
    await rig.logs.lower_truncation_floor(log, 10)
    log.truncate_to(10)
    cut = log.end_offset
    await rig.restart(clean=False)
    assert (rig.log.end_offset, rig.logs.failures) == (cut, {})
    assert rig.log.high_watermark <= cut < end


async def test_records_dropped_by_a_reset_are_not_reported_missing(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    await write_watermark(rig, log)
    assert await rig.logs.reset_to(log, 5)
    await rig.restart(clean=False)
    assert (rig.log.end_offset, rig.logs.failures) == (5, {})


async def test_a_reset_is_postponed_if_the_high_watermark_is_written_meanwhile(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the log would end below the watermark in the facts, and the next start would find it damaged."""
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    before, commit = batches_of(log), rig.disk.facts.commit

    async def with_watermark(changes: dict[str, bytes | None]) -> None:
        monkeypatch.setattr(rig.disk.facts, "commit", commit)
        await commit(changes)
        await write_watermark(rig, log)

    monkeypatch.setattr(rig.disk.facts, "commit", with_watermark)
    assert not await rig.logs.reset_to(log, 5)
    assert batches_of(log) == before
    await rig.restart(clean=False)
    assert (batches_of(rig.log), rig.logs.failures) == (before, {})
    assert await rig.logs.reset_to(rig.log, 5)
    await rig.restart(clean=False)
    assert (rig.log.end_offset, rig.logs.failures) == (5, {})


async def test_a_recreated_replica_is_not_compared_with_its_predecessor(rig: Rig) -> None:
    log = rig.create()
    fill(log, 30)
    await rig.settle(log)
    await write_watermark(rig, log)
    await rig.logs.set_aside([KEY], wall_ms=1)
    rig.create()
    await rig.restart(clean=False)
    assert rig.logs.failures == {}


async def test_the_stored_high_watermark_is_restored(rig: Rig) -> None:
    log = rig.create()
    fill(log, 5)
    await rig.settle(log)
    await write_watermark(rig, log)
    end = log.end_offset
    fill(log, 5)
    await rig.restart(clean=False)
    assert (rig.log.high_watermark, rig.log.truncation_floor) == (end, end)
    assert rig.log.end_offset > end


async def test_many_new_partitions_share_a_few_commits_of_facts(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    commits = 0
    commit = rig.disk.facts.commit

    async def counted(changes: dict[str, bytes | None]) -> None:
        nonlocal commits
        commits += 1
        await commit(changes)

    monkeypatch.setattr(rig.disk.facts, "commit", counted)
    made = [rig.create(key=LogKey(KEY.topic_id, index, 42)) for index in range(300)]
    for log in made:
        fill(log, 1)
    await rig.logs.flush_all(made)
    assert 1 <= commits <= 2
    for log in made:
        fill(log, 1)
        log.begin_epoch(1)
    await rig.logs.flush_all(made)
    assert commits <= 2
