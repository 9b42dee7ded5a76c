"""DeleteRecords: the log starts of the leader and its followers, and the answer to the client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.kafka.api import DeletedRecords
from broker.log.upkeep import LogUpkeep
from quorumlog.runtime.disk import DiskError
from quorumlog.wire.errors import KafkaCode
from tests.unit.broker.log.batches import make_batch
from tests.unit.broker.replica.rig import TOPIC, Rig, hanging_commits, running
from tests.unit.broker.replica.test_sessions import parked
from tests.unit.metadata.fake_node import settle

MINUTE_MS = 60_000


def delete(rig: Rig, offset: int, timeout_ms: int = MINUTE_MS) -> asyncio.Future[DeletedRecords]:
    return rig.replicas.start_delete(TOPIC, 0, offset, timeout_ms)


async def with_follower(rig: Rig) -> None:
    """Partition 0 has five records on brokers 1, the leader, and 2."""
    await rig.create((1, 2))
    for _ in range(5):
        await rig.write(b"x")
    await rig.fetch(2, 0, -1)
    await rig.fetch(2, 5, 0)
    assert rig.leader.high_watermark == 5


async def test_a_deletion_is_answered_once_the_new_log_start_is_durable(rig: Rig) -> None:
    await rig.create((1,))
    await rig.write(b"a", b"b", b"c")
    answer = delete(rig, 2)
    assert rig.log.start_offset == 2
    assert rig.log.durable_start_offset == 0
    assert not answer.done()
    await rig.role.log_starts.write()
    assert rig.log.durable_start_offset == 2
    assert answer.result() == DeletedRecords(0, 2)


async def test_a_log_start_is_not_written_repeatedly_to_a_full_disk(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    await rig.create((1,))
    await rig.write(b"a", b"b", b"c")
    attempts = 0

    def fail(_: LogUpkeep) -> None:
        nonlocal attempts
        attempts += 1
        assert attempts == 1
        raise DiskError("no space left on device")

    monkeypatch.setattr(LogUpkeep, "prepare_checkpoint", fail)
    delete(rig, 2)
    writer = asyncio.ensure_future(rig.role.log_starts.run())
    await settle()
    assert not writer.done()
    writer.cancel()
    assert rig.hosted().offline == "no space left on device"
    assert attempts == 1


async def test_a_hanging_directory_does_not_delay_deletions_in_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, directories=2) as rig:
        await rig.register()
        await rig.create((1,), (1,))
        logs = [rig.hosted(index).log for index in (0, 1)]
        assert None not in logs
        hanging, working = (log.directory_id for log in logs if log is not None)
        assert hanging != working
        for index in (0, 1):
            rig.replicas.start_produce(TOPIC, index, memoryview(make_batch([b"a", b"b"])), 1, MINUTE_MS)
        await rig.role.logs.flush_all(log for log in logs if log is not None)
        works_again = hanging_commits(monkeypatch, rig._disks[rig.directories.index(hanging)])
        answers = [rig.replicas.start_delete(TOPIC, index, 1, MINUTE_MS) for index in (0, 1)]
        writer = asyncio.ensure_future(rig.role.log_starts.run())
        async with asyncio.timeout(10):
            assert await answers[1] == DeletedRecords(0, 1)
        again = rig.replicas.start_delete(TOPIC, 1, 2, MINUTE_MS)
        async with asyncio.timeout(10):
            assert await again == DeletedRecords(0, 2)
        assert not answers[0].done()
        works_again.set()
        assert await answers[0] == DeletedRecords(0, 1)
        writer.cancel()


async def test_the_new_log_start_survives_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as rig:
        await rig.register()
        await rig.create((1,))
        await rig.write(b"a", b"b", b"c")
        delete(rig, 2)
        await rig.role.log_starts.write()
        cluster = rig.cluster
    async with running(tmp_path) as rig:
        rig.cluster = cluster
        (log,) = rig.role.logs.logs.values()
        assert (log.start_offset, log.durable_start_offset, log.end_offset) == (2, 2, 3)


async def test_offset_minus_1_deletes_all_committed_records(rig: Rig) -> None:
    await with_follower(rig)
    rig.produce(b"not committed")
    answer = delete(rig, -1)
    assert rig.log.start_offset == 5
    await rig.role.log_starts.write()
    await rig.fetch(2, 5, 0, log_start=5)
    assert answer.result() == DeletedRecords(0, 5)


@pytest.mark.parametrize("offset", [-2, 6, 7, 2**63 - 1])
async def test_a_deletion_up_to_an_uncommitted_offset_is_refused_as_out_of_range(rig: Rig, offset: int) -> None:
    await with_follower(rig)
    rig.produce(b"not committed")
    assert delete(rig, offset).result() == DeletedRecords(int(KafkaCode.OFFSET_OUT_OF_RANGE))
    assert rig.log.start_offset == 0


async def test_a_deletion_below_the_log_start_changes_nothing(rig: Rig) -> None:
    await rig.create((1,))
    await rig.write(b"a", b"b", b"c")
    delete(rig, 2)
    await rig.role.log_starts.write()
    for offset in (0, 1, 2):
        assert delete(rig, offset).result() == DeletedRecords(0, 2)
    assert rig.log.start_offset == 2


async def test_a_deletion_waits_for_every_follower(rig: Rig) -> None:
    await with_follower(rig)
    answer = delete(rig, 3)
    await rig.role.log_starts.write()
    assert not answer.done()
    assert (await rig.fetch(2, 5, 0, log_start=0)).log_start_offset == 3
    assert not answer.done()
    await rig.fetch(2, 5, 0, log_start=2)
    assert not answer.done()
    await rig.fetch(2, 5, 0, log_start=4)
    assert answer.result() == DeletedRecords(0, 3), "the log start of the leader is the lowest"
    assert rig.replicas.deletions.waiting == 0


async def test_a_deletion_does_not_wait_for_a_follower_whose_broker_is_fenced(rig: Rig) -> None:
    await with_follower(rig)
    answer = delete(rig, 3)
    await rig.role.log_starts.write()
    rig.cluster.fence(2)
    await rig.learn()
    assert answer.result() == DeletedRecords(0, 3)


async def test_a_deletion_does_not_wait_for_a_replica_that_left_the_partition(rig: Rig) -> None:
    await with_follower(rig)
    answer = delete(rig, 3)
    await rig.role.log_starts.write()
    await rig.change(isr=(1,))
    assert not answer.done()
    (own, _) = rig.hosted().image.replicas
    await rig.change(replicas=(own,))
    assert answer.result() == DeletedRecords(0, 3)


async def test_a_deletion_ignores_fetches_of_an_earlier_incarnation_of_a_follower(rig: Rig) -> None:
    await with_follower(rig)
    answer = delete(rig, 3)
    await rig.role.log_starts.write()
    await rig.fetch(2, 5, 0, log_start=3, broker_epoch=rig.cluster.epoch(2) - 1)
    assert not answer.done()


async def test_a_deletion_that_waits_too_long_times_out(rig: Rig) -> None:
    await with_follower(rig)
    async with asyncio.timeout(10):
        assert await delete(rig, 3, timeout_ms=1) == DeletedRecords(int(KafkaCode.REQUEST_TIMED_OUT))
    assert rig.replicas.deletions.waiting == 0


async def test_a_waiting_deletion_is_refused_when_the_leadership_ends(rig: Rig) -> None:
    await with_follower(rig)
    answer = delete(rig, 3)
    await rig.change(leader=2)
    assert answer.result() == DeletedRecords(int(KafkaCode.NOT_LEADER_OR_FOLLOWER))
    assert delete(rig, 4).result() == DeletedRecords(int(KafkaCode.NOT_LEADER_OR_FOLLOWER))


async def test_a_waiting_deletion_is_refused_when_the_broker_closes(rig: Rig) -> None:
    await with_follower(rig)
    answer = delete(rig, 3)
    rig.replicas.close()
    assert answer.result() == DeletedRecords(int(KafkaCode.NOT_LEADER_OR_FOLLOWER))


async def test_the_number_of_waiting_deletions_is_limited(rig: Rig) -> None:
    await with_follower(rig)
    rig.context.limits = replace(rig.context.limits, parked_deletions=2)
    first = [delete(rig, 1), delete(rig, 2)]
    assert delete(rig, 3).result() == DeletedRecords(int(KafkaCode.REQUEST_TIMED_OUT))
    assert rig.log.start_offset == 2
    first[0].cancel()
    await rig.role.log_starts.write()
    await rig.fetch(2, 5, 0, log_start=2)
    assert first[1].result() == DeletedRecords(0, 2)
    assert rig.replicas.deletions.waiting == 0


async def test_a_deletion_in_an_internal_topic_is_refused(rig: Rig) -> None:
    rig.cluster.create("__consumer_offsets", (1,))
    await rig.learn()
    answer = rig.replicas.start_delete("__consumer_offsets", 0, -1, MINUTE_MS)
    assert answer.result() == DeletedRecords(int(KafkaCode.POLICY_VIOLATION))


@pytest.mark.parametrize(("policy", "code"), [("compact", 44), ("compact,delete", 0)])
async def test_a_deletion_is_refused_in_a_topic_that_is_only_compacted(rig: Rig, policy: str, code: int) -> None:
    rig.cluster.create(TOPIC, (1,), configs=(("cleanup.policy", policy),))
    await rig.learn()
    assert delete(rig, 0).result().error_code == code


async def test_a_deletion_in_a_partition_that_is_missing_or_led_by_another_broker_is_refused(rig: Rig) -> None:
    await rig.create((1,), (2,))
    partitions = (("u", 0), (TOPIC, 2), (TOPIC, 1))
    answers = [rig.replicas.start_delete(*partition, 0, MINUTE_MS) for partition in partitions]
    assert [each.result().error_code for each in answers] == [3, 3, 6]


async def test_a_parked_fetch_of_a_follower_is_answered_with_the_new_log_start(rig: Rig) -> None:
    _, waiting = await parked(rig)
    delete(rig, 1)
    await settle()
    assert waiting.done()
    (result,) = waiting.result().results
    assert result.log_start_offset == 1


# -- the follower


async def following(rig: Rig) -> None:
    """Broker 1 follows broker 2, and has two records and a watermark of 1."""
    await rig.create((2, 1))
    records = make_batch((b"a",), base_offset=0) + make_batch((b"b",), base_offset=1)
    await rig.reply(2, records, high_watermark=1)
    await rig.role.logs.flush_all([rig.log])


def told_start(rig: Rig) -> int:
    target = rig.target(2)
    assert target is not None
    return target.log_start


async def test_a_follower_applies_a_log_start_that_arrives_together_with_its_high_watermark(rig: Rig) -> None:
    await following(rig)
    await rig.reply(2, high_watermark=2, log_start_offset=2)
    assert rig.log.start_offset == 2


async def test_a_follower_reports_a_log_start_once_it_is_durable(rig: Rig) -> None:
    await following(rig)
    await rig.reply(2, make_batch((b"c",), base_offset=2), high_watermark=2, log_start_offset=1)
    target = rig.target(2)
    assert target is not None
    assert (target.offset, rig.log.start_offset, target.log_start) == (3, 1, 0)
    await rig.role.log_starts.write()
    assert told_start(rig) == 1


async def test_a_follower_reports_a_log_start_that_its_own_retention_advanced(rig: Rig) -> None:
    await following(rig)
    await rig.reply(2, high_watermark=2)
    rig.log.advance_start_offset(1)
    await rig.role.logs.checkpoint([rig.log])
    assert told_start(rig) == 0
    await rig.reply(2, high_watermark=2, log_start_offset=1)
    assert told_start(rig) == 1


async def test_list_offsets_answers_special_timestamps_without_remote_storage(rig: Rig) -> None:
    await rig.create((1,))
    await rig.write(b"a", b"b", b"c")
    delete(rig, 1)
    found = {at: await rig.replicas.list_offset(TOPIC, 0, at) for at in (-1, -2, -3, -4, -5, -6)}
    assert {each.error_code for each in found.values()} == {0}
    assert {at: each.offset for at, each in found.items()} == {-1: 3, -2: 1, -3: 1, -4: 1, -5: -1, -6: -1}
    assert [found[at].leader_epoch for at in (-4, -5, -6)] == [0, -1, -1]


async def test_a_deletion_makes_a_log_start_durable_that_retention_has_just_advanced(rig: Rig) -> None:
    await rig.create((1,))
    await rig.write(b"a", b"b", b"c")
    rig.log.advance_start_offset(2)  # as retention does; it has not written the start, and never reports it
    answer = delete(rig, 1)
    assert not answer.done()
    await rig.role.log_starts.write()
    assert answer.result() == DeletedRecords(0, 2)


async def test_a_follower_makes_a_log_start_durable_that_its_retention_has_just_advanced(rig: Rig) -> None:
    await following(rig)
    await rig.reply(2, high_watermark=2)
    rig.log.advance_start_offset(2)
    await rig.reply(2, high_watermark=2, log_start_offset=1)
    await rig.role.log_starts.write()
    assert told_start(rig) == 2
