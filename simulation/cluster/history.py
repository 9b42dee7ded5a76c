"""The committed batches of one partition, by offset, with which all replicas and answers to clients are compared."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from broker.log import LogKey, PartitionLog
from broker.log.recent import RecentAppends
from quorumlog.errors import CorruptStoreError
from quorumlog.wire.compression import INFLATED_SIZE_MAX, decompress
from quorumlog.wire.record_batch import HEADER_SIZE, iter_headers
from simulation.cluster.compaction import Entries, KeyedRecords, entries_in, missing_in
from simulation.cluster.metadata import Spot
from simulation.cluster.transactional import Transactional, transaction_of

_MARK = re.compile(rb"<(\d+)\.(\d+)>")
_LETTER = re.compile(rb"__dlq\.errors\.partition.(\d+)&__dlq\.errors\.offset.(\d+)\$", re.DOTALL)
"""Matches the place of a record in the headers of its dead letter.  `&` and `$` are the lengths of the next names."""
READ_BYTES = 1 << 20
_NOTHING_RECENT = RecentAppends(0)


class Mark(NamedTuple):
    """The value of a record: the number of its writer (a producer), and its own number among the writer's records."""

    writer: int
    number: int

    @property
    def value(self) -> bytes:
        return b"<%d.%d>" % self


class Letter(NamedTuple):
    """A dead letter of a share group.  mark: the mark of its record, if the letter contains a copy of the record."""

    partition: int
    offset: int
    mark: Mark | None


class Committed(NamedTuple):
    """A batch of a history.

    marks: the mark of the record at each offset; None where compaction has removed it, and for markers.  Empty for a
        batch of dead letters.
    entries: the records, if the partition is compacted; otherwise empty.
    transaction: None if the batch belongs to no transaction.
    """

    base_offset: int
    end_offset: int
    leader_epoch: int
    crc: int
    marks: tuple[Mark | None, ...]
    entries: Entries = ()
    transaction: Transactional | None = None
    letters: tuple[Letter, ...] = ()

    @property
    def missing(self) -> Iterator[int]:
        """The offsets of a batch of a compacted partition that have no record."""
        return missing_in(self.base_offset, self.end_offset, self.entries)


def marks_in(data: Any) -> tuple[Mark, ...]:
    """Return the marks of a batch's records, which are not compressed, in their order."""
    return tuple([Mark(int(writer), int(number)) for writer, number in _MARK.findall(data)])


def letters_in(body: Any) -> tuple[Letter, ...]:
    """Return the dead letters in the records of a batch, in their order.  Either all contain copies, or none."""
    places = _LETTER.findall(body)
    marks: Sequence[Mark | None] = (marks_in(body) if places else ()) or (None,) * len(places)
    return tuple([Letter(int(index), int(at), mark) for (index, at), mark in zip(places, marks, strict=True)])


def batches_in(data: bytes, keyed: bool = False) -> Iterator[Committed]:
    """Yield the batches.  keyed: they belong to a compacted partition."""
    view = memoryview(data)
    for position, header in iter_headers(data):
        yield _committed(bytes(view[position : position + header.size]), keyed)


@lru_cache(maxsize=1024)  # every replica of a partition is compared, so a batch comes several times
def _committed(batch: bytes, keyed: bool) -> Committed:
    ((_, header),) = iter_headers(batch)
    entries: Entries = ()
    letters: tuple[Letter, ...] = ()
    marks: tuple[Mark | None, ...]
    if keyed:
        entries = entries_in(batch)
        found = {offset: mark for offset, entry in entries for mark in marks_in(entry.contents)}
        marks = tuple([found.get(offset) for offset in range(header.base_offset, header.end_offset)])
    elif header.is_control:
        marks = (None,) * (header.end_offset - header.base_offset)
    else:
        body = memoryview(batch)[HEADER_SIZE:]
        records = decompress(header.codec, body, INFLATED_SIZE_MAX) if header.codec else body
        letters = letters_in(records)
        marks = () if letters else marks_in(records)
    fields = (header.base_offset, header.end_offset, header.leader_epoch, header.crc, marks, entries)
    return Committed(*fields, transaction_of(memoryview(batch), 0, header), letters)


