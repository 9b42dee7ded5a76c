"""Moves of logs between directories: crashes at each step, changes of the log meanwhile, cancels, failing disks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from broker.core.cleaning import CleaningPolicy
from broker.log import Appended, LogManager, TimestampOffset, move, moves
from broker.log.cleaner import CleanerLimits, LogCleaner
from broker.log.cleaning.ports import LocalWorker
from broker.log.copying import LogCopy
from broker.log.types import LogConfig
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.runtime.disk import DiskError, DiskFile
from tests.unit.broker.log.move_rig import FOLDER, MoveRig, StoppedError, until
from tests.unit.broker.log.rig import CACHING, KEY, ONE_SEGMENT, SMALL, append, batches_of


@pytest.fixture
async def rig() -> AsyncIterator[MoveRig]:
    rig = MoveRig()
    await rig.start()
    yield rig
    await rig.end()


async def test_a_log_moves_with_all_its_records(rig: MoveRig) -> None:
    rig.create()
    await rig.fill(20)
    log, before = rig.log, rig.appended
    await rig.move()
    rig.check_moved()
    counted = rig.logs.moves
    assert (counted.finished, counted.failed, counted.left_bytes()) == (1, 0, 0)
    assert 0 < counted.copied_bytes <= log.size
    assert (rig.log, batches_of(log)) == (log, before)
    rig.append(b"after")
    await rig.settle()
    assert rig.acknowledged == log.end_offset
    (stray,) = rig.logs.strays()
    assert (stray.directory_id, stray.folder, stray.is_kept) == (rig.ids[0], FOLDER, False)
    await rig.restart()
    rig.check_moved()


@pytest.mark.parametrize("config", [SMALL, CACHING, LogConfig()])
async def test_an_empty_log_moves(rig: MoveRig, config: LogConfig) -> None:
    rig.create(config)
    await rig.move()
    rig.check_moved()
    rig.append(b"first")
    await rig.settle()
    await rig.restart()
    rig.check_moved()
    assert rig.log.end_offset == 1


async def test_a_log_moves_repeatedly_between_two_directories_and_stops_cleanly(rig: MoveRig) -> None:
    rig.create()
    await rig.fill(9)
    for target in (1, 0, 1):
        await rig.move(target)
        rig.append(b"%d" % target)
        await rig.settle()
        rig.check_moved(target)
        await rig.logs.purge_strays()
    await rig.logs.close()
    assert rig.logs.clean_stop
    rig.logs._tasks.clear()
    await rig.start()
    assert rig.logs.clean_start
    rig.check_moved()
    assert batches_of(rig.log) == rig.appended


async def test_after_a_move_the_snapshot_in_the_new_directory_counts_once_it_is_flushed(rig: MoveRig) -> None:
    """The copy of the snapshot may be only in the page cache."""
    rig.create()
    append(rig.log, [b"x"], producer=(5, 0, 0))
    await rig.settle()
    await rig.logs.checkpoint([rig.log])
    assert rig.log.marks.snapshot_offset == 1
    await rig.move()
    assert rig.log.marks.snapshot_offset == -1
    await rig.logs.checkpoint([rig.log])
    assert rig.log.marks.snapshot_offset == 1


async def test_an_idle_log_stops_naming_its_former_directory_with_the_next_checkpoint(rig: MoveRig) -> None:
    """While the current directory is offline, the replica may start over in the former one, and lack records there."""
    rig.create()
    await rig.fill(3)
    await rig.move()
    await rig.logs.maintain(lambda: 1, wall_ms=1)
    await rig.restart()
    assert list(rig.log.moved_from) == [rig.ids[0]]
    rig.log.move_known()
    await rig.logs.maintain(lambda: 1, wall_ms=1)
    assert not rig.log.upkeep.is_checkpoint_due(1 << 20)
    await rig.restart()
    assert not rig.log.moved_from


async def test_appends_and_acknowledgements_continue_during_a_move(rig: MoveRig) -> None:
    rig.create()
    await rig.fill(5)
    rig.on_operation = lambda: rig.append(b"during the move")
    await rig.move()
    rig.on_operation = lambda: None
    assert rig.log.end_offset > 40
    rig.check_moved()
    await rig.settle()
    assert rig.acknowledged == rig.log.end_offset
    await rig.restart(power_cut=True)
    rig.check_moved()
    assert batches_of(rig.log) == rig.appended


async def _interrupted_move(stop_at: int, *, power_cut: bool, seed: int) -> bool:
    """Move a log under appends, stop before an operation of a disk, and restart; return whether it was stopped."""
    rig = MoveRig(seed, torn=power_cut)
    await rig.start()
    rig.create()
    await rig.fill(6)
    begun = len(rig.operations)
    rig.on_operation = lambda: rig.append(b"%d" % len(rig.operations))
    rig.stop_at = begun + stop_at
    with suppress(StoppedError):
        await rig.move()
    was_stopped = rig.is_stopped
    await rig.restart(power_cut=power_cut)
    try:
        rig.check()
        rig.append(b"after the start")
        await rig.settle()
        await rig.run()  # continues automatically, if the request was durable
        await rig.move()
        rig.check_moved()
        await rig.restart(power_cut=power_cut)
        rig.check_moved()
        assert rig.log.end_offset >= rig.acknowledged
        assert list(rig.log.moved_from) == ([rig.ids[0]] if rig.log.directory_id == rig.ids[1] else [])
    finally:
        await rig.end()
    return was_stopped


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("part", range(4))
async def test_a_crash_at_any_step_of_a_move_loses_no_acknowledged_record(part: int, power_cut: bool) -> None:
    stop_at = part
    while await _interrupted_move(stop_at, power_cut=power_cut, seed=stop_at + 1):
        stop_at += 4
    assert stop_at > 20


async def test_a_move_continues_after_a_restart(rig: MoveRig) -> None:
    rig.create()
    await rig.fill(6)
    await rig.logs.moves.request({KEY: rig.ids[1]})
    await rig.restart()
    assert rig.logs.moves.targets == {KEY: rig.ids[1]}
    await rig.run()
    rig.check_moved()


async def test_a_cancelled_move_keeps_the_log_in_place_and_deletes_the_copy(rig: MoveRig) -> None:
    rig.create()
    await rig.fill(20)
    rig.logs.moves.set_rate(1)
    await rig.logs.moves.request({KEY: rig.ids[1]})
    rig.begin()
    await until(lambda: any(future.size for future in rig.logs.moves.futures()))
    (future,) = rig.logs.moves.futures()
    assert (future.key, future.directory_id) == (KEY, rig.ids[1])
    assert 0 <= future.end_offset < rig.log.end_offset
    assert rig.logs.moves.left_bytes() == rig.log.size - future.size
    await rig.logs.moves.request({KEY: rig.ids[0]})
    assert rig.logs.moves.futures() == []
    await until(lambda: not rig.disks[1].list("futures"))
    rig.check_moved(0)
    await rig.restart()
    assert not rig.logs.moves.targets
    rig.check_moved(0)


async def test_a_move_that_is_being_decided_completes_after_a_cancel(
    rig: MoveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create()
    await rig.fill(6)
    may_prepare, prepare = asyncio.Event(), move.LogMove._prepare

    async def waits(self: move.LogMove, now_ms: int) -> Any:
        await may_prepare.wait()
        return await prepare(self, now_ms)

    monkeypatch.setattr(move.LogMove, "_prepare", waits)
    await rig.logs.moves.request({KEY: rig.ids[1]})
    rig.begin()
    await until(lambda: rig.logs.moves._deciding is not None)
    assert rig.runner is not None
    rig.runner.cancel()
    await asyncio.gather(rig.runner, return_exceptions=True)
    (future,) = rig.logs.moves.futures()
    may_prepare.set()
    await rig.logs.moves.close()
    assert future.size == rig.log.size, "the copy was complete"
    assert rig.log.directory_id == rig.ids[1]
    assert rig.logs.moves.futures() == []


async def test_close_raises_the_broken_invariant_of_the_last_decision() -> None:
    async def broken() -> bool:
        raise AssertionError("the log is not held")

    of_no_logs = LogManager([]).moves
    of_no_logs._deciding = asyncio.create_task(broken())
    with pytest.raises(AssertionError, match="the log is not held"):
        await of_no_logs.close()


async def test_moves_read_no_facts(rig: MoveRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading facts takes long with many logs, and blocks the event loop while a disk hangs in a commit."""
    rig.create()
    await rig.fill(20)

    def fail(prefix: str = "") -> dict[str, bytes]:
        raise AssertionError(prefix)

    with monkeypatch.context() as patches:
        for disk in rig.disks:
            patches.setattr(disk.facts, "load", fail)
        await rig.logs.moves.request({KEY: rig.ids[0]})
        rig.logs.moves.set_rate(1)
        await rig.logs.moves.request({KEY: rig.ids[1]})
        rig.begin()
        await until(lambda: any(future.size for future in rig.logs.moves.futures()))
        await rig.logs.moves.request({KEY: rig.ids[0]})
        await until(lambda: not rig.disks[1].list("futures"))
        await rig.end_runner()
        rig.logs.moves.set_rate(-1)
        await rig.move()
    rig.check_moved()


