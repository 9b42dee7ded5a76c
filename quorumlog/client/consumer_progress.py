"""The records that the user of a consumer processes, and the partitions whose offsets a transaction must contain."""

from __future__ import annotations

import asyncio
from collections.abc import Set

from quorumlog.client.messages import TopicPartition
from quorumlog.client.positions import Position
from quorumlog.wire._record_scan import Record


class RecordsInProgress:
    """The current batch.  The records that the user got last are in progress until the user asks for more.

    batch, at: the batch, and the index of the next record that the user gets.
    current: the position in the batch's partition; None without a batch and without records in progress.
    open_offset: the first offset in progress; None if nothing is in progress.
    looks: the number of times that the user has asked for a batch.  is_looking: a call waits for a batch now.
    """

    __slots__ = ("_idle", "at", "batch", "current", "is_looking", "looks", "open_offset")

    def __init__(self) -> None:
        self.batch: list[Record] = []
        self.at = 0
        self.current: Position | None = None
        self.open_offset: int | None = None
        self.looks = 0
        self.is_looking = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def is_used_up(self) -> bool:
        """Return whether the batch has no more records for the user."""
        return self.at >= len(self.batch)

    def mark(self) -> object | None:
        """Return a value that changes whenever the user gets records; None while the user waits for records."""
        return None if self.is_looking else (self.looks, self.open_offset)

    def begin(self, batch: list[Record], position: Position) -> None:
        """Start to hand out a batch, which must not be empty."""
        self.batch, self.at, self.current = batch, 0, position
        self._idle.clear()

    def finish(self) -> None:
        """Note that the user has finished the records in progress, and drop the rest of the batch."""
        self.batch, self.at = [], 0
        self.current = None
        self.open_offset = None
        self._idle.set()

    async def finished(self) -> None:
        """Return once nothing is in progress."""
        await self._idle.wait()

    def drop(self, partitions: Set[TopicPartition]) -> None:
        """Hand out no more records of these partitions; records in progress stay in progress."""
        if self.current is not None and self.current.partition in partitions:
            self.batch, self.at = [], 0

    def release(self, partitions: Set[TopicPartition]) -> None:
        """Drop the records of these partitions.  The offsets of records in progress are no longer needed."""
        self.drop(partitions)
        if self.current is not None and self.current.partition in partitions:
            self.open_offset = None

    def refetch(self) -> None:
        """Drop the rest of the batch, so that it is fetched again later."""
        position = self.current
        if position is None:
            return
        rest = not self.is_used_up
        self.drop({position.partition})
        if rest:
            position.move(position.next_offset)

    def next_records(self, max_records: int | None) -> list[Record]:
        """Return the next records of the batch, which must have some, and put them in progress.

        max_records: None means all the rest.
        """
        assert self.current is not None
        end = len(self.batch) if max_records is None else min(self.at + max(max_records, 1), len(self.batch))
        records = self.batch[self.at : end] if self.at or end < len(self.batch) else self.batch
        self.at = end
        self.open_offset = records[0].offset
        self.current.next_offset = records[-1].offset + 1
        return records

    def offset_to_commit(self, position: Position, *, includes_open: bool) -> int | None:
        """Return the offset after the processed records of a partition; None if its position is unknown.

        includes_open: treat records in progress as processed.
        """
        is_open = position is self.current and self.open_offset is not None and not includes_open
        return self.open_offset if is_open and position.next_offset is not None else position.next_offset


class UnsentOffsets:
    """The partitions whose records were handed out since the last `Consumer.offsets_to_send`.

    The group may take some of these partitions from the consumer.  Their next owner reads the records again, so a
    transaction must not contain the results of these records.
    """

    def __init__(self) -> None:
        self._unsent: set[TopicPartition] = set()
        self._taken: set[TopicPartition] = set()

    def handed_out(self, partition: TopicPartition) -> None:
        self._unsent.add(partition)

    def sought(self, partition: TopicPartition) -> None:
        """Note a seek: the user no longer needs the records that were handed out before it."""
        self._unsent.discard(partition)

    def taken_away(self, partitions: Set[TopicPartition]) -> None:
        """Note that the group has taken partitions from the consumer."""
        self._taken |= partitions & self._unsent

    def send(self) -> list[TopicPartition]:
        """Return the partitions that were taken away before their offsets were sent, ascending; then start over."""
        taken = sorted(self._taken)
        self._unsent.clear()
        self._taken.clear()
        return taken