def peek(log: PartitionLog, offset: int, end: int) -> bytes:
    """Read batches of `log` from its disk, without marking them as checked, so that the product checks them itself.

    Raises:
        CorruptStoreError: the batches are damaged.
    """
    at = bisect_right(log.segments, offset, key=lambda one: one.end_offset)
    read = [(segment, segment._checked) for segment in log.segments[at : at + 1]]  # a read reaches only one segment
    recent, log._reader._recent = log._reader._recent, _NOTHING_RECENT
    try:
        return bytes(log.read(offset, READ_BYTES, end))
    finally:
        log._reader._recent = recent
        for segment, checked in read:
            segment._checked = checked


def batches_of(log: PartitionLog, offset: int, end: int, keyed: bool = False) -> Iterator[Committed]:
    """Yield the batches of `log` from the one that contains `offset` up to `end`, across segments."""
    while offset < end:
        before = offset
        try:
            data = peek(log, offset, end)
        except CorruptStoreError:  # `ReplicaWatch` checks whether the log may be damaged
            return
        for batch in batches_in(data, keyed):
            yield batch
            offset = batch.end_offset
        if offset == before:
            return


class History:
    """The batches below the highest watermark that any leader has ever had.

    start: the highest log start that any replica has ever had.  Records below it may be deleted on every replica.
        The history keeps them, because a replica that still has them must have the same records.
    """

    def __init__(self, key: LogKey, spot: Spot, records: KeyedRecords | None = None) -> None:
        """records: None unless the partition is compacted."""
        self.key = key
        self.spot = spot
        self.records = records
        self.batches: list[Committed] = []
        self.bases: list[int] = []
        self.places: dict[Mark, int] = {}
        self.last: dict[int, int] = {}  # by writer: the number of its last record
        self.heard: dict[int, float] = {}  # by writer: when its last batch became committed
        self.last_offset: dict[int, int] = {}  # by writer: the offset of its last record
        self.repeatable: dict[int, int] = {}  # by writer: its records below this offset may be appended again
        self.rebuilt_at = 0  # the highest offset at which a replica has restarted its log
        self.start = self.end = 0
        self.former_start = 0  # the highest start before an unclean election removed records
        self.unread_end = 0  # the highest watermark of a leader whose damaged log could not be read up to there
        self.cut: dict[int, set[Mark]] = {}  # by offset: the records that unclean elections have removed
        self.unclean_epoch = self.begun_epoch = -1  # of the last unclean election, and of the last one whose leader led
        self.start_meanwhile = 0  # highest log start since an unclean election whose leader was not seen yet
        self.unknown = range(0)  # offsets that the leader of an unclean election had deleted before
        self.ends: dict[int, int] = {}  # by leader epoch: the end of the committed records when it began

    def __repr__(self) -> str:
        return f"{self.spot.topic}-{self.spot.index}"

    def at(self, offset: int) -> Committed | None:
        """Return the batch that contains `offset`."""
        place = bisect_right(self.bases, offset) - 1
        return self.batches[place] if place >= 0 and offset < self.batches[place].end_offset else None

    def mark_at(self, offset: int) -> Mark | None:
        batch = self.at(offset)
        return None if batch is None else batch.marks[offset - batch.base_offset]

    @property
    def is_keyed(self) -> bool:
        """Whether the partition is compacted."""
        return self.records is not None

    def has(self, batch: Committed) -> bool:
        """Return whether the batch is committed; if compaction has merged it, whether all its records are committed."""
        if self.records is None or batch.base_offset >= self.end:
            return self.at(batch.base_offset) == batch
        ends = [self.at(offset) for offset in (batch.base_offset, batch.end_offset - 1)]
        is_same_epoch = all(one is None or one.leader_epoch == batch.leader_epoch for one in ends)
        return batch.end_offset <= self.end and is_same_epoch and self.records.differing(batch.entries) is None

    def reach(self, batch: Committed, now_s: float, wall_ms: int) -> str | None:
        """Make room for a batch that begins below the end and ends above it.

        Such a batch occurs if an unclean election has cut the history, and a leader that had compacted the log before
        leads again.  Return a violation if the batch lacks required records below the end; otherwise None.
        """
        if self.records is None or not batch.base_offset < self.end < batch.end_offset or self.unclean_epoch < 0:
            return None
        first = self.at(batch.base_offset)
        is_same_epoch = first is None or first.leader_epoch == batch.leader_epoch
        if not is_same_epoch or self.records.differing(batch.entries) is not None:
            return None
        problem = self.lost(batch, now_s, wall_ms)
        self.cut_to(batch.base_offset)
        return problem

    def lost(self, batch: Committed, now_s: float, wall_ms: int) -> str | None:
        """Return why a replica must not lack the records that this batch lacks, or None."""
        return None if self.records is None else self.records.lost(batch.missing, now_s, wall_ms)

    def holds(self, offset: int, marks: Sequence[Mark | None]) -> bool:
        """Return whether these records are in the history from `offset` on, or were before an unclean election."""
        return all(
            mark is None or self.mark_at(offset + place) == mark or mark in self.cut.get(offset + place, ())
            for place, mark in enumerate(marks)
        )

    def add(self, batch: Committed, now_s: float, forgets_s: float) -> str | None:
        """Append a batch.  Return the violation that it causes, or None.

        forgets_s: if a producer was not heard from for this long, a leader may append its retries again: all batches
            that it had in flight, not only the first one.

        A replica that restarts its log at its leader's log start knows only the producers of the records that it
        copies.  It may become the leader, and then it appends retries of any other producer again.
        """
        if batch.base_offset != self.end:
            return f"I20: {self}: a batch at {batch.base_offset} becomes committed, the one before ends at {self.end}"
        marks = [(place, mark) for place, mark in enumerate(batch.marks) if mark is not None]
        forgotten = bool(marks) and self._may_be_forgotten(marks[0][1].writer, now_s, forgets_s)
        for place, mark in marks:
            self.heard[mark.writer] = now_s
            if forgotten:
                self.last.pop(mark.writer, None)
                self.repeatable[mark.writer] = self.end
            elif self.places.get(mark, -1) >= self.repeatable.get(mark.writer, 0):
                return f"I22: {self}: {mark} is at {self.places[mark]} and again at {batch.base_offset + place}"
            if mark.number <= self.last.get(mark.writer, -1):
                return f"I20: {self}: {mark} at {batch.base_offset} comes after {self.last[mark.writer]}"
            self.places[mark] = self.last_offset[mark.writer] = batch.base_offset + place
            self.last[mark.writer] = mark.number
        self.batches.append(batch)
        self.bases.append(batch.base_offset)
        self.end = batch.end_offset
        if self.records is not None:
            self.records.add(batch, now_s)
        return None

    def _may_be_forgotten(self, writer: int, now_s: float, forgets_s: float) -> bool:
        is_silent = now_s - self.heard.get(writer, now_s) >= forgets_s
        return is_silent or self.last_offset.get(writer, self.rebuilt_at) < self.rebuilt_at

    def cut_to(self, end: int) -> int:
        """Remove the records from `end` on, which an unclean election has lost.  Return their number."""
        count = 0
        while self.batches and self.batches[-1].end_offset > end:
            batch = self.batches.pop()
            self.bases.pop()
            for place, mark in enumerate(batch.marks):
                if mark is None:
                    continue
                count += 1
                self.places.pop(mark, None)  # absent if its later copy was removed before
                self.cut.setdefault(batch.base_offset + place, set()).add(mark)
        self.end = self.batches[-1].end_offset if self.batches else 0
        if self.records is not None:
            self.records.cut_to(self.end)
        self.ends = {epoch: min(one, self.end) for epoch, one in self.ends.items()}
        self.start = min(self.start, self.end)
        self.last = {}
        self.last_offset = {}
        for mark, offset in self.places.items():
            self.last[mark.writer] = max(mark.number, self.last.get(mark.writer, -1))
            self.last_offset[mark.writer] = max(offset, self.last_offset.get(mark.writer, -1))
        return count

    def start_over(self, shared: int, start: int, end: int) -> int:
        """Continue with the log of an uncleanly elected leader.  Return how many records are lost.

        shared: the log and the history agree up to here.  start, end: the start and end of the log.
        """
        deleted = self.start
        self.former_start, self.unread_end = max(self.former_start, deleted), 0
        lost = self.cut_to(shared)
        self.begin_at(start)
        if self.is_keyed:
            # A batch that compaction has merged may begin below the start of the history, and reach past its end.  Such
            # a batch does not agree as a whole, so the history is cut below the start of the replicas that follow.
            self.start = max(self.start, min(deleted, end))
        return lost

    def begin_at(self, offset: int) -> None:
        """Start the history at `offset`, the log start of an uncleanly elected leader; it may be above the end."""
        self.start, self.start_meanwhile = max(self.start, offset, self.start_meanwhile), 0
        if offset > self.end:
            self.unknown, self.end = range(self.end, offset), offset
