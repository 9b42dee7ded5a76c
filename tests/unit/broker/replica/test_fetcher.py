"""A follower and the replies of its leader."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from broker.core.fetch_session import FULL_FETCH_NEW_SESSION
from broker.kafka.api import FetchPartition, ForgottenPartition
from broker.log import PartitionLog
from broker.replica import fetcher as fetchers
from broker.replica.replica import Replica
from quorumlog.errors import ClusterError
from quorumlog.runtime.disk import DiskError, DiskFile
from quorumlog.wire.errors import ApiError, KafkaCode
from quorumlog.wire.kafka import fetch as wire
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import Rig, hanging_commits, running

WAIT_S = 30


async def test_a_follower_fetches_only_from_its_durable_end(rig: Rig) -> None:
    """A fetch offset is an acknowledgement."""
    await rig.create((2, 1))
    await rig.reply(2, make_batch((b"a",), leader_epoch=0))
    assert rig.log.append_as_follower(make_batch((b"b",), base_offset=1, leader_epoch=0), 0, 0)[:2] == (1, 2)
    assert rig.log.flushed_offset == 1
    rig.fetcher(2).add(rig.hosted())
    assert rig.target(2) is None
    await rig.role.logs.flush_all([rig.log])
    target = rig.target(2)
    assert target is not None
    assert target.offset == 2


async def test_a_truncation_lowers_the_high_watermark(rig: Rig) -> None:
    """Otherwise the watermark would be above the end of the log, and cover records that are appended later."""
    await rig.create((2, 1, 3))
    for offset, value in enumerate((b"a", b"b", b"c")):
        await rig.reply(2, make_batch((value,), base_offset=offset, leader_epoch=0), high_watermark=3)
    await rig.change(leader=3, isr=(3,))
    await rig.reply(3, diverging_epoch=0, diverging_end=1, high_watermark=9)
    follower = rig.hosted().follower
    assert follower is not None
    assert (rig.log.end_offset, rig.log.high_watermark, follower.high_watermark) == (1, 1, 1)
    await rig.reply(3, make_batch((b"x",), base_offset=1, leader_epoch=1), high_watermark=1)
    assert (follower.high_watermark, rig.log.high_watermark) == (1, 1), "the new record is not committed yet"


async def test_a_follower_advances_its_log_start_with_its_leader_but_keeps_uncommitted_records(rig: Rig) -> None:
    await rig.create((2, 1))
    await rig.reply(2, make_batch((b"a",), leader_epoch=0), high_watermark=1)
    await rig.reply(2, make_batch((b"b",), base_offset=1, leader_epoch=0), high_watermark=2)
    await rig.reply(2, high_watermark=2, log_start_offset=1)
    assert rig.log.start_offset == 1
    await rig.reply(2, make_batch((b"c",), base_offset=2, leader_epoch=0), high_watermark=2, log_start_offset=2)
    assert rig.log.start_offset == 2
    await rig.reply(2, high_watermark=2, log_start_offset=3)
    assert rig.log.start_offset == 2, "records that may be uncommitted are kept"
    await rig.reply(2, high_watermark=3, log_start_offset=3)
    assert rig.log.start_offset == 3


async def test_batches_that_do_not_continue_the_log_are_skipped(rig: Rig) -> None:
    await rig.create((2, 1))
    await rig.reply(2, make_batch((b"a",), base_offset=5, leader_epoch=0), high_watermark=6)
    assert (rig.log.end_offset, rig.log.high_watermark) == (0, 0)
    assert rig.target(2) is None, "the partition is fetched again after a pause"


async def test_a_refused_replica_reports_its_position_again(rig: Rig) -> None:
    """The leader had not applied its election yet.  Without the position, it would remove this replica from the ISR."""
    await rig.create((2, 1))
    await rig.reply(2, error_code=int(KafkaCode.NOT_LEADER_OR_FOLLOWER))
    position = rig.target(2)
    assert position is None, "the partition is fetched again after a pause"
    fetcher, partition = rig.fetcher(2), rig.hosted().partition
    fetcher._end_delay(partition)  # no request was sent in the meantime
    again = fetcher._session.build()
    assert [(each, one.offset) for each, one in again.targets] == [(partition, 0)]


async def test_a_wait_for_a_reply_ends_immediately_if_a_reply_or_a_new_position_already_exists(rig: Rig) -> None:
    """A new position or a reply may arrive between two waits, and is not signalled again."""
    await rig.create((2, 1))
    fetcher = rig.fetcher(2)
    reply: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
    assert fetcher._session.has_news
    async with asyncio.timeout(WAIT_S):
        await fetcher._reply_or_news(reply)
    fetcher._session.build()
    assert not fetcher._session.has_news
    reply.set_result(memoryview(b""))
    async with asyncio.timeout(WAIT_S):
        await fetcher._reply_or_news(reply)


async def test_a_replica_that_becomes_leader_leaves_its_fetcher(rig: Rig) -> None:
    await rig.create((2, 1))
    await rig.reply(2, make_batch((b"a",), leader_epoch=0), high_watermark=1)
    fetcher = rig.fetcher(2)
    hosted: Replica = rig.hosted()
    await rig.change(leader=1)
    assert hosted.partition not in fetcher._replicas
    assert (rig.log.end_offset, rig.leader.leader_epoch) == (1, 1)
    assert (await rig.fetch(2, 1, 0)).error_code == KafkaCode.NONE


async def test_a_truncation_across_segments_is_prepared(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a power failure during the truncation could take the replica offline."""
    prepared: list[tuple[int, int]] = []
    prepare = rig.role.logs.prepare_truncation

    async def noted(log: PartitionLog, offset: int) -> None:
        await prepare(log, offset)
        prepared.append((offset, log.end_offset))

    monkeypatch.setattr(rig.role.logs, "prepare_truncation", noted)
    await rig.create((2, 1, 3))
    for offset, value in enumerate((b"a", b"b", b"c")):
        await rig.reply(2, make_batch((value,), base_offset=offset, leader_epoch=0))
    await rig.change(leader=3, isr=(3,))
    await rig.reply(3, diverging_epoch=0, diverging_end=1)
    assert (prepared, rig.log.end_offset) == ([(1, 3)], 1)