async def test_a_move_to_a_failed_directory_can_be_cancelled(rig: MoveRig) -> None:
    rig.create()
    await rig.fill(3)
    await rig.logs.moves.request({KEY: rig.ids[1]})
    rig.disks[1].full = True
    await rig.run()
    rig.disks[1].full = False
    await rig.logs.moves.request({KEY: rig.ids[0]})
    await rig.restart()
    assert not rig.logs.moves.targets


@pytest.mark.parametrize("keep", [0, 2, 4, 6, 12])
async def test_a_truncation_while_a_log_is_copied_is_applied_to_the_copy(rig: MoveRig, keep: int) -> None:
    rig.create(SMALL)
    for _ in range(20):
        rig.append(b"x" * 50, b"y" * 50)
    await rig.logs.flush_all([rig.log])
    log = rig.log
    done = False

    async def truncate() -> None:
        await rig.logs.prepare_truncation(log, keep)
        log.truncate_to(keep)
        rig.acknowledged = keep
        log.begin_epoch(1)
        for _ in range(20):  # as many records as before, but different ones
            append(log, [b"other" * 10], 1)
        rig.appended = batches_of(log)

    tasks = []

    def once() -> None:
        nonlocal done
        if not done and rig.operations[-1] == "write 1" and rig.operations.count("write 1") == 4:
            done = True
            tasks.append(asyncio.create_task(truncate()))

    rig.on_operation = once
    await rig.move()
    await asyncio.gather(*tasks)
    assert done
    await rig.settle()
    rig.check_moved()
    assert batches_of(rig.log) == rig.appended
    await rig.restart(power_cut=True)
    assert batches_of(rig.log) == rig.appended


