"""The first positions of a consumer: all are looked up, and positions that the user has set are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from quorumlog.client import starting_offsets
from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST
from quorumlog.client.consumer_progress import RecordsInProgress
from quorumlog.client.group_descriptions import CommittedOffset, Partition
from quorumlog.client.log_offsets import Found
from quorumlog.client.messages import TopicPartition
from quorumlog.client.positions import Position
from quorumlog.client.records import NewRecord, build_batch
from quorumlog.client.starting_offsets import Committed, OffsetReset, StartingOffsets
from quorumlog.errors import ClusterError
from quorumlog.wire.record_batch import patch

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def starting(
    positions: dict[TopicPartition, Position],
    committed: Committed,
    changed: asyncio.Event,
    policy: OffsetReset = "none",
    in_progress: RecordsInProgress | None = None,
) -> AsyncIterator[None]:
    """Look for the starting offsets of positions during the block."""
    async with Cluster("127.0.0.1:1") as cluster:
        in_progress = in_progress or RecordsInProgress()
        offsets = StartingOffsets(cluster, positions, policy, committed, in_progress, changed.set)
        running = asyncio.create_task(offsets.run())
        try:
            async with asyncio.timeout(10):
                yield
        finally:
            running.cancel()


async def test_a_position_whose_retry_pause_ends_during_another_look_up_is_set() -> None:
    positions = {key: Position(key) for key in (FIRST, SECOND)}
    loop = asyncio.get_running_loop()
    positions[SECOND].retry_at = loop.time() + 0.05
    changed = asyncio.Event()

    async def committed(asked: list[Partition], timeout_s: float) -> Mapping[Partition, CommittedOffset]:
        while loop.time() <= positions[SECOND].retry_at:  # noqa: ASYNC110  # only time ends the pause
            await asyncio.sleep(0.01)
        return {key: CommittedOffset(7) for key in asked}

    async with starting(positions, committed, changed):
        while positions[SECOND].next_offset is None:
            await changed.wait()
            changed.clear()
    assert [each.next_offset for each in positions.values()] == [7, 7]


async def test_a_failed_look_up_does_not_fail_a_position_that_was_set_meanwhile() -> None:
    positions = {key: Position(key) for key in (FIRST, SECOND)}
    changed = asyncio.Event()

    async def committed(asked: list[Partition], timeout_s: float) -> Mapping[Partition, CommittedOffset]:
        positions[FIRST].move(3)  # by a seek of the user
        raise ClusterError("GROUP_AUTHORIZATION_FAILED", "not yours")

    async with starting(positions, committed, changed):
        await changed.wait()
    assert [each.error and each.error.code for each in positions.values()] == [None, "GROUP_AUTHORIZATION_FAILED"]


@pytest.mark.parametrize(("start", "end", "kept"), [(10, 20, [4, 5]), (0, 2, [])])
async def test_only_a_truncation_drops_the_records_that_the_user_has_not_got_yet(
    monkeypatch: pytest.MonkeyPatch, start: int, end: int, kept: list[int]
) -> None:
    """Records that were fetched before retention deleted them were committed, so the user gets them."""
    position = Position(FIRST)
    position.move(3)
    batch = build_batch([NewRecord(b"key", b"value", 0)] * 3)
    patch(batch, 3, 0)
    position.add(memoryview(batch), high_watermark=6)
    position.was_out_of_range = True
    in_progress = RecordsInProgress()
    in_progress.begin(position.take(), position)
    in_progress.next_records(1)

    async def found(cluster: Cluster, wanted: Mapping[Partition, int], timeout_s: float, **more: bool) -> Found:
        return {key: start if timestamp == EARLIEST else end for key, timestamp in wanted.items()}

    async def committed(asked: list[Partition], timeout_s: float) -> Mapping[Partition, CommittedOffset]:
        raise AssertionError("no position is unknown")

    monkeypatch.setattr(starting_offsets, "list_offsets", found)
    changed = asyncio.Event()
    async with starting({FIRST: position}, committed, changed, "earliest", in_progress):
        await changed.wait()
    assert position.next_offset == start
    assert in_progress.open_offset == (3 if kept else None)
    assert [record.offset for record in in_progress.batch[in_progress.at :]] == kept
