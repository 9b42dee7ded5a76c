"""Compaction of whole logs, and a crash at each step of a swap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from broker.core.transactions import Marker, ProducerKey
from broker.log import Appended, LogConfig, LogManager
from broker.log.cleaner import CleanerLimits, LogCleaner
from broker.log.cleaning.job import CleanJob, Finished, Replacement, run_job
from broker.log.cleaning.ports import LocalWorker, WorkerError
from broker.log.cleaning.records import filler
from broker.log.cleaning.swap import BadReplacementError
from quorumlog.client.records import NewRecord, build_batch, stamp
from quorumlog.runtime.disk import Disk, DiskError
from quorumlog.wire.control_records import EndTxnMarker, build_marker
from quorumlog.wire.record_batch import (
    TRANSACTIONAL_FLAG,
    Codec,
    iter_headers,
    parse_header,
    patch,
    seal,
)
from simulation.kernel.disk import DiskImage
from simulation.kernel.loop import SimulatedLoop
from tests.contract.conftest import run_simulated
from tests.unit.broker.core.test_transactions import confirmed
from tests.unit.broker.log.compaction_rig import CompactionRig, batch_at, read_all, records_of


def simulated(seed: int = 1, **options: Any) -> Callable[[Callable[[CompactionRig], Awaitable[None]]], None]:
    def run(scenario: Callable[[CompactionRig], Awaitable[None]]) -> None:
        async def whole() -> None:
            rig = CompactionRig(seed, **options)
            await rig.start()
            await scenario(rig)
            await rig.logs.close()

        run_simulated(whole)

    return run


# A whole log


def test_an_idle_log_is_compacted_once_its_active_segment_is_old() -> None:
    async def scenario(rig: CompactionRig) -> None:
        for value in (b"1", b"2", b"3"):
            rig.append((b"a", value))
        await rig.settle()
        assert not await rig.clean()
        rig.log.roll_aged(0)
        assert not await rig.clean()
        rig.log.roll_aged(rig.config.segment_age_max_ms)
        await rig.settle()
        assert await rig.clean()
        assert [one.value for one in records_of(rig.log)] == [b"3"]
        for how in ("power cut", "clean"):
            await (rig.stop_and_start() if how == "clean" else rig.crash(how))
            rig.append((b"a", b"4"))
            await rig.settle()
            rig.check()

    simulated(segment_size=3_000)(scenario)


def test_compacted_segments_leave_no_appends_in_memory() -> None:
    async def scenario(rig: CompactionRig) -> None:
        for _ in range(30):
            rig.append((b"a", bytes(100)))
        await rig.settle()
        recent, replaced = rig.logs._recent, list(rig.log.segments[:-1])
        assert any(recent.find(segment, 0, 1) is not None for segment in replaced)
        await rig.clean()
        assert not any(one in replaced for one in rig.log.segments)
        assert not any(recent.find(segment, 0, 1) is not None for segment in replaced)

    simulated()(scenario)


def test_a_follower_whose_log_ends_within_a_filler_batch_continues_with_the_leaders_log() -> None:
    async def scenario(rig: CompactionRig) -> None:
        for _ in range(30):
            rig.append((b"a", bytes(100)))
        await rig.settle()
        before = read_all(rig.log)
        await rig.clean()
        assert parse_header(read_all(rig.log)).record_count == 0
        header = parse_header(rig.log.read(2, 1, 30))
        assert (header.base_offset, header.end_offset) == (2, parse_header(read_all(rig.log)).end_offset)
        for _ in range(5):
            rig.check_follower(before)

    simulated()(scenario)


def test_retention_deletes_nothing_unless_the_policy_contains_delete() -> None:
    async def scenario(rig: CompactionRig) -> None:
        for number in range(30):
            rig.append((b"%d" % number, bytes(100)))
        await rig.settle()
        for deletes, start in ((False, 0), (True, 30)):
            rig.log.config = LogConfig(
                segment_size_max=600, compacts=True, deletes=deletes, retention_ms=1, retention_size=0
            )
            assert rig.log.upkeep.retained_start(rig.log.config, 10**9, 10**9) == start

    simulated()(scenario)


def test_a_marker_of_an_earlier_epoch_does_not_prevent_a_cleaning() -> None:
    """A producer begins an epoch with its next batch.  Its last marker, which is kept, has the previous epoch."""

    async def scenario(rig: CompactionRig) -> None:
        transaction = bytearray(batch_at(0, (b"a", bytes(100)), producer=1))
        header = parse_header(transaction)
        seal(transaction, header._replace(attributes=header.attributes | TRANSACTIONAL_FLAG))
        token = confirmed(rig.log.producers, 1)
        assert isinstance(rig.log.append_as_leader(bytes(transaction), 0, 0, token), Appended)
        assert isinstance(rig.log.append_marker(Marker(ProducerKey(1, 0), True, 0), 1_000, 0, 0), Appended)
        later = bytearray(batch_at(0, (b"a", bytes(100))))
        stamp(later, 1, 1, 0)
        assert isinstance(rig.log.append_as_leader(bytes(later), 0, 0), Appended)
        for _ in range(20):
            rig.append((b"b", bytes(100)))
        await rig.settle()
        assert await rig.clean()
        assert not rig.cleaner.uncleanable
        assert rig.log.marks.cleaned_offset > 3
        [marker] = [header for _, header in iter_headers(read_all(rig.log)) if header.is_control]
        assert (marker.base_offset, marker.producer_epoch) == (1, 0)

    simulated()(scenario)


@pytest.mark.parametrize("problem", ["lacks the last marker of a producer", "has a marker of producer 2"])
def test_a_replacement_without_the_last_marker_of_a_producer_is_refused(problem: str) -> None:
    async def scenario(rig: CompactionRig) -> None:
        for _ in range(20):
            rig.append((b"b", bytes(100)))
        await rig.settle()
        log = rig.log
        dirty = log.compaction.dirty(log.config, rig.wall_ms)
        planned = log.compaction.plan(log.config, dirty, rig.wall_ms, 1_000)
        replacement = next(one for one in run_job(planned.job, rig.disk) if isinstance(one, Replacement))
        file = rig.disk.open(replacement.path)
        file.truncate(0)
        end = replacement.end_offset
        if problem == "has a marker of producer 2":
            marker = build_marker(EndTxnMarker(True, 0), 2, 0, 1_000)
            patch(marker, 0, 0)
            file.append(bytes(marker) + filler(1, end, 0))
        else:
            file.append(filler(0, end, 0))
        planned = planned._replace(producers={}, markers={0: 1})
        replaced = log.compaction.replaced(planned, replacement)
        assert replaced is not None
        with pytest.raises(BadReplacementError, match=problem):
            for _ in log.compaction.check(planned, replacement, replaced, 4096):
                pass

    simulated()(scenario)


def test_a_log_that_was_truncated_below_its_clean_part_is_dirty_again() -> None:
    async def scenario(rig: CompactionRig) -> None:
        for number in range(30):
            rig.append((b"%d" % (number % 3), bytes(100)))
        await rig.settle()
        await rig.clean()
        assert rig.log.marks.cleaned_offset > 10
        await rig.logs.lower_truncation_floor(rig.log, 10)
        assert rig.log.marks.cleaned_offset <= 10  # so that it is not above the end of the log after a crash
        rig.log.truncate_to(10)
        assert rig.log.marks.cleaned_offset <= 10
        assert rig.log.compaction.dirty(rig.config, 0).start <= 10

    simulated()(scenario)


def test_a_truncation_during_a_swap_loses_no_later_append() -> None:
    """The log ends with the segment whose replacement is swapped in; the next append begins another segment."""

    async def scenario(rig: CompactionRig) -> None:
        for value in (b"1", b"2", b"3"):
            rig.append((b"a", value))
        await rig.settle()
        rig.log.roll_aged(rig.config.segment_age_max_ms)
        rig.append((b"b", b"4"))  # not committed
        await rig.logs.flush_all([rig.log])
        rig.limit = 3
        commit = rig.disk.facts.commit

        async def truncated_meanwhile(changes: dict[str, bytes | None]) -> None:
            await commit(changes)
            if rig.log.end_offset == 4 and any(b'"swapping":[0]' in (one or b"") for one in changes.values()):
                rig.log.truncate_to(3)
                del rig.records[3:], rig.headers[3:]
                rig.append((b"c", b"5"))
                await asyncio.sleep(0)

        rig.disk.facts.commit = truncated_meanwhile  # type: ignore[method-assign]
        await rig.clean()
        rig.disk.facts.commit = commit  # type: ignore[method-assign]
        await rig.settle()
        assert [one.value for one in records_of(rig.log)] == [b"3", b"5"]
        await rig.crash("kill")
        assert [one.value for one in records_of(rig.log)] == [b"3", b"5"]

    simulated(segment_size=3_000)(scenario)


def test_an_uncleanable_log_is_reported_and_left_unchanged() -> None:
    async def scenario(rig: CompactionRig) -> None:
        for number in range(30):
            rig.append((b"%d" % (number % 3), bytes(100)))
        await rig.settle()
        before = read_all(rig.log)
        (path,) = [one for one in rig.disk._files if one.endswith(f"/{0:020d}.log")]
        del rig.disk._files[path].content[100:]
        assert await rig.cleaner.clean_next()
        blocked = rig.cleaner.uncleanable[rig.log.key]
        assert not blocked.is_final
        assert "bytes instead of" in blocked.cause
        assert not await rig.cleaner.clean_next()
        rig.disk._files[path].content += rig.disk._files[path].flushed[100:]
        assert read_all(rig.log) == before

    simulated()(scenario)


def test_the_longest_wait_counts_from_the_first_check_that_finds_a_log_due() -> None:
    class BrokenWorker(LocalWorker):
        async def run(self, disk: Disk, job: CleanJob) -> AsyncGenerator[Replacement | Finished, None]:
            raise WorkerError("no process")
            yield Finished(0, 0)  # makes this an iterator

    async def scenario(rig: CompactionRig) -> None:
        assert (rig.cleaner.dirty_bytes(), rig.cleaner.due(), rig.cleaner.longest_wait_ms()) == (0, 0, 0)
        rig.cleaner._worker = BrokenWorker()
        for number in range(30):
            rig.append((b"%d" % (number % 3), bytes(100)))
        await rig.settle()
        assert await rig.clean()
        assert rig.cleaner.failed_jobs == 1
        assert rig.cleaner.uncleanable[rig.log.key].cause == "no process"
        assert (rig.cleaner.due(), rig.cleaner.longest_wait_ms()) == (
            1,
            0,
        )  # the wait of a log whose cleaning failed is not measured
        assert rig.cleaner.dirty_bytes() > 1_000
        assert not await rig.clean()
        rig.cleaner.uncleanable.clear()
        await asyncio.sleep(7)
        assert rig.cleaner.longest_wait_ms() >= 7_000
        assert rig.cleaner.seconds_since_last() is None
        rig.cleaner._worker = LocalWorker()
        assert await rig.clean()
        assert (rig.cleaner.due(), rig.cleaner.longest_wait_ms(), rig.cleaner.dirty_bytes()) == (0, 0, 0)
        assert rig.cleaner.seconds_since_last() == 0

    simulated()(scenario)


def test_the_cleaning_of_a_log_with_invalid_records_is_retried_after_an_hour() -> None:
    async def scenario(rig: CompactionRig) -> None:
        batch = bytearray(build_batch([NewRecord(b"a", b"1", timestamp_ms=1)]))
        header = parse_header(batch)
        batch += b"gap"
        seal(batch, header._replace(attributes=int(Codec.ZSTD), batch_length=header.batch_length + 3))
        rig.log.append_as_leader(bytes(batch), 0, 0)
        for _ in range(30):
            rig.append((b"a", bytes(100)))
        await rig.settle()
        before = read_all(rig.log)
        assert await rig.clean()
        assert rig.cleaner.uncleanable[rig.log.key].is_final
        await asyncio.sleep(3_599)
        assert not await rig.clean()
        await asyncio.sleep(2)
        assert await rig.clean()
        assert rig.cleaner.failed_jobs == 2
        assert read_all(rig.log) == before

    simulated()(scenario)


# A crash at each step of a swap


STEPS_OF_A_SWAP = 10


class CrashError(BaseException):
    pass


class CrashingDisk:
    """Ends the process before the operation with a given number that changes the disk."""

    def __init__(self, rig: CompactionRig, at: int, how: str) -> None:
        self.image: DiskImage | None = None
        self.count = 0
        self._rig, self._at, self._how = rig, at, how
        disk = rig.disk
        for owner, name in (
            *((disk, name) for name in ("rename", "remove")),
            *((owner, name) for owner, name in ((disk, "flush"), (disk, "sync_dir"), (disk.facts, "commit"))),
        ):
            setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            if self.image is None and self.count == self._at:
                if self._how == "power cut":
                    self._rig.disk.crash()
                self.image = self._rig.disk.image()
            if self.image is not None:
                raise CrashError
            self.count += 1
            return call(*arguments)

        return counted


async def crashes_while_cleaning(rig: CompactionRig, step: int, how: str) -> bool:
    """Clean once, with a crash and a restart before this step.  Return False if there are fewer steps."""
    crashing = CrashingDisk(rig, step, how)
    task = asyncio.get_running_loop().create_task(rig.cleaner.clean_next())
    done, _ = await asyncio.wait([task], timeout=60)
    for name in ("rename", "remove", "flush", "sync_dir"):
        delattr(rig.disk, name)
    del rig.disk.facts.commit
    if crashing.image is None:
        assert done
        assert task.result()
        return False
    await rig.end(crashing.image, task)
    rig.note_cleaned()
    return True


@pytest.mark.parametrize("how", ["kill", "power cut"])
def test_a_swap_that_was_finished_at_a_start_is_not_repeated_at_the_next_start(how: str) -> None:
    """The file of the next swap may exist under the same name, although that swap is not decided yet."""

    async def scenario(rig: CompactionRig, first: int, second: int) -> None:
        await rig.start()
        for number in range(12):
            rig.append((b"%d" % (number % 3), bytes(100)))
        await rig.settle()
        rig.limit = rig.log.compaction.dirty(rig.config, rig.wall_ms).limit
        for step in (first, second):
            await crashes_while_cleaning(rig, step, how)
            rig.check()
        await rig.logs.close()

    for first in range(STEPS_OF_A_SWAP):
        for second in range(2 * STEPS_OF_A_SWAP):
            run_simulated(partial(scenario, CompactionRig(4, segment_size=300), first, second))


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize("how", ["kill", "power cut"])
def test_a_crash_at_any_step_of_a_swap_loses_no_record(how: str, torn: bool) -> None:
    steps = 0

    async def scenario(rig: CompactionRig) -> bool:
        await rig.start()
        for _ in range(20):
            rig.append_random()
        await rig.settle()
        for _ in range(20):
            rig.append_random()
        await rig.settle()
        rig.limit = rig.log.compaction.dirty(rig.config, rig.wall_ms).limit
        if not await crashes_while_cleaning(rig, steps, how):
            return False
        rig.check()
        assert not [one for one in rig.disk._files if one.endswith((".swap", ".cleaned"))]
        await rig.settle()
        assert await rig.clean() or not rig.log.compaction.dirty(rig.config, rig.wall_ms).dirty_size
        rig.check()
        named = {segment.path for segment in rig.log.segments if segment.size}
        assert {one for one in rig.disk._files if one.endswith(".log")} == named
        await rig.stop_and_start()
        rig.check()
        await rig.logs.close()
        return True

    goes_on = True

    async def once() -> None:
        nonlocal goes_on
        goes_on = await scenario(CompactionRig(4, torn=torn))

    while goes_on:
        run_simulated(once)
        steps += 1
    assert steps > 20


def test_logs_of_a_failed_directory_are_not_chosen_for_cleaning() -> None:
    """Such logs stay in `logs`, so the cleaner could choose them again and again, without a pause."""

    async def scenario(rig: CompactionRig) -> None:
        for number in range(60):
            rig.append((b"k%d" % (number % 3), b"x" * 50))
        await rig.settle()
        assert await rig.cleaner._look() is rig.log
        rig.logs.disk_failed(rig.log.directory_id, DiskError("fsync failed"))
        assert rig.logs.get(rig.log.key) is rig.log
        assert not await rig.cleaner.clean_next()

    simulated()(scenario)


def test_a_log_that_was_reset_since_it_was_chosen_is_not_cleaned() -> None:
    async def scenario(rig: CompactionRig) -> None:
        for number in range(60):
            rig.append((b"k%d" % (number % 3), b"x" * 50))
        await rig.settle()
        chosen = await rig.cleaner._look()
        assert chosen is rig.log
        assert await rig.logs.reset_to(chosen, 10_000)
        await rig.cleaner._clean(chosen)
        assert (rig.cleaner.failed_jobs, rig.log.start_offset) == (0, 10_000)

    simulated()(scenario)


def test_the_error_of_a_swap_that_continues_after_a_cancel_is_retrieved() -> None:
    """Otherwise a broker that stops while a disk fails logs a traceback.  Seed 720100096."""

    async def test() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        rig = CompactionRig(1)
        await rig.start()
        for _ in range(40):
            rig.append_random()
        await rig.settle()
        cleaning = asyncio.ensure_future(rig.cleaner.clean_next())
        while rig.cleaner._swap is None:  # noqa: ASYNC110 -- nothing reports it
            await asyncio.sleep(0.0001)
        rig.disk.fails = True
        cleaning.cancel()
        await asyncio.gather(cleaning, return_exceptions=True)
        await rig.cleaner.close()
        assert list(rig.logs.failed_disks) == [rig.disk.directory_id]
        assert not loop.unheard_errors()

    run_simulated(test)


async def test_close_raises_the_broken_invariant_of_the_last_swap() -> None:
    cleaner = LogCleaner(LogManager([]), LocalWorker(), CleanerLimits(), lambda: 0)
    cleaner._swap = asyncio.create_task(broken_swap())
    with pytest.raises(AssertionError, match="segments have changed"):
        await cleaner.close()


async def broken_swap() -> bool:
    raise AssertionError("segments have changed")
