"""The first positions of a consumer: all are looked up, and positions that the user has set are kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer_progress import RecordsInProgress
from quorumlog.client.group_descriptions import CommittedOffset, Partition
from quorumlog.client.messages import TopicPartition
from quorumlog.client.positions import Position
from quorumlog.client.starting_offsets import Committed, StartingOffsets
from quorumlog.errors import ClusterError

FIRST, SECOND = TopicPartition("t", 0), TopicPartition("t", 1)


@asynccontextmanager
async def starting(
    positions: dict[TopicPartition, Position], committed: Committed, changed: asyncio.Event
) -> AsyncIterator[None]:
    """Look for the starting offsets of positions during the block."""
    async with Cluster("127.0.0.1:1") as cluster:
        offsets = StartingOffsets(cluster, positions, "none", committed, RecordsInProgress(), changed.set)
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