async def test_a_truncation_is_postponed_to_the_next_reply_if_the_truncation_floor_rises(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The watermark may be saved while the truncation is prepared."""
    prepare = rig.role.logs.prepare_truncation
    await rig.create((2, 1, 3))
    for offset, value in enumerate((b"a", b"b", b"c")):
        await rig.reply(2, make_batch((value,), base_offset=offset, leader_epoch=0), high_watermark=3)
    await rig.role.logs.flush_all([rig.log])

    async def saved_meanwhile(log: PartitionLog, offset: int) -> None:
        await prepare(log, offset)
        log.marks.truncation_floor = 3

    with monkeypatch.context() as context:
        context.setattr(rig.role.logs, "prepare_truncation", saved_meanwhile)
        await rig.change(leader=3, isr=(3,))
        await rig.reply(3, diverging_epoch=0, diverging_end=1)
    assert rig.log.end_offset == 3
    await rig.reply(3, diverging_epoch=0, diverging_end=1)
    assert rig.log.end_offset == 1


async def diverging(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Have the follower truncate its log from offset 3 to 1; its disk flushes nothing until the event is set."""
    await rig.create((2, 1, 3))
    for offset, value in enumerate((b"a", b"b", b"c")):
        await rig.reply(2, make_batch((value,), base_offset=offset, leader_epoch=0))
    await rig.role.logs.flush_all([rig.log])
    disk, may_flush = rig._disks[0], asyncio.Event()
    flush = disk.flush

    async def gated(files: Iterable[DiskFile], folders: Iterable[str] = ()) -> None:
        await may_flush.wait()
        await flush(files, folders)

    monkeypatch.setattr(disk, "flush", gated)
    await rig.change(leader=3, isr=(3, 1))
    await rig.reply(3, diverging_epoch=0, diverging_end=1, flush=False)
    assert rig.log.end_offset == 1
    return may_flush


async def test_a_follower_fetches_again_once_its_truncation_is_durable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power failure could keep new records beside records that were truncated."""
    may_flush = await diverging(rig, monkeypatch)
    before = rig.target(3)
    assert before is None
    may_flush.set()
    await rig.role.logs.flush_all([rig.log])
    after = rig.target(3)
    assert after is not None
    assert after.offset == 1


async def test_a_new_leader_refuses_produces_until_its_truncation_is_durable(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker is elected before the truncation is durable."""
    may_flush = await diverging(rig, monkeypatch)
    await rig.change(leader=1, isr=(1,))
    produced = rig.produce(b"new")
    assert produced.done(), "the produce is refused immediately"
    refused = produced.result()
    assert (refused.error_code, refused.leader_id) == (KafkaCode.NOT_LEADER_OR_FOLLOWER, 1)
    assert rig.log.end_offset == 1
    may_flush.set()
    await rig.role.logs.flush_all([rig.log])
    assert (await rig.produce(b"new")).error_code == KafkaCode.NONE


async def test_repeated_refusals_of_batches_share_one_back_off(rig: Rig) -> None:
    await rig.create((2, 1))
    bad = bytearray(make_batch((b"a",), leader_epoch=0))
    bad[-1] ^= 1
    fetcher, partition = rig.fetcher(2), rig.hosted().partition
    await rig.reply(2, bytes(bad))
    first = fetcher._refusals[partition]
    fetcher._end_delay(partition)
    await rig.reply(2, bytes(bad))
    assert fetcher._refusals[partition] is first, "the same back-off continues, with a longer pause"
    fetcher._end_delay(partition)
    await rig.reply(2, make_batch((b"a",), leader_epoch=0))
    assert partition not in fetcher._refusals


@pytest.mark.parametrize(
    "reply",
    [
        {"diverging_epoch": 0, "diverging_end": 1},
        {"error_code": int(KafkaCode.OFFSET_OUT_OF_RANGE), "log_start_offset": 9},
    ],
)
async def test_a_replica_that_gets_another_leader_while_its_log_is_truncated_leaves_its_fetcher(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, reply: dict[str, Any]
) -> None:
    """Otherwise the fetcher of the former leader keeps the replica, and fails when the throttle releases it."""
    await rig.create((2, 1, 3))
    for offset, value in enumerate((b"a", b"b", b"c")):
        await rig.reply(2, make_batch((value,), base_offset=offset, leader_epoch=0))
    await rig.change(isr=(2, 3), adding=(1,))
    assert rig.hosted().is_joining
    throttle = rig.role.fetchers.throttle

    async def leader_changes(*_: object) -> bool:
        await rig.change(leader=3)
        throttle.set_rate(0)
        return False

    monkeypatch.setattr(rig.role.logs, "prepare_truncation", leader_changes)
    monkeypatch.setattr(rig.role.logs, "reset_to", leader_changes)
    await rig.reply(2, **reply)
    throttle.set_rate(-1)
    assert rig.target(2) is None
    target = rig.target(3)
    assert target is not None
    assert target.leader_epoch == 1


async def test_a_replica_that_gets_another_leader_while_its_log_is_flushed_leaves_its_fetcher(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.create((2, 1, 3))
    flush_all = rig.role.logs.flush_all

    async def leader_changes(logs: list[PartitionLog]) -> None:
        monkeypatch.undo()
        await rig.change(leader=3)
        await flush_all(logs)

    monkeypatch.setattr(rig.role.logs, "flush_all", leader_changes)
    await rig.reply(2, make_batch((b"a",), leader_epoch=0))
    assert rig.target(2) is None
    target = rig.target(3)
    assert target is not None
    assert (target.leader_epoch, target.offset) == (1, 1)


async def test_a_directory_that_fails_in_a_flush_takes_no_other_directory_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second log stays unflushed: flushes do not count while its move to another directory is being decided."""
    async with running(tmp_path, directories=2) as rig:
        await rig.register()
        await rig.create((2, 1), (2, 1))
        appended = []
        for index in range(2):
            replica, log = rig.hosted(index), rig.hosted(index).log
            assert log is not None
            log.append_as_follower(make_batch((b"a",), leader_epoch=0), 0, 0)
            appended.append((replica.partition, replica, log))
        failing, held = (log for _, _, log in appended)
        assert failing.directory_id != held.directory_id
        disk = rig._disks[rig.directories.index(failing.directory_id)]
        monkeypatch.setattr(disk, "flush", AsyncMock(side_effect=DiskError("no room")))
        held.durability.hold()
        await rig.fetcher(2)._flush(appended)
        assert set(rig.role.logs.failed_disks) == {failing.directory_id}
        assert [rig.hosted(index).log for index in range(2)] == [None, held]
        held.durability.release()


async def test_a_truncation_in_a_hanging_directory_does_not_delay_replicas_in_other_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, directories=2) as rig:
        await rig.register()
        await rig.create((2, 1), (2, 1))
        await rig.reply(2, make_batch((b"a",), leader_epoch=0))
        monkeypatch.setattr(fetchers, "FLUSH_WAIT_S", 0.01)
        hanging, other = rig.log, rig.hosted(1).log
        assert other is not None
        assert other.directory_id != hanging.directory_id
        works_again = hanging_commits(monkeypatch, rig._disks[rig.directories.index(hanging.directory_id)])
        fetcher = rig.fetcher(2)
        request = fetcher._session.build()
        starts_over = rig.part(0, error_code=int(KafkaCode.OFFSET_OUT_OF_RANGE), log_start_offset=9)
        records = rig.part(1, make_batch((b"b",), leader_epoch=0))
        try:
            async with asyncio.timeout(WAIT_S):
                await fetcher._on_reply(request, wire.FetchedReply(0, 77, [starts_over, records]))
            assert (hanging.end_offset, other.end_offset) == (1, 1)
            before = rig.target(2)
            assert before is None
        finally:
            works_again.set()
        await asyncio.wait(fetcher._truncations.values())
        await rig.role.logs.flush_all([hanging])
        after = rig.target(2)
        assert after is not None
        assert (after.offset, hanging.start_offset) == (9, 9)


async def test_only_the_first_truncation_in_a_hanging_directory_delays_a_round_of_fetches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as rig:
        await rig.register()
        await rig.create((2, 1), (2, 1))
        works_again = hanging_commits(monkeypatch, rig._disks[0])
        fetcher = rig.fetcher(2)
        try:
            for index, wait_s in enumerate((0.01, 10 * WAIT_S)):
                monkeypatch.setattr(fetchers, "FLUSH_WAIT_S", wait_s)
                starts_over = rig.part(index, error_code=int(KafkaCode.OFFSET_OUT_OF_RANGE), log_start_offset=9)
                async with asyncio.timeout(WAIT_S):
                    await fetcher._on_reply(fetcher._session.build(), wire.FetchedReply(0, 77, [starts_over]))
            assert len(fetcher._truncations) == 2
        finally:
            works_again.set()
        await asyncio.wait(fetcher._truncations.values())


@pytest.mark.parametrize("has_records", [False, True], ids=["empty", "with records"])
async def test_a_replica_that_starts_over_while_its_leader_changes_reports_its_position(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, has_records: bool
) -> None:
    """A fetch sent to the new leader names the old position.  If the log then starts over, all replies are dropped."""
    await rig.create((2, 1, 3))
    if has_records:
        await rig.reply(2, make_batch((b"a",), leader_epoch=0))
    monkeypatch.setattr(fetchers, "FLUSH_WAIT_S", 0.01)
    fetcher = rig.fetcher(2)
    with monkeypatch.context() as patches:
        works_again = hanging_commits(patches, rig._disks[0])
        starts_over = rig.part(0, error_code=int(KafkaCode.OFFSET_OUT_OF_RANGE), log_start_offset=9)
        await fetcher._on_reply(fetcher._session.build(), wire.FetchedReply(0, 77, [starts_over]))
        await rig.change(leader=3)
        works_again.set()
        await asyncio.wait(fetcher._truncations.values())
    await rig.role.logs.flush_all([rig.log])
    target = rig.target(3)
    assert target is not None
    assert (target.leader_epoch, target.offset) == (1, rig.log.end_offset)


async def test_a_truncation_for_a_former_leader_does_not_lower_the_high_watermark(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the watermark of the log stays below the watermark of the replica until the next write."""
    await rig.create((2, 1, 3))
    for offset, value in enumerate((b"a", b"b", b"c")):
        await rig.reply(2, make_batch((value,), base_offset=offset, leader_epoch=0), high_watermark=3)
    await rig.role.watermarks.save()
    await rig.change(leader=3, isr=(3,))
    monkeypatch.setattr(fetchers, "FLUSH_WAIT_S", 0.01)
    async with rig.role.logs._directories[rig.log.directory_id].changing:
        await rig.reply(3, diverging_epoch=0, diverging_end=1)
        truncations = list(rig.fetcher(3)._truncations.values())
        await rig.change(leader=2, isr=(2,))
    await asyncio.wait(truncations)
    follower = rig.hosted().follower
    assert follower is not None
    assert (rig.log.end_offset, rig.log.high_watermark, follower.high_watermark) == (3, 3, 3)


async def test_a_reply_of_the_former_session_does_not_answer_a_full_fetch(rig: Rig) -> None:
    """The full fetch names another leader epoch, under which the leader has confirmed nothing yet."""
    await rig.create((2, 1))
    await rig.reply(2)
    fetcher, session = rig.fetcher(2), rig.fetcher(2)._session
    parked, interrupting = session.build(), session.build()
    await fetcher._on_reply(parked, wire.FetchedReply(0, 0, []))
    await rig.change(leader=2)
    full = asyncio.create_task(asyncio.sleep(WAIT_S, memoryview(b"")))
    fetcher._rounds.append(fetchers._Round(session.build(), full, 0))
    await fetcher._on_reply(interrupting, wire.FetchedReply(0, 0, [rig.part(0)]))
    await fetcher._abandon_rounds()
    follower = rig.hosted().follower
    assert follower is not None
    assert (follower.leader_epoch, follower.agrees) == (1, False)


async def test_a_failure_in_a_truncation_ends_the_fetcher(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed assertion is a bug, and ends the process."""
    await rig.create((2, 1, 3))
    for offset, value in enumerate((b"a", b"b", b"c")):
        await rig.reply(2, make_batch((value,), base_offset=offset, leader_epoch=0))
    await rig.change(leader=3, isr=(3,))
    monkeypatch.setattr(rig.role.logs, "prepare_truncation", AsyncMock(side_effect=AssertionError("a mistake")))
    with pytest.raises(AssertionError, match="a mistake"):
        await rig.reply(3, diverging_epoch=0, diverging_end=1)
    with pytest.raises(AssertionError, match="a mistake"):
        await rig.fetcher(3).run()


async def test_a_follower_reports_its_position_again_if_it_did_not_truncate_its_log(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader repeats its answer only to a position that the fetch names, or when records arrive."""
    await rig.create((2, 1, 3))
    for offset, value in enumerate((b"a", b"b", b"c")):
        await rig.reply(2, make_batch((value,), base_offset=offset, leader_epoch=0), high_watermark=3)
    await rig.role.logs.flush_all([rig.log])

    async def saved_meanwhile(log: PartitionLog, _: int) -> None:
        log.marks.truncation_floor = 3

    monkeypatch.setattr(rig.role.logs, "prepare_truncation", saved_meanwhile)
    await rig.change(leader=3, isr=(3,))
    await rig.reply(3, diverging_epoch=0, diverging_end=1)
    assert rig.log.end_offset == 3
    again = rig.fetcher(3)._session.build()
    assert [(key, target.offset) for key, target in again.targets] == [(rig.hosted().partition, 3)]


class Line:
    """A connection to the leader.  It queues the requests, and the test answers each of them."""

    is_open = True

    def __init__(self) -> None:
        self.asked: asyncio.Queue[tuple[wire.FetchRequest, asyncio.Future[memoryview]]] = asyncio.Queue()

    async def call(self, api_key: int, version: int, body: list[bytes], timeout_s: float) -> memoryview:
        request = wire.decode_request(memoryview(b"".join(body)), 0, version, FetchPartition, ForgottenPartition)
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self.asked.put_nowait((request, answer))
        return await answer

    async def close(self) -> None:
        pass


def nothing_new(session_id: int) -> memoryview:
    return memoryview(b"".join(wire.encode_response(wire.FOLLOWER_VERSION, 0, session_id, [])))


async def test_a_broker_that_registers_again_reports_all_its_positions_again(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position counts only under the broker epoch of its fetch, and an incremental fetch omits unchanged positions.

    Without a full fetch, an idle replica would never join the ISR again.
    """
    await rig.create((2, 1))
    fetcher, line = rig.fetcher(2), Line()

    async def connected(_: int) -> Line:
        return line

    monkeypatch.setattr(fetcher, "_connection", connected)
    running = asyncio.create_task(fetcher.run())
    opening, answer = await line.asked.get()
    answer.set_result(nothing_new(7))
    parked, answer = await line.asked.get()
    assert (parked.session_id, parked.session_epoch, parked.partitions) == (7, 1, [])
    await rig.register(1)
    assert rig.cluster.epoch(1) > opening.broker_epoch
    answer.set_result(nothing_new(7))
    again, _ = await line.asked.get()
    assert (again.session_id, again.session_epoch) == (7, FULL_FETCH_NEW_SESSION)
    assert [each.index for each in again.partitions] == [0]
    assert again.broker_epoch == rig.cluster.epoch(1)
    running.cancel()
    await asyncio.wait({running})


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_reply_that_fails_after_the_fetcher_was_cancelled_is_not_reported(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    """A broker that stops cancels its fetchers, and then closes its connections, which ends the replies."""
    await rig.create((2, 1))
    fetcher, line = rig.fetcher(2), Line()

    async def connected(_: int) -> Line:
        return line

    monkeypatch.setattr(fetcher, "_connection", connected)
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    running = asyncio.create_task(fetcher.run())
    _, answer = await line.asked.get()
    answer.set_result(nothing_new(7))
    _, parked = await line.asked.get()  # while the fetcher waits for this reply, it also waits for news
    running.cancel()
    await asyncio.wait({running})
    if is_cancelled:
        fetcher._rounds[0].reply.cancel()
    else:
        parked.set_exception(ClusterError(ApiError.BROKER_UNAVAILABLE, "closed", retriable=True))
    await asyncio.wait({fetcher._rounds[0].reply})
    fetcher._rounds.clear()
    del running  # its traceback refers to the reply
    gc.collect()
    assert unheard == []
