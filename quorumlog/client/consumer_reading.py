"""The partitions that a consumer reads: their positions, the fetches ahead, and the batch that the user gets next."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Set
from contextlib import suppress

from quorumlog.client.cluster import Cluster
from quorumlog.client.consumer import LATEST
from quorumlog.client.consumer_progress import RecordsInProgress, UnsentOffsets
from quorumlog.client.consumer_settings import ConsumerSettings
from quorumlog.client.fetcher import Fetcher
from quorumlog.client.group_member import GroupMember
from quorumlog.client.log_offsets import list_offsets
from quorumlog.client.messages import TopicPartition, as_offset
from quorumlog.client.positions import Position
from quorumlog.client.starting_offsets import Committed, StartingOffsets
from quorumlog.errors import ClusterError
from quorumlog.wire.errors import ApiError


class Reading:
    """The partitions of one consumer.  Only this object adds and removes positions.

    positions: the positions by partition; empty at first, and shared with `Commits`.
    committed: returns the committed offsets of the group; None without a group.
    """

    def __init__(
        self,
        cluster: Cluster,
        positions: dict[TopicPartition, Position],
        settings: ConsumerSettings,
        committed: Committed | None,
    ) -> None:
        self.positions = positions
        self.in_progress = RecordsInProgress()
        self.unsent = UnsentOffsets()
        self.must_yield = False
        """Set when a buffer gets room: the next fetch should begin before the user gets more records."""
        self.fetcher = Fetcher(
            cluster, positions, settings.fetch, self._fetched, committed_only=settings.committed_only
        )
        self.starting = StartingOffsets(
            cluster,
            positions,
            settings.auto_offset_reset,
            committed,
            self.in_progress,
            self._positions_set,
            committed_only=settings.committed_only,
        )
        self._cluster = cluster
        self._committed_only = settings.committed_only
        self._turn = 0
        self._ready = asyncio.Event()
        """Set when there may be records, or an error."""

    def wake(self) -> None:
        """Make the user's call look for records and errors again."""
        self._ready.set()

    def expect(self) -> None:
        """Forget earlier changes: `changed` waits for changes after this call."""
        self._ready.clear()

    async def changed(self) -> None:
        """Wait until something has changed, or for one second, since a time limit may have passed meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._ready.wait()

    def take(self) -> bool:
        """Take the next batch, from each partition in turn; return whether there is one.

        Raises: ClusterError: the error of a partition.
        """
        positions = list(self.positions.values())
        for number in range(len(positions)):
            position = positions[(self._turn + number) % len(positions)]
            if position.is_paused:
                continue
            if position.error is not None:
                found, position.error = position.error, None
                self.starting.wake()
                self.fetcher.wake()
                raise found
            if not position.chunks:
                continue
            before = position.buffered_bytes
            try:
                records = position.take()
            except ClusterError:
                self.fetcher.wake()  # the damage is fetched again
                raise
            if position.buffered_bytes < before:
                self.must_yield = True
                self.fetcher.wake()
            if records:
                self._turn += number + 1
                self.in_progress.begin(records, position)
                self.unsent.handed_out(position.partition)
                return True
        return False

    def raise_failures(self, member: GroupMember | None, timeout_s: float) -> None:
        """Raise an error if a partition or the group has failed for `timeout_s`.  Raises: ClusterError.

        Paused partitions are left out: they are not fetched, so a failure before the pause may have ended.
        """
        now = asyncio.get_running_loop().time()
        wanted = (position for position in self.positions.values() if not position.is_paused)
        for each in (*wanted, member):
            since = None if each is None else each.failing_since
            if each is not None and since is not None and now - since >= timeout_s:
                each.failing_since = now
                failure = each.failure
                assert failure is not None
                message = f"no success for {timeout_s:g} s; the last answer was: {failure.message}"
                raise ClusterError(ApiError.TIMED_OUT, message, failure.next_step, retriable=True) from failure

    def position(self, partition: tuple[str, int]) -> Position:
        """Return the position in a partition.  Raises: ClusterError: INVALID_REQUEST if it is not assigned."""
        found = self.positions.get(TopicPartition(*partition))
        if found is None:
            message = f"{TopicPartition(*partition)} is not assigned to this consumer"
            raise ClusterError(ApiError.INVALID_REQUEST, message, "see assignment()")
        return found

    def add(self, partitions: Iterable[TopicPartition], *, held: bool = False) -> list[Position]:
        """Begin to read partitions; return the positions of the new ones.  held: see `Position.is_held`."""
        added = []
        for partition in sorted(set(partitions) - self.positions.keys()):
            position = self.positions[partition] = Position(partition)
            position.is_held = held
            added.append(position)
        self.starting.wake()
        return added

    def look_up(self, positions: Iterable[Position]) -> None:
        """End the hold on positions.  `StartingOffsets` then looks up each position that the user has not set."""
        for position in positions:
            position.is_held = False
        self.starting.wake()
        self.fetcher.wake()

    def remove(self, partitions: Set[TopicPartition]) -> None:
        """Stop reading partitions; their records are dropped."""
        self.in_progress.release(partitions)
        for partition in partitions:
            self.positions.pop(partition, None)
        self.fetcher.wake()

    def restart(self, partitions: Set[TopicPartition], since: float) -> None:
        """Begin anew in partitions whose logs were replaced; a pause continues.

        since: the loop time since which the logs may have been replaced.  A position that was assigned later, or reset
            later because the log was shorter, is treated as one in the new log.
        """
        for partition in partitions:
            position = self.positions.get(partition)
            if position is not None and position.reset_at < since:
                self.in_progress.release({partition})
                position.committed = None  # brokers delete the offsets of deleted topics
                position.move(None)
        self.starting.wake()
        self.fetcher.wake()

    def pause(self, partitions: Iterable[tuple[str, int]]) -> None:
        named = [self.position(each) for each in partitions]
        if self.in_progress.current in named:
            self.in_progress.refetch()
        now = asyncio.get_running_loop().time()
        for position in named:
            position.pause(now)
        self.fetcher.wake()  # other partitions may now get the room of the paused ones

    def resume(self, partitions: Iterable[tuple[str, int]]) -> None:
        named = [self.position(each) for each in partitions]
        now = asyncio.get_running_loop().time()
        for position in named:
            position.resume(now)
        self.fetcher.wake()
        self._ready.set()

    def seek(self, partition: tuple[str, int], offset: int) -> None:
        """Continue at an offset.  Raises: ClusterError: the partition is not assigned; TypeError; ValueError."""
        offset = as_offset(offset)
        position = self.position(partition)
        self.in_progress.release({position.partition})
        self.unsent.sought(position.partition)
        position.is_held = False
        position.move(offset)
        self.fetcher.wake()

    def uncommitted(
        self, partitions: Iterable[TopicPartition] | None = None, *, includes_open: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the offsets to commit, by partition; offsets that are already committed are left out.

        partitions: None means all.  includes_open: treat records in progress as processed.
        """
        found: dict[TopicPartition, int] = {}
        for partition in list(self.positions) if partitions is None else partitions:
            position = self.positions.get(partition)
            if position is None:
                continue
            offset = self.in_progress.offset_to_commit(position, includes_open=includes_open)
            if offset is not None and offset != position.committed:
                found[partition] = offset
        return found

    async def offsets_at(
        self, partitions: Iterable[tuple[str, int]], timestamp: int, timeout_s: float
    ) -> dict[TopicPartition, int]:
        """Return the offsets for a time, for readers of this isolation level; see `list_offsets`.

        timestamp: in ms since 1970, EARLIEST or LATEST.

        Raises: ClusterError.
        """
        wanted = {(topic, index): timestamp for topic, index in partitions}
        found = await list_offsets(self._cluster, wanted, timeout_s, committed_only=self._committed_only)
        offsets = {}
        for partition, outcome in found.items():
            if isinstance(outcome, ClusterError):
                raise outcome
            offsets[TopicPartition(*partition)] = outcome
        return offsets

    async def lag(self, timeout_s: float) -> dict[TopicPartition, int]:
        """Return the number of offsets from each known position to the end of its partition.  Raises: ClusterError."""
        ends = await self.offsets_at(self.positions, LATEST, timeout_s)
        return {
            partition: max(end - position.next_offset, 0)
            for partition, end in ends.items()
            if (position := self.positions.get(partition)) is not None and position.next_offset is not None
        }

    def _fetched(self) -> None:
        self._ready.set()
        self.starting.wake()

    def _positions_set(self) -> None:
        self._ready.set()
        self.fetcher.wake()
