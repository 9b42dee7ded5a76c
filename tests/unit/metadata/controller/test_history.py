"""Earlier metadata: images at any offset, chains of changes, and the limits of the retained log."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from metadata.codec import encode
from metadata.controller.history import History, NotRetainedError
from metadata.records import BrokerChange, Feature, Partition, PartitionChange, Reason, Record
from quorumlog.wire import rpcs
from quorumlog.wire.v1 import controller_pb2 as pb
from tests.other_tasks import counting
from tests.unit.metadata.controller.test_controller import beat, new_topic, register
from tests.unit.metadata.fake_node import Plane, run
from tests.unit.metadata.kept_log import KeptLog


async def lived() -> tuple[Plane, KeptLog]:
    """A plane with some history: brokers register, topics are created and deleted, a leader is fenced and returns."""
    plane = Plane()
    kept = KeptLog(plane)
    plane.node.auto_commit = True
    plane.node.win()
    for broker_id in (1, 2):
        await plane.call(rpcs.REGISTER_BROKER, register(broker_id))
        await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, broker_id))
    await plane.call(rpcs.CREATE_TOPICS, new_topic("kept", partitions=3, factor=2))
    await plane.call(rpcs.CREATE_TOPICS, new_topic("gone", partitions=2, factor=1))
    await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1, want_fence=True))
    plane.node.append_control()
    await plane.call(rpcs.DELETE_TOPICS, pb.DeleteTopicsRequest(names=["gone"]))
    await plane.call(rpcs.BROKER_HEARTBEAT, beat(plane, 1))
    plane.node.auto_commit = False
    return plane, kept


@pytest.mark.parametrize("snapshots", ["none", "every", "dropped"])
def test_the_image_at_every_offset_is_reproduced(snapshots: str) -> None:
    async def test() -> None:
        plane, kept = await lived()
        ends = sorted(kept.images)
        assert len(ends) > 10
        if snapshots == "every":
            kept.snapshots = ends[1:]
        elif snapshots == "dropped":
            kept.drop_below(ends[4])
        history = History(kept)
        assert history.begins == kept.log_start
        inside = 0
        for offset in range(plane.node.high_watermark + 1):
            if offset < history.begins:
                with pytest.raises(NotRetainedError):
                    await history.image_at(offset)
                continue
            image, timestamp_ms = await history.image_at(offset)
            end = max(end for end in ends if end <= offset)
            inside += end != offset
            assert image.end_offset == end
            assert image.digest() == kept.images[end].digest()
            assert timestamp_ms in (0, kept.timestamps.get(end)), "the time of the last batch, or unknown"
            assert timestamp_ms or end == 0 or end in kept.snapshots
        assert inside > 3, "an offset inside a batch gives the image before that batch"

    run(test())


def test_the_latest_images_are_cached() -> None:
    async def test() -> None:
        plane, kept = await lived()
        history = History(kept)
        end = plane.node.high_watermark
        await history.image_at(end)
        reads = kept.reads
        assert (await history.image_at(end))[0].digest() == plane.replay.image.digest()
        assert kept.reads == reads
        for offset in (1, 2, 3):
            await history.image_at(offset)
        await history.image_at(end)
        assert kept.reads > reads, "only the latest images are cached"

    run(test())


def is_by_fencing(record: Record) -> bool:
    return isinstance(record, PartitionChange) and record.reason is Reason.BROKER_FENCED


def test_a_log_deleted_during_a_read_is_reported_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        plane, kept = await lived()
        read = kept.read_committed

        async def drop_then_read(start: int, max_bytes: int) -> Any:
            kept.log_start = sorted(kept.images)[3]
            return await read(start, max_bytes)

        monkeypatch.setattr(kept, "read_committed", drop_then_read)
        with pytest.raises(NotRetainedError):
            await History(kept).image_at(plane.node.high_watermark)

    run(test())


def test_a_chain_contains_every_change_of_the_partition_with_its_cause() -> None:
    async def test() -> None:
        plane, kept = await lived()
        image = plane.replay.image
        topic = image.topic("kept")
        assert topic is not None
        for partition in topic.partitions:
            assert partition is not None
            chain = await History(kept).chain(image, topic.topic_id, partition.index, 1000)
            assert chain.complete
            assert isinstance(chain.entries[0].record, Partition)
            assert [entry.offset for entry in chain.entries] == sorted({entry.offset for entry in chain.entries})
            assert chain.entries[-1].offset == partition.last_offset
            for entry, batch in zip(chain.entries, chain.batches, strict=True):
                assert batch.base_offset <= entry.offset < batch.end_offset
            fenced = [entry for entry in chain.entries[1:] if is_by_fencing(entry.record)]
            assert [entry.cause for entry in fenced], "broker 1 was fenced, and is in every ISR"
            assert all(isinstance(entry.cause, BrokerChange) and entry.cause.broker_id == 1 for entry in fenced)
            latest = await History(kept).chain(image, topic.topic_id, partition.index, 1)
            assert (len(latest.entries), latest.complete) == (1, False)
            assert latest.entries[0] == chain.entries[-1]

    run(test())


def test_a_chain_contains_only_changes_in_the_retained_log() -> None:
    async def test() -> None:
        plane, kept = await lived()
        topic = plane.replay.image.topic("kept")
        assert topic is not None
        assert topic.partitions[0] is not None
        last = topic.partitions[0].last_offset
        whole = await History(kept).chain(plane.replay.image, topic.topic_id, 0, 1000)
        begins = min(end for end in kept.images if end > whole.entries[0].offset)
        kept.drop_below(begins)
        chain = await History(kept).chain(plane.replay.image, topic.topic_id, 0, 1000)
        assert not chain.complete
        assert [entry.offset for entry in chain.entries] == [e.offset for e in whole.entries if e.offset >= begins]
        kept.drop_below(plane.node.high_watermark)
        assert last < kept.log_start
        assert (await History(kept).chain(plane.replay.image, topic.topic_id, 0, 1000)).entries == []

    run(test())


def test_a_change_in_a_chain_has_no_cause_if_the_record_of_the_cause_was_deleted() -> None:
    async def test() -> None:
        plane, kept = await lived()
        topic = plane.replay.image.topic("kept")
        assert topic is not None
        first = topic.partitions[0]
        assert first is not None
        far = PartitionChange(
            topic.topic_id, 0, isr=(1, 2), reason=Reason.BROKER_FENCED, cause_offset=2,
            previous_offset=first.last_offset,
        )  # fmt: skip
        plane.node.append(plane.node.epoch, encode([far]), 1)
        plane.node.commit()
        kept.drop_below(max(end for end in kept.images if end < plane.node.high_watermark))
        [entry] = (await History(kept).chain(plane.replay.image, topic.topic_id, 0, 1000)).entries
        assert (entry.record, entry.cause) == (far, None)

    run(test())


def test_other_tasks_run_while_a_long_history_is_read() -> None:
    async def test() -> None:
        plane, kept = await lived()
        for number in range(3000):
            plane.node.append(plane.node.epoch, encode([Feature("x", number)]), 1)
        plane.node.commit()
        loop: Any = asyncio.get_running_loop()
        real = loop.time

        def passing() -> float:
            loop.now += 0.001  # each call of the clock takes a millisecond
            return float(real())

        loop.time = passing
        with counting() as passed:
            image, _ = await History(kept).image_at(plane.node.high_watermark)
        assert image.features["x"] == 2999
        assert passed() > 100

    run(test())