async def test_a_truncation_that_waited_for_the_decision_happens_in_the_new_directory(rig: MoveRig) -> None:
    rig.create(SMALL)
    for _ in range(20):
        rig.append(b"x" * 50)
    await rig.logs.flush_all([rig.log])
    log = rig.log
    tasks: list[asyncio.Task[None]] = []

    async def truncate() -> None:
        await rig.logs.prepare_truncation(log, 7)
        assert log.directory_id == rig.ids[1]
        log.truncate_to(7)
        rig.acknowledged = 7

    def at_the_decision() -> None:
        if rig.operations[-1] == "rename 1":
            tasks.append(asyncio.create_task(truncate()))

    rig.on_operation = at_the_decision
    await rig.move()
    await asyncio.gather(*tasks)
    assert len(tasks) == 1
    assert log.end_offset == 7
    await rig.logs.flush_all([log])
    await rig.restart(power_cut=True)
    rig.check_moved()
    assert rig.log.end_offset == 7


async def test_an_append_during_the_decision_of_a_move_is_not_acknowledged_before_it_is_copied(
    rig: MoveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """write.caching is switched off before a move is decided, and on again during the decision."""
    log = rig.create(CACHING)
    await rig.fill(3)
    hold = log.durability.hold
    acknowledged: list[int] = []

    def switched_off() -> None:
        log.config = SMALL
        hold()

    def switch_on() -> None:
        if log.durability._is_held and rig.operations[-1] == "commit 1":  # the copy is complete
            log.config = CACHING
            rig.append(b"not in the copy")
            acknowledged.append(log.flushed_offset)
        rig.is_stopped = rig.operations[-1] == "rename 1"  # the copy counts now

    monkeypatch.setattr(log.durability, "hold", switched_off)
    rig.on_operation = switch_on
    await rig.move()
    await rig.restart(power_cut=True)
    assert rig.log.directory_id == rig.ids[1]
    assert rig.logs.early_topics == frozenset()
    assert rig.log.end_offset == acknowledged[-1], (
        "all acknowledged records exist, because no fact says that some may be missing"
    )


async def test_retention_while_a_log_is_copied_deletes_from_the_copy(rig: MoveRig) -> None:
    rig.create(SMALL)
    await rig.fill(40)
    log = rig.log
    tasks: list[asyncio.Task[None]] = []

    async def retain() -> None:
        log.advance_start_offset(30)
        await rig.logs.checkpoint([log])

    def during() -> None:
        if rig.operations.count("write 1") == 5 and not tasks:
            tasks.append(asyncio.create_task(retain()))

    rig.on_operation = during
    await rig.move()
    await asyncio.gather(*tasks)
    assert tasks
    assert log.start_offset == 30
    kept = batches_of(log)
    files = [name for name in rig.disks[1].list(f"logs/{FOLDER}") if name.endswith(".log")]
    assert len(files) == len(log.segments)
    rig.append(b"one more")
    await rig.settle()
    await rig.restart(power_cut=True)
    assert (rig.log.start_offset, batches_of(rig.log)[: len(kept)]) == (30, kept)


@pytest.mark.parametrize("operation", ["write 1", "flush 1", "commit 1", "commit 0", "rename 1", "rename 0"])
async def test_a_log_that_is_deleted_during_its_move_is_deleted_in_both_directories(
    rig: MoveRig, operation: str
) -> None:
    rig.create()
    await rig.fill(20)
    tasks: list[asyncio.Task[None]] = []
    begun = len(rig.operations)

    def during() -> None:
        if rig.operations[-1] == operation and operation in rig.operations[begun + 1 :] and not tasks:
            tasks.append(asyncio.create_task(rig.logs.set_aside([KEY], wall_ms=6_000)))

    rig.on_operation = during
    await rig.move()
    await asyncio.gather(*tasks)
    assert tasks
    assert KEY not in rig.logs.logs
    await rig.restart()
    assert KEY not in rig.logs.logs
    for disk in rig.disks:
        assert (disk.list("futures"), disk.list("logs")) == ([], [])
        assert not any(FOLDER in fact for fact in disk.facts.load() if not fact.startswith("stray/"))


async def test_an_abandoned_move_counts_as_failed_once_although_its_source_fails_as_well(
    rig: MoveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create()
    await rig.fill(5)

    async def little() -> int:
        rig.disks[0].full = True  # so the source cannot store that the move has ended
        return 1000

    monkeypatch.setattr(rig.disks[1], "free_bytes", little)
    await rig.move()
    assert set(rig.logs.failed_disks) == {rig.ids[0]}
    assert (rig.logs.moves.finished, rig.logs.moves.failed) == (0, 1)


@pytest.mark.parametrize("failing", [0, 1])
async def test_moves_that_wait_for_a_failed_directory_count_as_failed(rig: MoveRig, failing: int) -> None:
    rig.create()
    others = [replace(KEY, index=index) for index in (7, 8)]
    for key in others:
        rig.logs.create(key, "topic", rig.ids[0], SMALL)
    await rig.fill(3)
    await rig.logs.moves.request(dict.fromkeys([KEY, *others], rig.ids[1]))
    await rig.logs.set_aside([others[1]], 5_000)
    rig.disks[failing].full = True
    await rig.run()
    assert set(rig.logs.failed_disks) == {rig.ids[failing]}
    assert (rig.logs.moves.finished, rig.logs.moves.failed, rig.logs.moves.targets) == (0, 2, {})


async def test_a_move_whose_source_fails_after_the_decision_has_failed(rig: MoveRig) -> None:
    rig.create()
    await rig.fill(3)
    log, source = rig.log, rig.logs._directories[rig.ids[0]]

    def fail() -> None:
        if rig.operations[-1] == "rename 1":  # the move is decided
            source.fail(DiskError("I/O error"))

    rig.on_operation = fail
    await rig.move()
    assert (log.directory_id, rig.logs.moves.targets) == (rig.ids[0], {})
    assert (rig.logs.moves.finished, rig.logs.moves.failed) == (0, 1)
    await rig.restart()
    rig.check_moved()


async def test_a_move_whose_directory_fails_does_not_end_a_newer_move(
    rig: MoveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create()
    of_logs, third = rig.logs.moves, uuid4()
    log, target = rig.log, rig.logs._directories[rig.ids[1]]
    of_logs._targets[KEY] = target.id

    async def superseded(_: object) -> bool:
        of_logs._targets[KEY] = third
        target.fail(DiskError("I/O error"))
        raise DiskError("I/O error")

    monkeypatch.setattr(of_logs, "_copy_and_decide", superseded)
    await of_logs._run_move(log, target)
    assert of_logs.targets == {KEY: third}
    of_logs._targets.clear()


async def test_a_log_stays_in_its_directory_if_the_target_is_full_and_the_target_stays_usable(
    rig: MoveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create()
    await rig.fill(5)

    async def little() -> int:
        return 1000

    monkeypatch.setattr(rig.disks[1], "free_bytes", little)
    await rig.move()
    rig.check_moved(0)
    assert (rig.logs.moves.finished, rig.logs.moves.failed) == (0, 1)
    assert not rig.logs.failed_disks
    await rig.restart()
    assert not rig.logs.moves.targets


async def _failed_move(operation: int) -> str | None:
    """Let the target fail at one of its operations, and start again.

    Return the phase in which it failed; None: the log had moved before.
    """
    rig = MoveRig(operation)
    await rig.start()
    try:
        rig.create()
        await rig.fill(3)
        begun = len(rig.operations)
        phase = "copy"

        def fail() -> None:
            nonlocal phase
            if rig.disks[1].full:
                return
            rig.append(b"still")
            done = [one for one in rig.operations[begun:] if one in ("flush 1", "commit 1", "write 1", "sync_dir 1")]
            if len(done) == operation:
                rig.disks[1].full = True
                phase = "after the decision" if "rename 1" in rig.operations else "copy"

        rig.on_operation = fail
        await rig.move()
        rig.on_operation = lambda: None
        if rig.log.directory_id == rig.ids[1]:
            return None
        assert set(rig.logs.failed_disks) == {rig.ids[1]}
        assert (rig.logs.moves.finished, rig.logs.moves.failed) == (0, 1)
        rig.append(b"after the failure")
        await rig.settle()
        assert rig.acknowledged == rig.log.end_offset
        rig.disks[1].full = False
        await rig.restart(power_cut=True)
        assert rig.log.directory_id == rig.ids[0], "the copy of an undone move does not count"
        assert batches_of(rig.log) == rig.appended
        await rig.run()
        rig.check_moved()
        assert batches_of(rig.log) == rig.appended
        return phase
    finally:
        await rig.end()


async def test_a_target_that_fails_leaves_the_source_unharmed() -> None:
    """This also holds after the decision, which the source then undoes."""
    phases: list[str] = []
    while (phase := await _failed_move(len(phases) + 1)) is not None:
        phases.append(phase)
    assert set(phases) == {"copy", "after the decision"}


async def test_a_slow_target_delays_acknowledgements_only_briefly(
    rig: MoveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move, "HOLD_S", 0.02)
    monkeypatch.setattr(moves, "RETRY_S", 0.01)
    rig.create()
    await rig.fill(3)
    original = LogCopy.copy_state
    slow = 3

    async def held(copy: LogCopy) -> None:
        nonlocal slow
        await original(copy)
        if copy.log.durability._is_held and slow > 0:
            slow -= 1
            rig.append(b"must not wait for long")
            await asyncio.sleep(10)

    monkeypatch.setattr(LogCopy, "copy_state", held)
    await rig.move()
    assert slow == 0
    rig.check_moved()
    await rig.settle()
    assert rig.acknowledged == rig.log.end_offset
    await rig.restart(power_cut=True)
    assert batches_of(rig.log) == rig.appended


async def test_a_complete_copy_is_kept_while_the_source_of_its_move_is_offline(rig: MoveRig) -> None:
    rig.create()
    await rig.fill(6)
    rig.on_operation = lambda: setattr(rig, "is_stopped", rig.operations[-1] == "rename 1")  # the move is decided
    await rig.move()
    assert rig.is_stopped
    source, target = rig.disks
    await rig.end()
    rig.is_stopped, rig.on_operation = False, lambda: None
    source.full = True
    await rig.start()
    assert (set(rig.logs.failed_disks), rig.logs.get(KEY)) == ({rig.ids[0]}, None)
    assert target.list("futures") == [FOLDER]
    source.full = False
    await rig.restart()
    rig.check_moved()


@pytest.mark.parametrize("has_records", [True, False])
async def test_a_replica_that_was_created_while_the_source_was_offline_is_not_replaced(
    rig: MoveRig, has_records: bool
) -> None:
    """Seed 710004195: the replica was removed from the broker after the decision, and assigned to the broker again."""
    rig.create()
    await rig.fill(6)
    rig.on_operation = lambda: setattr(rig, "is_stopped", rig.operations[-1] == "rename 1")  # the move is decided
    await rig.move()
    source, target = rig.disks
    await rig.end()
    rig.is_stopped, rig.on_operation = False, lambda: None
    source.full = True
    await rig.start()
    assert target.list("futures") == [FOLDER]
    new = rig.logs.create(KEY, "topic", rig.ids[1], SMALL)
    assert await rig.logs.reset_to(new, 40)
    if has_records:
        append(new, [b"new"], 0)
        await rig.logs.flush_all([new])
    end = new.end_offset
    source.full = False
    await rig.restart()
    assert (rig.log.directory_id, rig.log.start_offset, rig.log.end_offset) == (rig.ids[1], 40, end)
    assert target.list("futures") == []
    assert target.facts.load("future/") == source.facts.load("moving/") == {}


async def test_the_source_remembers_a_decided_move_while_the_target_is_offline(rig: MoveRig) -> None:
    rig.create()
    await rig.fill(6)
    rig.on_operation = lambda: setattr(rig, "is_stopped", rig.operations[-1] == "rename 1")  # the move is decided
    await rig.move()
    assert rig.is_stopped
    await rig.end()
    rig.is_stopped, rig.on_operation = False, lambda: None
    rig.disks[1].full = True
    await rig.start()
    assert (set(rig.logs.failed_disks), rig.logs.get(KEY)) == ({rig.ids[1]}, None)
    assert rig.logs.moved_away(KEY, rig.ids[0]) == rig.ids[1]
    rig.disks[1].full = False
    await rig.restart()
    assert rig.logs.moved_away(KEY, rig.ids[0]) is None
    rig.check_moved()


def _keyed(rig: MoveRig, count: int) -> None:
    """Append records of three keys, so that a cleaning removes most of them."""
    for number in range(count):
        data = bytearray(build_batch([NewRecord(bytes(100), b"%d" % (number % 3), timestamp_ms=0)]))
        assert isinstance(rig.log.append_as_leader(data, 0, 0), Appended)


COMPACTED = LogConfig(
    segment_size_max=600,
    index_interval=150,
    deletes=False,
    compacts=True,
    compaction=CleaningPolicy(min_dirty_ratio=0.0),
)


async def test_a_cleaning_while_a_log_is_copied_is_applied_to_the_copy(
    rig: MoveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(move, "THROTTLE_LOOK_S", 0.01)
    rig.create(COMPACTED)
    _keyed(rig, 40)
    await rig.settle()
    cleaner = LogCleaner(rig.logs, LocalWorker(), CleanerLimits(), lambda: 10_000)
    cleaned: list[asyncio.Task[bool]] = []
    before = rig.log.size

    def clean() -> None:
        if rig.operations.count("write 1") == 12 and not cleaned:
            cleaned.append(asyncio.create_task(cleaner.clean_next()))
            rig.logs.moves.set_rate(0)
            cleaned[0].add_done_callback(lambda _: rig.logs.moves.set_rate(-1))

    rig.on_operation = clean
    await rig.move()
    assert await asyncio.gather(*cleaned) == [True]
    assert not cleaner.uncleanable
    assert rig.log.size < before / 2
    rig.appended = batches_of(rig.log)
    rig.check_moved()
    await rig.restart(power_cut=True)
    rig.check_moved()
    assert batches_of(rig.log) == rig.appended


async def test_a_cleaning_that_began_before_the_decision_of_a_move_is_discarded(
    rig: MoveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.create(COMPACTED)
    _keyed(rig, 40)
    await rig.settle()
    cleaner = LogCleaner(rig.logs, LocalWorker(), CleanerLimits(), lambda: 10_000)
    swap = LogManager.swap_segments

    async def moved_meanwhile(self: LogManager, *arguments: Any) -> bool:
        await rig.move()
        return await swap(self, *arguments)

    monkeypatch.setattr(LogManager, "swap_segments", moved_meanwhile)
    assert await cleaner.clean_next()
    assert cleaner.uncleanable[KEY].cause == "the log changed while it was cleaned"
    monkeypatch.setattr(LogManager, "swap_segments", swap)
    rig.appended = batches_of(rig.log)
    rig.check_moved()
    before = rig.log.size
    cleaner.uncleanable.clear()
    assert await cleaner.clean_next()
    assert not cleaner.uncleanable
    assert rig.log.size < before / 2


async def test_a_stale_index_that_an_append_discards_during_the_decision_is_not_used(
    rig: MoveRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of the index is older than the append, and only the state of the log is written after the move."""
    rig.create(ONE_SEGMENT)
    for _ in range(10):
        append(rig.log, [b"v" * 50])
    await rig.logs.flush_all([rig.log])
    rig.log.advance_high_watermark(5)
    await rig.logs.checkpoint([rig.log])
    rig.log.truncate_to(5)
    rig.acknowledged = 5
    await rig.logs.flush_all([rig.log])
    copy_rest = LogCopy.copy_rest

    def append_before(copy: LogCopy) -> list[DiskFile]:
        append(copy.log, [b"v" * 50], 1, timestamps=[9_000])
        for _ in range(4):
            append(copy.log, [b"v" * 50], 1)
        return copy_rest(copy)

    monkeypatch.setattr(LogCopy, "copy_rest", append_before)
    await rig.move()
    await rig.settle()
    await rig.logs.lower_truncation_floor(rig.log, 9)
    await rig.settle()
    await rig.logs.close()
    rig.logs._tasks.clear()
    await rig.start()
    assert rig.log.directory_id == rig.ids[1]
    assert await rig.log.offset_for_timestamp(5_000, 10) == TimestampOffset(9_000, 5, 1)
