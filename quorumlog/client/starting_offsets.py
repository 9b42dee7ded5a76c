"""Decides where a consumer begins in a partition: at the group's committed offset, or according to its policy.

If an offset is out of range, this module also decides where the consumer continues.  An offset may be below the log
start after retention or DeleteRecords has deleted records, and above the log end after a truncation.  A truncation may
have lost only records that were fetched ahead.  Then the position itself is valid, and the policy does not apply.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Final, Literal

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import EARLIEST, LATEST, OffsetOutOfRangeError
from quorumlog.client.consumer_progress import RecordsInProgress
from quorumlog.client.group_descriptions import CommittedOffset, Partition
from quorumlog.client.log_offsets import Found, list_offsets
from quorumlog.client.messages import TopicPartition
from quorumlog.client.positions import Position
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError

OffsetReset = Literal["earliest", "latest", "none"]

LOOK_UP_TIMEOUT_S: Final = 10.0
_POLICIES: Final = {"earliest": EARLIEST, "latest": LATEST}
_PAUSE_S: Final = 0.1

Committed = Callable[[list[Partition], float], Awaitable[Mapping[Partition, CommittedOffset]]]


class StartingOffsets:
    """Sets the position of each partition that has none.

    committed: returns the group's committed offsets; None without a group.
    in_progress: the batch that the user gets now.  It is dropped if a truncation has lost its records.
    on_change: called after each change of a position.
    committed_only: the consumer reads only committed records, so "latest" is the last stable offset.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: Mapping[TopicPartition, Position],
        policy: OffsetReset,
        committed: Committed | None,
        in_progress: RecordsInProgress,
        on_change: Callable[[], None],
        *,
        committed_only: bool = False,
    ) -> None:
        self._cluster = cluster
        self._positions = positions
        self._policy = policy
        self._committed = committed
        self._in_progress = in_progress
        self._on_change = on_change
        self._committed_only = committed_only
        self._wake = asyncio.Event()

    def wake(self) -> None:
        self._wake.set()

    async def run(self) -> None:
        """Set positions until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            for position in self._positions.values():
                if position.was_out_of_range and position.error is None and position.retry_at <= loop.time():
                    await self._confirm_out_of_range()
                    break
            unknown = self._unknown(loop.time())
            if unknown:
                await self._set(unknown)
                self._on_change()
            # Pauses that ended during the look-ups above are included, because nothing else may end the wait.
            waits = [each.retry_at for each in self._positions.values() if self._is_wanted(each)]
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(waits, default=None)):
                    await self._wake.wait()

    def _is_wanted(self, position: Position) -> bool:
        """Return whether a position must be looked up, now or after its pause."""
        is_unknown = position.next_offset is None and not position.is_held
        return position.error is None and (is_unknown or position.was_out_of_range)

    def _unknown(self, now: float) -> list[Position]:
        return [
            each
            for each in self._positions.values()
            if each.next_offset is None and not each.is_held and each.error is None and each.retry_at <= now
        ]

    async def _set(self, positions: list[Position]) -> None:
        versions = {position: position.version for position in positions}
        try:
            if self._committed is not None:
                found = await self._committed([each.partition for each in positions], LOOK_UP_TIMEOUT_S)
                for position in positions:
                    offset = found.get(position.partition)
                    if offset is not None and position.version == versions[position]:
                        position.move(offset.offset)
                        position.committed = offset.offset
            rest = [each for each in positions if each.next_offset is None and each.version == versions[each]]
            await self._reset(rest, versions)
        except ClusterError as error:
            self._failed([each for each in positions if each.version == versions[each]], error)

    async def _reset(self, positions: list[Position], versions: Mapping[Position, int]) -> None:
        timestamp = _POLICIES.get(self._policy)
        if timestamp is None:
            for position in positions:
                message = f"{position.partition}: no offset is committed, and auto_offset_reset is none"
                position.error = ClusterError(
                    ApiError.OFFSET_OUT_OF_RANGE, message, "seek, commit an offset, or change auto_offset_reset"
                )
            return
        wanted: dict[Partition, int] = {each.partition: timestamp for each in positions}
        found = await self._list(wanted, committed_only=self._committed_only)
        for position in positions:
            offset = found[position.partition]
            if position.version != versions[position]:
                continue
            if isinstance(offset, ClusterError):
                self._failed([position], offset)
            else:
                position.move(offset)

    async def _confirm_out_of_range(self) -> None:
        """Ask the leaders for the ranges of their logs, because a former leader may have sent OFFSET_OUT_OF_RANGE.

        The leaders are looked up first, if possible at a broker other than the one that sent this error.
        """
        positions = [each for each in self._positions.values() if each.was_out_of_range and each.error is None]
        versions = {position: position.version for position in positions}
        wanted: dict[Partition, int] = {each.partition: EARLIEST for each in positions}
        for topic, index in wanted:
            self._cluster.doubt_leader(topic, index)
        try:
            starts = await self._list(wanted)
            ends = await self._list(dict.fromkeys(wanted, LATEST))
            latest = (
                await self._list(dict.fromkeys(wanted, LATEST), committed_only=True) if self._committed_only else ends
            )
        except ClusterError as error:
            return self._failed([each for each in positions if each.version == versions[each]], error)
        now = asyncio.get_running_loop().time()
        for position in positions:
            start, end, last = starts[position.partition], ends[position.partition], latest[position.partition]
            if position.version != versions[position]:
                continue
            if isinstance(start, ClusterError):
                self._failed([position], start)
            elif isinstance(end, ClusterError) or isinstance(last, ClusterError):
                self._failed([position], end if isinstance(end, ClusterError) else _error(last))
            elif start <= position.fetch_offset <= end:
                position.was_out_of_range = False
                position.retry_at = now + _PAUSE_S
            elif position.next_offset is not None and start <= position.next_offset <= end:
                # Other records may get the offsets of the rest of the batch, so it is fetched again.
                self._in_progress.drop({position.partition})
                position.move(position.next_offset)
            elif self._policy == "none":
                position.error = OffsetOutOfRangeError(*position.partition, position.fetch_offset, start, end)
            else:
                if position.fetch_offset > end:  # otherwise the rest of the batch would move the position forward again
                    self._in_progress.release({position.partition})
                    position.committed = None  # perhaps the topic was created again, and its offsets were deleted
                    position.reset_at = now
                position.move(start if self._policy == "earliest" else last)
        self._on_change()
        return None

    async def _list(self, wanted: Mapping[Partition, int], *, committed_only: bool = False) -> Found:
        return await list_offsets(self._cluster, wanted, LOOK_UP_TIMEOUT_S, committed_only=committed_only)

    def _failed(self, positions: list[Position], error: ClusterError) -> None:
        now = asyncio.get_running_loop().time()
        for position in positions:
            if error.retriable:
                position.failed(error, now, self._cluster.random.uniform(_PAUSE_S / 2, _PAUSE_S * 3))
            else:
                position.error = error


def _error(outcome: int | ClusterError) -> ClusterError:
    assert isinstance(outcome, ClusterError)
    return outcome
