"""What was ever committed in one partition, by offset: all replicas and clients are held against it."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from broker.log import LogKey, PartitionLog
from quorumlog.errors import CorruptStoreError
from quorumlog.wire.compression import INFLATED_SIZE_MAX, decompress
from quorumlog.wire.record_batch import HEADER_SIZE, iter_headers
from simulation.cluster.metadata import Spot

_MARK = re.compile(rb"<(\d+)\.(\d+)>")
READ_BYTES = 1 << 20


class Mark(NamedTuple):
    """What a record holds: who wrote it (one producer id), and its number among that writer's records."""

    writer: int
    number: int

    @property
    def value(self) -> bytes:
        return b"<%d.%d>" % self


class Committed(NamedTuple):
    """A batch of a history."""

    base_offset: int
    end_offset: int
    leader_epoch: int
    crc: int
    marks: tuple[Mark, ...]


def marks_in(data: Any) -> tuple[Mark, ...]:
    """The marks of a batch's records, which are not compressed, in their order."""
    return tuple([Mark(int(writer), int(number)) for writer, number in _MARK.findall(data)])


def batches_in(data: bytes) -> Iterator[Committed]:
    view = memoryview(data)
    for position, header in iter_headers(data):
        body = view[position + HEADER_SIZE : position + header.size]
        marks = marks_in(decompress(header.codec, body, INFLATED_SIZE_MAX) if header.codec else body)
        yield Committed(header.base_offset, header.end_offset, header.leader_epoch, header.crc, marks)


def peek(log: PartitionLog, offset: int, end: int) -> bytes:
    """Read batches of `log`, and leave no trace: what only the judge has read counts as unread.

    Raises: CorruptStoreError.
    """
    checked = [(segment, segment._checked) for segment in log.segments]
    try:
        return log.read(offset, READ_BYTES, end)
    finally:
        for segment, before in checked:
            segment._checked = before


def batches_of(log: PartitionLog, offset: int, end: int) -> Iterator[Committed]:
    """The batches of `log` from the one that holds `offset` up to `end`, from however many segments."""
    while offset < end:
        before = offset
        try:
            data = peek(log, offset, end)
        except CorruptStoreError:  # `ClusterWatch` judges whether the log may be damaged
            return
        for batch in batches_in(data):
            yield batch
            offset = batch.end_offset
        if offset == before:
            return


class History:
    """The batches below the highest watermark that any leader has ever had.

    start: the highest log start that any replica has ever had.  Records below it may be deleted on every replica;
        the history keeps them, since replicas that still have them must have the same.
    """

    def __init__(self, key: LogKey, spot: Spot) -> None:
        self.key = key
        self.spot = spot
        self.batches: list[Committed] = []
        self.bases: list[int] = []
        self.places: dict[Mark, int] = {}
        self.last: dict[int, int] = {}  # of each writer, the number of its last record
        self.heard: dict[int, float] = {}  # when a batch of each writer became committed last
        self.last_offset: dict[int, int] = {}  # of each writer, the offset of its last record
        self.rebuilt_at = 0  # the highest offset at which a replica has started over
        self.start = self.end = 0
        self.cut: dict[int, set[Mark]] = {}  # by offset: what unclean elections have taken out
        self.unclean_epoch = self.begun_epoch = -1  # of the last unclean election; of the last that has been heard of
        self.start_meanwhile = 0  # as start, from an unclean election to the first that is heard of its leader
        self.unknown = range(0)  # offsets that the leader of an unclean election had deleted before it led
        self.ends: dict[int, int] = {}  # of what was committed when each leader epoch began

    def __repr__(self) -> str:
        return f"{self.spot.topic}-{self.spot.index}"

    def at(self, offset: int) -> Committed | None:
        """The batch that holds `offset`."""
        place = bisect_right(self.bases, offset) - 1
        return self.batches[place] if place >= 0 and offset < self.batches[place].end_offset else None

    def mark_at(self, offset: int) -> Mark | None:
        batch = self.at(offset)
        return None if batch is None else batch.marks[offset - batch.base_offset]

    def holds(self, offset: int, marks: Sequence[Mark]) -> bool:
        """Whether these records are there from `offset` on, or were until an unclean election."""
        return all(
            self.mark_at(offset + place) == mark or mark in self.cut.get(offset + place, ())
            for place, mark in enumerate(marks)
        )

    def add(self, batch: Committed, now_s: float, forgets_s: float) -> str | None:
        """Append a batch; return what is wrong with it.

        forgets_s: what a producer that has been silent for so long sends again may be appended again.

        A replica that starts over at its leader's log start knows only the producers of the records that it copies.
        It may become the leader, and then it accepts what any other producer sends again.
        """
        if batch.base_offset != self.end:
            return f"I20: {self}: a batch at {batch.base_offset} becomes committed, all before ends at {self.end}"
        forgotten = bool(batch.marks) and self._may_be_forgotten(batch.marks[0].writer, now_s, forgets_s)
        for place, mark in enumerate(batch.marks):
            self.heard[mark.writer] = now_s
            if forgotten:
                self.last.pop(mark.writer, None)
            elif mark in self.places:
                return f"I22: {self}: {mark} is at {self.places[mark]} and again at {batch.base_offset + place}"
            if mark.number <= self.last.get(mark.writer, -1):
                return f"I20: {self}: {mark} at {batch.base_offset} comes after {self.last[mark.writer]}"
            self.places[mark] = self.last_offset[mark.writer] = batch.base_offset + place
            self.last[mark.writer] = mark.number
        self.batches.append(batch)
        self.bases.append(batch.base_offset)
        self.end = batch.end_offset
        return None

    def _may_be_forgotten(self, writer: int, now_s: float, forgets_s: float) -> bool:
        is_silent = now_s - self.heard.get(writer, now_s) >= forgets_s
        return is_silent or self.last_offset.get(writer, self.rebuilt_at) < self.rebuilt_at

    def cut_to(self, end: int) -> int:
        """An unclean election has taken out what is from `end` on; how many records."""
        count = 0
        while self.batches and self.batches[-1].end_offset > end:
            batch = self.batches.pop()
            self.bases.pop()
            for place, mark in enumerate(batch.marks):
                count += 1
                del self.places[mark]
                self.cut.setdefault(batch.base_offset + place, set()).add(mark)
        self.end = self.batches[-1].end_offset if self.batches else 0
        self.ends = {epoch: min(one, self.end) for epoch, one in self.ends.items()}
        self.start = min(self.start, self.end)
        self.last = {}
        self.last_offset = {}
        for mark, offset in self.places.items():
            self.last[mark.writer] = max(mark.number, self.last.get(mark.writer, -1))
            self.last_offset[mark.writer] = max(offset, self.last_offset.get(mark.writer, -1))
        return count

    def begin_at(self, offset: int) -> None:
        """The leader of an unclean election has records from `offset` on, perhaps above what it shares with others."""
        self.start, self.start_meanwhile = max(self.start, offset, self.start_meanwhile), 0
        if offset > self.end:
            self.unknown, self.end = range(self.end, offset), offset
