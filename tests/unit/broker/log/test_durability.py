"""Invariants after any end of the process: no uncommitted record is deleted, facts are stored only once records are
durable, and nothing remains of records that no longer exist."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from broker.log import Appended, LogConfig, PartitionLog
from broker.log.state import LogState, watermark_fact
from broker.log.upkeep import LogUpkeep
from broker.replica.context import ReplicaEvents
from broker.replica.watermarks import Watermarks
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.log.rig import KEY, Rig, append, batches_of, fill, stopped_at

FOREVER = 10**9
SMALL = LogConfig(segment_size_max=300, index_interval=100)  # a segment holds three batches of `record`
OLD = LogConfig(segment_size_max=300, retention_ms=1)
LARGE = LogConfig(segment_size_max=300, retention_ms=-1, retention_size=0)


def record(log: PartitionLog, number: int, producer_id: int = 5, epoch: int = 0) -> None:
    appended = append(log, [b"%020d" % number], epoch=epoch, producer=(producer_id, 0, number))
    assert not appended.duplicate


def sequences(log: PartitionLog) -> dict[int, list[int]]:
    """Return, for each producer, the sequences by which a retry is recognised."""
    return {
        producer_id: [recent.base_sequence for recent in producer.recent] for producer_id, producer in log.producers
    }


# Retention


@pytest.mark.parametrize("config", [OLD, LARGE], ids=["old", "large"])
async def test_retention_deletes_whole_segments_of_committed_records_only(rig: Rig, config: LogConfig) -> None:
    log = rig.create(config)
    for number in range(12):
        record(log, number)
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]
    await rig.logs.flush_all([log])
    for watermark, start in ((0, 0), (2, 0), (3, 3), (7, 6), (8, 6), (9, 9)):
        log.advance_high_watermark(watermark)
        assert log.upkeep.retained_start(log.config, FOREVER, FOREVER) == start
        await rig.logs.maintain(stopped_at(0), FOREVER)
        assert log.start_offset == start
        assert log.segments[0].base_offset == start


@pytest.mark.parametrize("config", [OLD, LARGE], ids=["old", "large"])
async def test_retention_deletes_no_records_that_are_not_durable(rig: Rig, config: LogConfig) -> None:
    log = rig.create(config)
    for number in range(12):
        record(log, number)
    log.advance_high_watermark(12)  # a follower may learn of a watermark above its own durable end
    assert log.upkeep.retained_start(log.config, FOREVER, FOREVER) == 0
    await rig.logs.flush_all([log])
    assert log.upkeep.retained_start(log.config, FOREVER, FOREVER) >= 9


async def test_the_log_start_offset_never_passes_the_high_watermark(rig: Rig) -> None:
    log = rig.create(SMALL)
    for number in range(6):
        record(log, number)
    log.advance_high_watermark(4)
    log.advance_start_offset(6)
    assert log.start_offset == 4


async def test_a_segment_is_deleted_only_once_the_new_log_start_is_stored(rig: Rig) -> None:
    log = rig.create(SMALL)
    for number in range(12):
        record(log, number)
    await rig.settle(log)
    log.advance_start_offset(9)
    log.upkeep.remove_below_start()
    assert [segment.base_offset for segment in log.segments] == [0, 3, 6, 9]
    await rig.logs.checkpoint([log])
    assert [segment.base_offset for segment in log.segments] == [9]


# The watermark and the recovery point


class Replica(NamedTuple):
    key: object
    log: PartitionLog


async def test_the_high_watermark_is_stored_only_up_to_the_durable_end_of_the_log(rig: Rig) -> None:
    log = rig.create(SMALL)
    for number in range(4):
        record(log, number)
    await rig.settle(log)
    for number in range(4, 8):
        record(log, number)
    log.advance_high_watermark(8)
    assert log.marks.take_watermark() == 4
    assert log.truncation_floor == 4
    await rig.logs.flush_all([log])
    assert log.marks.take_watermark() == 8
    assert log.truncation_floor == 8


async def test_a_power_cut_between_the_watermark_and_the_flush_takes_no_log_offline(rig: Rig) -> None:
    log = rig.create(LogConfig())
    record(log, 0)
    await rig.settle(log)
    durable = rig.files(log)[0].read_bytes()
    record(log, 1)
    log.advance_high_watermark(2)
    table: Any = SimpleNamespace(context=SimpleNamespace(events=ReplicaEvents()))
    watermarks = Watermarks([rig.disk], table, lambda *_: None)
    replicas: Any = [Replica(KEY, log)]
    changes = watermarks._changes(rig.disk.directory_id, replicas)
    await rig.disk.facts.commit(changes)
    await rig.kill()
    rig.files(log)[0].write_bytes(durable)
    await rig.start()
    assert rig.logs.failures == {}
    assert (rig.log.end_offset, rig.log.high_watermark) == (1, 1)
    assert rig.disk.facts.load("watermark/") == {watermark_fact(KEY): b"1"}


async def test_a_recovery_point_is_never_above_the_durable_and_committed_records(rig: Rig) -> None:
    log = rig.create(LogConfig())
    for number in range(3):
        record(log, number)
    await rig.settle(log)
    record(log, 3)
    log.advance_high_watermark(4)
    assert log.upkeep.take_state().recovery.offset == 3
    await rig.logs.flush_all([log])
    assert log.upkeep.take_state().recovery.offset == 4
    record(log, 4)
    await rig.logs.flush_all([log])
    assert log.upkeep.take_state().recovery.offset == 4


async def test_records_below_the_stored_high_watermark_are_committed_after_a_crash(rig: Rig) -> None:
    log = rig.create(LogConfig())
    for number in range(3):
        record(log, number)
    await rig.settle(log)
    await rig.disk.facts.commit({watermark_fact(KEY): b"2"})
    await rig.restart(clean=False)
    assert (rig.log.end_offset, rig.log.high_watermark) == (3, 2)
    assert rig.log.truncation_floor == 2


# Truncation


async def test_a_truncation_lowers_the_flushed_offset_and_the_high_watermark(rig: Rig) -> None:
    log = rig.create(LogConfig())
    for number in range(6):
        record(log, number)
    await rig.logs.flush_all([log])
    log.advance_high_watermark(4)
    generation = log.durability.generation
    log.truncate_to(2)
    assert (log.end_offset, log.flushed_offset, log.high_watermark) == (2, 2, 2)
    assert log.durability.generation == generation + 1
    record(log, 0, producer_id=6, epoch=1)
    assert log.flushed_offset == 2


async def test_a_flush_that_began_before_a_truncation_does_not_raise_the_flushed_offset(rig: Rig) -> None:
    log = rig.create(LogConfig())
    for number in range(3):
        record(log, number)
    ticket = log.durability.take_ticket()
    log.truncate_to(1)
    for number in range(4):
        record(log, number, producer_id=6, epoch=1)
    log.durability.flush_done(ticket)
    assert log.flushed_offset == 0


@pytest.mark.parametrize("clean", [True, False])
async def test_no_producer_snapshot_outlives_a_truncation(rig: Rig, clean: bool) -> None:
    log = rig.create(SMALL)
    for number in range(12):
        record(log, number)
    await rig.settle(log)
    await rig.logs.lower_truncation_floor(log, 2)
    assert [int(path.stem) for path in rig.files(log, "producers")] == [3, 6, 9]
    log.truncate_to(2)
    assert rig.files(log, "producers") == []
    for number in range(12):
        append(log, [b"%020d" % number], epoch=1)  # without a producer: no new snapshot hides an old one
    assert sequences(log) == {5: [0, 1]}
    await rig.settle(log)
    await rig.restart(clean=clean)
    assert sequences(rig.log) == {5: [0, 1]}
    assert append(rig.log, [b"2"], epoch=1, producer=(5, 0, 2)).duplicate is False


@pytest.mark.parametrize(("watermark", "last"), [(3, []), (8, [0, 1, 2, 3, 4])])
async def test_a_long_uncommitted_tail_does_not_displace_the_producers_below_the_log_start(
    rig: Rig, watermark: int, last: list[int]
) -> None:
    """Simulator seed 730022071: a retry was appended again, because the truncation removed its producer.

    Retention had deleted the producer's records, so only a snapshot still contained the producer.
    """
    log = rig.create(OLD)
    for number in range(3):
        record(log, number)
    await rig.settle(log)
    for number in range(15):
        record(log, number, producer_id=6)
        await rig.logs.maintain(stopped_at(0), FOREVER)
        await rig.logs.checkpoint([log])
    assert log.start_offset == log.segments[0].base_offset == 3
    log.advance_high_watermark(watermark)
    await rig.logs.maintain(stopped_at(0), FOREVER)
    assert log.segments[0].base_offset == watermark // 3 * 3
    log.truncate_to(watermark)
    assert sequences(log) == {5: [0, 1, 2], **({6: last} if last else {})}


async def test_a_log_start_that_passes_all_recovered_records_during_a_checkpoint_drops_no_producer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulator seed 745006708: a producer was refused with OUT_OF_ORDER_SEQUENCE_NUMBER.

    Recovery had read its last record, and no snapshot contained it when its segment was deleted.
    """
    log = rig.create(SMALL)
    record(log, 0)
    await rig.logs.checkpoint([log])
    record(log, 1)
    await rig.settle(log)
    await rig.restart(clean=False)
    log = rig.log
    await rig.settle(log)
    log.advance_start_offset(1)
    prepare = LogUpkeep.prepare_checkpoint

    def prepare_slowly(upkeep: LogUpkeep) -> None:
        prepare(upkeep)
        log.advance_start_offset(2)

    monkeypatch.setattr(LogUpkeep, "prepare_checkpoint", prepare_slowly)
    await rig.logs.checkpoint([log])
    assert not log.segments
    assert sequences(log) == {5: [0, 1]}


