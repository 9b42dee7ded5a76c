"""Moves whose decision was undone because the target failed, and strays that are kept during a decision."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from broker.log.move_facts import UndoneMove, copied_fact, encode_fact, undone_fact
from broker.log.state import state_fact
from tests.unit.broker.log.move_rig import FOLDER, MoveRig, StoppedError
from tests.unit.broker.log.rig import KEY, SMALL, batches_of


async def _undone_move(seed: int = 1) -> MoveRig:
    """The target failed when it already had the facts of the log, so the move was undone; the source has later records.

    The disk of the target works again at the next start.
    """
    rig = MoveRig(seed)
    await rig.start()

    def on_operation() -> None:
        rig.append(b"late")
        rig.disks[1].full = state_fact(FOLDER) in rig.disks[1].facts.load(state_fact(FOLDER))

    rig.create()
    await rig.fill(3)
    rig.on_operation = on_operation
    await rig.move()
    rig.on_operation = lambda: None
    assert set(rig.logs.failed_disks) == {rig.ids[1]}
    assert rig.log.directory_id == rig.ids[0]
    rig.append(b"after the failure")
    await rig.settle()
    assert rig.acknowledged == rig.log.end_offset
    rig.disks[1].full = False
    return rig


@pytest.mark.parametrize("failing", [None, 1, 3])
@pytest.mark.parametrize("later", range(14))
async def test_keeping_strays_does_not_disturb_a_move(failing: int | None, later: int) -> None:
    """Operations are counted from the decision.

    failing: the operation at which the target fails, so that the decision is undone.
    later: the operation at which `keep_strays` begins.
    """
    rig = MoveRig()
    await rig.start()
    keeping: list[asyncio.Task[None]] = []

    def watch() -> None:
        if "rename 1" not in rig.operations:
            return
        after = len(rig.operations) - rig.operations.index("rename 1") - 1
        if after == later:
            keeping.append(asyncio.create_task(rig.logs.keep_strays()))
        rig.disks[1].full = failing is not None and after >= failing

    try:
        rig.create()
        await rig.fill(3)
        rig.on_operation = watch
        await rig.move()
        rig.on_operation = lambda: None
        assert (rig.log.directory_id == rig.ids[0]) is (failing is not None)
        await asyncio.gather(*keeping)
        await rig.logs.keep_strays()
        assert await rig.logs.purge_strays() == (failing is None), "an unfinished stray is not purged"
        assert rig.logs.strays() == []
        rig.disks[1].full = False
        await rig.restart(power_cut=True)
        assert batches_of(rig.log) == rig.appended
        assert {one.directory_id for one in rig.logs.strays()} <= {rig.ids[1]}, "only the copy was set aside"
    finally:
        await rig.end()


@pytest.mark.parametrize("power_cut", [False, True])
async def test_an_interrupted_start_sets_the_copy_of_an_undone_move_aside(power_cut: bool) -> None:
    stop_at, is_stopped = 0, True
    while is_stopped:
        rig = await _undone_move(stop_at + 1)
        try:
            await rig.end()
            for disk in rig.disks:
                disk.crash()
                disk.repaired()
            rig.is_stopped, rig.stop_at = False, len(rig.operations) + stop_at
            with suppress(StoppedError):
                await rig.start()
            is_stopped = rig.is_stopped
            await rig.restart(power_cut=power_cut)
            assert rig.log.directory_id == rig.ids[0]
            assert not rig.logs.doubles
            assert batches_of(rig.log) == rig.appended
            assert rig.disks[0].facts.load("undone/") == {}
            assert [one.folder for one in rig.logs.strays()] == [FOLDER]
            await rig.run()
            rig.check_moved()
            assert batches_of(rig.log) == rig.appended
        finally:
            await rig.end()
        stop_at += 1
    assert stop_at > 10


async def test_an_undone_move_is_remembered_while_its_target_is_offline_and_after_a_cancellation() -> None:
    rig = await _undone_move()
    try:
        await rig.logs.moves.request({KEY: rig.ids[0]})
        await rig.end()
        rig.is_stopped = False
        await rig.start()  # the target fails again, because it was not repaired
        assert set(rig.logs.failed_disks) == {rig.ids[1]}
        await rig.restart()
        assert not rig.logs.doubles
        assert batches_of(rig.log) == rig.appended
        assert not rig.disks[1].list("logs")
    finally:
        await rig.end()


async def test_a_copy_that_a_start_without_the_source_has_used_is_not_set_aside() -> None:
    rig = await _undone_move()
    disks = rig.disks
    try:
        await rig.end()
        for disk in disks:
            disk.crash()
            disk.repaired()
        rig.is_stopped, rig.disks = False, disks[1:]
        await rig.start()  # records of the source are missing, which the controller must judge
        rig.acknowledged = 0
        rig.follow_acknowledgements()
        rig.append(b"only in the target")
        await rig.logs.flush_all([rig.log])
        found = batches_of(rig.log)
        rig.disks = disks
        await rig.restart()
        rig.logs.settle(KEY, rig.ids[1])
        assert batches_of(rig.log) == found
    finally:
        await rig.end()


async def test_a_replica_that_was_created_in_the_target_of_an_undone_move_is_kept() -> None:
    rig = MoveRig()
    await rig.start()
    try:
        rig.logs.create(KEY, "topic", rig.ids[1], SMALL)
        rig.follow_acknowledgements()
        await rig.fill(3)
        await rig.logs.checkpoint([rig.log])
        undone = UndoneMove("an earlier move", FOLDER, rig.ids[1], 1)
        await rig.disks[0].facts.commit({undone_fact(undone.move): encode_fact(undone)})
        await rig.disks[1].facts.commit({copied_fact(FOLDER): b"a later move"})
        await rig.restart()
        assert (rig.log.directory_id, batches_of(rig.log)) == (rig.ids[1], rig.appended)
        assert rig.disks[0].facts.load("undone/") == {}
    finally:
        await rig.end()
