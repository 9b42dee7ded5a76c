"""The records of a consumer that its user works on, and those whose offsets a transaction must contain."""

from __future__ import annotations

import asyncio
from collections.abc import Set

from quorumlog.client.messages import TopicPartition
from quorumlog.client.positions import Position
from quorumlog.wire._record_scan import Record


class RecordsInProgress:
    """The current batch.  Those of its records that the user got last are in progress until the user asks for more.

    batch, at: the batch, and the index of the next record that the user gets.
    current: the position of the batch's partition, and of the records in progress; None without either.
    open_offset: the first offset in progress; None if nothing is in progress.
    looks, is_looking: how often the user has asked for a batch, and whether a call waits for one now.
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
        """Return something that changes whenever the user gets records; None while the user waits for some."""
        return None if self.is_looking else (self.looks, self.open_offset)

    def begin(self, batch: list[Record], position: Position) -> None:
        """Take a batch that is not empty."""
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
        """Drop the records of these partitions, also those in progress, whose offsets are of no use any more."""
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
        """Return records of the batch, which has more, and put them in progress.  max_records: None: all of them."""
        assert self.current is not None
        end = len(self.batch) if max_records is None else min(self.at + max(max_records, 1), len(self.batch))
        records = self.batch[self.at : end] if self.at or end < len(self.batch) else self.batch
        self.at = end
        self.open_offset = records[0].offset
        self.current.next_offset = records[-1].offset + 1
        return records

    def offset_to_commit(self, position: Position, *, includes_open: bool) -> int | None:
        """Return the offset after the processed records of a partition; None if its position is unknown.

        includes_open: count records in progress as processed.
        """
        is_open = position is self.current and self.open_offset is not None and not includes_open
        return self.open_offset if is_open and position.next_offset is not None else position.next_offset


class UnsentOffsets:
    """The partitions of which records were handed out since the last `Consumer.offsets_to_send`.

    The group may take some of them from the consumer.  Their next owner reads the records again, so a transaction must
    not contain the results of these records.
    """

    def __init__(self) -> None:
        self._unsent: set[TopicPartition] = set()
        self._taken: set[TopicPartition] = set()

    def handed_out(self, partition: TopicPartition) -> None:
        self._unsent.add(partition)

    def sought(self, partition: TopicPartition) -> None:
        """Note that the user does not need the records before a seek any more."""
        self._unsent.discard(partition)

    def taken_away(self, partitions: Set[TopicPartition]) -> None:
        """Note that the group has taken partitions from the consumer."""
        self._taken |= partitions & self._unsent

    def send(self) -> list[TopicPartition]:
        """Begin anew; return the partitions that were taken away before their offsets were sent, ascending."""
        taken = sorted(self._taken)
        self._unsent.clear()
        self._taken.clear()
        return taken