async def test_a_log_start_that_passes_records_appended_during_a_checkpoint_drops_no_producer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint has written its snapshot already, and the whole segment is deleted."""
    log = rig.create(SMALL)
    record(log, 0)
    prepare, take = LogUpkeep.prepare_checkpoint, LogUpkeep.take_state

    def prepare_too_early(upkeep: LogUpkeep) -> None:
        prepare(upkeep)
        record(log, 1)

    def take_late(upkeep: LogUpkeep) -> LogState:
        log.advance_high_watermark(2)
        log.advance_start_offset(2)
        return take(upkeep)

    with monkeypatch.context() as patches:
        patches.setattr(LogUpkeep, "prepare_checkpoint", prepare_too_early)
        patches.setattr(LogUpkeep, "take_state", take_late)
        await rig.logs.checkpoint([log])
    await rig.restart(clean=False)
    assert sequences(rig.log) == {5: [0, 1]}
    rig.log.advance_high_watermark(2)
    rig.log.advance_start_offset(2)
    await rig.logs.checkpoint([rig.log])  # the second checkpoint reaches the start
    assert not rig.log.segments
    await rig.restart(clean=False)
    assert rig.log.start_offset == 2
    assert sequences(rig.log) == {5: [0, 1]}


async def test_the_facts_name_a_log_start_only_once_the_snapshot_of_its_producers_is_durable(rig: Rig) -> None:
    """A power failure would remove the snapshot, and the batches below the start would be deleted already."""
    log = rig.create(SMALL)
    for number in range(3):
        record(log, number)
    await rig.settle(log)
    log.advance_start_offset(3)
    assert log.upkeep.take_state().start_offset == 0
    record(log, 3)  # a new segment begins, and the snapshot is written to the page cache
    assert [path.stem.lstrip("0") for path in rig.files(log, "producers")] == ["3"]
    assert log.upkeep.take_state().start_offset == 0
    await rig.logs.flush_all([log])
    assert log.upkeep.take_state().start_offset == 3


async def test_a_good_snapshot_of_an_earlier_process_is_flushed_and_not_replaced(rig: Rig) -> None:
    """Facts may depend on it: a power failure after its removal would leave no state of the producers."""
    log = rig.create(SMALL)
    record(log, 0)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    await rig.restart(clean=False)
    log = rig.log
    (path,) = rig.files(log, "producers")
    before = path.with_suffix(".before")
    before.hardlink_to(path)
    log.upkeep.prepare_checkpoint()
    assert path.samefile(before)
    assert path.name in {Path(file.path).name for file in log.durability.take_ticket().files}


async def test_a_torn_snapshot_at_the_end_of_the_log_is_written_again(rig: Rig) -> None:
    log = rig.create(SMALL)
    record(log, 0)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    await rig.kill()
    (path,) = rig.files(log, "producers")
    path.write_bytes(path.read_bytes()[:-1])
    await rig.start()
    await rig.settle(rig.log)
    rig.log.advance_start_offset(1)
    await rig.logs.checkpoint([rig.log])
    assert not rig.log.segments
    await rig.restart(clean=False)
    assert sequences(rig.log) == {5: [0]}


async def test_a_truncation_forgets_the_snapshots_above_the_new_end(rig: Rig) -> None:
    log = rig.create(SMALL)
    record(log, 0)
    await rig.settle(log)
    record(log, 1)
    await rig.logs.checkpoint([log])
    assert log.marks.snapshot_offset == 2
    log.truncate_to(1)
    log.advance_start_offset(1)
    assert log.upkeep.take_state().start_offset == 0
    log.upkeep.prepare_checkpoint()
    await rig.logs.flush_all([log])
    assert log.upkeep.take_state().start_offset == 1


async def test_a_snapshot_that_a_truncation_removed_before_its_flush_does_not_count(rig: Rig) -> None:
    log = rig.create(SMALL)
    record(log, 0)
    await rig.settle(log)
    record(log, 1)
    log.upkeep.prepare_checkpoint()
    log.truncate_to(1)
    await rig.logs.flush_all([log])
    assert log.marks.snapshot_offset == -1


async def test_after_a_truncation_the_state_at_the_same_end_is_written_again(rig: Rig) -> None:
    log = rig.create(SMALL)
    record(log, 0)
    await rig.settle(log)
    record(log, 1)
    log.upkeep.prepare_checkpoint()
    log.truncate_to(1)
    record(log, 0, producer_id=6)
    assert not rig.files(log, "producers")
    log.upkeep.prepare_checkpoint()
    await rig.logs.flush_all([log])
    assert log.marks.snapshot_offset == 2


async def test_after_a_reset_no_snapshot_of_the_former_log_counts(rig: Rig) -> None:
    log = rig.create(SMALL)
    for number in range(6):
        record(log, number)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    assert await rig.logs.reset_to(log, 1)
    batch = make_batch([b"x" * 20], base_offset=1, leader_epoch=1)
    assert isinstance(log.append_as_follower(batch, 1, 0), Appended)
    await rig.settle(log)
    log.advance_start_offset(2)
    assert log.upkeep.take_state().start_offset == 1


async def test_a_snapshot_from_before_a_hold_counts_after_it(rig: Rig) -> None:
    log = rig.create(SMALL)
    record(log, 0)
    await rig.settle(log)
    await rig.logs.checkpoint([log])
    log.durability.hold()
    log.durability.release()
    assert log.marks.snapshot_offset == 1


async def test_a_snapshot_counts_if_it_was_flushed_while_flushes_were_held_back(rig: Rig) -> None:
    """Otherwise the start of a log whose move failed would not reach the facts before another append."""
    log = rig.create(SMALL)
    record(log, 0)
    await rig.settle(log)
    log.durability.hold()
    log.upkeep.prepare_checkpoint()
    await rig.logs.flush_all([log])
    assert log.marks.snapshot_offset == -1
    log.durability.release()
    assert log.marks.snapshot_offset == 1


async def test_a_snapshot_counts_if_two_flushes_ended_while_a_reset_was_being_written(rig: Rig) -> None:
    log = rig.create(SMALL)
    record(log, 0)
    await rig.settle(log)
    with log.durability.changing_fact():
        log.upkeep.prepare_checkpoint()
        await rig.logs.flush_all([log])
        record(log, 1)
        await rig.logs.flush_all([log])
    assert log.marks.snapshot_offset == 1


async def test_no_producer_snapshot_outlives_the_records_that_a_crash_removed(rig: Rig) -> None:
    log = rig.create(SMALL)
    for number in range(6):
        record(log, number)
    await rig.logs.flush_all([log])
    assert [int(path.stem) for path in rig.files(log, "producers")] == [3]
    (first, second) = rig.files(log)
    await rig.kill()
    second.unlink()
    first.write_bytes(first.read_bytes()[:-1])
    await rig.start()
    assert rig.log.end_offset == 2
    assert rig.files(rig.log, "producers") == []
    for number in range(4):
        append(rig.log, [b"%020d" % number], epoch=1)
    await rig.settle(rig.log)
    await rig.restart(clean=False)
    assert sequences(rig.log) == {5: [0, 1]}


async def test_no_producer_snapshot_outlives_a_reset_of_the_log(rig: Rig) -> None:
    log = rig.create(SMALL)
    for number in range(6):
        record(log, number)
    await rig.settle(log)
    assert await rig.logs.reset_to(log, 1)
    assert rig.files(log, "producers") == []
    batches = [make_batch([b"x" * 20], base_offset=1 + number, leader_epoch=1) for number in range(6)]
    for batch in batches:
        assert isinstance(log.append_as_follower(batch, 1, 0), Appended)
    await rig.settle(log)
    await rig.restart(clean=False)
    assert batches_of(rig.log) == batches
    assert sequences(rig.log) == {}


@pytest.mark.parametrize("config", [SMALL, replace(SMALL, write_caching=True)], ids=["flushed", "write.caching"])
async def test_a_log_counts_as_truncating_until_the_truncation_is_durable(rig: Rig, config: LogConfig) -> None:
    log = rig.create(config)
    fill(log, 10)
    await rig.logs.flush_all([log])
    reported: asyncio.Queue[int] = asyncio.Queue()
    log.durability.on_flushed = lambda: reported.put_nowait(log.marks.durable_offset)
    log.truncate_to(5)
    end_offset = log.end_offset
    assert (log.is_settled, log.durability.is_truncating) == (False, True)
    async with asyncio.timeout(20):  # nothing requests a flush
        assert await reported.get() == end_offset
    assert log.is_settled


async def test_a_truncation_by_a_recovery_is_pending_until_it_is_durable(rig: Rig) -> None:
    fill(rig.create(), 10)
    await rig.kill()
    await rig.start()
    assert rig.log.durability.is_truncating
    await rig.logs.flush_all([rig.log])
    assert rig.log.is_settled
